"""Dead letters: the groups that have some, those of one group, and their export."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from downrange.client.exports import letter_facts, letter_header, letter_line
from downrange.console.cluster import limits
from downrange.console.cluster.bodies import listed_body, preview
from downrange.console.cluster.dead_letter_counts import count_of
from downrange.console.cluster.listing import page_of
from downrange.console.cluster.pages.dead_letters import (
    DeadLetterGroups,
    DeadLetterRow,
    DeadLettersPage,
)
from downrange.errors import OptionError, RouteNotFound
from downrange.model import QueueId
from downrange.wire.system_names import DEAD_LETTER_PREFIX, dead_letter_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from downrange import AsyncAdmin, DeadMessage
    from downrange.console.cluster.pages.common import ListRequest
    from downrange.console.cluster.pages.overview import DeadLetterCount
    from downrange.console.cluster.poller import Poller

#: Dead letters of one piece of an export.
_PIECE: Final = 100


async def dead_letter_groups(poller: Poller, request: ListRequest) -> DeadLetterGroups:
    """Return a page of the groups that have a dead-letter topic.

    Raises:
        OptionError: The request is wrong.
        RocketMQError: A server did not answer.
    """
    topics = [topic.name for topic in await poller.topics.get() if topic.kind == "dead-letter"]
    chosen, paging = page_of(
        topics,
        request,
        {"name": lambda topic: topic},
        lambda topic: (topic.removeprefix(DEAD_LETTER_PREFIX),),
    )
    gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)
    now = datetime.now(UTC)
    old = poller.old_brokers

    async def read(topic: str) -> DeadLetterCount:
        async with gate:
            return await count_of(poller.admin, topic, now, old)

    return DeadLetterGroups(paging=paging, rows=tuple(await asyncio.gather(*map(read, chosen))))


async def dead_letters_page(
    admin: AsyncAdmin,
    group: str,
    *,
    begin: datetime | None,
    end: datetime | None,
    next: str | None,
    size: int,
) -> DeadLettersPage:
    """Return some dead letters of a group.

    Raises:
        OptionError: An argument is wrong.
        GroupNotFound: No broker has the group.
        RocketMQError: A server did not answer.
    """
    if not 1 <= size <= limits.PAGE_ROWS_MAX:
        raise OptionError(f"size={size} is not between 1 and {limits.PAGE_ROWS_MAX}")
    after = None if next is None else read_place(group, next)
    total = await _count(admin, group)
    page = await admin.dead_letters(
        group, begin=begin, end=end, after=after, max_count=size, decode_body=False
    )
    return DeadLettersPage(
        group=group,
        rows=tuple(map(_row, page.letters)),
        next=None if page.is_complete else write_place(page.next),
        total=total,
        begin=begin,
        end=end,
    )


async def _count(admin: AsyncAdmin, group: str) -> int:
    try:
        return sum(queue.count for queue in await admin.topic_stats(dead_letter_topic(group)))
    except RouteNotFound:
        return 0


def _row(letter: DeadMessage) -> DeadLetterRow:
    message = letter.message
    body, problem = listed_body(message)
    return DeadLetterRow(
        id=message.offset_id,
        message_id=message.message_id,
        origin_id=letter.origin_id,
        topic=letter.topic,
        broker=message.queue.broker,
        queue=message.queue.number,
        offset=message.offset,
        died_at=letter.died_at,
        born_at=message.born_at,
        attempts=message.delivery_attempts,
        tags=message.tags,
        keys=tuple(message.keys),
        body_bytes=len(body),
        preview="" if problem else preview(body),
        problem=problem,
    )


# ---- places --------------------------------------------------------------------------------------


def write_place(place: dict[QueueId, int]) -> str:
    """Return where the next page begins, as a text for an address."""
    parts = [[queue.broker, queue.number, offset] for queue, offset in sorted(place.items())]
    return json.dumps(parts, separators=(",", ":"))


def read_place(group: str, text: str) -> dict[QueueId, int]:
    """Read what `write_place` wrote.

    Raises:
        OptionError: It is something else.
    """
    topic = dead_letter_topic(group)
    found: dict[QueueId, int] = {}
    try:
        parts: Any = json.loads(text[: limits.SEARCH_TEXT_MAX * 10])
        for broker, number, offset in parts:
            if not (isinstance(broker, str) and type(number) is int and type(offset) is int):
                raise ValueError(text)
            found[QueueId(topic, broker, number)] = max(offset, 0)
    except (ValueError, TypeError, RecursionError) as error:
        raise OptionError("next is not the one of a page; begin with the first page") from error
    return found


# ---- export --------------------------------------------------------------------------------------


async def export_dead_letters(
    admin: AsyncAdmin,
    group: str,
    form: Literal["csv", "jsonl"],
    *,
    ids: Collection[str],
    begin: datetime | None,
    end: datetime | None,
) -> AsyncIterator[bytes]:
    """Yield dead letters as a file, piece by piece.

    Raises:
        OptionError: The form is not known.
        GroupNotFound: No broker has the group.
        RocketMQError: A server did not answer.
    """
    if form not in ("csv", "jsonl"):
        raise OptionError(f"form={form!r} is not one of csv, jsonl")
    line = letter_line if form == "csv" else _json_line
    header = letter_header() if form == "csv" else ""
    async for letters in read_letters(admin, group, ids=ids, begin=begin, end=end):
        for letter in letters:  # not all at once: each has its decompressed body
            yield (header + line(letter)).encode()
            header = ""
    if header:
        yield header.encode()  # a file without dead letters


def _json_line(letter: DeadMessage) -> str:
    return f"{json.dumps(letter_facts(letter))}\n"


async def read_letters(
    admin: AsyncAdmin,
    group: str,
    *,
    ids: Collection[str] = (),
    begin: datetime | None = None,
    end: datetime | None = None,
) -> AsyncIterator[list[DeadMessage]]:
    """Yield dead letters of a group, some at a time; with ids, those only.

    It ends when all ids were found.

    Raises:
        OptionError: There are more than `limits.EXPORT_MAX`; a part of them was yielded.
        GroupNotFound: No broker has the group.
        RocketMQError: A server did not answer.
    """
    wanted = set(ids)
    after: dict[QueueId, int] | None = None
    left = limits.EXPORT_MAX
    while left > 0:
        page = await admin.dead_letters(
            group,
            begin=begin,
            end=end,
            after=after,
            max_count=min(_PIECE, left),
            decode_body=False,
        )
        left -= len(page.letters)
        chosen = [each for each in page.letters if not ids or each.message.offset_id in wanted]
        wanted -= {each.message.offset_id for each in chosen}
        if chosen:
            yield chosen
        if page.is_complete or (ids and not wanted):
            return
        after = page.next
    raise OptionError(
        f"group {group!r} has more than {limits.EXPORT_MAX} dead letters there; choose a time "
        "range, or use `downrange dlq`, which has no limit"
    )
