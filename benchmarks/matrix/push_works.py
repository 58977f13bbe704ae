"""Push consumers of Downrange as clients of the matrix: throughput and end-to-end latency.

"push" starts a consumer of a new group, which reads a filled topic from its first to its last
message, repeatedly. The time from the first to the last call of the handler is measured, without
start and close. "push-one" and "push-paced" send with a producer in the same process, and measure
from the call of `send` until the handler begins. "push-paced" sends at uneven intervals, 0.5 to 1.5
times the mean: even ones could fall into step with the timer of Apache's broker, which makes new
messages visible once per millisecond.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.load import cpu_seconds, own_bytes, percentiles_us
from benchmarks.matrix.cells import PACED_RATE
from benchmarks.matrix.tasks import Measured
from benchmarks.server_pair import QUEUES
from downrange import AsyncProducer, AsyncPushConsumer, Message, Producer, PushConsumer
from downrange.options.consumers import ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator

    from benchmarks.matrix.tasks import Task
    from downrange import ReceivedMessage

    Handler: TypeAlias = Callable[[ReceivedMessage], None]

_PASS_TIMEOUT: Final = 60.0
_ARRIVE_TIMEOUT: Final = 10.0


class Passes:
    """Counts messages of passes over a topic, and the time and CPU of each."""

    def __init__(self, task: Task) -> None:
        """Count nothing yet."""
        self._task = task
        self._messages = 0
        self._seconds = self._client_cpu = self._server_cpu = 0.0
        self._before = Usage(task)
        self._on_end: Callable[[], object] = int

    def begin(self, on_end: Callable[[], object]) -> Callable[[ReceivedMessage], None]:
        """Begin a pass: return a handler that only reads the length of the body.

        Any number of threads may call it. After the last message it calls a function.
        """
        self._on_end = on_end
        numbers, size, last = itertools.count(), self._task.body_bytes, self._task.stored - 1

        def handle(message: ReceivedMessage) -> None:
            number = next(numbers)
            if len(message.body) != size:
                raise RuntimeError(f"a body of {len(message.body)} bytes")
            if not number:
                self._started()
            elif number == last:
                self._ended()

        return handle

    def _started(self) -> None:
        self._before = Usage(self._task)

    def _ended(self) -> None:
        before, now = self._before, Usage(self._task)
        self._seconds += now.started - before.started
        self._client_cpu += now.client_cpu - before.client_cpu
        self._server_cpu += now.server_cpu - before.server_cpu
        self._messages += self._task.stored
        self._on_end()

    def measured(self) -> Measured:
        """Return the results of all passes."""
        return Measured(
            messages=self._messages,
            messages_before=0,
            seconds=self._seconds,
            client_cpu=self._client_cpu,
            server_cpu=self._server_cpu,
            client_bytes=own_bytes(["self"]),
        )


class Arrivals:
    """Latencies from a send to the handler; the body of a message is the time of its send."""

    def __init__(self) -> None:
        """Record messages that are sent from now on."""
        self._since = time.perf_counter_ns()
        self.spans: list[float] = []

    @property
    def count(self) -> int:
        """How many messages have arrived."""
        return len(self.spans)

    def note(self, message: ReceivedMessage) -> None:
        """Record a message."""
        now, sent = time.perf_counter_ns(), int(message.body)
        if sent >= self._since:
            self.spans.append((now - sent) / 1e9)

    def measured(self, task: Task, before: Usage) -> Measured:
        """Return the results since a time, before which each queue got one message."""
        spans = self.spans[QUEUES:]
        return Measured(
            messages=len(spans),
            messages_before=QUEUES,
            seconds=time.perf_counter() - before.started,
            client_cpu=time.process_time() - before.client_cpu,
            server_cpu=cpu_seconds(task.pids) - before.server_cpu,
            client_bytes=own_bytes(["self"]),
            latencies_us=percentiles_us(spans),
        )


class Usage:
    """The CPU time of this process and of a server, now."""

    def __init__(self, task: Task) -> None:
        """Read the clocks."""
        self.server_cpu = cpu_seconds(task.pids)
        self.client_cpu = time.process_time()
        self.started = time.perf_counter()


def _group(task: Task) -> str:
    return f"bench-push-{task.client}-{time.time_ns()}"


def _options() -> ConsumerOptions:
    return ConsumerOptions(start="earliest")


def _stamped(task: Task) -> Message:
    """Return a message of the usual size that says when it is sent."""
    now = b"%d" % time.perf_counter_ns()
    return Message(task.topic, now.rjust(task.body_bytes))


def _paced(started: float) -> Iterator[float]:
    """Return when each next message is due."""
    generator = random.Random(1)
    due = started
    while True:
        due += generator.uniform(0.5, 1.5) / PACED_RATE
        yield due


# ---- asyncio -----------------------------------------------------------------------------------


async def run_async(task: Task) -> Measured:
    """Run the task on this event loop."""
    return await (_passes_async(task) if task.work == "push" else _arrivals_async(task))


async def _passes_async(task: Task) -> Measured:
    passes, count = Passes(task), 0
    end = time.perf_counter() + task.seconds
    while not count or time.perf_counter() < end:
        is_over = asyncio.Event()
        count_message = passes.begin(is_over.set)

        async def handle(message: ReceivedMessage, count: Handler = count_message) -> None:
            count(message)

        async with AsyncPushConsumer(
            task.name_server,
            group=_group(task),
            subscribe=[task.topic],
            handler=handle,
            options=_options(),
        ):
            await asyncio.wait_for(is_over.wait(), _PASS_TIMEOUT)
        count += 1
    return passes.measured()


@asynccontextmanager
async def _arriving_async(
    task: Task, arrivals: Arrivals, changed: Callable[[], None]
) -> AsyncGenerator[AsyncProducer]:
    async def handle(message: ReceivedMessage) -> None:
        arrivals.note(message)
        changed()

    async with (
        AsyncProducer(task.name_server, group="bench-asyncio") as producer,
        AsyncPushConsumer(
            task.name_server,
            group=_group(task),
            subscribe=[task.topic],
            handler=handle,
        ),
    ):
        yield producer


async def _arrivals_async(task: Task) -> Measured:
    arrivals, changed = Arrivals(), asyncio.Event()

    async def arrived(count: int) -> None:
        async with asyncio.timeout(_ARRIVE_TIMEOUT):
            while arrivals.count < count:
                changed.clear()
                await changed.wait()

    async with _arriving_async(task, arrivals, changed.set) as producer:
        for _ in range(QUEUES):
            await producer.send(_stamped(task))
        await arrived(QUEUES)
        before = Usage(task)
        end = before.started + task.seconds
        sent = 0
        if task.work == "push-one":
            while time.perf_counter() < end:
                await producer.send(_stamped(task))
                sent += 1
                await arrived(QUEUES + sent)
        else:
            async for _ in _ticks(before.started, end):
                await producer.send(_stamped(task))
                sent += 1
        await arrived(QUEUES + sent)
        return arrivals.measured(task, before)


async def _ticks(started: float, end: float) -> AsyncGenerator[None]:
    """Yield when each message is due, until a time.

    A thread sleeps: timers of uvloop round to milliseconds, so that messages would go together, or
    in step with the broker's own timer.
    """
    loop, due = asyncio.get_running_loop(), asyncio.Queue[bool]()

    def tick() -> None:
        for time_due in _paced(started):
            time.sleep(max(0.0, time_due - time.perf_counter()))
            loop.call_soon_threadsafe(due.put_nowait, time_due < end)
            if time_due >= end:
                return

    ticking = loop.run_in_executor(None, tick)
    while await due.get():
        yield
    await ticking


# ---- threads -----------------------------------------------------------------------------------


def run_threads(task: Task) -> Measured:
    """Run the task in this process."""
    return _passes_threads(task) if task.work == "push" else _arrivals_threads(task)


def _passes_threads(task: Task) -> Measured:
    passes, count = Passes(task), 0
    end = time.perf_counter() + task.seconds
    while not count or time.perf_counter() < end:
        is_over = threading.Event()
        with PushConsumer(
            task.name_server,
            group=_group(task),
            subscribe=[task.topic],
            handler=passes.begin(is_over.set),
            options=_options(),
        ):
            if not is_over.wait(_PASS_TIMEOUT):
                raise RuntimeError("the pass did not end")
        count += 1
    return passes.measured()


@contextmanager
def _arriving_threads(
    task: Task, arrivals: Arrivals, changed: threading.Condition
) -> Generator[Producer]:
    def handle(message: ReceivedMessage) -> None:
        with changed:
            arrivals.note(message)
            changed.notify_all()

    with (
        Producer(task.name_server, group="bench-threads") as producer,
        PushConsumer(task.name_server, group=_group(task), subscribe=[task.topic], handler=handle),
    ):
        yield producer


def _arrivals_threads(task: Task) -> Measured:
    arrivals, changed = Arrivals(), threading.Condition()

    def arrived(count: int) -> None:
        with changed:
            if not changed.wait_for(lambda: arrivals.count >= count, _ARRIVE_TIMEOUT):
                raise RuntimeError(f"{arrivals.count} of {count} messages arrived")

    with _arriving_threads(task, arrivals, changed) as producer:
        for _ in range(QUEUES):
            producer.send(_stamped(task))
        arrived(QUEUES)
        before = Usage(task)
        sent, now, times = 0, before.started, _paced(before.started)
        while now < before.started + task.seconds:
            producer.send(_stamped(task))
            sent += 1
            if task.work == "push-one":
                arrived(QUEUES + sent)
            else:
                time.sleep(max(0.0, next(times) - time.perf_counter()))
            now = time.perf_counter()
        arrived(QUEUES + sent)
        return arrivals.measured(task, before)
