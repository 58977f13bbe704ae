from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from downrange.console.cluster import limits
from downrange.console.cluster.message_search import Budget, search
from downrange.console.cluster.scan import read_end
from downrange.errors import OptionError, RouteNotFound
from tests.unit.console.cluster.fake_admin import FakeAdmin, at, compressed, message

if TYPE_CHECKING:
    from downrange.console.cluster.pages.messages import SearchResult


def stored(queues: int = 2, count: int = 50) -> FakeAdmin:
    """Return a cluster whose messages were stored in turn, one per second."""
    admin = FakeAdmin()
    for offset in range(count):
        for queue in range(queues):
            second = 1000.0 + offset * queues + queue
            key = f"k{offset % 10}"
            admin.add(message(offset, b"x" * 10, queue=queue, second=second, KEYS=key))
    return admin


async def found(admin: FakeAdmin, text: str, rows: int = 10) -> SearchResult:
    return await search(cast("Any", admin), "orders", text, rows)


def seconds(result: SearchResult) -> list[float]:
    return [row.stored_at.timestamp() for row in result.messages]


async def test_the_newest_messages_come_first() -> None:
    result = await found(stored(), "")
    assert (result.kind, result.stopped, result.scanned) == ("newest", "rows", 20)
    assert seconds(result) == [1099.0 - number for number in range(10)]
    assert result.notes[0].text == "scanned 20 messages, stopped because enough were found"


async def test_a_time_finds_messages_of_all_queues_in_the_order_of_storing() -> None:
    begin = at(1070.0).isoformat()
    result = await found(stored(), begin, rows=40)
    assert (result.kind, result.stopped) == ("time", "complete")
    assert seconds(result) == [1070.0 + number for number in range(30)]
    result = await found(stored(), begin, rows=5)
    assert (seconds(result), result.stopped) == ([1070.0, 1071.0, 1072.0, 1073.0, 1074.0], "rows")


async def test_a_broker_that_returns_older_messages_for_a_time_does_not_show_them() -> None:
    admin = stored()

    async def nearest(queue: Any, at: Any, **_: Any) -> int:
        return 0

    admin.search_offset = nearest  # type: ignore[method-assign]
    result = await found(admin, at(1090.0).isoformat(), rows=3)
    assert (seconds(result), result.stopped) == ([1090.0, 1091.0, 1092.0], "rows")


async def test_a_place_is_read_from_its_offset_on() -> None:
    result = await found(stored(), "1:48")
    assert [(row.queue, row.offset) for row in result.messages] == [(1, 48), (1, 49)]
    assert (result.meaning, result.stopped) == ("queue 1 from offset 48 on", "complete")
    result = await found(stored(), "a:0:49")
    assert result.meaning == "queue 0 of a from offset 49 on"
    with pytest.raises(OptionError, match=r"has no queue \*:7; it has a:0, a:1"):
        await found(stored(), "7:0")
    with pytest.raises(OptionError, match="has no queue b:0"):
        await found(stored(), "b:0:0")


async def test_ids_and_keys_are_looked_up_in_the_index() -> None:
    admin = stored()
    unique = "AB" * 16
    admin.add(message(50, UNIQ_KEY=unique))
    assert [row.offset for row in (await found(admin, unique)).messages] == [50]
    by_key = await found(admin, "k3", rows=4)
    assert (by_key.kind, len(by_key.messages), by_key.stopped) == ("key", 4, "rows")
    assert (await found(admin, "nothing")).stopped == "complete"


async def test_an_id_that_does_not_exist_is_looked_for_as_a_key() -> None:
    admin = stored()
    word = "CD" * 16
    admin.add(message(50, KEYS=word))
    result = await found(admin, word)
    assert (result.kind, [row.offset for row in result.messages]) == ("key", [50])
    certain = await found(admin, f"id={word}")
    assert (certain.kind, certain.messages, certain.meaning) == ("id", (), f"id {word}")


@pytest.mark.parametrize(
    ("limit", "value", "stopped"),
    [("SCAN_MAX", 10, "scanned"), ("SCAN_BYTES_MAX", 50, "bytes"), ("SCAN_SECONDS", 0, "deadline")],
)
async def test_a_scan_ends_at_each_limit_and_says_so(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, stopped: str
) -> None:
    monkeypatch.setattr(limits, limit, value)
    for text in ("", at(1000.0).isoformat()):
        result = await found(stored(), text, rows=100)
        assert result.stopped == stopped
        assert result.notes[0].values == {"scanned": result.scanned, "stopped": stopped}


async def test_a_scan_looks_at_its_limits_after_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCAN_BYTES_MAX", 3_000)
    admin = stored(queues=100)
    for text in ("", at(1000.0).isoformat()):
        result = await found(admin, text, rows=100)
        assert result.stopped == "bytes"
        assert result.scanned <= 300 + 32 * limits.QUEUES_AT_ONCE
    assert admin.reading_max == limits.QUEUES_AT_ONCE


@pytest.mark.parametrize("text", ["", "0:0", "1970-01-01T00:00:01Z", "key=k"])
async def test_a_body_that_cannot_be_decompressed_is_found_with_the_problem(text: str) -> None:
    admin = FakeAdmin()
    admin.add(compressed(b"not zlib", KEYS="k"), message(1, KEYS="k"))
    rows = sorted((await found(admin, text)).messages, key=lambda row: row.offset)
    assert [row.preview for row in rows] == ["", "body"]
    assert "cannot be decompressed" in str(rows[0].problem)


async def test_the_end_of_a_topic_is_read_some_queues_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCAN_MAX", 300)
    admin = stored(queues=50)
    states = await admin.topic_stats("orders")
    budget = Budget()
    messages, stopped = await read_end(cast("Any", admin), states, 20, budget)
    assert (len(messages), stopped) == (budget.scanned, "scanned")
    assert budget.scanned <= 300 + 20 * limits.QUEUES_AT_ONCE
    assert admin.reading_max == limits.QUEUES_AT_ONCE


async def test_wrong_input_is_refused_before_anything_is_read() -> None:
    admin = stored()
    with pytest.raises(OptionError, match="rows=0 is not between"):
        await found(admin, "", rows=0)
    with pytest.raises(OptionError, match="characters"):
        await found(admin, "x" * 2000)
    assert admin.count("read_queue") == 0
    with pytest.raises(RouteNotFound):
        await search(cast("Any", admin), "nowhere", "", 10)
