"""Runs a push consumer until a signal, a limit or an error ends it, and drains it.

The first SIGTERM or SIGINT ends the worker when its running handlers have ended; a second one ends
it at once. `run_in_threads` and `run_on_loop` are the same for the two kinds of handlers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.cli.exit_codes import FAILED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

    from downrange import AsyncPushConsumer, PushConsumer
    from downrange.client.consumer_stats import ConsumerHealth, ConsumerStats

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Seconds between two looks at the limits.
_LOOK: Final = 0.05
#: The counters in a line for people; JSON has all of them.
_SHOWN: Final = ("handled", "failed", "sent_back", "dead", "waiting", "running", "queues")


@dataclass(slots=True, kw_only=True)
class Work:
    """What the worker does, and when it ends.

    Attributes:
        drain_timeout: Seconds that running handlers may take at the end.
        health_interval: Seconds between two lines about its health; None for none.
        as_json: Whether its lines are JSON.
        messages_max: End when so many messages were handled; the consumer hands out no more.
        idle_timeout: End after so many seconds without a message.
        kill: Called before the process ends while handlers run.
        facts: Shown in the line `ready`.
    """

    drain_timeout: float
    health_interval: float | None = None
    as_json: bool = False
    messages_max: int | None = None
    idle_timeout: float | None = None
    kill: Callable[[], None] = lambda: None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    # ---- state -------------------------------------------------------------------------------

    begun: int = 0
    ended: int = 0
    failed: int = 0
    reason: str = ""
    _busy_at: float = field(default_factory=time.monotonic)
    _next_health: float = float("inf")
    _signals: list[int] = field(default_factory=list[int])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ---- handlers ----------------------------------------------------------------------------

    def counted(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a handler that counts messages."""
        from downrange.client.flows.consuming.verdicts import check_answer

        def call(argument: Any) -> object:
            self._begin(argument)
            try:
                answer: object = handler(argument)
                check_answer(answer)
            except BaseException as error:
                self._end(argument, error)
                raise
            self._end(argument)
            return answer

        return call

    def counted_async(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """Do the same for a coroutine function."""
        from downrange.client.flows.consuming.verdicts import check_answer

        async def call(argument: Any) -> object:
            self._begin(argument)
            try:
                answer: object = await handler(argument)
                check_answer(answer)
            except Exception as error:  # not if it was cancelled: then it has not ended
                self._end(argument, error)
                raise
            self._end(argument)
            return answer

        return call

    def _begin(self, argument: Any) -> None:
        with self._lock:
            self.begun += _count(argument)

    def _end(self, argument: Any, error: BaseException | None = None) -> None:
        failed = 0 if error is None else _count_failed(argument, error)
        with self._lock:
            self.ended += _count(argument)
            self.failed += failed
            self._busy_at = time.monotonic()

    @property
    def running(self) -> int:
        """Messages whose handlers have not ended."""
        with self._lock:
            return self.begun - self.ended

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Print that the worker is ready."""
        now = time.monotonic()
        self._busy_at = now
        if self.health_interval is not None:
            self._next_health = now + self.health_interval
        self._print("ready", self.facts)

    def is_over(self) -> bool:
        """Return whether the worker shall end; sets the reason."""
        if self._signals:
            self.reason = signal.Signals(self._signals[0]).name
        elif self.messages_max is not None and self.ended >= self.messages_max:
            self.reason = f"{self.ended} messages were handled"
        elif (
            self.idle_timeout is not None
            and not self.running
            and time.monotonic() - self._busy_at >= self.idle_timeout
        ):
            self.reason = f"no message for {self.idle_timeout:g} s"
        return bool(self.reason)

    def show_health(self, health: Callable[[], tuple[ConsumerHealth, ConsumerStats]]) -> None:
        """Print a line about the health, if it is time for one."""
        now = time.monotonic()
        if now < self._next_health or self.health_interval is None:
            return
        self._next_health = now + self.health_interval
        found, stats = health()
        counters = msgspec.structs.asdict(stats)
        if self.as_json:
            facts = {"healthy": found.is_healthy, "problems": list(found.problems), **counters}
        else:
            shown = {name: counters[name] for name in _SHOWN}
            facts = {"ok": "yes" if found.is_healthy else "no", **shown}
            if found.problems:
                facts["problems"] = "; ".join(found.problems)
        self._print("health", facts)

    def drain(self) -> None:
        """Print that the worker ends."""
        self._print("draining", {"because": self.reason, "running": self.running})

    def finish(self) -> None:
        """Print the end; if handlers still run, end the process, which would wait for them."""
        left = self.running
        handled = self.ended - self.failed
        self._print("stopped", {"handled": handled, "failed": self.failed, "unfinished": left})
        if left:
            print(
                f"downrange: {left} messages were still handled after {self.drain_timeout:g} s; "
                "they are delivered again",
                file=sys.stderr,
            )
            self._end_process(FAILED)

    def _print(self, event: str, facts: dict[str, Any]) -> None:
        from downrange.cli.output import print_json, readable

        if self.as_json:
            print_json({"event": event, **facts})
        else:
            words = [f"{name}={value}" for name, value in facts.items()]
            print(readable(" ".join([event, *words])), flush=True)

    # ---- signals -----------------------------------------------------------------------------

    def listen(self) -> Callable[[], None]:
        """Let signals end the worker; return a function that ends this."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}

        def restore() -> None:
            for number, old in before.items():
                signal.signal(number, old)

        return restore

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._end_process(128 + number)

    def _end_process(self, code: int) -> None:
        """End the process at once: threads of handlers cannot be ended."""
        self.kill()
        with suppress(RuntimeError):  # the signal came while this thread was writing a line
            sys.stdout.flush()
        os._exit(code)


def _count(argument: Any) -> int:
    return len(argument) if isinstance(argument, list) else 1


def _count_failed(argument: Any, error: BaseException) -> int:
    """Return how many messages of a call of the handler failed; a batch may be done in part."""
    from downrange.client.flows.consuming.verdicts import verdict_of

    messages = argument if isinstance(argument, list) else [argument]
    return len(verdict_of(messages, error).failed)


def run_in_threads(consumer: PushConsumer, work: Work) -> None:
    """Run a consumer of threads until the work is over.

    Raises:
        RocketMQError: The consumer does not start.
    """
    restore = work.listen()
    try:
        consumer.start()
        work.start()
        while not work.is_over():
            work.show_health(lambda: (consumer.health(), consumer.stats()))
            time.sleep(_LOOK)
        work.drain()
        consumer.close(work.drain_timeout)
        work.finish()
    finally:
        consumer.close(work.drain_timeout)
        restore()


async def run_on_loop(consumer: AsyncPushConsumer, work: Work) -> None:
    """Run a consumer of an event loop until the work is over.

    Raises:
        RocketMQError: The consumer does not start.
    """
    restore = work.listen()
    try:
        await consumer.start()
        work.start()
        while not work.is_over():
            work.show_health(lambda: (consumer.health(), consumer.stats()))
            await asyncio.sleep(_LOOK)
        work.drain()
        await consumer.close(work.drain_timeout)
        work.finish()
    finally:
        await consumer.close(work.drain_timeout)
        restore()
