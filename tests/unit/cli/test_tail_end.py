"""Where `tail` ends, with a consumer that only has positions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from downrange.cli import tail_end
from downrange.cli.tail_end import End, TailEnd
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage

if TYPE_CHECKING:
    from downrange import PullConsumer

A, B = QueueId("t", "a", 0), QueueId("t", "a", 1)
NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


class FakeConsumer:
    """Has the positions of two queues."""

    def __init__(self) -> None:
        self.positions: dict[QueueId, int | None] = {A: 0, B: 0}

    def queues(self) -> list[QueueId]:
        return list(self.positions)

    def position(self, queue: QueueId) -> int | None:
        return self.positions[queue]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    monkeypatch.setattr(tail_end, "current_ends", lambda _: {A: 10, B: 20})
    return FakeConsumer()


def _end(consumer: FakeConsumer, end: End | None, *, is_finite: bool = False) -> TailEnd:
    return TailEnd(cast("PullConsumer", consumer), end, is_finite)


def _message(queue: QueueId, offset: int, stored_at: datetime = NOW) -> ReceivedMessage:
    facts: dict[str, Any] = {"body": b"", "properties": {}, "flag": 0, "born_host": ""}
    return ReceivedMessage(
        message_id="",
        queue=queue,
        offset=QueueOffset(offset),
        offset_id="",
        log_offset=LogOffset(0),
        born_at_ms=0,
        stored_at_ms=round(stored_at.timestamp() * 1000),
        **facts,
    )


def test_without_an_end_it_is_never_reached(consumer: FakeConsumer) -> None:
    place = _end(consumer, None)
    consumer.positions = {A: 10, B: 20}
    assert not place.is_reached()
    messages = [_message(A, 5)]
    assert place.before(messages) == messages


def test_latest_is_the_end_of_each_queue_at_the_start(consumer: FakeConsumer) -> None:
    place = _end(consumer, "latest")
    consumer.positions = {A: 10, B: 19}
    assert not place.is_reached()
    consumer.positions = {A: 11, B: None}
    assert not place.is_reached()
    consumer.positions = {A: 11, B: 20}
    assert place.is_reached()


def test_an_offset_ends_each_queue_and_is_waited_for(consumer: FakeConsumer) -> None:
    place = _end(consumer, 12)
    messages = [_message(A, 11), _message(A, 12), _message(B, 0)]
    assert place.before(messages) == [messages[0], messages[2]]
    consumer.positions = {A: 10, B: 12}
    assert not place.is_reached()
    consumer.positions = {A: 12, B: 12}
    assert place.is_reached()


def test_an_offset_that_is_not_there_yet_is_not_waited_for_without_following(
    consumer: FakeConsumer,
) -> None:
    place = _end(consumer, 12, is_finite=True)
    consumer.positions = {A: 10, B: 12}
    assert place.is_reached()


def test_a_time_ends_a_queue_at_its_first_message_that_is_not_before_it(
    consumer: FakeConsumer,
) -> None:
    place = _end(consumer, NOW - HOUR)
    messages = [_message(A, 4, NOW - 2 * HOUR), _message(A, 5, NOW - HOUR), _message(A, 6)]
    assert place.before(messages) == messages[:1]
    assert not place.is_reached()
    consumer.positions = {A: 7, B: 20}  # the other queue has nothing at or after the time
    assert place.is_reached()


def test_a_time_in_the_future_is_waited_for(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _end(consumer, NOW + HOUR)
    consumer.positions = {A: 10, B: 20}
    assert not place.is_reached()

    monkeypatch.setattr(tail_end, "current_time", lambda: NOW + 2 * HOUR)
    assert place.is_reached()
