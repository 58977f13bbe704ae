"""Topics: create, describe, delete."""

from __future__ import annotations

import pytest

from downrange.wire.bodies import (
    GroupNamesBody,
    TopicConfig,
    TopicListBody,
    TopicNamesBody,
    TopicStatsBody,
    TopicTableBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import (
    AllTopicsReply,
    AllTopicsRequest,
    DeleteTopicRequest,
    TopicConfigRequest,
    TopicConsumersRequest,
    TopicStatsRequest,
)
from downrange.wire.records import Record
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.handlers.handler_stage import TOOL, HandlerStage


def config_of(broker: HandlerStage, topic: str) -> TopicConfig:
    config = broker.state.topics.get(topic)
    assert config is not None
    return config


# ---- creating ----------------------------------------------------------------------------------


def test_a_topic_is_created_as_asked_and_can_be_changed() -> None:
    broker = HandlerStage()
    reply = broker.create("new", read_queue_nums=3, write_queue_nums=4, perm=4, order=True)
    assert reply.code == ResponseCode.SUCCESS
    config = config_of(broker, "new")
    assert (config.read_queue_nums, config.write_queue_nums) == (3, 4)
    assert (config.perm, config.order, config.topic_sys_flag) == (4, True, 0)
    broker.create("new", perm=6)
    assert config_of(broker, "new").perm == 6


def test_a_topic_that_is_as_wanted_is_not_announced_again() -> None:
    broker = HandlerStage()
    version = broker.state.topics.version
    assert broker.create("T").code == ResponseCode.SUCCESS
    assert broker.state.topics.version == version


@pytest.mark.parametrize(
    "topic",
    [
        *("", "no blanks", "x" * 128, "TBW102", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"),
        *("DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "../../etc"),
    ],
)
def test_illegal_names_and_the_brokers_own_topics_are_refused(topic: str) -> None:
    assert HandlerStage().create(topic).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "changes",
    [
        {"read_queue_nums": -1},
        {"write_queue_nums": 65_537},
        {"perm": 16},
        {"perm": -1},
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, object]) -> None:
    broker = HandlerStage()
    assert broker.create("new", **changes).code == ResponseCode.INVALID_PARAMETER
    assert broker.state.topics.get("new") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"topic_filter_type": "XX"},
        {"attributes": "+foo=bar"},
        {"attributes": "+queue.type=BatchCQ"},
        {"attributes": "+cleanup.policy=COMPACTION"},
    ],
)
def test_what_is_not_supported_is_refused(changes: dict[str, object]) -> None:
    broker = HandlerStage()
    assert broker.create("new", **changes).code == ResponseCode.SYSTEM_ERROR
    assert broker.state.topics.get("new") is None


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (
            "queue.type=BatchCQ",
            "each queue of this broker has one entry per message (SimpleCQ). Create the topic "
            "without this attribute: the messages of a batch are then stored one by one",
        ),
        (
            "cleanup.policy=COMPACTION",
            "this broker deletes messages by age (DELETE) and cannot keep the last one of each "
            "key. Create the topic without this attribute",
        ),
    ],
)
def test_a_refusal_of_an_attribute_says_why_and_what_to_do(attribute: str, reason: str) -> None:
    reply = HandlerStage().create("new", attributes=f"+{attribute}")
    assert reply.remark == f"{attribute} is not supported: {reason}"


@pytest.mark.parametrize("topic", ["CHECKPOINT_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"])
def test_topics_that_only_apache_has_cannot_be_created(topic: str) -> None:
    broker = HandlerStage()
    reply = broker.create(topic)
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert reply.remark == f"The topic[{topic}] is conflict with system topic."
    listed = broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body
    assert topic in decode_body(TopicNamesBody, listed).topic_list


def test_attributes_are_added_kept_and_removed() -> None:
    broker = HandlerStage()
    broker.create("new", attributes="+message.type=FIFO,+queue.type=SimpleCQ")
    broker.create("new", attributes="+reserve.time=5")
    assert config_of(broker, "new").attributes == {
        "message.type": "FIFO",
        "queue.type": "SimpleCQ",
        "reserve.time": "5",
    }
    broker.create("new", attributes="-message.type,-queue.type")
    assert config_of(broker, "new").attributes == {"reserve.time": "5"}


def test_no_topic_is_created_beyond_the_limit_but_old_ones_can_be_changed() -> None:
    broker = HandlerStage(topics_max=13)
    assert len(broker.state.topics) == 13
    assert broker.create("new").code == ResponseCode.SYSTEM_ERROR
    assert broker.create("T", perm=4).code == ResponseCode.SUCCESS


def test_several_topics_are_created_all_or_none() -> None:
    broker = HandlerStage()
    good, bad = TopicConfig(topic_name="good"), TopicConfig(topic_name="no blanks")
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    reply = broker.ask(code, TopicListBody(topic_config_list=[good, bad]).encode())
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert broker.state.topics.get("good") is None
    reply = broker.ask(code, TopicListBody(topic_config_list=[good]).encode())
    assert reply.code == ResponseCode.SUCCESS
    assert config_of(broker, "good").attributes == {}


# ---- deleting ----------------------------------------------------------------------------------


def test_a_deleted_topic_leaves_no_queues_and_no_offsets() -> None:
    broker = HandlerStage()
    broker.store(b"x")
    broker.state.offsets.commit("G", "T", 0, 1)
    broker.state.held_pulls.checked_ms = NOW_MS
    assert broker.request(DeleteTopicRequest(topic="T")).code == ResponseCode.SUCCESS
    assert broker.state.topics.get("T") is None
    assert broker.state.offsets.groups_of("T") == []
    assert broker.state.store.queue("T", 0).max_offset == 0
    assert broker.state.is_checkpoint_due
    assert broker.state.held_pulls.checked_ms == 0


def test_deleting_an_unknown_topic_succeeds_and_changes_nothing() -> None:
    broker = HandlerStage()
    version = broker.state.topics.version
    assert broker.request(DeleteTopicRequest(topic="../../etc")).code == ResponseCode.SUCCESS
    assert broker.state.topics.version == version
    assert not broker.state.is_checkpoint_due


def test_the_brokers_own_topics_and_no_topic_cannot_be_deleted() -> None:
    broker = HandlerStage()
    for topic in ("TBW102", "broker-a", " "):
        reply = broker.request(DeleteTopicRequest(topic=topic))
        assert reply.code == ResponseCode.INVALID_PARAMETER
    reply = broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER)
    assert reply.code == ResponseCode.INVALID_PARAMETER


# ---- describing --------------------------------------------------------------------------------


def test_all_topics_are_listed() -> None:
    broker = HandlerStage()
    reply = broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = decode_body(TopicTableBody, reply.body)
    assert {"T", "TBW102"} <= table.topic_config_table.keys()
    total = AllTopicsReply.from_fields(reply.fields).total_topic_num
    assert total == len(table.topic_config_table) == len(broker.state.topics)
    assert table.data_version == broker.state.topics.data_version


def test_pages_follow_each_other_and_begin_anew_after_a_change() -> None:
    broker = HandlerStage()

    def page(begin: int, version: str | None, count: int | None = 3) -> list[str]:
        header = AllTopicsRequest(topic_seq=begin, data_version=version, max_topic_num=count)
        reply = broker.request(header)
        return list(decode_body(TopicTableBody, reply.body).topic_config_table)

    names = sorted(config.topic_name for config in broker.state.topics)
    version = broker.state.topics.data_version.encode().decode()
    assert sorted(page(0, None) + page(3, version) + page(6, version, None)) == names
    assert page(-3, version) == page(0, version)
    for stale in (None, "{}", "no json"):
        assert page(3, stale) == page(0, version)


def test_one_topic_is_described() -> None:
    broker = HandlerStage()
    reply = broker.request(TopicConfigRequest(topic="T"))
    assert decode_body(TopicConfig, reply.body) == config_of(broker, "T")
    reply = broker.request(TopicConfigRequest(topic="none"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_brokers_own_topics_are_listed() -> None:
    reply = HandlerStage().ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    names = decode_body(TopicNamesBody, reply.body).topic_list
    assert {"TBW102", "broker-a", "DefaultCluster", "rmq_sys_wheel_timer"} <= set(names)
    assert "T" not in names


def test_a_topics_queues_are_measured() -> None:
    broker = HandlerStage()
    broker.store(b"old")
    broker.now_ms += 61_000
    for _ in range(3):
        broker.store(b"new", queue_id=1)
    broker.state.statistics.stored([Record(topic_bytes=b"T")] * 3)
    broker.state.statistics.sample(NOW_MS + 61_000)
    reply = broker.request(TopicStatsRequest(topic="T"))
    body = decode_body(TopicStatsBody, reply.body)
    found = {
        queue.number: (offset.max_offset, offset.last_update_timestamp)
        for queue, offset in body.offset_table.items()
    }
    assert found == {0: (1, NOW_MS), 1: (3, NOW_MS + 61_000)}
    assert body.topic_put_tps == 3 / 10
    assert broker.request(TopicStatsRequest(topic="none")).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_groups_of_a_topic_are_those_that_read_it_now_or_did() -> None:
    broker = HandlerStage()
    broker.state.offsets.commit("past", "T", 0, 1)
    broker.beat(TOOL, "a", group="now")
    broker.beat(TOOL, "a", group="elsewhere", topics=("U",))
    reply = broker.request(TopicConsumersRequest(topic="T"))
    assert decode_body(GroupNamesBody, reply.body).group_list == ["now", "past"]
