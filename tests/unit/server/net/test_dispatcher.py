"""Calls of the server to its peers, and replies for many connections in one write each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.outputs import (
    HELD,
    AskNameServer,
    Call,
    Disconnect,
    LateReply,
    Output,
    Peer,
    Push,
    Reply,
)
from downrange.wire.codes import CommandFlag
from downrange.wire.command import Command, encode
from tests.unit.server.stage import KEEP, RELEASE, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

REPLY = int(CommandFlag.REPLY)
ONEWAY = int(CommandFlag.ONEWAY)


class Callback:
    """A callback that keeps the replies and returns outputs."""

    def __init__(self, *outputs: Output) -> None:
        self.replies: list[tuple[int | None, int]] = []
        self._outputs = outputs

    def on_reply(self, reply: Command | None, now_ms: int) -> Iterable[Output]:
        self.replies.append((None if reply is None else reply.code, now_ms))
        return self._outputs


def _call(stage: Stage, callback: Callback, connection: int = 1) -> Command:
    """Make a call, and return the request as it was sent."""
    stage.dispatcher.perform([Call(connection, Command(307), 3.0, callback.on_reply)])
    (sent,) = stage.transport.replies()
    return sent


def _answer(stage: Stage, request: Command, code: int = 0) -> None:
    reply = Command(code, request_id=request.request_id, flags=REPLY)
    stage.connection.data_received(encode(reply))


# ---- questions to name servers -------------------------------------------------------------------


def test_a_question_to_a_name_server_is_passed_on() -> None:
    stage = Stage()
    question = AskNameServer(Command(105), 2.0, Callback().on_reply)
    stage.dispatcher.perform([question])
    assert stage.questions == [question]


# ---- calls ---------------------------------------------------------------------------------------


def test_the_reply_to_a_call_reaches_its_callback_and_the_outputs_are_performed() -> None:
    stage = Stage()
    callback = Callback(Push(1, Command(40)))
    request = _call(stage, callback)
    assert (request.code, request.is_oneway, request.is_reply) == (307, False, False)
    stage.loop.now = 1.5
    _answer(stage, request, code=12)
    assert callback.replies == [(12, 1500)]
    assert [command.code for command in stage.transport.replies()] == [307, 40]
    assert [timer.is_cancelled for timer in stage.loop.timers] == [True]


def test_the_callback_gets_none_once_when_the_call_times_out() -> None:
    stage = Stage()
    callback = Callback(Push(1, Command(40)))
    request = _call(stage, callback)
    stage.loop.now = 3.0
    stage.loop.timers[0].run()
    assert callback.replies == [(None, 3000)]
    assert [command.code for command in stage.transport.replies()] == [307, 40]
    _answer(stage, request)
    stage.connection.connection_lost(None)
    assert callback.replies == [(None, 3000)]


def test_a_time_out_after_the_answer_changes_nothing() -> None:
    stage = Stage()
    callback = Callback()
    _answer(stage, _call(stage, callback))
    stage.loop.timers[0].run()
    assert callback.replies == [(0, 0)]


def test_all_callbacks_get_none_when_the_connection_is_lost() -> None:
    stage = Stage()
    callbacks = [Callback(), Callback()]
    stage.dispatcher.perform(
        [Call(1, Command(307), 3.0, callback.on_reply) for callback in callbacks]
    )
    stage.connection.connection_lost(None)
    assert [callback.replies for callback in callbacks] == [[(None, 0)], [(None, 0)]]
    assert all(timer.is_cancelled for timer in stage.loop.timers)


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_callbacks_get_none_when_the_server_closes_the_connection(ending: str) -> None:
    stage = Stage()
    callback = Callback()
    _call(stage, callback)
    getattr(stage.connection, ending)()
    stage.connection.connection_lost(None)
    assert callback.replies == [(None, 0)]


def test_callbacks_get_none_when_the_peer_breaks_the_protocol() -> None:
    stage = Stage()
    callback = Callback()
    _call(stage, callback)
    stage.connection.data_received(b"\xff" * 8)
    assert callback.replies == [(None, 0)]


def test_an_answer_that_waits_behind_requests_is_not_lost_with_the_connection() -> None:
    stage = Stage(in_flight_max=1)
    callback = Callback()
    request = _call(stage, callback)
    stage.receive(KEEP, KEEP)
    _answer(stage, request)
    assert callback.replies == []
    stage.connection.connection_lost(None)
    assert callback.replies == [(0, 0)]


def test_a_call_to_an_unknown_connection_gets_none_at_once() -> None:
    stage = Stage()
    callback = Callback(Push(1, Command(40)))
    stage.dispatcher.perform([Call(99, Command(307), 3.0, callback.on_reply)])
    assert callback.replies == [(None, 0)]
    assert [command.code for command in stage.transport.replies()] == [40]


def test_a_call_that_cannot_be_sent_gets_none_at_once() -> None:
    stage = Stage(frame_bytes_max=400)
    callback = Callback()
    stage.dispatcher.perform([Call(1, Command(307, body=bytes(400)), 3.0, callback.on_reply)])
    assert callback.replies == [(None, 0)]
    assert stage.loop.timers[0].is_cancelled


def test_an_error_in_a_callback_is_logged_and_affects_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(reply: Command | None, now_ms: int) -> Iterable[Output]:
        raise RuntimeError("odd")

    stage = Stage()
    callback = Callback()
    calls: list[Output] = [
        Call(1, Command(307), 3.0, fail),
        Call(1, Command(307), 3.0, callback.on_reply),
    ]
    stage.dispatcher.perform(calls)
    stage.connection.connection_lost(None)
    assert callback.replies == [(None, 0)]
    assert "RuntimeError: odd" in caplog.text


# ---- one write per turn --------------------------------------------------------------------------


def test_late_replies_of_one_turn_are_written_once_per_connection() -> None:
    stage = Stage()
    other = stage.join(Peer(2, "10.0.0.8:4242"))
    stage.receive(KEEP, KEEP, KEEP)
    kept = stage.service.kept
    kept.append(LateReply(2, Command(KEEP, request_id=7), Command(0)))
    stage.release(0, 3, 1, 2)
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert [reply.request_id for reply in other.replies()] == [7]
    assert (len(stage.transport.writes), len(other.writes)) == (1, 1)


def test_requests_that_a_reply_makes_room_for_are_answered_in_the_same_write() -> None:
    stage = Stage(in_flight_max=2)
    stage.receive(KEEP, KEEP, 1, 2)
    stage.release(0, 1)
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2, 3]
    assert len(stage.transport.writes) == 1


def _holding(stage: Stage) -> None:
    """Let the service hold requests with the code KEEP."""
    handle = stage.service.handle

    def hold(request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        outputs = list(handle(request, peer, now_ms))
        return [HELD] if request.code == KEEP else outputs

    stage.service.handle = hold  # type: ignore[method-assign]


def test_requests_that_wait_for_messages_do_not_stop_the_reading_of_others() -> None:
    """A consumer of 10,000 queues holds as many pulls; its heartbeats were not read."""
    stage = Stage(in_flight_max=2)
    _holding(stage)
    stage.receive(*[KEEP] * 9, 1)
    assert [reply.request_id for reply in stage.transport.replies()] == [9]
    connection = stage.connection
    assert (connection.unanswered, len(connection.held)) == (0, 9)
    assert connection.is_reading
    stage.release(0, 1)
    assert (connection.unanswered, len(connection.held)) == (0, 7)
    stage.dispatcher.perform([HELD])  # of a request whose reply a rule suppresses


def test_held_requests_with_one_id_do_not_lift_the_limit_of_requests_in_flight() -> None:
    stage = Stage(in_flight_max=3)
    _holding(stage)
    connection = stage.connection
    connection.data_received(encode(Command(KEEP, request_id=7)) * 10)
    assert len(stage.service.kept) == 4  # one is held, three are unanswered, and six wait
    assert (connection.unanswered, len(connection.held)) == (3, 1)
    assert not connection.is_reading
    for number in range(10):
        stage.release(number)
        assert 0 <= connection.unanswered <= 3
    assert [reply.request_id for reply in stage.transport.replies()] == [7] * 10
    assert (connection.unanswered, connection.held) == (0, set())
    assert connection.is_reading


def test_a_held_request_and_an_unanswered_one_may_share_an_id() -> None:
    stage = Stage()
    connection = stage.connection
    stage.receive(KEEP)
    _holding(stage)
    stage.receive(KEEP)
    assert (connection.unanswered, len(connection.held)) == (1, 1)
    stage.release(0, 1)
    assert (connection.unanswered, connection.held) == (0, set())


def test_late_replies_to_held_requests_with_one_id_are_dropped_with_the_connection() -> None:
    stage = Stage(in_flight_max=3)
    _holding(stage)
    stage.connection.data_received(encode(Command(KEEP, request_id=7)) * 10)
    stage.connection.connection_lost(None)
    stage.release(*range(4))
    assert len(stage.service.kept) == 4  # those that waited are dropped
    assert stage.transport.writes == []


def test_a_held_one_way_request_takes_no_place() -> None:
    stage = Stage()
    _holding(stage)
    stage.receive(KEEP, flags=ONEWAY)
    stage.release(0)
    assert (stage.connection.unanswered, stage.connection.held) == (0, set())


def test_replies_to_other_connections_go_out_once_after_the_whole_read() -> None:
    stage = Stage()
    other = stage.join(Peer(2, "10.0.0.8:4242"))
    for number in range(3):
        kept = LateReply(2, Command(KEEP, request_id=number), Command(0))
        stage.service.kept.append(kept)
    stage.receive(RELEASE, RELEASE, RELEASE)
    assert [reply.request_id for reply in other.replies()] == [2, 1, 0]
    assert (len(stage.transport.writes), len(other.writes)) == (1, 1)


def test_outputs_performed_while_a_request_is_handled_are_written_with_its_reply() -> None:
    stage = Stage()
    handle = stage.service.handle

    def handle_and_perform(request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        stage.dispatcher.perform([Push(1, Command(40))])
        assert stage.transport.writes == []
        return handle(request, peer, now_ms)

    stage.service.handle = handle_and_perform  # type: ignore[method-assign]
    stage.receive(1)
    assert [command.code for command in stage.transport.replies()] == [40, 0]
    assert len(stage.transport.writes) == 1


def test_a_late_reply_to_a_one_way_request_is_dropped_and_frees_no_place() -> None:
    stage = Stage()
    stage.receive(KEEP, flags=ONEWAY)
    stage.release(0)
    assert stage.transport.writes == []
    assert stage.connection.unanswered == 0


def test_a_push_that_cannot_be_sent_is_logged_and_the_rest_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(frame_bytes_max=400)
    stage.dispatcher.perform([Push(1, Command(40, body=bytes(400))), Push(1, Command(41))])
    assert [command.code for command in stage.transport.replies()] == [41]
    assert "request 40 to 10.0.0.7:4242 is not sent" in caplog.text


def test_a_reply_without_a_request_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError, match="no request is being handled"):
        Stage().dispatcher.perform([Reply(Command(0))])


def test_a_peer_is_disconnected_after_what_was_written_to_it() -> None:
    stage = Stage()
    stage.dispatcher.perform([Push(1, Command(40)), Disconnect(1), Push(1, Command(41))])
    assert [command.code for command in stage.transport.replies()] == [40]
    assert stage.transport.state == "closed"


def test_requests_are_logged_at_debug_level_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.receive(17)
    assert "< 17" not in caplog.text
    with caplog.at_level("DEBUG", "downrange.server"):
        stage.receive(18)
    assert "< 18 0 10.0.0.7:4242" in caplog.text


def test_frames_not_written_when_the_connection_ended_are_dropped() -> None:
    stage = Stage()
    with pytest.raises(AssertionError):
        stage.dispatcher.perform([Push(1, Command(40)), Reply(Command(0))])
    stage.connection.connection_lost(None)
    assert stage.transport.writes == []
