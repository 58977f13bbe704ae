from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.messages import (
    earliest_store_time,
    group_offset,
    max_offset,
    min_offset,
    publish_queues,
    query_messages,
    read_queues,
    search_offset,
    set_group_offset,
    view_message,
)
from downrange.client.flows.routing.routes import route_of
from downrange.errors import (
    ConnectFailed,
    NoPermission,
    NotFound,
    OptionError,
    RouteNotFound,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import EarliestTimeReply, OffsetReply, QueryReply
from downrange.wire.ids import OffsetId
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    record,
    refusal,
    reply,
    route,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.effects import Flow

DEADLINE = 103.0
QUEUE = QueueId("orders", "a", 1)
AT = datetime.fromtimestamp(1_700_000_000.123, UTC)
QUERY = RequestCode.QUERY_MESSAGE
VIEW = RequestCode.VIEW_MESSAGE_BY_ID


def servers_with(brokers: str = "a", *, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route(brokers))
    return servers


# ---- queues and offsets --------------------------------------------------------------------------


@pytest.mark.parametrize("find", [publish_queues, read_queues])
def test_queues_carry_the_name_that_users_know(
    find: Callable[..., Flow[list[QueueId]]],
) -> None:
    for namespace in (None, "prod"):
        servers = servers_with(namespace=namespace)
        queues = servers.run(find(servers.core, "orders", deadline=DEADLINE))
        assert queues == [QueueId("orders", "a", 0), QueueId("orders", "a", 1)]


def test_queues_to_send_to_are_never_borrowed() -> None:
    servers = servers_with()
    servers.answer_route("TBW102", route())
    with pytest.raises(RouteNotFound, match="'ordres'"):
        servers.run(publish_queues(servers.core, "ordres", deadline=DEADLINE))


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


def test_offset_of_a_topic_that_may_not_be_read_is_told_all_the_same() -> None:
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


def test_search_by_time_wants_a_time_zone() -> None:
    servers = servers_with()
    with pytest.raises(OptionError, match="does not say its time zone"):
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


def test_progress_of_a_group_is_recorded_and_a_refusal_told() -> None:
    servers = servers_with()
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    servers.answer("a:1", code, reply(), refusal(ResponseCode.NO_PERMISSION))
    servers.run(set_group_offset(servers.core, "audit", QUEUE, 3, deadline=DEADLINE))
    assert servers.fields(code)["commitOffset"] == "3"
    with pytest.raises(NoPermission, match="a:1"):
        servers.run(set_group_offset(servers.core, "audit", QUEUE, 3, deadline=DEADLINE))


# ---- messages by id ------------------------------------------------------------------------------

UNIQUE_ID = "7F0000010001000000000000000000AA"


def test_offset_id_is_looked_up_at_the_broker_that_it_names() -> None:
    servers = FakeServers()
    body = route("a")
    body.broker_datas[0].broker_addrs = {0: "10.0.0.2:10911"}
    servers.answer_route("orders", body)
    servers.answer("10.0.0.2:10911", VIEW, reply(body=record("orders", 3, queue=1)))
    message_id = str(OffsetId("10.0.0.2", 10911, 3000))  # type: ignore[arg-type]
    found = servers.run(view_message(servers.core, "orders", message_id, deadline=DEADLINE))
    assert (found.queue, found.offset) == (QUEUE, 3)
    assert servers.fields(VIEW) == {"offset": "3000", "topic": "orders"}


def test_offset_id_of_a_broker_that_no_route_names_is_looked_up_all_the_same() -> None:
    servers = servers_with()
    servers.answer("[fd00::1]:10911", VIEW, reply(body=record("orders", 3)))
    message_id = str(OffsetId("fd00::1", 10911, 3000))  # type: ignore[arg-type]
    found = servers.run(view_message(servers.core, "orders", message_id, deadline=DEADLINE))
    assert found.queue.broker == "[fd00::1]:10911"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 3000"), NotFound),
        (refusal(ResponseCode.NO_PERMISSION), NoPermission),
        (reply(), NotFound),
    ],
)
def test_offset_id_without_a_message_is_an_error(answer: object, error: type[Exception]) -> None:
    servers = servers_with()
    servers.answer("10.0.0.2:10911", VIEW, answer)  # type: ignore[arg-type]
    message_id = str(OffsetId("10.0.0.2", 10911, 3000))  # type: ignore[arg-type]
    with pytest.raises(error, match=r"10\.0\.0\.2:10911"):
        servers.run(view_message(servers.core, "orders", message_id, deadline=DEADLINE))


def test_unique_id_is_looked_up_on_all_brokers_of_the_last_three_days() -> None:
    servers = servers_with("ab", namespace="prod")
    servers.clock.seconds = 1_000_000.0
    servers.answer("a:1", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    other = record("prod%orders", 1, properties=f"UNIQ_KEY\x01{UNIQUE_ID[:-1]}B\x02")
    right = record("prod%orders", 2, properties=f"UNIQ_KEY\x01{UNIQUE_ID}\x02")
    servers.answer("b:1", QUERY, reply(QueryReply(0, 0), body=other + right))
    found = servers.run(view_message(servers.core, "orders", UNIQUE_ID, deadline=2e6))
    assert (found.message_id, found.offset) == (UNIQUE_ID, 2)
    assert found.queue == QueueId("orders", "b", 0)
    fields = servers.fields(QUERY)
    assert fields["_UNIQUE_KEY_QUERY"] == "true"
    assert int(fields["beginTimestamp"]) == 1_000_000_000 - 3 * 86_400_000
    assert int(fields["endTimestamp"]) == 2**63 - 1


def test_unique_id_is_looked_up_as_far_back_as_told() -> None:
    servers = servers_with()
    servers.answer("a:1", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    with pytest.raises(NotFound, match="no message of 'orders' has the id 'my-own'"):
        servers.run(view_message(servers.core, "orders", "my-own", since=AT, deadline=DEADLINE))
    assert servers.fields(QUERY)["beginTimestamp"] == "1700000000123"


# ---- messages by key -----------------------------------------------------------------------------


def test_messages_with_a_key_come_from_all_brokers_in_the_order_of_storing() -> None:
    servers = servers_with("ab")
    servers.answer(
        "a:1",
        QUERY,
        reply(
            QueryReply(0, 0),
            body=record("orders", 1, properties="KEYS\x01k1 k2", stored_ms=10)
            + record("orders", 2, properties="KEYS\x01k1", stored_ms=30),
        ),
    )
    servers.answer(
        "b:1",
        QUERY,
        reply(QueryReply(0, 0), body=record("orders", 7, properties="KEYS\x01k1", stored_ms=20)),
    )
    found = servers.run(query_messages(servers.core, "orders", "k1", deadline=DEADLINE))
    assert [message.offset for message in found] == [1, 7, 2]
    newest = servers.run(
        query_messages(servers.core, "orders", "k1", max_count=2, deadline=DEADLINE)
    )
    assert [message.offset for message in newest] == [7, 2]


def test_messages_of_other_keys_and_topics_with_the_same_hash_are_left_out() -> None:
    servers = servers_with(namespace="prod")
    servers.answer(
        "a:1",
        QUERY,
        reply(
            QueryReply(0, 0),
            body=record("prod%orders", 1, properties="KEYS\x01k1")
            + record("prod%orders", 2, properties="KEYS\x01k2")
            + record("prod%others", 3, properties="KEYS\x01k1"),
        ),
    )
    found = servers.run(query_messages(servers.core, "orders", "k1", deadline=DEADLINE))
    assert [(message.topic, message.offset) for message in found] == [("orders", 1)]


def test_messages_with_a_key_are_looked_for_between_two_times() -> None:
    servers = servers_with()
    servers.answer("a:1", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    flow = query_messages(servers.core, "orders", "k", begin=AT, end=AT, deadline=DEADLINE)
    assert servers.run(flow) == []
    fields = servers.fields(QUERY)
    assert fields["beginTimestamp"] == fields["endTimestamp"] == "1700000000123"
    assert (fields["key"], fields["maxNum"]) == ("k", "32")


def test_query_shows_what_was_found_though_a_broker_is_away() -> None:
    servers = servers_with("ab")
    body = record("orders", 1, properties="KEYS\x01k")
    servers.answer("b:1", QUERY, reply(QueryReply(0, 0), body=body))
    found = servers.run(query_messages(servers.core, "orders", "k", deadline=DEADLINE))
    assert len(found) == 1


def test_query_fails_when_nothing_was_found_and_a_broker_is_away() -> None:
    servers = servers_with("abc")
    servers.answer("a:1", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    servers.answer("c:1", QUERY, refusal(ResponseCode.SYSTEM_ERROR))
    with pytest.raises(ConnectFailed, match="b:1"):
        servers.run(query_messages(servers.core, "orders", "k", deadline=DEADLINE))
    servers.answer("b:1", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    with pytest.raises(ServerFailure, match="c:1"):
        servers.run(query_messages(servers.core, "orders", "k", deadline=DEADLINE))


def test_query_asks_a_slave_where_there_is_no_master() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a", without_master="a"))
    servers.answer("a:2", QUERY, refusal(ResponseCode.QUERY_NOT_FOUND))
    servers.run(query_messages(servers.core, "orders", "k", deadline=DEADLINE))
    assert servers.asked(QUERY) == ["a:2"]


def test_query_for_an_unknown_topic_is_an_error() -> None:
    servers = FakeServers()
    servers.answer(
        NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, refusal(ResponseCode.TOPIC_NOT_EXIST)
    )
    with pytest.raises(RouteNotFound, match="'orders'"):
        servers.run(query_messages(servers.core, "orders", "k", deadline=DEADLINE))
