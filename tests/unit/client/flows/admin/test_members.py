from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.client.flows.admin.members import (
    consume_directly,
    group_members,
    list_producers,
    member_states,
    producer_members,
    running_state,
)
from downrange.client.flows.admin.reports import Member, SubscriptionDifference, TopicFilter
from downrange.errors import ConnectFailed, ServerFailure
from downrange.model import QueueId
from downrange.wire.bodies import (
    AllProducersBody,
    ClientConnection,
    ConsumeDirectlyBody,
    ConsumerConnectionsBody,
    ProducerConnectionsBody,
    ProducerEntry,
    Subscription,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.consumer_bodies import (
    ConsumeRates,
    PopQueueRunningState,
    QueueRunningState,
    RunningStateBody,
)
from downrange.wire.headers import QueryReply
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster, servers_with
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

CONNECTIONS = RequestCode.GET_CONSUMER_CONNECTION_LIST
STATE = RequestCode.GET_CONSUMER_RUNNING_INFO
OFFLINE = refusal(ResponseCode.CONSUMER_NOT_ONLINE)


def connections(*clients: str, version: int = 1, reads: str = "*") -> ConsumerConnectionsBody:
    return ConsumerConnectionsBody(
        connection_set=[
            ClientConnection(client_id=name, client_addr=f"{name}:9", language="JAVA", version=513)
            for name in clients
        ],
        subscription_table={
            "prod%orders": Subscription(topic="prod%orders", sub_string=reads, sub_version=version)
        },
        consume_type="CONSUME_PASSIVELY",
        message_model="BROADCASTING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )


def state(reads: dict[str, tuple[str, str]], *queues: QueueId) -> RunningStateBody:
    return RunningStateBody(
        properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        subscription_set=[
            Subscription(topic=topic, sub_string=text, expression_type=kind)
            for topic, (text, kind) in reads.items()
        ],
        mq_table={
            queue: QueueRunningState(commit_offset=4, last_pull_timestamp=1000) for queue in queues
        },
    )


def test_members_of_all_brokers_are_merged() -> None:
    servers = servers_with(cluster(main="abcd"), namespace="prod")
    servers.answer("a:1", CONNECTIONS, reply(body=connections("one", "two", reads="old")))
    servers.answer("b:1", CONNECTIONS, reply(body=connections("two", version=2, reads="new")))
    servers.answer("c:1", CONNECTIONS, OFFLINE)
    found = servers.run(group_members(servers.core, "billing", deadline=DEADLINE))
    assert found.members == (
        Member(client_id="one", address="one:9", language="JAVA", version="5.5.0", brokers=("a",)),
        Member(
            client_id="two", address="two:9", language="JAVA", version="5.5.0", brokers=("a", "b")
        ),
    )
    assert (found.mode, found.model, found.start) == (
        *("push", "broadcast", "CONSUME_FROM_LAST_OFFSET"),
    )
    assert found.filters == (TopicFilter("orders", "new"),)
    assert [(each.broker, each.address) for each in found.unanswered] == [("d", "d:1")]
    assert found.differences == ()


def test_a_group_without_members_is_empty() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer("a:1", CONNECTIONS, OFFLINE)
    servers.answer("b:1", CONNECTIONS, OFFLINE)
    found = servers.run(group_members(servers.core, "billing", deadline=DEADLINE))
    assert (found.members, found.unanswered, found.mode) == ((), (), None)
    for broker in "ab":
        servers.answer(f"{broker}:1", CONNECTIONS, ConnectFailed(f"{broker}:1", "refused"))
    with pytest.raises(ConnectFailed):
        servers.run(group_members(servers.core, "billing", deadline=DEADLINE))


def test_members_that_read_differently_are_found() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer("a:1", CONNECTIONS, reply(body=connections("four", "one", "three", "two")))
    states = {
        "one": state({"orders": ("a || b", "TAG"), "only": ("*", "TAG"), "same": ("*", "TAG")}),
        "two": state({"orders": ("b||a", "TAG"), "same": ("*", "TAG")}),
        "three": state({"orders": ("a > 1", "SQL92"), "only": ("*", "TAG"), "same": ("*", "TAG")}),
    }
    servers.answer(
        "a:1",
        STATE,
        lambda command: (
            reply(body=states[command.fields["clientId"]])
            if command.fields["clientId"] in states
            else refusal(ResponseCode.CONSUME_MSG_TIMEOUT)
        ),
    )
    found = servers.run(
        group_members(servers.core, "billing", with_filters=True, deadline=DEADLINE)
    )
    assert found.members[0].filters is None
    assert found.differences == (
        SubscriptionDifference("only", {"one": "*", "three": "*", "two": None}),
        SubscriptionDifference(
            "orders", {"one": "a || b", "three": "SQL92: a > 1", "two": "a || b"}
        ),
    )
    assert str(found.differences[0]) == (
        "topic 'only': one reads '*', three reads '*', two reads nothing"
    )


def test_the_state_of_a_member_comes_from_the_broker_that_it_is_connected_to() -> None:
    servers = servers_with(cluster(main="ab"), namespace="prod")
    servers.answer("a:1", STATE, refusal(ResponseCode.SYSTEM_ERROR, "not online"))
    body = state({"prod%orders": ("*", "TAG")}, QueueId("prod%orders", "b", 1))
    body.mq_pop_table = {
        QueueId("prod%orders", "b", 0): PopQueueRunningState(wait_ack_count=2, droped=True)
    }
    body.status_table = {"prod%orders": ConsumeRates(pull_rate=2.0, consume_failed_msgs=3)}
    body.jstack = "main"
    servers.answer("b:1", STATE, reply(body=body))
    found = servers.run(
        running_state(servers.core, "billing", "one", with_stack=True, deadline=DEADLINE)
    )
    assert servers.fields(STATE) == {
        "consumerGroup": "prod%billing",
        "clientId": "one",
        "jstackEnable": "true",
    }
    popped, pulled = found.queues
    assert (popped.queue, popped.buffered, popped.by_pop, popped.is_given_up) == (
        *(QueueId("orders", "b", 0), 2, True, True),
    )
    assert (pulled.queue, pulled.committed) == (QueueId("orders", "b", 1), 4)
    assert (pulled.pulled_at, pulled.consumed_at) == (datetime.fromtimestamp(1, UTC), None)
    (rates,) = found.rates
    assert (rates.topic, rates.pulled, rates.failed_last_hour) == ("orders", 2.0, 3)
    assert (found.stack, found.filters) == ("main", (TopicFilter("orders", "*"),))
    servers.answer("b:1", STATE, ConnectFailed("b:1", "refused"))
    with pytest.raises(ServerFailure, match="not online"):
        servers.run(running_state(servers.core, "billing", "one", deadline=DEADLINE))


def test_all_members_say_their_oldest_message() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer("a:1", CONNECTIONS, reply(body=connections("one", "two")))
    body = state({"orders": ("*", "TAG")})
    queues = [QueueId("orders", "a", number) for number in range(4)]
    facts = [
        QueueRunningState(cached_msg_count=2, cached_msg_min_offset=7),
        # An orderly consumer of Java has one message in its handler, and others that wait.
        QueueRunningState(
            cached_msg_count=2,
            cached_msg_min_offset=7,
            transaction_msg_count=1,
            transaction_msg_min_offset=6,
        ),
        QueueRunningState(transaction_msg_count=1, transaction_msg_min_offset=5),
        QueueRunningState(),
    ]
    body.mq_table = dict(zip(queues, facts, strict=True))
    servers.answer(
        "a:1",
        STATE,
        lambda command: (
            reply(body=body)
            if command.fields["clientId"] == "one"
            else refusal(ResponseCode.CONSUME_MSG_TIMEOUT)
        ),
    )
    found = servers.run(member_states(servers.core, "billing", deadline=DEADLINE))
    assert list(found) == ["one"]
    assert [each.oldest for each in found["one"].queues] == [7, 6, 5, None]


def test_a_member_consumes_a_message_that_is_named_by_its_unique_id() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a"))
    found = record("orders", 7, properties="UNIQ_KEY\x01ID\x02")
    header = QueryReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
    servers.answer("a:1", RequestCode.QUERY_MESSAGE, reply(header, body=found))
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    body = ConsumeDirectlyBody(consume_result="CR_LATER", remark="no", spent_time_mills=500)
    servers.answer("a:1", code, reply(body=body))
    result = servers.run(
        consume_directly(servers.core, "billing", "one", "orders", "ID", deadline=DEADLINE)
    )
    assert (result.result, result.remark, result.seconds) == ("CR_LATER", "no", 0.5)
    assert not result.is_consumed
    fields = servers.fields(code)
    assert (fields["msgId"], fields["brokerName"]) == ("0A00000200002A9F0000000000001B58", "a")


def test_members_of_a_producer_group() -> None:
    servers = servers_with(cluster(main="ab"))
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    client = ClientConnection(client_id="one", client_addr="h:1", version=3)
    servers.answer("a:1", code, reply(body=ProducerConnectionsBody(connection_set=[client])))
    servers.answer("b:1", code, refusal(ResponseCode.SYSTEM_ERROR))
    (found,) = servers.run(producer_members(servers.core, "shop", deadline=DEADLINE))
    assert (found.client_id, found.version, found.language) == ("one", "3", None)
    servers.answer("a:1", code, refusal(ResponseCode.SYSTEM_ERROR))
    assert servers.run(producer_members(servers.core, "shop", deadline=DEADLINE)) == []


def test_all_producers_are_listed_by_group() -> None:
    servers = servers_with(cluster(main="ab"), namespace="prod")
    entry = ProducerEntry(client_id="one", remote_ip="/10.0.0.1:5", language="GO", version=513)
    body = AllProducersBody(data={"prod%shop": [entry], "other": [entry]})
    code = RequestCode.GET_ALL_PRODUCER_INFO
    for broker in "ab":
        servers.answer(f"{broker}:1", code, reply(body=body))
    found = servers.run(list_producers(servers.core, deadline=DEADLINE))
    assert found == {
        "shop": [
            Member(
                client_id="one",
                address="10.0.0.1:5",
                language="GO",
                version="5.5.0",
                brokers=("a", "b"),
            )
        ]
    }
