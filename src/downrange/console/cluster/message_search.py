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
    from downrange.console.cluster.pages.messages import MessageRow

#: Why a search or a scan ended -> the end of the sentence "scanned N messages, stopped because …".
REASONS: Final = {
    "complete": "there are no more",
    "rows": "enough were found",
    "scanned": f"the limit of {limits.SCAN_MAX} messages was reached",
    "bytes": f"the limit of {limits.SCAN_BYTES_MAX >> 20} MiB was reached",
    "deadline": f"the time of {limits.SCAN_SECONDS:g} s was over",
}
_PULL_COUNT: Final = 32


def by_time(message: ReceivedMessage | MessageRow) -> tuple[datetime, int]:
    """Return what messages are ordered by: time, and offset within a millisecond."""
    return message.stored_at, message.offset


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
    """A queue that is read from an offset on, batch by batch.

    It keeps rows: the bodies of all messages that are read would take too much memory.
    """

    def __init__(self, queue: QueueId, offset: int, end: int) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.rows: list[MessageRow] = []

    @property
    def needs_more(self) -> bool:
        return not self.rows and self.offset < self.end

    async def read(self, admin: AsyncAdmin, budget: Budget, since: datetime | None) -> None:
        count = min(self.end - self.offset, _PULL_COUNT)
        batch = await admin.read_queue(self.queue, self.offset, max_count=count, decode_body=False)
        budget.take(batch.messages)
        # The queue may have been emptied meanwhile.
        self.offset = max(batch.next, self.offset + 1)
        self.rows = [
            message_row(message)
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
            found = await find_message(admin, topic, wanted.word, decode_body=False)
            return _result(topic, text, wanted, [message_row(found)], 1, "complete")
        except NotABroker:
            if wanted.is_certain:
                raise
            wanted = Search(kind="key", word=wanted.word)
        except NotFound:
            if wanted.is_certain:
                return _result(topic, text, wanted, [], 0, "complete")
            wanted = Search(kind="key", word=wanted.word)
    if wanted.kind == "key":
        by_key = await admin.query_messages(topic, wanted.word, max_count=rows, decode_body=False)
        stopped = "rows" if len(by_key) == rows else "complete"
        return _result(topic, text, wanted, map(message_row, by_key), len(by_key), stopped)
    budget = Budget()
    states, missing = await read_states(admin, topic)
    queues = await _queues(admin, topic, states, wanted, rows)
    scan = _Scan(admin, queues, budget, wanted.at)
    found_rows, stopped = await (scan.end(rows) if wanted.kind == "newest" else scan.start(rows))
    result = _result(topic, text, wanted, found_rows, budget.scanned, stopped)
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


class _Scan:
    """Reads queues side by side until enough is found, or the budget is used up."""

    def __init__(
        self, admin: AsyncAdmin, queues: list[_Queue], budget: Budget, since: datetime | None
    ) -> None:
        self._admin = admin
        self._queues = queues
        self._budget = budget
        self._since = since
        self._gate = asyncio.Semaphore(limits.QUEUES_AT_ONCE)

    async def end(self, rows: int) -> tuple[list[MessageRow], str]:
        """Return the newest messages, which come last in their queues, and why it ended."""
        found: list[MessageRow] = []
        count = 0
        while waiting := self._waiting():
            if (stop := self._budget.stop) is not None:
                return found, stop
            await self._read(waiting)
            for queue in waiting:
                count += len(queue.rows)
                found += queue.rows
                queue.rows = []
            found = sorted(found, key=by_time, reverse=True)[:rows]
        return found, "complete" if count <= rows else "rows"

    async def start(self, rows: int) -> tuple[list[MessageRow], str]:
        """Return the first messages in the order of storing, and why it ended."""
        found: list[MessageRow] = []
        while len(found) < rows:
            if waiting := self._waiting():
                if (stop := self._budget.stop) is not None:
                    rest = sorted(
                        (row for queue in self._queues for row in queue.rows), key=by_time
                    )
                    return [*found, *rest][:rows], stop
                await self._read(waiting)
                continue  # what was read may be older than the time
            heads = [queue for queue in self._queues if queue.rows]
            if not heads:
                return found, "complete"
            first = min(heads, key=lambda queue: queue.rows[0].stored_at)
            found.append(first.rows.pop(0))
        is_all = not any(queue.rows or queue.needs_more for queue in self._queues)
        return found, "complete" if is_all else "rows"

    def _waiting(self) -> list[_Queue]:
        return [queue for queue in self._queues if queue.needs_more]

    async def _read(self, queues: list[_Queue]) -> None:
        """Read a batch of each queue, as far as the budget goes."""

        async def read(queue: _Queue) -> None:
            async with self._gate:
                if self._budget.stop is None:
                    await queue.read(self._admin, self._budget, self._since)

        await asyncio.gather(*map(read, queues))


def _result(
    topic: str,
    text: str,
    wanted: Search,
    rows: Iterable[MessageRow],
    scanned: int,
    stopped: str,
) -> SearchResult:
    return SearchResult(
        topic=topic,
        text=text,
        kind=wanted.kind,
        meaning=_meaning(wanted),
        messages=tuple(rows),
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
