"""How long a list of tags may be."""

from __future__ import annotations

import pytest

from downrange.filters.grammar import EXPRESSION_MAX
from downrange.server.broker.message_filter import (
    MessageFilter,
    check_filter,
    filter_of_expression,
    filter_of_subscription,
)
from downrange.server.outputs import Peer
from downrange.wire.bodies import ConsumerMember, GroupConfig, HeartbeatBody, Subscription
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.hashes import tag_hash
from tests.unit.server.broker.broker_stage import Stage, pull_request, send_request

LONGEST = "||".join(f"tag{number:05}" for number in range(6_600))[:EXPRESSION_MAX]
TOO_LONG = LONGEST + "x"


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.create("T")
    return made


def test_the_longest_list_of_tags_finds_messages(stage: Stage) -> None:
    for tag in ("tag00000", "tag06000", "other"):
        stage.ask(send_request(tag.encode(), "T", properties={"TAGS": tag}))
    wanted = filter_of_expression(stage.state, LONGEST, "TAG")
    assert isinstance(wanted, MessageFilter)
    assert wanted.hashes is not None
    assert len(wanted.hashes) > 6_500
    assert tag_hash("tag06000") in wanted.hashes
    answer = stage.ask(pull_request(0, tags=LONGEST))
    assert answer is not None
    assert (answer.code, answer.body.count(b"TAGS")) == (ResponseCode.SUCCESS, 2)
    assert check_filter(stage.state, LONGEST, "TAG") is None


def test_a_longer_list_of_tags_is_refused_as_a_longer_expression_is(stage: Stage) -> None:
    stage.state.groups.get_or_create("G", stage.state.options, 0)
    heartbeat = HeartbeatBody(
        client_id="c",
        consumer_data_set=[
            ConsumerMember(
                group_name="G",
                subscription_data_set=[Subscription(topic="T", sub_string=TOO_LONG, sub_version=1)],
            )
        ],
    )
    stage.ask(
        Command(RequestCode.HEART_BEAT, body=heartbeat.encode()), peer=Peer(2, "10.0.0.3:1002")
    )
    by_tags = filter_of_expression(stage.state, TOO_LONG, None)
    by_sql = filter_of_expression(stage.state, "a = 1 or " * 8_000 + "a = 1", "SQL92")
    subscribed = filter_of_subscription(stage.state, GroupConfig(group_name="G"), "T", 1)
    for refused in (by_tags, by_sql, subscribed):
        assert isinstance(refused, Command)
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert refused.remark == "parse the consumer's subscription failed"
    checked = check_filter(stage.state, TOO_LONG, "TAG")
    assert checked is not None
    assert checked.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert checked.remark == "the tags have more than 65536 characters"
