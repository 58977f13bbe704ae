"""Consumer groups: create, describe, measure, delete."""

from __future__ import annotations

import pytest

from downrange.model import QueueId
from downrange.server.broker.tables.group_table import FORBIDDEN_MAX
from downrange.wire.bodies import (
    BrokerConsumeStatsBody,
    ConsumeStatsBody,
    ForbiddenBody,
    GroupConfig,
    GroupListBody,
    GroupSubscriptionBody,
    GroupTableBody,
    TimeSpansBody,
    TopicNamesBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import (
    AllGroupsReply,
    AllGroupsRequest,
    BrokerConsumeStatsRequest,
    ConsumeStatsRequest,
    ConsumeTimeSpanRequest,
    DeleteGroupRequest,
    ForbidGroupRequest,
    GroupConfigRequest,
    GroupSubscriptionRequest,
    GroupTopicsRequest,
)
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.handlers.handler_stage import TOOL, HandlerStage

CREATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


def queue(number: int, topic: str = "T") -> QueueId:
    return QueueId(topic, "broker-a", number)


# ---- creating and deleting ---------------------------------------------------------------------


def test_a_group_is_created_as_asked_and_can_be_changed() -> None:
    broker = HandlerStage()
    for times in (5, 6):
        config = GroupConfig(group_name="new", retry_max_times=times)
        assert broker.ask(CREATE, config.encode()).code == ResponseCode.SUCCESS
        kept = broker.state.groups.get("new")
        assert kept is not None
        assert kept.retry_max_times == times


@pytest.mark.parametrize(
    "config",
    [
        GroupConfig(group_name=""),
        GroupConfig(group_name="no blanks"),
        GroupConfig(group_name="g", retry_queue_nums=-1),
        GroupConfig(group_name="g", retry_queue_nums=2**31 - 1),
    ],
)
def test_an_illegal_group_is_refused(config: GroupConfig) -> None:
    broker = HandlerStage()
    count = len(broker.state.groups)
    assert broker.ask(CREATE, config.encode()).code == ResponseCode.INVALID_PARAMETER
    assert len(broker.state.groups) == count


def test_attributes_of_a_group_are_added_and_removed() -> None:
    broker = HandlerStage()
    for changes in ({"+a": "1", "+b": "2"}, {"-a": "", "c": "3"}):
        broker.ask(CREATE, GroupConfig(group_name="new", attributes=changes).encode())
    config = broker.state.groups.get("new")
    assert config is not None
    assert config.attributes == {"b": "2", "c": "3"}


def test_several_groups_are_created_up_to_the_limit() -> None:
    broker = HandlerStage(groups_max=10)
    wanted = [GroupConfig(group_name=name) for name in ("G", "a", "b")]
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    reply = broker.ask(code, GroupListBody(group_config_list=wanted).encode())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert broker.state.groups.get("a") is None
    reply = broker.ask(code, GroupListBody(group_config_list=wanted[:2]).encode())
    assert reply.code == ResponseCode.SUCCESS
    assert broker.state.groups.get("a") is not None


@pytest.mark.parametrize(
    ("header", "is_kept"),
    [
        (DeleteGroupRequest(group_name="G"), True),
        (DeleteGroupRequest(group_name="G", clean_offset=True), False),
        (DeleteGroupRequest(group_name="G", remove_offset=True), False),
    ],
)
def test_a_deleted_group_keeps_its_offsets_unless_asked(
    header: DeleteGroupRequest, is_kept: bool
) -> None:
    broker = HandlerStage()
    broker.state.offsets.commit("G", "T", 0, 1)
    assert broker.request(header).code == ResponseCode.SUCCESS
    assert broker.state.groups.get("G") is None
    assert bool(broker.state.offsets.of_group("G")) is is_kept


# ---- describing --------------------------------------------------------------------------------


def test_all_groups_are_listed_whole_and_in_pages() -> None:
    broker = HandlerStage()
    reply = broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = decode_body(GroupTableBody, reply.body)
    assert AllGroupsReply.from_fields(reply.fields).total_group_num == 9
    assert len(table.subscription_group_table) == 9
    version = table.data_version.encode().decode()
    names: list[str] = []
    for begin in range(0, 9, 4):
        header = AllGroupsRequest(group_seq=begin, data_version=version, max_group_num=4)
        part = decode_body(GroupTableBody, broker.request(header).body)
        names += part.subscription_group_table
    assert sorted(names) == sorted(table.subscription_group_table)


def test_one_group_is_described_and_created_where_it_is_missing() -> None:
    broker = HandlerStage()
    reply = broker.request(GroupConfigRequest(group="new"))
    assert decode_body(GroupConfig, reply.body) == broker.state.groups.get("new")
    reply = broker.request(GroupConfigRequest(group="no blanks"))
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_groups_topics_and_subscriptions_are_shown() -> None:
    broker = HandlerStage()
    broker.state.offsets.commit("G", "T", 0, 1)
    names = decode_body(TopicNamesBody, broker.request(GroupTopicsRequest(group="G")).body)
    assert (names.topic_list, names.broker_addr) == (["T"], "10.0.0.2:10911")

    def subscription() -> GroupSubscriptionBody:
        reply = broker.request(GroupSubscriptionRequest(group="G", topic="T"))
        return decode_body(GroupSubscriptionBody, reply.body)

    assert subscription().subscription_data is None
    broker.beat(TOOL, "a")
    found = subscription().subscription_data
    assert found is not None
    assert found.sub_string == "*"


# ---- forbidding --------------------------------------------------------------------------------


def forbid(broker: HandlerStage, readable: bool | None = None, **changes: str) -> ForbiddenBody:
    fields = {"group": "G", "topic": "T"} | changes
    reply = broker.request(ForbidGroupRequest(**fields, readable=readable))
    assert reply.code == ResponseCode.SUCCESS
    return decode_body(ForbiddenBody, reply.body)


def test_a_group_is_forbidden_to_read_a_topic_and_allowed_again() -> None:
    broker = HandlerStage()
    assert forbid(broker) == ForbiddenBody(group="G", topic="T", readable=True)
    version = broker.state.tables_version
    assert not forbid(broker, False).readable
    assert broker.state.tables_version > version
    assert not forbid(broker, False, topic="U").readable
    assert not forbid(broker).readable
    assert forbid(broker, True).readable
    assert not forbid(broker, topic="U").readable
    listed = decode_body(
        GroupTableBody, broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    )
    assert listed.forbidden_table == {"G": {"U": 4}}


@pytest.mark.parametrize("changes", [{"group": "a b"}, {"topic": ""}, {"topic": "x" * 300}])
def test_an_illegal_name_cannot_be_forbidden(changes: dict[str, str]) -> None:
    broker = HandlerStage()
    fields = {"group": "G", "topic": "T"} | changes
    reply = broker.request(ForbidGroupRequest(**fields, readable=False))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert broker.state.groups.forbidden == {}


def test_no_more_topics_can_be_forbidden_than_the_limit() -> None:
    broker = HandlerStage()
    broker.state.groups.forbidden["H"] = {f"T{number}": 4 for number in range(FORBIDDEN_MAX)}
    reply = broker.request(ForbidGroupRequest(group="G", topic="T", readable=False))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "10000 topics are forbidden to groups, which is the limit"


# ---- how far groups have come ------------------------------------------------------------------


def test_progress_is_shown_for_all_queues_of_the_groups_topics() -> None:
    broker = HandlerStage()
    for _ in range(2):
        broker.store(b"x")
        broker.now_ms += 10
    broker.state.offsets.commit("G", "T", 0, 1)
    broker.state.offsets.commit("G", "gone", 0, 1)
    reply = broker.request(ConsumeStatsRequest(consumer_group="G"))
    table = decode_body(ConsumeStatsBody, reply.body).offset_table
    assert table.keys() == {queue(0), queue(1)}
    first, second = table[queue(0)], table[queue(1)]
    assert (first.broker_offset, first.consumer_offset, first.pull_offset) == (2, 1, 1)
    assert first.last_timestamp == NOW_MS
    assert (second.broker_offset, second.consumer_offset, second.last_timestamp) == (0, 0, 0)


def test_progress_is_shown_for_the_named_topics_that_are_read() -> None:
    broker = HandlerStage()
    for topic in ("U", "V"):
        broker.create(topic, read_queue_nums=1, write_queue_nums=1)

    def topics(**changes: str) -> set[str]:
        reply = broker.request(ConsumeStatsRequest(consumer_group="G", **changes))
        table = decode_body(ConsumeStatsBody, reply.body).offset_table
        return {queue.topic for queue in table}

    assert topics(topic="U") == {"U"}
    assert topics(topic_list="U;V;") == {"U", "V"}
    broker.beat(TOOL, "a", topics=())
    assert topics(topic="U") == {"U"}
    broker.beat(TOOL, "a", topics=("V",))
    assert topics(topic_list="U;V") == {"V"}


def test_progress_of_all_groups_is_summed_up() -> None:
    broker = HandlerStage()
    broker.create("U", order=True)
    for topic in ("T", "U", "U"):
        broker.store(b"x", topic=topic)
    for topic in ("T", "U", "gone"):
        broker.state.offsets.commit("G", topic, 0, 0)

    def measure(is_order: bool) -> BrokerConsumeStatsBody:
        reply = broker.request(BrokerConsumeStatsRequest(is_order=is_order))
        return decode_body(BrokerConsumeStatsBody, reply.body)

    whole, ordered = measure(False), measure(True)
    assert (whole.total_diff, ordered.total_diff) == (3, 2)
    (stats,) = [entry["G"] for entry in ordered.consume_stats_list if "G" in entry]
    assert stats[0].offset_table.keys() == {queue(0, "U"), queue(1, "U")}


def test_rates_and_messages_under_way_are_shown() -> None:
    broker = HandlerStage()
    broker.create("U")
    for _ in range(6):
        broker.store(b"x")
    statistics = broker.state.statistics
    statistics.consumed("G", "T", 5, 50, 0, 5)
    statistics.consumed("G", "U", 1, 10, 0, 1)
    statistics.sample(NOW_MS + 10_000)
    for topic in ("T", "U"):
        broker.state.offsets.commit("G", topic, 0, 2)
    body = decode_body(
        ConsumeStatsBody, broker.request(ConsumeStatsRequest(consumer_group="G")).body
    )
    assert body.consume_tps == 0.6
    assert body.offset_table[queue(0)].pull_offset == 5
    assert body.offset_table[queue(0, "U")].pull_offset == 2
    whole = decode_body(
        BrokerConsumeStatsBody, broker.request(BrokerConsumeStatsRequest(is_order=False)).body
    )
    (stats,) = [entry["G"] for entry in whole.consume_stats_list if "G" in entry]
    assert [each.consume_tps for each in stats] == [0.5, 0.1]
    assert whole.total_inflight_diff == 3
    broker.beat(TOOL, "a", topics=("U",))
    whole = decode_body(
        BrokerConsumeStatsBody, broker.request(BrokerConsumeStatsRequest(is_order=False)).body
    )
    (stats,) = [entry["G"] for entry in whole.consume_stats_list if "G" in entry]
    assert [each.consume_tps for each in stats] == [0.1]


def test_the_times_of_what_is_yet_to_be_read_are_shown() -> None:
    broker = HandlerStage()
    for _ in range(3):
        broker.store(b"x")
        broker.now_ms += 10
    broker.state.offsets.commit("G", "T", 0, 2)

    def spans(group: str) -> list[tuple[int, int, int, int]]:
        reply = broker.request(ConsumeTimeSpanRequest(topic="T", group=group))
        return [
            (span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp, span.delay_time)
            for span in decode_body(TimeSpansBody, reply.body).consume_time_span_set
        ]

    empty = (-1, -1, -1, 0)
    assert spans("G") == [(NOW_MS, NOW_MS + 20, NOW_MS + 10, 10), empty]
    assert spans("other") == [(NOW_MS, NOW_MS + 20, NOW_MS, 30), empty]
    broker.state.offsets.commit("G", "T", 0, 3)
    assert spans("G")[0] == (NOW_MS, NOW_MS + 20, NOW_MS + 20, 0)
    reply = broker.request(ConsumeTimeSpanRequest(topic="none", group="G"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
