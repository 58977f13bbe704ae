"""Requests 324 and 325: replies to request messages."""

from __future__ import annotations

import pytest

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PushReplyRequest, SendReply, SendRequest, SendRequestV2
from downrange.wire.properties import decode_properties, encode_properties
from downrange.wire.system_names import HALF_TOPIC
from tests.unit.server.broker.transaction_stage import START_MS, TransactionStage

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
FAILED = ResponseCode.SYSTEM_ERROR
PROPERTIES = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker",
    "MSG_TYPE": "reply",
    "TTL": "3000",
}


@pytest.fixture
def world() -> TransactionStage:
    world = TransactionStage()
    world.join("askers", 9, "asker")
    return world


def reply_command(
    topic: str = REPLY_TOPIC, queue_id: int = 0, properties: dict[str, str] = PROPERTIES
) -> Command:
    header = SendRequestV2(
        producer_group="answerers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=START_MS - 9,
        flag=3,
        properties=encode_properties(properties),
    )
    return request_command(header, b"pong", code=int(RequestCode.SEND_REPLY_MESSAGE_V2))


def test_a_reply_is_sent_to_the_requester(world: TransactionStage) -> None:
    assert world.call(reply_command()) is None
    (ask,) = world.calls
    assert (ask.connection, ask.timeout, ask.command.code) == (9, 10.0, 326)
    assert ask.command.body == b"pong"
    header = PushReplyRequest.from_fields(ask.command.fields)
    assert header == PushReplyRequest(
        producer_group="answerers",
        topic=REPLY_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=START_MS - 9,
        flag=3,
        born_host="127.0.0.1:40001",
        store_host="10.0.0.2:10911",
        store_timestamp=START_MS,
        properties=header.properties,
        reconsume_times=0,
        unit_mode=False,
    )
    marks = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert decode_properties(header.properties or "") == {
        "PUSH_REPLY_TIME": str(START_MS),
        **PROPERTIES,
        **marks,
    }


def test_a_reply_that_was_taken_is_stored_and_answered(world: TransactionStage) -> None:
    world.call(reply_command())
    assert world.records(REPLY_TOPIC) == []
    answer = world.answer(Command(0))
    (record,) = world.records(REPLY_TOPIC)
    assert answer.code == 0
    assert SendReply.from_fields(answer.fields) == SendReply(
        record.offset_id, 0, 0, region="DefaultRegion", trace_on=True
    )
    assert (record.body, record.flag, record.born_ms) == (b"pong", 3, START_MS - 9)
    assert record.properties() == PROPERTIES | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize("reply", [None, Command(1)])
def test_a_reply_that_was_not_taken_is_stored_and_says_so(
    world: TransactionStage, reply: Command | None
) -> None:
    world.call(reply_command())
    answer = world.answer(reply)
    assert (answer.code, answer.remark) == (FAILED, "push reply message to askerfail.")
    assert answer.fields["msgId"] == world.records(REPLY_TOPIC)[0].offset_id


def test_a_reply_to_a_disconnected_requester_is_stored_and_says_so(world: TransactionStage) -> None:
    answer = world.call(reply_command(properties=PROPERTIES | {"REPLY_TO_CLIENT": "nobody"}))
    assert answer is not None
    assert answer.code == FAILED
    assert answer.remark == "push reply message fail, channel of <nobody> not found."
    assert answer.fields["queueOffset"] == "0"
    assert len(world.records(REPLY_TOPIC)) == 1


def test_a_reply_without_a_requester_is_stored_and_says_so(world: TransactionStage) -> None:
    answer = world.call(reply_command(properties={"CORRELATION_ID": "c"}))
    assert answer is not None
    assert answer.code == FAILED
    assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert len(world.records(REPLY_TOPIC)) == 1


def test_a_reply_with_full_field_names_is_served_too(world: TransactionStage) -> None:
    header = SendRequest(
        topic=REPLY_TOPIC,
        queue_id=-1,
        sys_flag=0,
        born_timestamp=START_MS,
        flag=0,
        properties=encode_properties(PROPERTIES),
    )
    world.call(request_command(header, b"pong", code=int(RequestCode.SEND_REPLY_MESSAGE)))
    assert world.answer(Command(0)).fields["queueId"] == "0"


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("T", ResponseCode.NO_PERMISSION),
        (HALF_TOPIC, ResponseCode.NO_PERMISSION),
        ("other_REPLY_TOPIC", ResponseCode.TOPIC_NOT_EXIST),
    ],
)
def test_a_reply_to_a_topic_that_is_not_for_replies_is_refused(
    world: TransactionStage, topic: str, code: ResponseCode
) -> None:
    answer = world.call(reply_command(topic))
    assert answer is not None
    assert answer.code == code
    assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert world.calls == []


def test_a_reply_to_a_queue_that_is_not_there_is_refused(world: TransactionStage) -> None:
    answer = world.call(reply_command(queue_id=1))
    assert answer is not None
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_a_reply_that_was_taken_but_cannot_be_stored_has_no_id(world: TransactionStage) -> None:
    world.call(reply_command())
    with world.full_disk():
        answer = world.answer(Command(0))
    assert (answer.code, answer.fields["msgId"], answer.fields["queueOffset"]) == (0, "0", "0")


def test_a_reply_that_was_taken_while_nothing_is_stored_has_no_id(world: TransactionStage) -> None:
    world.call(reply_command())
    world.state.unwritable = "stopping"
    answer = world.answer(Command(0))
    assert (answer.code, answer.fields["msgId"]) == (0, "0")
