"""Single messages that wait, read from the topics in which brokers keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from downrange.console.cluster import waiting_messages
from downrange.console.cluster.waiting_messages import EndedHalves
from downrange.console.cluster.waiting_page import waiting_page
from downrange.errors import ServerFailure
from tests.unit.console.cluster.fake_admin import FakeAdmin, at, message

if TYPE_CHECKING:
    import pytest

    from downrange import ReceivedMessage
    from downrange.console.cluster.pages.waiting import WaitingPage

DELAYS, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALVES, ENDS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LATER_MS = "32503680000000"  # in the year 3000


class Waiting(FakeAdmin):
    """A cluster with delay levels of 1 s, 5 s and 1 min."""

    delivered = 0

    async def delay_offsets(self, **_: Any) -> dict[str, dict[int, int]]:
        return {"a": {3: self.delivered}}

    async def timed_messages(self, **_: Any) -> dict[str, list[Any]]:
        return {"a": []}


async def page_of(admin: FakeAdmin) -> WaitingPage:
    return await waiting_page(cast("Any", admin), await admin.cluster_facts())


def half(offset: int, second: float = 100.0) -> ReceivedMessage:
    return message(offset, topic=HALVES, second=second, REAL_TOPIC="orders", PGROUP="shop")


def end(offset: int, body: bytes, second: float = 100.0) -> ReceivedMessage:
    return message(offset, body, topic=ENDS, second=second, TAGS="d")


async def test_the_next_messages_of_a_delay_level_have_their_time_and_topic() -> None:
    admin = Waiting()
    for offset in range(50):
        stored = message(
            offset, b"body", topic=DELAYS, queue=2, second=100.0 + offset, REAL_TOPIC="orders"
        )
        admin.add(stored)
    admin.delivered = 10
    page = await page_of(admin)
    first = page.delayed[0]
    assert (first.topic, first.level, first.due_at) == ("orders", 3, at(170.0))
    assert (first.stored_in, first.preview) == (DELAYS, "body")
    assert [row.due_at for row in page.delayed] == [at(170.0 + each) for each in range(20)]
    admin.delivered = 50
    assert (await page_of(admin)).delayed == (), "all were delivered"


async def test_timed_messages_are_shown_once_until_they_are_due() -> None:
    admin = Waiting()
    for offset, (key, topic, out_ms) in enumerate(
        [
            ("past", "orders", "5000"),
            ("later", "orders", LATER_MS),
            ("pop", "rmq_sys_REVIVE_LOG_DefaultCluster", LATER_MS),
            ("bad", "orders", "soon"),
            ("later", "orders", LATER_MS),  # stored once more
        ]
    ):
        admin.add(message(offset, topic=TIMER, REAL_TOPIC=topic, TIMER_OUT_MS=out_ms, UNIQ_KEY=key))
    (row,) = (await page_of(admin)).delayed
    assert (row.message_id, row.level) == ("later", None)
    assert row.due_at is not None
    assert row.due_at.year == 3000


async def test_delayed_messages_that_cannot_be_read_are_told() -> None:
    admin = Waiting()
    admin.add(message(0, topic=DELAYS, queue=2, REAL_TOPIC="orders"))
    admin.broken["read_queue"] = ServerFailure(1, "broken", "a:1", "orders")
    page = await page_of(admin)
    assert page.delayed == ()
    assert "delayed-not-read" in {note.code for note in page.notes}
    assert page.levels[0].waiting == 1, "what is known is shown"


async def test_records_of_ends_tell_which_halves_have_ended() -> None:
    admin = Waiting()
    admin.add(*(half(offset, 100.0 + offset) for offset in range(4)))
    admin.add(end(0, b"0"), end(1, b"2,3,"), end(2, b"x,,-1," + b"9" * 30))
    page = await page_of(admin)
    assert {row.offset: row.is_ended for row in page.newest_halves} == {
        0: True,
        1: False,
        2: True,
        3: True,
    }
    assert "half-state-not-told" not in {note.code for note in page.notes}


async def test_a_half_whose_end_may_be_older_than_what_was_read_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_messages, "_ENDS_READ", 2)
    admin = Waiting()
    admin.add(half(0, second=10.0), half(1, second=200.0))
    admin.add(*(end(offset, b"77", second=100.0) for offset in range(5)))
    page = await page_of(admin)
    assert {row.offset: row.is_ended for row in page.newest_halves} == {0: None, 1: False}
    assert "half-state-not-told" in {note.code for note in page.notes}


def test_without_records_nothing_is_known() -> None:
    assert EndedHalves((), {}).has_ended(half(0)) is None
