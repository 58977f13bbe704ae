"""Physical queues of a static topic's logical queues: search by time, earliest time, stats."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.topics import topic_stats
from downrange.client.flows.consuming.offsets import earliest_store_time, search_offset
from downrange.client.flows.routing.routes import route_of
from downrange.errors import MalformedBody, QueueMoved, RouteNotFound
from downrange.model import QueueId
from downrange.wire.bodies import (
    MappedTopicConfig,
    PhysicalQueue,
    QueueHistory,
    TopicConfig,
    TopicOffset,
    TopicStatsBody,
)
from downrange.wire.codes import RequestCode
from downrange.wire.headers import EarliestTimeReply, OffsetReply
from tests.unit.client.flows.fake_servers import FakeServers, reply, static_route

if TYPE_CHECKING:
    from downrange.wire.command import Command

CONFIG = RequestCode.GET_TOPIC_CONFIG
BY_TIME, MAX_OFFSET, EARLIEST = (
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
DEADLINE = 103.0
AT = datetime.fromtimestamp(1_700_000_000.5, UTC)
QUEUE = QueueId("orders", "__syslo__global__", 1)
#: Queue 1 was on broker "a" for two messages, and is on broker "b" now.
MOVED = (
    PhysicalQueue(bname="a", queue_id=3),
    PhysicalQueue(bname="b", queue_id=5, logic_offset=10_000),
)


def history(*parts: PhysicalQueue, number: int = 1) -> Command:
    mapped = QueueHistory(hosted_queues={number: list(parts)})
    return reply(body=MappedTopicConfig(topic_name="orders", mapping_detail=mapped))


def servers_with(*parts: PhysicalQueue) -> FakeServers:
    servers = FakeServers()
    servers.answer_route("orders", static_route({"a": (0,), "b": (1,)}, total=2))
    servers.answer("b:1", CONFIG, history(*parts))
    return servers


def search(servers: FakeServers) -> int:
    return servers.run(search_offset(servers.core, QUEUE, AT, deadline=DEADLINE))


# ---- by time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_a", "on_b", "expected"), [(1, 0, 1), (2, 0, 10_000), (2, 4, 10_004), (7, 4, 10_004)]
)
def test_a_time_is_searched_in_one_physical_queue_after_the_other(
    on_a: int, on_b: int, expected: int
) -> None:
    servers = servers_with(*MOVED)
    servers.answer("a:1", BY_TIME, reply(OffsetReply(on_a)))
    servers.answer("a:1", MAX_OFFSET, reply(OffsetReply(2)))
    servers.answer("b:1", BY_TIME, reply(OffsetReply(on_b)))
    assert search(servers) == expected
    assert servers.fields(MAX_OFFSET)["lo"] == "false"
    number = "3" if expected == 1 else "5"
    assert servers.fields(BY_TIME) == {
        "topic": "orders",
        "queueId": number,
        "timestamp": "1700000000500",
        "lo": "false",
    }


def test_a_queue_that_never_moved_is_searched_with_its_physical_number() -> None:
    servers = servers_with(PhysicalQueue(bname="b", queue_id=0, start_offset=3))
    servers.answer("b:1", BY_TIME, reply(OffsetReply(5)))
    assert search(servers) == 2
    assert servers.asked(MAX_OFFSET) == []


def test_offsets_that_are_not_decided_yet_are_passed_over() -> None:
    servers = FakeServers()
    servers.answer_route("orders", static_route({"a": (1,), "b": ()}, total=2))
    undecided = PhysicalQueue(bname="b", queue_id=5, logic_offset=-1)
    servers.answer("a:1", CONFIG, history(MOVED[0], undecided))
    servers.answer("a:1", BY_TIME, reply(OffsetReply(1)))
    assert search(servers) == 1


def test_the_route_is_refreshed_when_the_broker_no_longer_has_the_queue() -> None:
    servers = servers_with(*MOVED)
    servers.answer("a:1", CONFIG, history(*MOVED))
    servers.answer("a:1", BY_TIME, reply(OffsetReply(2)))
    servers.answer("a:1", MAX_OFFSET, reply(OffsetReply(2)))
    servers.answer("b:1", BY_TIME, reply(OffsetReply(4)))
    old = route_of("orders", static_route({"a": (0, 1), "b": ()}, total=2))
    servers.core.routes.replace(old)
    assert search(servers) == 10_004
    assert servers.asked(CONFIG) == ["a:1", "b:1"]


@pytest.mark.parametrize("parts", [(), MOVED[:1]])
def test_a_queue_that_its_broker_does_not_serve_is_an_error(
    parts: tuple[PhysicalQueue, ...],
) -> None:
    servers = servers_with(*parts)
    with pytest.raises(QueueMoved, match=r"b:1 .*queue 1 of 'orders' is not served by this broker"):
        search(servers)
    assert servers.asked(CONFIG) == ["b:1", "b:1"]


def test_a_topic_without_a_mapping_on_the_broker_is_an_error() -> None:
    servers = servers_with()
    servers.answer("b:1", CONFIG, reply(body=TopicConfig(topic_name="orders")))
    with pytest.raises(QueueMoved):
        search(servers)


def test_older_messages_of_a_broker_that_is_gone_are_an_error_that_names_it() -> None:
    servers = servers_with(PhysicalQueue(bname="c", queue_id=0), MOVED[1])
    with pytest.raises(RouteNotFound, match="to broker 'c', which holds older messages of queue 1"):
        search(servers)


def test_a_malformed_mapping_is_a_named_error() -> None:
    servers = servers_with()
    text = b'{"topicName":"orders","mappingDetail":{"hostedQueues":{"1":[{"bname":"a"}]}}}'
    servers.answer("b:1", CONFIG, reply(body=text))
    with pytest.raises(MalformedBody, match="queueId"):
        search(servers)


# ---- the earliest time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_a", "on_b", "expected"), [(1500, 2500, 1.5), (-1, 2500, 2.5), (-1, -1, None)]
)
def test_the_earliest_time_is_that_of_the_first_queue_with_messages(
    on_a: int, on_b: int, expected: float | None
) -> None:
    servers = servers_with(*MOVED)
    servers.answer("a:1", EARLIEST, reply(EarliestTimeReply(on_a)))
    servers.answer("b:1", EARLIEST, reply(EarliestTimeReply(on_b)))
    found = servers.run(earliest_store_time(servers.core, QUEUE, deadline=DEADLINE))
    assert found == (None if expected is None else datetime.fromtimestamp(expected, UTC))
    assert servers.fields(EARLIEST)["lo"] == "false"


# ---- stats ---------------------------------------------------------------------------------------


def stats(broker: str, *queues: tuple[int, int, int, int]) -> Command:
    table = {
        QueueId("orders", broker, number): TopicOffset(
            min_offset=first, max_offset=end, last_update_timestamp=at_ms
        )
        for number, first, end, at_ms in queues
    }
    return reply(body=TopicStatsBody(offset_table=table))


def test_stats_are_those_of_the_logical_queues() -> None:
    servers = servers_with(*MOVED)
    own = PhysicalQueue(bname="a", queue_id=0)
    servers.answer("a:1", CONFIG, history(own, number=0))
    servers.answer(
        "a:1", RequestCode.GET_TOPIC_STATS_INFO, stats("a", (0, 0, 0, 0), (3, 0, 2, 1500))
    )
    servers.answer("b:1", RequestCode.GET_TOPIC_STATS_INFO, stats("b", (5, 0, 0, 0)))
    first, second = servers.run(topic_stats(servers.core, "orders", deadline=DEADLINE))
    assert (first.queue.number, first.min_offset, first.max_offset) == (0, 0, 0)
    assert (first.stored_at, first.count) == (None, 0)
    assert second.queue == QUEUE
    assert (second.min_offset, second.max_offset, second.skipped) == (0, 10_000, 9_998)
    assert (second.count, second.stored_at) == (2, datetime.fromtimestamp(1.5, UTC))


def test_stats_leave_out_queues_without_a_broker_and_count_what_is_there() -> None:
    servers = FakeServers()
    servers.answer_route("orders", static_route({"b": (1,)}, total=2))
    servers.answer("b:1", CONFIG, history(*MOVED))
    servers.answer("b:1", RequestCode.GET_TOPIC_STATS_INFO, stats("b", (5, 1, 4, 2500)))
    (only,) = servers.run(topic_stats(servers.core, "orders", deadline=DEADLINE))
    assert (only.queue, only.max_offset, only.count) == (QUEUE, 10_004, 3)
