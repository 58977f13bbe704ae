"""One connection without a socket: reads, writes, limits and cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.outputs import Push
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.command import Command, encode
from tests.unit.server.stage import KEEP, RELEASE, Stage

if TYPE_CHECKING:
    import pytest


def test_requests_of_one_read_are_answered_in_order_with_one_write() -> None:
    stage = Stage()
    stage.receive(1, 2, 3)
    assert stage.service.events == ["1", "2", "3"]
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert len(stage.transport.writes) == 1


def test_large_replies_are_written_before_all_requests_are_handled() -> None:
    stage = Stage()
    stage.service.body = bytes(40_000)
    stage.receive(1, 2, 3)
    assert len(stage.transport.writes) == 2


def test_very_large_replies_leave_turns_to_other_connections() -> None:
    stage = Stage()
    stage.service.body = bytes(3_000_000)
    stage.receive(1, 2, 3)
    assert stage.service.events == ["1"]
    assert [reply.request_id for reply in stage.transport.replies()] == [0]
    stage.loop.turns.pop()()
    assert stage.service.events == ["1", "2"]
    stage.loop.turns.pop()()
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert stage.loop.turns == []


def test_a_turn_that_comes_after_the_end_does_nothing() -> None:
    stage = Stage()
    stage.service.body = bytes(3_000_000)
    stage.receive(1, 2)
    stage.connection.connection_lost(None)
    stage.loop.turns.pop()()
    assert stage.service.events == ["1", "lost"]


def test_a_one_way_request_gets_no_reply() -> None:
    stage = Stage()
    stage.receive(1, flags=int(CommandFlag.ONEWAY))
    assert stage.service.events == ["1"]
    assert stage.transport.writes == []


def test_an_unexpected_reply_of_the_peer_is_ignored() -> None:
    stage = Stage()
    stage.receive(0, flags=int(CommandFlag.REPLY))
    assert stage.service.events == []
    assert stage.transport.state == "open"


def test_a_reply_that_cannot_be_encoded_becomes_an_error_reply() -> None:
    stage = Stage(frame_bytes_max=400)
    stage.service.body = bytes(400)
    stage.receive(1)
    (reply,) = stage.transport.replies()
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "the limit of 400" in reply.remark


def test_requests_beyond_the_limit_wait_until_one_is_answered() -> None:
    stage = Stage(in_flight_max=2)
    stage.receive(KEEP, KEEP, KEEP, 1)
    assert len(stage.service.kept) == 2
    assert not stage.transport.is_reading
    stage.release(0)
    assert len(stage.service.kept) == 3
    assert not stage.transport.is_reading
    stage.release(2)
    assert stage.transport.is_reading
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 2, 3]


def test_a_request_that_answers_an_earlier_one_leaves_the_order_as_it_is() -> None:
    stage = Stage()
    stage.receive(KEEP, RELEASE, 1)
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert len(stage.transport.writes) == 1


def test_reading_pauses_while_a_peer_leaves_its_replies_unread() -> None:
    stage = Stage(unread_bytes_max=100_000)
    stage.service.body = bytes(70_000)
    stage.receive(1, 2, 3, 4)
    assert stage.service.events == ["1", "2"]
    assert not stage.transport.is_reading
    stage.transport.drain()
    assert stage.service.events == ["1", "2", "3", "4"]
    assert stage.loop.timers[0].is_cancelled
    stage.transport.drain()
    assert stage.transport.is_reading


def test_a_peer_that_never_reads_its_replies_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(unread_bytes_max=10, unread_timeout=3.0)
    stage.receive(1)
    stage.loop.timers[0].run()
    assert stage.transport.state == "aborted"
    assert "10.0.0.7:4242" in caplog.text
    assert "unread for 3 s" in caplog.text


def test_bytes_that_break_the_protocol_close_the_connection_after_earlier_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.connection.data_received(encode(Command(1)) + b"\xff" * 8)
    assert stage.service.events == ["1"]
    assert stage.transport.state == "closed"
    assert "10.0.0.7:4242" in caplog.text
    stage.connection.data_received(encode(Command(2)))
    assert stage.service.events == ["1"]


def test_a_push_is_written_at_once_and_asks_for_no_answer() -> None:
    stage = Stage()
    stage.dispatcher.perform([Push(1, Command(40))])
    (pushed,) = stage.transport.replies()
    assert (pushed.code, pushed.is_oneway, pushed.is_reply) == (40, True, False)


def test_after_the_end_nothing_is_written_and_nothing_breaks() -> None:
    stage = Stage()
    stage.receive(KEEP)
    stage.connection.connection_lost(None)
    stage.release(0)
    stage.connection.push(Command(40))
    stage.connection.close()
    stage.connection.abort()
    assert stage.transport.writes == []
    assert stage.service.events == [str(KEEP), "lost"]


def test_bytes_in_either_direction_count_as_activity() -> None:
    stage = Stage()
    stage.loop.now = 5.0
    stage.receive(KEEP)
    assert stage.connection.active_at == 5.0
    stage.loop.now = 7.0
    stage.release(0)
    assert stage.connection.active_at == 7.0
