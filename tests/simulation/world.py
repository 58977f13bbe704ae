"""One simulated run: a broker on a machine, its clients, and faults, all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from downrange.errors import DiskFull
from downrange.server.run import broker_loop, flusher
from downrange.store.files import PowerLost
from downrange.wire.system_names import retry_topic
from tests.simulation.admins import Administrator
from tests.simulation.clients import AUTO_TOPICS, MAIN_TOPIC, QUEUES, Client
from tests.simulation.clock import VirtualLoop
from tests.simulation.consumers import Consumer
from tests.simulation.ledger import Ledger
from tests.simulation.machine import Machine
from tests.simulation.producers import Producer, Transactor

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from downrange.options import FlushMode
    from downrange.server.broker.state import BrokerState
    from tests.simulation.network import Network

#: How long faults are injected, and how long the broker may take to deliver everything after it.
FAULT_SECONDS = 15.0
RECOVERY_SECONDS = 120.0


class World:
    """One run.

    Args:
        seed: Determines everything that happens.

    Attributes:
        loop: The simulated clock.
        random: The only source of random numbers.
        ledger: What the broker promised.
        is_over: Whether clients must finish.
        lines: A log of the run.
        loses_power: Whether power may be lost, also during a start.
    """

    loses_power = True

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop()
        self.random = Random(seed)
        self.flush: FlushMode = "async" if self.random.random() < 0.25 else "sync"
        self.ledger = Ledger()
        self.machine = Machine(self.loop, self.random, self.flush)
        self.is_over = False
        self.lines: list[str] = []
        self._errors: list[BaseException] = []

    @property
    def network(self) -> Network:
        """The connections to the broker."""
        return self.machine.network

    @property
    def figures(self) -> dict[str, int]:
        """Counts for a summary of many runs."""
        return {}

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        self.lines.append(f"{self.loop.time():9.4f} {text}")

    def fingerprint(self) -> str:
        """Return a hash of all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def run(self) -> None:
        """Run to the end.

        Raises:
            AssertionError: A promise was broken.
        """
        with ExitStack() as stack:
            stack.callback(self.loop.close)
            stack.enter_context(self._clocks())
            stack.enter_context(self._logs())
            self.loop.set_exception_handler(self._on_loop_error)
            self.loop.run_until_complete(self._run())

    # ---- the run ----

    async def _run(self) -> None:
        await self._start()
        self.machine.disk.steps_left = None
        await self.create()
        workers, tasks = self.clients()
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(task) for task in tasks]
            work = [group.create_task(worker.run()) for worker in workers]
            await self.inject_faults()
            self.is_over = True
            async with asyncio.timeout(RECOVERY_SECONDS):
                await asyncio.gather(*work)
            await self.wait_for_delivery()
            await self.finish()
            for task in background:
                task.cancel()
        await self.machine.stop()
        await self._start()
        await self.machine.stop()
        assert not self._errors, self._errors

    async def create(self) -> None:
        """Create what the clients need."""
        await Administrator(self, "creator").create(MAIN_TOPIC, QUEUES)

    def clients(self) -> tuple[list[Client], list[Coroutine[Any, Any, None]]]:
        """Return the clients that work until the run is over, and tasks that go on after it."""
        transactors = [Transactor(self, "transactor")]
        workers: list[Client] = [
            *(Producer(self, f"producer{number}") for number in range(3)),
            *transactors,
            Administrator(self, "administrator"),
        ]
        queues = [(topic, queue) for topic in (MAIN_TOPIC, *AUTO_TOPICS) for queue in range(QUEUES)]
        sends_back = self.flush == "sync"
        readers = [Consumer(self, "all", queue, sends_back=sends_back) for queue in queues]
        readers.append(Consumer(self, "all", (retry_topic("all"), 0), reader="again"))
        readers += [Consumer(self, "some", queue, tags="A", reader="A") for queue in queues]
        tasks: list[Coroutine[Any, Any, None]] = [
            *(reader.run() for reader in readers),
            *(each.send_heartbeats() for each in transactors),
        ]
        return workers, tasks

    async def inject_faults(self) -> None:
        """Inject faults for a while; leave a broker that runs, on a disk with space."""
        self.network.cut_chance = self.random.choice((0.0, 0.002, 0.01))
        until = self.loop.time() + FAULT_SECONDS
        while self.loop.time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.random.uniform(0.1, 5.0)):
                    await self.machine.power_lost.wait()
            if self.machine.power_lost.is_set():
                await self._restart(is_power_lost=True)
            else:
                await self._inject_one_fault()
        self.network.cut_chance = 0.0
        self.machine.disk.free_space()
        if self.machine.power_lost.is_set():
            await self._restart(is_power_lost=True)
        self.machine.disk.steps_left = None
        self.note("no more faults")

    async def _inject_one_fault(self) -> None:
        disk, random = self.machine.disk, self.random
        match random.randrange(6):
            case 0:
                await self._restart(is_power_lost=False)
            case 1:
                await self._restart(is_power_lost=True)
            case 2 | 3:
                disk.steps_left = random.randrange(40)
                self.note(f"power will be lost after {disk.steps_left} steps")
            case 4:
                await self._stop()
            case _ if disk.is_full:
                disk.free_space()
                self.note("the disk has space")
            case _:
                disk.fill(random.randrange(5_000), reports_full=random.random() < 0.5)
                self.note("the disk is full")

    async def _stop(self) -> None:
        self.note("stop")
        self.on_end(self.machine.state)
        try:
            await self.machine.stop()
        except PowerLost:
            await self._restart(is_power_lost=True)
        except DiskFull:
            await self._restart(is_power_lost=False)
        else:
            await self._start()

    async def _restart(self, *, is_power_lost: bool) -> None:
        self.note("power is lost" if is_power_lost else "kill")
        self.on_end(self.machine.state)
        await self.machine.end_process(is_power_lost=is_power_lost)
        await asyncio.sleep(self.random.uniform(0.01, 2.0))
        await self._start(was_power_lost=is_power_lost)

    async def _start(self, *, was_power_lost: bool = False) -> None:
        """Start the broker, again after every fault, and check all promises."""
        disk = self.machine.disk
        while True:
            if self.loses_power and not self.is_over and self.random.random() < 0.2:
                disk.steps_left = self.random.randrange(60)
            try:
                await self.machine.start()
                break
            except PowerLost:
                self.note("power is lost during the start")
                was_power_lost = True
                await self.machine.end_process(is_power_lost=True)
            except DiskFull as error:
                self.note(f"cannot start: {error}")
                await self.machine.end_process(is_power_lost=False)
                disk.free_space()
        state = self.machine.state
        if was_power_lost and self.flush == "async":
            self.drop_from(self.machine.recovered_to)
        self.ledger.drop_before(self.machine.retained_from)
        if state.store.recovery.cut_at is not None:
            self.note(f"the log was cut: {state.store.recovery.cut_reason}")
        self.note(f"up, the log ends at {state.store.log.end}")
        self.check(state)

    def on_end(self, state: BrokerState) -> None:
        """Called before a process ends."""
        return

    def drop_from(self, log_offset: int) -> None:
        """Drop promises beyond a position: power was lost, and "async" promises no durability."""
        self.ledger.drop_from(log_offset)

    def check(self, state: BrokerState) -> None:
        """Compare all promises with a broker that was just started, or has delivered all."""
        self.ledger.check(state)

    def missing(self, state: BrokerState) -> list[str]:
        """Return what is still to be delivered."""
        return self.ledger.undelivered(state)

    async def finish(self) -> None:
        """Check what holds when all is delivered; clients still run."""
        return

    async def wait_for_delivery(self) -> None:
        """Wait until nothing is missing."""
        until = self.loop.time() + RECOVERY_SECONDS
        while missing := self.missing(self.machine.state):
            assert not self._errors, self._errors
            assert self.loop.time() < until, f"never delivered: {missing}"
            await asyncio.sleep(0.5)
        self.check(self.machine.state)

    # ---- replaced parts ----

    @contextmanager
    def _clocks(self) -> Generator[None]:
        """Replace the server's clocks by the simulated one."""
        with (
            patch.object(broker_loop, "wall_clock_ms", self.loop.wall_clock_ms),
            patch.object(flusher, "time", SimpleNamespace(monotonic=self.loop.time)),
        ):
            yield

    @contextmanager
    def _logs(self) -> Generator[None]:
        """Copy the server's log into the log of the run."""
        logger, handler = logging.getLogger("downrange"), _Lines(self)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.add_error(error if error is not None else RuntimeError(context["message"]))

    def add_error(self, error: BaseException) -> None:
        """Record an error that must not happen; the run fails at its end."""
        if not isinstance(error, PowerLost):
            self._errors.append(error)
            self.note(f"error: {error!r}")


class _Lines(logging.Handler):
    """Writes the server's log into the log of the run."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.note(f"log: {text}")
        if " failed: " in text and "PowerLost" not in text:  # in a tick of the broker
            self._world.add_error(AssertionError(text))
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._world.add_error(record.exc_info[1])
