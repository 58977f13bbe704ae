from __future__ import annotations

from typing import assert_type

import pytest

from downrange.client.flows.consuming.pull import (
    EVERYTHING,
    Filter,
    PullStatus,
    by_sql,
    by_tags,
    check_filter,
    pull,
    read_messages,
)
from downrange.errors import (
    InvalidSql,
    NoPermission,
    OptionError,
    RouteNotFound,
    ServerFailure,
    SqlNotSupported,
)
from downrange.filters.sql import Sql
from downrange.model import QueueId, ReceivedMessage
from downrange.wire.bodies import CheckClientBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.compression import Compression, compress
from downrange.wire.headers import PullReply
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

DEADLINE = 130.0
QUEUE = QueueId("orders", "a", 0)
PULL = RequestCode.PULL_MESSAGE


def servers_with(*, namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer_route("orders" if namespace is None else f"{namespace}%orders", route("a"))
    return servers


def pulled(code: int = 0, *, next_offset: int = 0, body: bytes = b"", replica: int = 0) -> Command:
    header = PullReply(replica, next_offset, 1, 9)
    return Command(code, header.to_fields(), body)


# ---- pulling -------------------------------------------------------------------------------------


def test_pull_brings_messages_and_where_to_go_on() -> None:
    servers = servers_with()
    body = record("orders", 3) + record("orders", 4)
    servers.answer("a:1", PULL, pulled(next_offset=5, body=body, replica=1))
    batch = servers.run(pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE))
    assert batch.status is PullStatus.FOUND
    assert [(message.queue, message.offset) for message in batch.messages] == [
        (QUEUE, 3),
        (QUEUE, 4),
    ]
    assert (batch.next_offset, batch.min_offset, batch.max_offset) == (5, 1, 9)
    assert batch.replica == 1


def test_pull_says_what_it_wants() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("a:1", PULL, pulled(19))
    flow = pull(
        servers.core,
        QUEUE,
        3,
        group="audit",
        max_count=8,
        message_filter=by_tags("new || paid"),
        suspend=1.5,
        deadline=DEADLINE,
    )
    servers.run(flow)
    assert servers.fields(PULL) == {
        "consumerGroup": "prod%audit",
        "topic": "prod%orders",
        "queueId": "0",
        "queueOffset": "3",
        "maxMsgNums": "8",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1500",
        "subVersion": "0",
        "subscription": "new || paid",
        "expressionType": "TAG",
    }


def test_pull_does_not_wait_at_the_broker_by_default() -> None:
    servers = servers_with()
    servers.answer("a:1", PULL, pulled(19))
    servers.run(pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE))
    assert servers.fields(PULL)["sysFlag"] == "4"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCH),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.MOVED),
    ],
)
def test_pull_without_messages_says_why_and_where_to_go_on(
    code: ResponseCode, status: PullStatus
) -> None:
    servers = servers_with()
    servers.answer("a:1", PULL, pulled(int(code), next_offset=7))
    batch = servers.run(pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE))
    assert (batch.status, batch.messages, batch.next_offset) == (status, [], 7)


def test_pull_that_is_refused_is_an_error() -> None:
    servers = servers_with()
    servers.answer("a:1", PULL, refusal(ResponseCode.NO_PERMISSION))
    with pytest.raises(NoPermission, match="a:1"):
        servers.run(pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE))


def test_pull_leaves_out_tags_that_only_share_a_hash() -> None:
    servers = servers_with()
    tags = ("Aa", "BB", None)  # the first two have the same hash in Java
    body = b"".join(
        record("orders", offset, properties=f"TAGS\x01{tag}\x02" if tag else "")
        for offset, tag in enumerate(tags)
    )
    servers.answer("a:1", PULL, pulled(next_offset=3, body=body))
    flow = pull(
        servers.core, QUEUE, 0, group="audit", message_filter=by_tags("Aa"), deadline=DEADLINE
    )
    batch = servers.run(flow)
    assert [message.offset for message in batch.messages] == [0]
    assert batch.next_offset == 3


def test_pull_can_leave_bodies_compressed() -> None:
    servers = servers_with(namespace="prod")
    packed, sys_flag = compress(b"again and " * 9, Compression.ZSTD)
    body = record("prod%orders", 3, body=packed, sys_flag=sys_flag) + record("prod%orders", 4)
    servers.answer("a:1", PULL, pulled(body=body))
    flow = pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE, decode_body=False)
    assert [
        (message.topic, message.body, message.compression) for message in servers.run(flow).messages
    ] == [("orders", packed, "zstd"), ("orders", b"x", None)]
    flow = pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE)
    messages = servers.run(flow).messages
    assert (messages[0].body, messages[0].compression) == (b"again and " * 9, None)


def test_pull_shows_topics_without_the_namespace() -> None:
    servers = servers_with(namespace="prod")
    servers.answer("a:1", PULL, pulled(body=record("prod%orders", 3)))
    batch = servers.run(pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE))
    assert batch.messages[0].queue == QUEUE


def test_pull_of_a_static_topic_shows_the_logical_queue_and_offsets() -> None:
    servers = servers_with()
    header = PullReply(0, 1005, 1, 1009, offset_delta=1000)
    body = record("orders", 3) + record("orders", 4)
    servers.answer("a:1", PULL, Command(0, header.to_fields(), body))
    queue = QueueId("orders", "a", 7)
    batch = servers.run(pull(servers.core, queue, 1003, group="audit", deadline=DEADLINE))
    assert [(message.queue, message.offset) for message in batch.messages] == [
        (queue, 1003),
        (queue, 1004),
    ]


class Linked(ReceivedMessage):
    """A message of a consumer, with a slot of its own."""

    __slots__ = ("consumer",)


@pytest.mark.parametrize("namespace", [None, "prod"])
def test_pull_brings_messages_of_the_class_that_is_asked_for(namespace: str | None) -> None:
    servers = servers_with(namespace=namespace)
    topic = "orders" if namespace is None else f"{namespace}%orders"
    servers.answer("a:1", PULL, pulled(body=record(topic, 3) + record(topic, 4)))
    flow = pull(servers.core, QUEUE, 3, group="audit", deadline=DEADLINE, message_class=Linked)
    messages = servers.run(flow).messages
    assert [(type(message), message.queue) for message in messages] == [(Linked, QUEUE)] * 2
    (linked,) = read_messages(servers.core, record(topic, 5), "a", message_class=Linked)
    assert_type(linked, Linked)
    assert (type(linked), linked.queue, linked.offset) == (Linked, QUEUE, 5)


def test_pull_goes_to_the_replica_that_was_suggested_or_to_the_lowest_there_is() -> None:
    servers = FakeServers()
    body = route("a")
    body.broker_datas[0].broker_addrs = {1: "a:2", 2: "a:3"}
    servers.answer_route("orders", body)
    for address in ("a:2", "a:3"):
        servers.answer(address, PULL, pulled(19))
    for replica in (2, 0):
        flow = pull(servers.core, QUEUE, 3, group="audit", replica=replica, deadline=DEADLINE)
        servers.run(flow)
    assert servers.asked(PULL) == ["a:3", "a:2"]


def test_pull_from_a_broker_that_no_route_names_is_an_error() -> None:
    servers = servers_with()
    queue = QueueId("orders", "b", 0)
    with pytest.raises(RouteNotFound, match=r"broker 'b'; there are \['a'\]"):
        servers.run(pull(servers.core, queue, 3, group="audit", deadline=DEADLINE))


# ---- filters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["*", " * ", "", "  "])
def test_star_takes_everything(text: str) -> None:
    assert by_tags(text) is EVERYTHING


def test_tags_are_read_from_text() -> None:
    assert by_tags("new|| paid ||").tags == {"new", "paid"}


@pytest.mark.parametrize("text", ["||", " || "])
def test_tags_that_name_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="contains no tag"):
        by_tags(text)


def test_empty_expression_is_refused() -> None:
    with pytest.raises(OptionError, match="is empty"):
        by_sql(" ")


def test_expression_may_be_checked_already() -> None:
    assert by_sql(Sql("amount > 100")) == by_sql("amount > 100")
    assert by_sql("amount > 100") == Filter("amount > 100", "SQL92", sql=Sql("amount > 100"))


def test_old_broker_refuses_words_that_it_would_ignore() -> None:
    servers = servers_with()
    old, new = reply(), reply()
    old.version, new.version = 438, 439
    servers.answer("a:1", RequestCode.CHECK_CLIENT_CONFIG, old, new, old)
    searching = by_sql("color CONTAINS 'red'")
    with pytest.raises(InvalidSql, match=r"older than 5\.1\.3"):
        servers.run(check_filter(servers.core, "orders", "audit", searching, DEADLINE))
    servers.run(check_filter(servers.core, "orders", "audit", searching, DEADLINE))
    plain = by_sql("color = 'red'")
    servers.run(check_filter(servers.core, "orders", "audit", plain, DEADLINE))


def test_broker_without_sql_filters_names_its_setting() -> None:
    servers = servers_with()
    remark = "The broker does not support consumer to filter message by SQL92"
    code = RequestCode.CHECK_CLIENT_CONFIG
    servers.answer("a:1", code, refusal(ResponseCode.SYSTEM_ERROR, remark))
    with pytest.raises(SqlNotSupported, match="set enablePropertyFilter=true") as caught:
        servers.run(check_filter(servers.core, "orders", "audit", by_sql("a = 1"), DEADLINE))
    assert (caught.value.code, caught.value.retryable) == (1, False)


def test_expression_is_shown_to_a_broker_before_it_is_used() -> None:
    servers = servers_with(namespace="prod")
    code = RequestCode.CHECK_CLIENT_CONFIG
    servers.answer("a:1", code, reply(), refusal(ResponseCode.SYSTEM_ERROR, "no SQL92 here"))
    message_filter = by_sql("amount > 100")
    servers.run(check_filter(servers.core, "orders", "audit", message_filter, DEADLINE))
    body = decode_body(CheckClientBody, servers.calls[-1][1].body)
    assert (body.group, body.subscription_data.topic) == ("prod%audit", "prod%orders")
    assert body.subscription_data.sub_string == "amount > 100"
    assert body.subscription_data.expression_type == "SQL92"
    with pytest.raises(ServerFailure, match="no SQL92 here"):
        servers.run(check_filter(servers.core, "orders", "audit", message_filter, DEADLINE))
