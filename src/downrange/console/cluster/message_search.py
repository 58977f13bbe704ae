"""Search for messages of a topic: by id, key, time or place, or the newest ones.

A search ends with a reason: everything was read, enough was found, or a limit was reached.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.bodies import message_row
from downrange.console.cluster.listing import check_text
from downrange.console.cluster.message_ids import find_message
from downrange.console.cluster.pages.common import Note
from downrange.console.cluster.pages.messages import SearchResult
from downrange.console.cluster.problems import NotABroker
from downrange.console.cluster.search_text import Search, read_search
from downrange.console.cluster.topic_states import missing_queue_notes, read_states
from downrange.errors import NotFound, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import AsyncAdmin, QueueId, QueueState, ReceivedMessage

#: Why a search or a scan ended -> the end of the sentence "scanned N messages, stopped because …".
REASONS: Final = {
    "complete": "there are no more",
    "rows": "enough were found",
    "scanned": f"the limit of {limits.SCAN_MAX} messages was reached",
    "bytes": f"the limit of {limits.SCAN_BYTES_MAX >> 20} MiB was reached",
    "deadline": f"the time of {limits.SCAN_SECONDS:g} s was over",
}
_PULL_COUNT: Final = 32


def by_time(message: ReceivedMessage) -> tuple[int, int]:
    """Return what messages are ordered by: time, and offset within a millisecond."""
    return message.stored_at_ms, message.offset


class Budget:
    """How much a scan may still read."""

    def __init__(self) -> None:
        self._count = limits.SCAN_MAX
        self._bytes = limits.SCAN_BYTES_MAX
        self._until = time.monotonic() + limits.SCAN_SECONDS
        self.scanned = 0

    @property
    def stop(self) -> str | None:
        """The limit that is reached, by its word; None while there is some left."""
        if self._count <= 0:
            return "scanned"
        if self._bytes <= 0:
            return "bytes"
        return "deadline" if time.monotonic() >= self._until else None

    def take(self, messages: Iterable[ReceivedMessage]) -> None:
        """Count messages that were read."""
        for message in messages:
            self.scanned += 1
            self._count -= 1
            self._bytes -= len(message.body)


class _Queue:
    """A queue that is read from an offset on, batch by batch."""

    def __init__(self, queue: QueueId, offset: int, end: int) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.messages: list[ReceivedMessage] = []

    @property
    def needs_more(self) -> bool:
        return not self.messages and self.offset < self.end

    async def read(self, admin: AsyncAdmin, budget: Budget, since: datetime | None) -> None:
        count = min(self.end - self.offset, _PULL_COUNT)
        batch = await admin.read_queue(self.queue, self.offset, max_count=count)
        budget.take(batch.messages)
        # The queue may have been emptied meanwhile.
        self.offset = max(batch.next, self.offset + 1)
        self.messages = [
            message
            for message in batch.messages
            if message.offset < self.end and (since is None or message.stored_at >= since)
        ]


async def search(admin: AsyncAdmin, topic: str, text: str, rows: int) -> SearchResult:
    """Find messages of a topic by one text.

    Raises:
        OptionError: The text or the number is wrong.
        RouteNotFound: The topic does not exist.
        RocketMQError: A server did not answer.
    """
    check_text("search", text)
    if not 1 <= rows <= limits.SEARCH_ROWS_MAX:
        raise OptionError(f"rows={rows} is not between 1 and {limits.SEARCH_ROWS_MAX}")
    wanted = read_search(text, datetime.now(UTC))
    await admin.topic_route(topic)  # a topic that does not exist is an error, not an empty result
    if wanted.kind == "id":
        try:
            found = await find_message(admin, topic, wanted.word)
            return _result(topic, text, wanted, [found], 1, "complete")
        except NotABroker:
            if wanted.is_certain:
                raise
            wanted = Search(kind="key", word=wanted.word)
        except NotFound:
            if wanted.is_certain:
                return _result(topic, text, wanted, [], 0, "complete")
            wanted = Search(kind="key", word=wanted.word)
    if wanted.kind == "key":
        by_key = await admin.query_messages(topic, wanted.word, max_count=rows)
        stopped = "rows" if len(by_key) == rows else "complete"
        return _result(topic, text, wanted, by_key, len(by_key), stopped)
    budget = Budget()
    states, missing = await read_states(admin, topic)
    queues = await _queues(admin, topic, states, wanted, rows)
    messages, stopped = await _merged(admin, queues, rows, budget, wanted)
    result = _result(topic, text, wanted, messages, budget.scanned, stopped)
    return replace(result, notes=(*result.notes, *missing_queue_notes(missing)))


async def _queues(
    admin: AsyncAdmin, topic: str, states: list[QueueState], wanted: Search, rows: int
) -> list[_Queue]:
    """Return the queues to read, each from the offset where it begins."""
    if wanted.kind == "newest":
        return [
            _Queue(each.queue, max(each.max_offset - rows, each.min_offset), each.max_offset)
            for each in states
        ]
    if wanted.kind == "offset":
        chosen = [
            each
            for each in states
            if each.queue.number == wanted.queue and wanted.broker in (None, each.queue.broker)
        ]
        if not chosen:
            known = ", ".join(f"{each.queue.broker}:{each.queue.number}" for each in states[:20])
            place = f"{wanted.broker or '*'}:{wanted.queue}"
            raise OptionError(f"topic {topic!r} has no queue {place}; it has {known}")
        return [
            _Queue(each.queue, max(wanted.offset, each.min_offset), each.max_offset)
            for each in chosen
        ]
    assert wanted.at is not None
    full = [each for each in states if each.count]
    at = wanted.at
    offsets = await asyncio.gather(*(admin.search_offset(each.queue, at) for each in full))
    return [
        _Queue(each.queue, max(offset, each.min_offset), each.max_offset)
        for each, offset in zip(full, offsets, strict=True)
    ]


async def _merged(
    admin: AsyncAdmin, queues: list[_Queue], rows: int, budget: Budget, wanted: Search
) -> tuple[list[ReceivedMessage], str]:
    """Return messages of all queues in the order of storing, and why it ended.

    The newest ones are those of the end, so all of them are read first.
    """
    wants_end = wanted.kind == "newest"
    found: list[ReceivedMessage] = []
    while wants_end or len(found) < rows:
        waiting = [queue for queue in queues if queue.needs_more]
        if waiting and (stop := budget.stop) is not None:
            return _ordered(found, queues, rows, wants_end), stop
        await asyncio.gather(*(queue.read(admin, budget, wanted.at) for queue in waiting))
        if wants_end:
            for queue in queues:
                found += queue.messages
                queue.messages = []
            if not any(queue.needs_more for queue in queues):
                break
            continue
        if any(queue.needs_more for queue in queues):
            continue  # what was read was older than the time
        heads = [queue for queue in queues if queue.messages]
        if not heads:
            return found, "complete"
        first = min(heads, key=lambda queue: queue.messages[0].stored_at_ms)
        found.append(first.messages.pop(0))
    shown = _ordered(found, queues, rows, wants_end)
    is_all = not any(queue.messages or queue.needs_more for queue in queues)
    return shown, "complete" if is_all and len(found) <= rows else "rows"


def _ordered(
    found: list[ReceivedMessage], queues: list[_Queue], rows: int, wants_end: bool
) -> list[ReceivedMessage]:
    if not wants_end:
        rest = [message for queue in queues for message in queue.messages]
        found = [*found, *sorted(rest, key=by_time)]
        return found[:rows]
    return sorted(found, key=by_time, reverse=True)[:rows]


def _result(
    topic: str,
    text: str,
    wanted: Search,
    messages: Iterable[ReceivedMessage],
    scanned: int,
    stopped: str,
) -> SearchResult:
    return SearchResult(
        topic=topic,
        text=text,
        kind=wanted.kind,
        meaning=_meaning(wanted),
        messages=tuple(map(message_row, messages)),
        scanned=scanned,
        stopped=stopped,
        notes=(stop_note(scanned, stopped),),
    )


def stop_note(scanned: int, stopped: str) -> Note:
    """Return the sentence about how a scan ended."""
    text = f"scanned {scanned} messages, stopped because {REASONS[stopped]}"
    return Note(code="scanned", text=text, values={"scanned": scanned, "stopped": stopped})


def _meaning(wanted: Search) -> str:
    match wanted.kind:
        case "id":
            return f"id {wanted.word}"
        case "key":
            return f"key {wanted.word!r}"
        case "time":
            assert wanted.at is not None
            return f"stored at {wanted.at.isoformat(sep=' ', timespec='milliseconds')} or later"
        case "offset":
            broker = "" if wanted.broker is None else f" of {wanted.broker}"
            return f"queue {wanted.queue}{broker} from offset {wanted.offset} on"
        case "newest":
            return "the newest messages"
