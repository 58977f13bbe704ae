"""Offsets of queues and groups, asked of a queue's master."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from downrange.client.flows.consuming.offsets import (
    Start,
    earliest_store_time,
    find_start,
    group_offset,
    max_offset,
    min_offset,
    of_existing,
    search_offset,
    set_group_offset,
)
from downrange.client.flows.effects import Call, Flow, Wait
from downrange.client.flows.routing.lookup import read_queues
from downrange.client.flows.routing.routes import route_of
from downrange.errors import CallTimeout, NoPermission, OptionError, RouteNotFound
from downrange.model import QueueId
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.headers import EarliestTimeReply, OffsetReply
from tests.unit.client.flows.fake_servers import FakeServers, refusal, reply, route

DEADLINE = 103.0
QUEUE = QueueId("orders", "a", 1)
AT = datetime.fromtimestamp(1_700_000_000.123, UTC)


def servers_with(brokers: str = "a", *, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route(brokers))
    return servers


def test_offsets_of_a_queue_are_asked_of_its_master() -> None:
    servers = servers_with("ab", namespace="prod")
    servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    servers.answer("a:1", RequestCode.GET_MIN_OFFSET, reply(OffsetReply(4)))
    assert servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE)) == 9
    assert servers.run(min_offset(servers.core, QUEUE, deadline=DEADLINE)) == 4
    fields = servers.fields(RequestCode.GET_MIN_OFFSET)
    assert fields == {"topic": "prod%orders", "queueId": "1"}


def test_offset_of_a_broker_without_a_master_is_an_error_that_names_it() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("ab", without_master="a"))
    with pytest.raises(RouteNotFound, match=r"broker 'a': it has no master; these have: \['b'\]"):
        servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE))


def test_a_queue_is_looked_up_again_before_it_counts_as_missing() -> None:
    servers = servers_with()
    servers.run(read_queues(servers.core, "orders", deadline=DEADLINE))
    servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    queue = QueueId("orders", "a", 2)

    def ask() -> int:
        flow = max_offset(servers.core, queue, deadline=DEADLINE)
        return servers.run(of_existing(servers.core, queue, flow, deadline=DEADLINE))

    with pytest.raises(OptionError, match="which has the queues 0 to 1"):
        ask()
    servers.answer_route("orders", route("a", queues=3))
    assert ask() == 9


def test_offset_of_a_broker_that_has_gone_with_its_topic_is_an_error() -> None:
    servers = servers_with("b")
    servers.run(read_queues(servers.core, "orders", deadline=DEADLINE))
    servers.answer_route("orders", None)
    with pytest.raises(RouteNotFound, match=r"broker 'a': it has no master; these have: \[\]"):
        servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE))


def test_master_that_was_unknown_is_asked_for_again() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("ab", without_master="a"))
    servers.run(read_queues(servers.core, "orders", deadline=DEADLINE))
    servers.answer_route("orders", route("ab"))
    servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    assert servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE)) == 9


def test_offset_of_a_topic_without_read_permission_is_returned() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a", perm=2))
    servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    assert servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE)) == 9


def test_borrowed_route_does_not_make_a_topic_exist() -> None:
    servers = FakeServers()
    servers.answer_route("orders", None)
    servers.core.routes.replace(route_of("orders", route("a"), queue_count_max=4))
    with pytest.raises(RouteNotFound, match="downrange topic create orders"):
        servers.run(max_offset(servers.core, QUEUE, deadline=DEADLINE))


def test_search_by_time_asks_in_milliseconds() -> None:
    servers = servers_with()
    servers.answer("a:1", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, reply(OffsetReply(5)))
    assert servers.run(search_offset(servers.core, QUEUE, AT, deadline=DEADLINE)) == 5
    fields = servers.fields(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert fields["timestamp"] == "1700000000123"


def test_search_by_time_asks_old_brokers_for_a_millisecond_less() -> None:
    servers = servers_with()
    answer = replace(reply(OffsetReply(5)), version=ReleaseVersion.V4_9_4)
    servers.answer("a:1", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer)
    assert servers.run(search_offset(servers.core, QUEUE, AT, deadline=DEADLINE)) == 5
    fields = servers.fields(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert fields["timestamp"] == "1700000000122"


def test_search_by_time_needs_a_time_zone() -> None:
    servers = servers_with()
    with pytest.raises(OptionError, match="has no time zone"):
        servers.run(search_offset(servers.core, QUEUE, AT.replace(tzinfo=None), deadline=DEADLINE))


def test_earliest_store_time_is_none_for_an_empty_queue() -> None:
    servers = servers_with()
    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    servers.answer("a:1", code, reply(EarliestTimeReply(5_000)), reply(EarliestTimeReply(-1)))
    found = servers.run(earliest_store_time(servers.core, QUEUE, deadline=DEADLINE))
    assert found == datetime.fromtimestamp(5, UTC)
    assert servers.run(earliest_store_time(servers.core, QUEUE, deadline=DEADLINE)) is None


def test_progress_of_a_group_is_none_when_it_has_not_begun() -> None:
    servers = servers_with(namespace="prod")
    code = RequestCode.QUERY_CONSUMER_OFFSET
    servers.answer("a:1", code, reply(OffsetReply(7)), refusal(ResponseCode.QUERY_NOT_FOUND))
    assert servers.run(group_offset(servers.core, "audit", QUEUE, deadline=DEADLINE)) == 7
    assert servers.run(group_offset(servers.core, "audit", QUEUE, deadline=DEADLINE)) is None
    assert servers.fields(code) == {
        "consumerGroup": "prod%audit",
        "topic": "prod%orders",
        "queueId": "1",
        "setZeroIfNotFound": "false",
    }


def test_offset_of_a_group_is_committed_and_a_refusal_raised() -> None:
    servers = servers_with()
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    servers.answer("a:1", code, reply(), refusal(ResponseCode.NO_PERMISSION))
    servers.run(set_group_offset(servers.core, "audit", QUEUE, 3, deadline=DEADLINE))
    assert servers.fields(code)["commitOffset"] == "3"
    with pytest.raises(NoPermission, match="a:1"):
        servers.run(set_group_offset(servers.core, "audit", QUEUE, 3, deadline=DEADLINE))


def test_first_commit_of_a_group_to_a_topic_goes_alone() -> None:
    """Two at a time: Apache's brokers make a table for each, and keep one."""
    servers = servers_with()
    servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, reply(OffsetReply(0)))
    servers.run(group_offset(servers.core, "audit", QUEUE, deadline=DEADLINE))  # finds the route

    def commit(number: int) -> Flow[None]:
        queue = QueueId("orders", "a", number)
        return set_group_offset(servers.core, "audit", queue, 3, deadline=DEADLINE)

    first, second, third, late = commit(0), commit(1), commit(2), commit(3)
    assert isinstance(next(first), Call)
    waits = [next(second), next(third), next(late)]
    assert all(isinstance(effect, Wait) and not effect.signal.is_fired for effect in waits)
    assert isinstance(late.send(False), Call), "its time is over, and the request fails"
    with pytest.raises(CallTimeout):
        first.throw(CallTimeout("a:1", 3.0))
    assert isinstance(second.send(True), Call), "it is the first one now"
    again = third.send(True)
    assert isinstance(again, Wait)
    with pytest.raises(StopIteration):
        second.send(reply())
    assert again.signal.is_fired
    fourth = commit(0)
    assert isinstance(third.send(True), Call)
    assert isinstance(next(fourth), Call), "the group is known to the broker"


# ---- where a consumer starts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        ("earliest", 1),
        ("latest", 9),
        ("committed", 5),
        (datetime.fromtimestamp(1, UTC), 3),
        (0, 0),
        (6, 6),
    ],
)
def test_start_means_an_offset(start: Start, offset: int) -> None:
    servers = servers_with()
    servers.answer("a:1", RequestCode.GET_MIN_OFFSET, reply(OffsetReply(1)))
    servers.answer("a:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    servers.answer("a:1", RequestCode.QUERY_CONSUMER_OFFSET, reply(OffsetReply(5)))
    servers.answer("a:1", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, reply(OffsetReply(3)))
    assert servers.run(find_start(servers.core, QUEUE, "audit", start, deadline=DEADLINE)) == offset


def test_start_of_a_group_that_has_not_begun_is_the_first_message() -> None:
    servers = servers_with()
    servers.answer("a:1", RequestCode.GET_MIN_OFFSET, reply(OffsetReply(1)))
    code = RequestCode.QUERY_CONSUMER_OFFSET
    servers.answer("a:1", code, refusal(ResponseCode.QUERY_NOT_FOUND))
    flow = find_start(servers.core, QUEUE, "audit", "committed", deadline=DEADLINE)
    assert servers.run(flow) == 1


@pytest.mark.parametrize("start", [-1, "first"])
def test_start_that_means_nothing_is_refused(start: Start) -> None:
    servers = servers_with()
    with pytest.raises(OptionError, match=f"start={start!r}"):
        servers.run(find_start(servers.core, QUEUE, "audit", start, deadline=DEADLINE))
