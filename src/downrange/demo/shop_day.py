"""A day of the shop: all services and readers at work, and a broker that dies in the middle of it.

One rule: threads end. Whoever leaves the context stops them, also by Ctrl-C.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from downrange.demo.audit import StoreReader
from downrange.demo.consumers import READERS, Reading, read
from downrange.demo.ledger import Account
from downrange.demo.orders import Shop
from downrange.demo.pace import OVERTIME, Pace
from downrange.demo.servers import ServerFailed
from downrange.demo.workload import (
    AUTO_CREATED,
    SERVICES,
    SETTLE_TIMEOUT,
    Shift,
    open_shop,
)
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from types import TracebackType

    from downrange.demo.audit import Found
    from downrange.demo.ledger import Tally
    from downrange.demo.progress import Bar, Stage
    from downrange.demo.servers import Servers
    from downrange.demo.workload import Service

#: When the broker dies, and for how long, as shares of the day.
OUTAGE_AT: Final = 0.3
OUTAGE_SHARE: Final = 0.25
_LOOK: Final = 0.1
#: Sends end with their own timeouts; more than this means that something hangs.
_PATIENCE: Final = 60.0


class NotSettled(RocketMQError):
    """Messages that were acknowledged did not appear in time."""


class Trading:
    """The day; a context manager.

    Args:
        servers: The cluster, running.
        seconds: How long the day is.
        seed: The same seed, the same orders.

    Attributes:
        accounts: Topic -> what its sender was told.
        readings: What the readers did.
    """

    def __init__(self, servers: Servers, *, seconds: float, seed: int) -> None:
        self._servers = servers
        self._seconds = seconds
        self._seed = seed
        self._stopped = threading.Event()
        self._settled = threading.Event()
        # One more for the outage.
        self._threads = ThreadPoolExecutor(len(SERVICES) + len(READERS) + 1, "shop")
        self._readers: list[Future[None]] = []
        self.accounts = {
            service.topic: Account(service.topic, service.mode) for service in SERVICES
        }
        self.readings = tuple(Reading(reader) for reader in READERS)

    def __enter__(self) -> Trading:
        """Enter; nothing is sent yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send everybody home, and wait until they are gone."""
        self._stopped.set()
        self._settled.set()
        self._threads.shutdown(cancel_futures=True)

    def open(self) -> str:
        """Make the topics; return the broker that will die: the one without the auto-created."""
        shop = Shop(self._seed, "trial")
        home = open_shop(self._servers.name_server, self.accounts[AUTO_CREATED], shop)
        return next(broker for broker in self._servers.brokers if broker != home)

    def trade(self, stage: Stage, victim: str) -> None:
        """Let everybody work until the last service has sent its last message.

        Args:
            stage: Where to show how it goes.
            victim: The broker that dies.

        Raises:
            RocketMQError: A server did not come back, or a service cannot connect.
        """
        shifts = [self._shift(service) for service in SERVICES]
        bars = {
            shift.account.topic: stage.bar(
                f"{shift.account.topic}: {shift.account.mode}", shift.pace.planned
            )
            for shift in shifts
        }
        work = [
            (self._threads.submit(service.run, shift), shift.has_sent)
            for service, shift in zip(SERVICES, shifts, strict=True)
        ]
        self._readers = [
            self._threads.submit(
                read,
                self._servers.name_server,
                reading,
                seconds=self._seconds,
                settled=self._settled,
            )
            for reading in self.readings
        ]
        work.append((self._threads.submit(self._break, stage, victim), threading.Event()))
        self._watch(bars, work)

    def settle(self, stage: Stage) -> dict[str, Found]:
        """Wait until all that was acknowledged can be read, then let the readers finish.

        Delayed messages come when they are due; transactions that were left open come when the
        broker has asked what became of them.

        Returns:
            Topic -> the messages that are stored.

        Raises:
            NotSettled: Some did not appear; says of which topics.
        """
        accounts = list(self.accounts.values())
        total = sum(account.tally().acknowledged for account in accounts)
        bar = stage.bar("read back", total)
        deadline = time.monotonic() + SETTLE_TIMEOUT
        with StoreReader(self._servers.name_server, list(self.accounts)) as reader:
            is_there = reader.wait_for(accounts, deadline, lambda left: bar.update(total - left))
            self._settled.set()
            _finish(self._readers)
            # What a reader or the broker did last, such as a second delivery, is there by now.
            reader.read_to_the_end(deadline)
        if not is_there:
            missing = ", ".join(
                f"{account.topic} {count}"
                for account in accounts
                if (count := reader.missing([account]))
            )
            raise NotSettled(
                f"acknowledged, but not there {SETTLE_TIMEOUT:.0f} s later: {missing}. The logs of "
                "the brokers may tell why"
            )
        return reader.found

    def _break(self, stage: Stage, victim: str) -> None:
        if self._stopped.wait(self._seconds * OUTAGE_AT):
            return
        self._servers.kill_broker(victim)
        stage.say(f"kill -9 {victim}: producers try the other one, and avoid this one")
        self._stopped.wait(self._seconds * OUTAGE_SHARE)
        took = self._servers.restart_broker(victim)
        stage.say(f"{victim} is back: it recovered its store and serves after {took:.1f} s")

    def _shift(self, service: Service) -> Shift:
        return Shift(
            self._servers.name_server,
            Pace(self._seconds, service.per_second, self._stopped),
            Shop(self._seed, service.name),
            self.accounts[service.topic],
            self._settled,
        )

    def _watch(
        self, bars: dict[str, Bar], work: list[tuple[Future[None], threading.Event]]
    ) -> None:
        """Move the bars until each part of the work is done, or has sent what it had."""
        deadline = time.monotonic() + self._seconds * OVERTIME + _PATIENCE
        while True:
            left = [future for future, has_sent in work if not has_sent.is_set()]
            ended, not_ended = wait(left, _LOOK, FIRST_EXCEPTION)
            for future in ended:
                future.result()
            for topic, bar in bars.items():
                tally = self.accounts[topic].tally()
                bar.update(tally.handed_over, _note(tally))
            if not not_ended:
                return
            if time.monotonic() > deadline:
                raise ServerFailed(f"the services did not end {_PATIENCE:.0f} s after their time")


def _note(tally: Tally) -> str:
    said = {"retried": tally.retried, "withdrawn": tally.withdrawn, "failed": tally.failed}
    return ", ".join(f"{count} {name}" for name, count in said.items() if count)


def _finish(readers: list[Future[None]]) -> None:
    """Wait until the readers have handled what there is.

    Raises:
        ServerFailed: They do not come to an end.
    """
    _, not_ended = wait(readers, _PATIENCE)
    if not_ended:
        raise ServerFailed(f"{len(not_ended)} readers did not end within {_PATIENCE:.0f} s")
    for reader in readers:
        reader.result()
