"""Retry topics whose name belongs to several groups."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.server.broker.pop import shared_retries
from downrange.server.broker.record_scan import EXAMINED_MAX
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.records import decode_records
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    RETRY_TOPIC,
    PopStage,
    changed,
    notification_request,
)


def a_group(stage: PopStage, name: str) -> None:
    assert stage.state.groups.get_or_create(name, stage.state.options, stage.now_ms) is not None


def pulled(stage: PopStage, group: str, topic: str) -> list[str]:
    """Pull a topic from its first message on."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "*",
    }
    answer = stage.ask(Command(int(RequestCode.PULL_MESSAGE), fields))
    assert answer.code == 0
    return [record.body.decode() for record in decode_records(answer.body)]


def test_pop_does_not_read_the_retries_of_a_group_of_that_name() -> None:
    stage = PopStage()
    stage.send("own")
    stage.pop()
    stage.drain(INVISIBLE_MS)  # one that is popped again stands between the others
    a_group(stage, "G_T")
    stage.send("secret", "secret", topic=RETRY_TOPIC)
    assert [(one.body, one.receipt.kind) for one in stage.pop()] == [("own", "1")]
    assert stage.bodies() == []
    stage.drain(INVISIBLE_MS)
    assert stage.bodies() == ["own"]
    assert pulled(stage, "G_T", RETRY_TOPIC)[1:3] == ["secret", "secret"]


def test_messages_that_were_there_before_the_group_was_known_are_popped_again() -> None:
    stage = PopStage()
    stage.send("a", "b")
    one, _ = stage.pop()
    stage.change(one, INVISIBLE_MS)
    stage.drain(INVISIBLE_MS)
    a_group(stage, "G_T")
    (again, other) = stage.pop()
    assert {again.body, other.body} == {"a", "b"}
    stage.ack(changed(again, stage.change(again, 60_000)), other)
    stage.drain(2 * INVISIBLE_MS)
    assert stage.bodies() == []


def test_groups_whose_retry_topic_has_one_name_pop_their_own_messages() -> None:
    stage = PopStage()
    places = [("a", "b_c"), ("a_b", "c")]
    for group, topic in places:
        stage.create(topic, 1)
        stage.send(f"{group} 0", f"{group} 1", topic=topic)
        assert len(stage.pop(group=group, topic=topic)) == 2
    stage.drain(INVISIBLE_MS)
    assert len(stage.again("%RETRY%a_b_c")) == 4
    for group, topic in places:
        popped = stage.pop(group=group, topic=topic)
        assert [one.body for one in popped] == [f"{group} 0", f"{group} 1"]
        stage.ack(*popped, topic=topic, group=group)
        assert stage.bodies(group=group, topic=topic) == []
        assert stage.committed(0, "%RETRY%a_b_c", group) == 4
    stage.drain(INVISIBLE_MS)
    assert len(stage.again("%RETRY%a_b_c")) == 4


@pytest.mark.parametrize(
    ("properties", "is_delivered"),
    [
        ({"ORIGIN_GROUP": "G"}, True),
        ({"ORIGIN_GROUP": "G2"}, False),
        ({"1ST_POP_TIME": "1"}, True),  # of a broker that does not write the other one
        ({"1ST_POP_TIME": "1", "ORIGIN_GROUP": "G_T"}, False),
        ({}, False),
    ],
)
def test_properties_say_whose_message_it_is(properties: dict[str, str], is_delivered: bool) -> None:
    stage = PopStage()
    stage.send("a", topic=RETRY_TOPIC, queue_id=0, **properties)
    assert stage.bodies() == ["a"] * is_delivered


@pytest.mark.parametrize(
    ("group", "topic", "is_shared"),
    [
        ("x", "y_T", False),  # topic y_T does not exist
        ("G", "T_T", False),
        ("G_T", "T", True),
        ("G", "T", False),
    ],
)
def test_a_name_is_shared_if_the_other_group_and_topic_exist(
    group: str, topic: str, is_shared: bool
) -> None:
    stage = PopStage()
    stage.create("T_T", 1)
    stage.create("%RETRY%G_T_T", 1)
    a_group(stage, group)
    assert shared_retries.is_shared(stage.state, "T_T", "G") is is_shared


def test_producer_cannot_name_the_group_of_a_popped_message() -> None:
    stage = PopStage()
    a_group(stage, "G_T")
    stage.send("a", ORIGIN_GROUP="G_T")
    stage.pop()
    stage.drain(INVISIBLE_MS)
    assert stage.bodies() == ["a"]


def test_notification_does_not_see_the_messages_of_others() -> None:
    stage = PopStage()
    stage.send("secret", topic=RETRY_TOPIC)
    answer = stage.ask(notification_request(stage.now_ms))
    assert answer.fields["hasMsg"] == "false"
    stage.send("own", topic=RETRY_TOPIC, ORIGIN_GROUP="G")
    answer = stage.ask(notification_request(stage.now_ms))
    assert answer.fields["hasMsg"] == "true"


@pytest.mark.parametrize("queue_id", [-1, 0])
def test_waiting_pop_goes_on_behind_many_messages_of_others(queue_id: int) -> None:
    stage = PopStage()
    others = [f"{number}" for number in range(EXAMINED_MAX + 1)]
    stage.send(*others, topic=RETRY_TOPIC)
    stage.send("own", topic=RETRY_TOPIC, ORIGIN_GROUP="G")
    held = stage.hold(queue_id=queue_id)
    stage.tick()
    stage.tick()
    found: Any = stage.answer_of(held)
    assert [record.body for record in decode_records(found.body)] == [b"own"]


def test_second_form_of_the_retry_topic_is_read_whole() -> None:
    stage = PopStage(is_retry_topic_v2=True)
    a_group(stage, "G_T")
    stage.send("a")
    stage.pop()
    stage.drain(INVISIBLE_MS)
    assert [(one.body, one.receipt.kind) for one in stage.pop()] == [("a", "2")]
