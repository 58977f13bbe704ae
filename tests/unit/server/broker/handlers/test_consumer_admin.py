"""Requests that are forwarded to the members of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.model import QueueId
from downrange.server.outputs import Call, LateReply, Output, Peer, Push
from downrange.wire.bodies import ConsumerStatusBody, ResetOffsetBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    ResetOffsetRequest,
    RunningStateRequest,
)
from downrange.wire.records import decode_record
from tests.unit.server.broker.broker_stage import NOW_MS, plain
from tests.unit.server.broker.handlers.handler_stage import TOOL, HandlerStage, pushes_of, reply_of

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE, TWO = Peer(11, "10.0.0.3:1"), Peer(12, "10.0.0.4:1")
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
QUEUE = QueueId("T", "broker-a", 0)


def late(outputs: Iterable[Output]) -> Command:
    """Return the command of the one late reply, which goes to the tool."""
    (output,) = outputs
    assert isinstance(output, LateReply)
    assert output.connection == TOOL.number
    return plain(output.command)


# ---- resetting ---------------------------------------------------------------------------------


def reset(broker: HandlerStage, **changes: object) -> list[Output]:
    fields: dict[str, object] = {"topic": "T", "group": "G", "timestamp": 0, "is_force": True}
    header = ResetOffsetRequest(**(fields | changes))  # type: ignore[arg-type]
    return broker.outputs(request_command(header, code=RESET))


def filled(**options: object) -> HandlerStage:
    """Return a broker with messages 0 to 3 in the first queue, ten ms apart."""
    broker = HandlerStage(**options)
    for _ in range(4):
        broker.store(b"x")
        broker.now_ms += 10
    return broker


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"timestamp": NOW_MS + 20}, {0: 2, 1: 0}),
        ({"timestamp": -1}, {0: 4, 1: 0}),
        ({"timestamp": -1, "is_force": False}, {0: 4, 1: 0}),
        ({"timestamp": 0, "offset": 2}, {0: 0, 1: 0}),
        ({"timestamp": 0, "is_force": False}, {0: 0, 1: 0}),
        ({"queue_id": 0, "timestamp": -1}, {0: 4}),
        ({"queue_id": 0, "offset": 2}, {0: 2}),
        ({"queue_id": 0, "offset": -1, "timestamp": NOW_MS + 5}, {0: 1}),
    ],
)
def test_a_group_is_reset_by_time_or_offset(
    changes: dict[str, object], expected: dict[int, int]
) -> None:
    broker = filled()
    broker.state.offsets.commit("G", "T", 0, 3)
    reply = reply_of(reset(broker, **changes))
    table = decode_body(ResetOffsetBody, reply.body).offset_table
    assert {queue.number: offset for queue, offset in table.items()} == expected
    for queue_id, offset in expected.items():
        assert broker.state.offsets.get("G", "T", queue_id) == offset


def test_the_next_pull_learns_of_a_reset_and_members_get_no_request() -> None:
    broker = filled()
    broker.beat(ONE, "a")
    outputs = reset(broker, queue_id=0, timestamp=-1)
    assert not [output for output in outputs if isinstance(output, Push)]
    assert broker.state.offsets.take_reset("G", "T", 0) == 4
    assert broker.state.offsets.take_reset("G", "T", 1) is None


def test_queues_that_nobody_reads_are_not_reset() -> None:
    broker = filled()
    broker.create("few", read_queue_nums=1, write_queue_nums=3)
    broker.create("none", read_queue_nums=0, write_queue_nums=3)
    table = decode_body(ResetOffsetBody, reply_of(reset(broker, topic="few")).body).offset_table
    assert [queue.number for queue in table] == [0]
    reply = reply_of(reset(broker, topic="none"))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "No queues to reset.")


@pytest.mark.parametrize(("is_force", "expected"), [(True, 4), (False, 3)])
def test_offsets_go_forward_only_with_force_where_members_are_notified(
    is_force: bool, expected: int
) -> None:
    broker = filled(is_reset_by_pull=False)
    broker.state.offsets.commit("G", "T", 0, 3)
    reset(broker, timestamp=-1, is_force=is_force)
    assert broker.state.offsets.get("G", "T", 0) == expected
    assert broker.state.offsets.take_reset("G", "T", 0) is None


def test_members_are_notified_of_a_reset_as_with_4_9() -> None:
    broker = filled(is_reset_by_pull=False)
    broker.beat(ONE, "a")
    broker.beat(TWO, "b")
    outputs = reset(broker, timestamp=NOW_MS + 20)
    assert pushes_of(outputs, RequestCode.RESET_CONSUMER_CLIENT_OFFSET) == [11, 12]
    (push, _) = [output for output in outputs if isinstance(output, Push)]
    header = ResetOffsetRequest.from_fields(push.command.fields)
    assert (header.topic, header.group, header.is_force) == ("T", "G", False)
    assert decode_body(ResetOffsetBody, push.command.body).offset_table[QUEUE] == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": -2}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 0, "offset": 5}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_reset_to_nowhere_is_refused_and_changes_nothing(
    changes: dict[str, object], code: ResponseCode
) -> None:
    broker = filled()
    assert reply_of(reset(broker, **changes)).code == code
    assert broker.state.offsets.version == 0


# ---- asking all members ------------------------------------------------------------------------


def survey(broker: HandlerStage, client: str | None = None) -> list[Output]:
    header = ConsumerStatusRequest(topic="T", group="G", client_addr=client)
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    return broker.outputs(request_command(header, code=code))


def asks_of(outputs: Iterable[Output]) -> list[Call]:
    asks = [output for output in outputs if isinstance(output, Call)]
    assert asks
    return asks


def test_the_answers_of_all_members_are_gathered() -> None:
    broker = HandlerStage()
    for peer, name in ((ONE, "a"), (TWO, "b"), (Peer(13, ""), "c"), (Peer(14, ""), "d")):
        broker.beat(peer, name)
    first, second, third, fourth = asks_of(survey(broker))
    assert first.command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    body = ConsumerStatusBody(message_queue_table={QUEUE: 7}).encode()
    assert not list(first.on_reply(Command(0, body=body), NOW_MS))
    assert not list(second.on_reply(None, NOW_MS))
    assert not list(third.on_reply(Command(1, remark="no"), NOW_MS))
    reply = late(fourth.on_reply(Command(0, body=b"no json"), NOW_MS))
    table = decode_body(ConsumerStatusBody, reply.body).consumer_table
    assert table == {"a": {QUEUE: 7}, "d": {}}


def test_one_member_is_asked_when_it_is_named() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    broker.beat(TWO, "b")
    (ask,) = asks_of(survey(broker, "b"))
    assert ask.connection == 12


def test_a_group_without_members_cannot_be_asked() -> None:
    broker = HandlerStage()
    assert reply_of(survey(broker)).code == ResponseCode.CONSUMER_NOT_ONLINE
    broker.beat(ONE, "a")
    assert reply_of(survey(broker, "b")).code == ResponseCode.CONSUMER_NOT_ONLINE


# ---- passing on --------------------------------------------------------------------------------


def test_a_question_and_its_answer_are_passed_on_without_the_tools_signature() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    request = request_command(RunningStateRequest(consumer_group="G", client_id="a"))
    request.fields |= {"AccessKey": "k", "Signature": "s"}
    (ask,) = asks_of(broker.outputs(request))
    assert ask.connection == 11
    assert ask.command.code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert not {"AccessKey", "Signature"} & ask.command.fields.keys()
    answer = late(ask.on_reply(Command(0, {"x": "1"}, b"state", "fine"), NOW_MS))
    assert (answer.code, answer.fields, answer.body) == (0, {"x": "1"}, b"state")
    assert answer.remark == "fine"


def test_a_member_that_does_not_answer_is_a_timeout() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    request = request_command(RunningStateRequest(consumer_group="G", client_id="a"))
    (ask,) = asks_of(broker.outputs(request))
    assert ask.timeout == 10.0
    assert late(ask.on_reply(None, NOW_MS)).code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_a_member_gets_the_message_to_consume() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    broker.store(b"first")
    record = broker.store(b"second")
    header = ConsumeDirectlyRequest(consumer_group="G", client_id="a", msg_id=record.offset_id)
    (ask,) = asks_of(broker.outputs(request_command(header)))
    assert decode_record(ask.command.body).body == b"second"
    assert ask.command.fields["brokerName"] == "broker-a"
    header.msg_id = record.offset_id[:-16] + f"{record.log_offset + 1:016X}"
    assert broker.request(header).code == ResponseCode.SYSTEM_ERROR


def test_a_member_may_be_asked_to_handle_no_message() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    header = ConsumeDirectlyRequest(consumer_group="G", client_id="a")
    (ask,) = asks_of(broker.outputs(request_command(header)))
    assert ask.command.body == b""


def test_a_member_that_is_not_connected_cannot_be_asked() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    for header in (
        RunningStateRequest(consumer_group="G", client_id="b"),
        ConsumeDirectlyRequest(consumer_group="none", client_id="a"),
        ConsumeDirectlyRequest(consumer_group="G"),
    ):
        reply = broker.request(header)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "not online" in (reply.remark or "")
