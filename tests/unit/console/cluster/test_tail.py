from __future__ import annotations

import zlib
from typing import Any, cast

import pytest

from downrange.console.cluster import limits
from downrange.console.cluster.message_filters import filter_of
from downrange.console.cluster.pages.messages import TailBatch, TailRequest
from downrange.console.cluster.tail import Tail
from downrange.errors import InvalidSql, OptionError, ServerFailure
from tests.unit.console.cluster.fake_admin import FakeAdmin, compressed, message


def tail_of(admin: FakeAdmin, **settings: Any) -> Tail:
    return Tail(cast("Any", admin), TailRequest(topic="orders", **settings), turn_seconds=0.0)


async def turns(tail: Tail, count: int) -> list[TailBatch]:
    batches = tail.batches()
    found = [await anext(batches) for _ in range(count)]
    await batches.aclose()  # type: ignore[attr-defined]
    return found


async def test_only_new_messages_are_shown_from_the_latest_on() -> None:
    admin = FakeAdmin()
    admin.add(message(0))
    tail = tail_of(admin)
    await tail.start()
    batches = tail.batches()
    assert (await anext(batches)).messages == ()
    admin.add(message(1, second=102.0), message(0, queue=1, second=101.0))
    batch = await anext(batches)
    assert [(row.queue, row.offset) for row in batch.messages] == [(1, 0), (0, 1)]
    assert (batch.scanned, batch.matched, batch.stopped) == (2, 2, None)
    assert admin.count("read_queue") == 2  # a queue that did not grow is not read


async def test_a_tail_from_the_earliest_reads_in_turns() -> None:
    admin = FakeAdmin()
    admin.add(*(message(offset) for offset in range(500)))
    tail = tail_of(admin, start="earliest")
    await tail.start()
    first, second, third = await turns(tail, 3)
    assert [batch.scanned for batch in (first, second, third)] == [320, 500, 500]
    assert (len(first.messages), first.dropped) == (limits.TAIL_BATCH_ROWS, 270)
    assert first.messages[-1].offset == 319  # the newest are kept


async def test_a_body_that_cannot_be_decompressed_is_a_row_of_the_tail() -> None:
    admin = FakeAdmin()
    admin.add(compressed(b"not zlib"), compressed(zlib.compress(b"hello"), 1), message(2))
    tail = tail_of(admin, start="earliest")
    await tail.start()
    (batch,) = await turns(tail, 1)
    assert [row.preview for row in batch.messages] == ["", "hello", "body"]
    assert "cannot be decompressed" in str(batch.messages[0].problem)


async def test_a_turn_reads_a_limited_number_of_bytes_of_each_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TAIL_TURN_BYTES", 8_000)
    admin = FakeAdmin()
    for queue in range(2):
        admin.add(*(message(offset, bytes(100), queue=queue) for offset in range(96)))
    tail = tail_of(admin, start="earliest")
    await tail.start()
    batches = await turns(tail, 3)
    assert [batch.scanned for batch in batches] == [128, 192, 192]
    assert [batch.matched for batch in batches] == [128, 192, 192]  # what is left comes later


async def test_a_tail_reads_some_queues_at_a_time_and_keeps_the_newest_rows() -> None:
    admin = FakeAdmin()
    for queue in range(3 * limits.QUEUES_AT_ONCE):
        admin.add(*(message(offset, queue=queue, second=offset + 1.0) for offset in range(40)))
    tail = tail_of(admin, start="earliest")
    await tail.start()
    (batch,) = await turns(tail, 1)
    assert admin.reading_max == limits.QUEUES_AT_ONCE
    assert len(batch.messages) + batch.dropped == batch.matched == 24 * 40
    assert {row.offset for row in batch.messages} == {37, 38, 39}


@pytest.mark.parametrize(
    ("limit", "stopped"), [("TAIL_SCAN_MAX", "scanned"), ("TAIL_SECONDS", "deadline")]
)
async def test_a_tail_ends_at_its_limits(
    monkeypatch: pytest.MonkeyPatch, limit: str, stopped: str
) -> None:
    monkeypatch.setattr(limits, limit, 0)
    admin = FakeAdmin()
    admin.add(message(0))
    tail = tail_of(admin)
    await tail.start()
    found = [batch async for batch in tail.batches()]
    assert [batch.stopped for batch in found] == [stopped]
    assert found[0].problem is not None


async def test_a_tail_ends_when_the_cluster_is_gone_or_refuses() -> None:
    admin = FakeAdmin()
    admin.add(message(0))
    tail = tail_of(admin)
    await tail.start()
    admin.is_gone = True
    (batch,) = [batch async for batch in tail.batches()]
    assert (batch.stopped, "connection refused" in str(batch.problem)) == ("gone", True)
    admin.is_gone = False
    admin.broken["topic_stats"] = ServerFailure(1, "broken", "a:1", "orders")
    (batch,) = [batch async for batch in tail.batches()]
    assert batch.stopped == "failed"


async def test_messages_that_expired_are_passed_over_and_an_empty_read_ends() -> None:
    admin = FakeAdmin()
    admin.add(message(0))
    tail = tail_of(admin, start="earliest")
    await tail.start()
    (queue,) = admin.queues
    admin.queues[queue] = [message(7)]
    (batch,) = await turns(tail, 1)
    assert ([row.offset for row in batch.messages], batch.scanned) == ([7], 1)
    original = admin.read_queue

    async def nothing(queue: Any, offset: int, **_: Any) -> Any:
        from downrange import QueueMessages

        return QueueMessages(queue=queue, next=offset, end=99)

    admin.read_queue = nothing  # type: ignore[method-assign]
    admin.add(message(8))
    (batch,) = await turns(tail, 1)
    assert batch.scanned == 1
    admin.read_queue = original  # type: ignore[method-assign]
    (batch,) = await turns(tail, 1)
    assert batch.scanned == 2


# ---- filters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "is_wanted"),
    [
        ("none", "", True),
        ("tags", "*", True),
        ("tags", "old||new", True),
        ("tags", "old", False),
        ("sql", "amount BETWEEN 4 AND 6", True),
        ("sql", "amount > 6", False),
        ("text", "HELLO", True),
        ("text", "É", True),
        ("text", "order-7", True),
        ("text", "missing", False),
        ("text", "ö", False),
    ],
)
def test_a_filter_says_which_messages_are_wanted(kind: Any, text: str, is_wanted: bool) -> None:
    stored = message(0, "Hello é".encode(), TAGS="new", KEYS="Order-7", amount="5")
    request = TailRequest(topic="orders", filter_kind=kind, filter=text)
    assert filter_of(request)(stored) is is_wanted


@pytest.mark.parametrize(
    ("body", "is_wanted"),
    [
        (zlib.compress(b"hello"), True),
        (zlib.compress(b"hello" + bytes(limits.LISTED_BODY_BYTES)), False),
        (b"not zlib", False),
    ],
    ids=["short", "too long", "broken"],
)
def test_a_text_is_looked_for_in_compressed_bodies_up_to_a_size(
    body: bytes, is_wanted: bool
) -> None:
    request = TailRequest(topic="orders", filter_kind="text", filter="hello")
    assert filter_of(request)(compressed(body)) is is_wanted


@pytest.mark.parametrize(
    ("kind", "text", "error", "words"),
    [
        ("sql", "amount >", InvalidSql, "amount"),
        ("sql", " ", OptionError, "is empty"),
        ("text", "", OptionError, "is empty"),
        ("tags", "||", OptionError, "contains no tag"),
        ("regex", "x", OptionError, "is not one of none, tags, sql, text"),
        ("text", "x" * 2000, OptionError, "characters"),
    ],
)
def test_a_wrong_filter_is_refused(
    kind: Any, text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        filter_of(TailRequest(topic="orders", filter_kind=kind, filter=text))
