"""Runs all services and consumers of the shop, with a broker crash in the middle.

One rule: leaving the context ends all threads, also after Ctrl-C.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from downrange.demo.audit import StoreReader
from downrange.demo.consumers import CONSUMERS, ConsumerProgress, run_consumer
from downrange.demo.schedule import OVERRUN_FACTOR, SendSchedule
from downrange.demo.send_log import SendLog
from downrange.demo.servers import ServerFailed
from downrange.demo.shop_events import Shop
from downrange.demo.workload import (
    AUTO_CREATED,
    SERVICES,
    SETTLE_TIMEOUT,
    ServiceContext,
    create_topics,
)
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from types import TracebackType

    from downrange.demo.audit import FoundMessages
    from downrange.demo.progress import Bar, Stage
    from downrange.demo.send_log import SendCounts
    from downrange.demo.servers import Servers
    from downrange.demo.workload import Service

#: When the broker is killed, and how long it stays down, as shares of the sending time.
OUTAGE_AT: Final = 0.3
OUTAGE_SHARE: Final = 0.25
_UPDATE_INTERVAL: Final = 0.1
#: Sends have their own timeouts; a thread that runs longer than this hangs.
_END_TIMEOUT: Final = 60.0


class NotSettled(RocketMQError):
    """Acknowledged messages could not be read in time."""


class ShopDay:
    """Services and consumers on a running cluster; a context manager.

    Args:
        servers: The cluster, running.
        seconds: How long the services send.
        seed: The same seed gives the same messages.

    Attributes:
        send_logs: Topic -> what its sender recorded.
        consumers: What each consumer group did.
    """

    def __init__(self, servers: Servers, *, seconds: float, seed: int) -> None:
        self._servers = servers
        self._seconds = seconds
        self._seed = seed
        self._stopped = threading.Event()
        self._settled = threading.Event()
        # One more thread kills the broker and restarts it.
        self._threads = ThreadPoolExecutor(len(SERVICES) + len(CONSUMERS) + 1, "shop")
        self._consumer_runs: list[Future[None]] = []
        self.send_logs = {
            service.topic: SendLog(service.topic, service.mode) for service in SERVICES
        }
        self.consumers = tuple(ConsumerProgress(plan) for plan in CONSUMERS)

    def __enter__(self) -> ShopDay:
        """Return itself; nothing is sent yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop all threads and wait for their end."""
        self._stopped.set()
        self._settled.set()
        self._threads.shutdown(cancel_futures=True)

    def create_topics(self) -> str:
        """Create the topics; return the broker to kill: the one without the auto-created topic."""
        shop = Shop(self._seed, "trial")
        owner = create_topics(self._servers.name_server, self.send_logs[AUTO_CREATED], shop)
        return next(broker for broker in self._servers.brokers if broker != owner)

    def run_services(self, stage: Stage, broker_to_kill: str) -> None:
        """Run services and consumers until the last service has sent its last message.

        Args:
            stage: Where to show the progress.
            broker_to_kill: The broker to kill.

        Raises:
            RocketMQError: A server did not restart, or a service cannot connect.
        """
        contexts = [self._context(service) for service in SERVICES]
        bars = {
            context.send_log.topic: stage.bar(
                f"{context.send_log.topic}: {context.send_log.mode}", context.schedule.planned
            )
            for context in contexts
        }
        runs = [
            (self._threads.submit(service.run, context), context.has_sent)
            for service, context in zip(SERVICES, contexts, strict=True)
        ]
        self._consumer_runs = [
            self._threads.submit(
                run_consumer,
                self._servers.name_server,
                progress,
                seconds=self._seconds,
                settled=self._settled,
            )
            for progress in self.consumers
        ]
        runs.append(
            (self._threads.submit(self._crash_broker, stage, broker_to_kill), threading.Event())
        )
        self._update_bars(bars, runs)

    def read_back(self, stage: Stage) -> dict[str, FoundMessages]:
        """Wait until every acknowledged message can be read, then wait for the consumers.

        Delayed messages become readable when they are due. Open transactions become readable when
        the broker has checked them.

        Returns:
            Topic -> the stored messages.

        Raises:
            NotSettled: Some messages did not appear; names their topics.
        """
        send_logs = list(self.send_logs.values())
        total = sum(send_log.counts().acknowledged for send_log in send_logs)
        bar = stage.bar("read back", total)
        deadline = time.monotonic() + SETTLE_TIMEOUT
        with StoreReader(self._servers.name_server, list(self.send_logs)) as reader:
            is_complete = reader.wait_for(
                send_logs, deadline, lambda left: bar.update(total - left)
            )
            self._settled.set()
            _wait_for_end(self._consumer_runs)
            # Read the last writes, too, such as the second delivery of a delayed message.
            reader.read_to_end(deadline)
        if not is_complete:
            missing = ", ".join(
                f"{send_log.topic} {count}"
                for send_log in send_logs
                if (count := reader.missing([send_log]))
            )
            raise NotSettled(
                f"acknowledged, but not readable after {SETTLE_TIMEOUT:.0f} s: {missing}. See the "
                "logs of the brokers"
            )
        return reader.found

    def _crash_broker(self, stage: Stage, broker_to_kill: str) -> None:
        if self._stopped.wait(self._seconds * OUTAGE_AT):
            return
        self._servers.kill_broker(broker_to_kill)
        stage.log(
            f"kill -9 {broker_to_kill}: producers retry at the other broker and avoid this one"
        )
        self._stopped.wait(self._seconds * OUTAGE_SHARE)
        took = self._servers.restart_broker(broker_to_kill)
        stage.log(
            f"{broker_to_kill} is back: it recovered its store and was ready after {took:.1f} s"
        )

    def _context(self, service: Service) -> ServiceContext:
        return ServiceContext(
            self._servers.name_server,
            SendSchedule(self._seconds, service.per_second, self._stopped),
            Shop(self._seed, service.name),
            self.send_logs[service.topic],
            self._settled,
        )

    def _update_bars(
        self, bars: dict[str, Bar], runs: list[tuple[Future[None], threading.Event]]
    ) -> None:
        """Update the bars until each run has ended, or has sent all of its messages."""
        deadline = time.monotonic() + self._seconds * OVERRUN_FACTOR + _END_TIMEOUT
        while True:
            left = [future for future, has_sent in runs if not has_sent.is_set()]
            ended, not_ended = wait(left, _UPDATE_INTERVAL, FIRST_EXCEPTION)
            for future in ended:
                future.result()
            for topic, bar in bars.items():
                counts = self.send_logs[topic].counts()
                bar.update(counts.attempted, _counts_text(counts))
            if not not_ended:
                return
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"a service did not end within {_END_TIMEOUT:.0f} s after the planned time"
                )


def _counts_text(counts: SendCounts) -> str:
    shown = {"retried": counts.retried, "withdrawn": counts.withdrawn, "failed": counts.failed}
    return ", ".join(f"{count} {name}" for name, count in shown.items() if count)


def _wait_for_end(runs: list[Future[None]]) -> None:
    """Wait until the consumers have handled all messages.

    Raises:
        ServerFailed: A consumer does not end in time.
    """
    _, not_ended = wait(runs, _END_TIMEOUT)
    if not_ended:
        raise ServerFailed(f"{len(not_ended)} consumers did not end within {_END_TIMEOUT:.0f} s")
    for run in runs:
        run.result()
