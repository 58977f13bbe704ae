"""Members of consumer groups that record what they handle, and the checks of what was recorded."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from downrange import AsyncPushConsumer, PushConsumer
from downrange.model import QueueId
from downrange.options import ClientOptions
from downrange.options.consumers import ConsumerOptions
from tests.contract.blocking import Blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from downrange import ReceivedMessage
    from downrange.options.consumers import ConsumeMode
    from tests.contract.blocking import LoopThread


class Handling(NamedTuple):
    """One call of a handler.

    Attributes:
        member: The member of the group.
        queue: Where the message is from.
        offset: Its offset there.
        body: Its body.
        begun: When the handler began, in seconds.
        ended: When it ended; None if its process was killed before.
    """

    member: str
    queue: QueueId
    offset: int
    body: str
    begun: float
    ended: float | None


class Record:
    """What the members of one group have handled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlings: list[Handling] = []

    def handler(self, member: str, seconds: float = 0.0) -> Callable[[ReceivedMessage], None]:
        """Return a handler that takes some time."""

        def handle(message: ReceivedMessage) -> None:
            begun = time.monotonic()
            if seconds:
                time.sleep(seconds)
            ended = time.monotonic()
            body = message.body.decode()
            each = Handling(member, message.queue, message.offset, body, begun, ended)
            with self._lock:
                self._handlings.append(each)

        return handle

    def read(self, files: Iterable[Path]) -> None:
        """Take what the processes wrote; see `group_worker`."""
        handlings = [each for file in files for each in _read(file)]
        with self._lock:
            self._handlings = handlings

    @property
    def handlings(self) -> list[Handling]:
        """All calls, in the order of their beginning."""
        with self._lock:
            return sorted(self._handlings, key=lambda each: each.begun)

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self._handlings)

    def done(self) -> set[str]:
        """Return the bodies that were handled."""
        with self._lock:
            return {each.body for each in self._handlings if each.ended is not None}

    def duplicates(self) -> int:
        """Return how many calls were not the first one of their message."""
        counts = Counter((each.queue, each.offset) for each in self.handlings)
        return sum(count - 1 for count in counts.values())

    def overlaps(self) -> list[tuple[Handling, Handling]]:
        """Return calls of one queue that began while another one ran; for orderly groups."""
        found = []
        for calls in self._by_queue().values():
            found += [
                (one, two)
                for one, two in itertools.pairwise(calls)
                if one.ended is not None and two.begun < one.ended
            ]
        return found

    def disorders(self) -> list[tuple[Handling, Handling]]:
        """Return messages that were handled for the first time after a later one of their queue."""
        found = []
        for calls in self._by_queue().values():
            highest, seen = calls[0], set[int]()
            for call in calls:
                if call.offset < highest.offset and call.offset not in seen:
                    found.append((highest, call))
                if call.offset > highest.offset:
                    highest = call
                seen.add(call.offset)
        return found

    def _by_queue(self) -> dict[QueueId, list[Handling]]:
        by_queue: dict[QueueId, list[Handling]] = defaultdict(list)
        for each in self.handlings:
            by_queue[each.queue].append(each)
        return by_queue


def _read(file: Path) -> list[Handling]:
    found: dict[str, Handling] = {}
    lines = file.read_text().split("\n") if file.exists() else []
    for line in lines[:-1]:  # the last one is empty, or was cut by the kill
        what, number, at, topic, broker, queue, offset, body = line.split(" ")
        if what == "begin":
            where = QueueId(topic, broker, int(queue))
            found[number] = Handling(file.name, where, int(offset), body, float(at), None)
        else:
            found[number] = found[number]._replace(ended=float(at))
    return list(found.values())


def options(mode: ConsumeMode, **others: Any) -> ConsumerOptions:
    """Return options of a group under faults: short pauses."""
    settings: dict[str, Any] = {
        "mode": mode,
        "start": "earliest",
        "concurrency": 4,
        "commit_interval": 0.5,
        "rebalance_interval": 1.0,
        "lock_interval": 1.0,
        "suspend": 5.0,
        "retry_backoff_max": 0.5,
        "handover_timeout": 15.0,
        **others,
    }
    return ConsumerOptions(**settings)


def join(
    servers: str,
    group: str,
    topic: str,
    handler: Callable[[ReceivedMessage], None],
    chosen: ConsumerOptions,
    loop: LoopThread | None = None,
) -> PushConsumer:
    """Start a member: with threads, or with asyncio on a loop."""
    given: dict[str, Any] = {"group": group, "subscribe": topic, "handler": handler}
    # A commit that is late on a busy machine would let messages be handled again.
    given["client_options"] = ClientOptions(connect_timeout=15, call_timeout=15)
    member: Any = (
        PushConsumer(servers, options=chosen, **given)
        if loop is None
        else Blocking(AsyncPushConsumer(servers, options=chosen, **given), loop)
    )
    started: PushConsumer = member.start()
    return started
