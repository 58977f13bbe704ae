from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.client.flows.admin.messages import (
    query_messages,
    read_queue,
    view_message,
)
from downrange.errors import (
    ConnectFailed,
    MalformedBody,
    NoPermission,
    NotFound,
    RouteNotFound,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import PullReply, QueryReply
from downrange.wire.ids import OffsetId
from tests.unit.client.flows.admin.test_dead_letters import pulled
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    record,
    refusal,
    reply,
    route,
)

DEADLINE = 103.0
QUEUE = QueueId("orders", "a", 1)
AT = datetime.fromtimestamp(1_700_000_000.123, UTC)
QUERY = RequestCode.QUERY_MESSAGE
VIEW = RequestCode.VIEW_MESSAGE_BY_ID
MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


def servers_with(brokers: str = "a", *, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route(brokers))
    return servers


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


def test_message_of_another_topic_is_not_found() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("10.0.0.2:10911", VIEW, reply(body=record("prod%secrets", 3)))
    message_id = str(OffsetId("10.0.0.2", 10911, 3000))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="the message at offset 3000 is of another topic"):
        servers.run(view_message(servers.core, "orders", message_id, deadline=DEADLINE))
    servers.answer("10.0.0.2:10911", VIEW, reply(body=record("prod%orders", 3)))
    found = servers.run(view_message(servers.core, "orders", message_id, deadline=DEADLINE))
    assert found.topic == "orders"


def test_message_of_the_same_topic_outside_of_the_namespace_is_not_found() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("10.0.0.2:10911", VIEW, reply(body=record("orders", 3)))
    message_id = str(OffsetId("10.0.0.2", 10911, 3000))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="the message at offset 3000 is of another topic"):
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


def test_unique_id_is_searched_from_a_given_time() -> None:
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


def test_messages_with_a_key_can_stay_compressed() -> None:
    servers = servers_with()
    broken = record("orders", 3, properties="KEYS\x01k1", body=b"not zlib", sys_flag=1)
    servers.answer("a:1", QUERY, reply(QueryReply(0, 0), body=broken))
    (found,) = servers.run(
        query_messages(servers.core, "orders", "k1", decode_body=False, deadline=DEADLINE)
    )
    assert (found.body, found.compression) == (b"not zlib", "zlib")


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


# ---- messages of a queue -------------------------------------------------------------------------


def test_a_queue_is_read_from_an_offset_on() -> None:
    servers = servers_with()
    servers.answer("a:1", RequestCode.PULL_MESSAGE, pulled("orders", {3: record("orders", 3)}))
    found = servers.run(read_queue(servers.core, QUEUE, 3, max_count=5, deadline=DEADLINE))
    assert [message.offset for message in found.messages] == [3]
    assert (found.next, found.end, found.is_end) == (4, 4, True)
    fields = servers.fields(RequestCode.PULL_MESSAGE)
    assert (fields["maxMsgNums"], fields["consumerGroup"]) == ("5", "TOOLS_CONSUMER")


def test_an_offset_before_the_first_message_counts_as_the_first() -> None:
    servers = servers_with()
    begins: list[int] = []

    def answer(command: Command) -> Command:
        begins.append(int(command.fields["queueOffset"]))
        moved = PullReply(
            suggest_which_broker_id=0, next_begin_offset=3, min_offset=3, max_offset=9
        )
        if begins[-1] < 3:
            return Command(MOVED, moved.to_fields())
        return pulled("orders", {3: record("orders", 3)})(command)  # type: ignore[no-any-return]

    servers.answer("a:1", RequestCode.PULL_MESSAGE, answer)
    found = servers.run(read_queue(servers.core, QUEUE, 0, deadline=DEADLINE))
    assert ([message.offset for message in found.messages], begins) == ([3], [0, 3])


def test_a_queue_can_be_read_though_a_body_cannot_be_decompressed() -> None:
    servers = servers_with()
    broken = record("orders", 3, body=b"not zlib", sys_flag=1)
    servers.answer("a:1", RequestCode.PULL_MESSAGE, pulled("orders", {3: broken}))
    with pytest.raises(MalformedBody):
        servers.run(read_queue(servers.core, QUEUE, 3, deadline=DEADLINE))
    found = servers.run(read_queue(servers.core, QUEUE, 3, decode_body=False, deadline=DEADLINE))
    assert [(each.body, each.compression) for each in found.messages] == [(b"not zlib", "zlib")]


def test_an_offset_behind_the_end_returns_nothing() -> None:
    servers = servers_with()
    moved = PullReply(suggest_which_broker_id=0, next_begin_offset=4, min_offset=0, max_offset=4)
    servers.answer("a:1", RequestCode.PULL_MESSAGE, Command(MOVED, moved.to_fields()))
    found = servers.run(read_queue(servers.core, QUEUE, 9, deadline=DEADLINE))
    assert (found.messages, found.next, found.is_end) == ((), 4, True)
