from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.client.flows.admin.progress import list_progress
from downrange.errors import ServerFailure
from downrange.model import QueueId
from downrange.wire.bodies import BrokerConsumeStatsBody, ConsumeOffset, ConsumeStatsBody
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply

STATS = RequestCode.GET_BROKER_CONSUME_STATS


def stats(broker: str, *behind: int, topic: str = "orders") -> ConsumeStatsBody:
    table = {
        QueueId(topic, broker, number): ConsumeOffset(
            broker_offset=10, consumer_offset=10 - lag, last_timestamp=1000 * (number + 1)
        )
        for number, lag in enumerate(behind)
    }
    return ConsumeStatsBody(offset_table=table, consume_tps=1.5)


def servers_of(namespace: str | None = None) -> FakeServers:
    servers = FakeServers(namespace=namespace)
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=cluster(main="ab")))
    return servers


def test_progress_is_added_up_over_queues_and_brokers() -> None:
    servers = servers_of()
    for broker, lags in (("a", (3, 4)), ("b", (-2,))):
        entry = {"billing": [stats(broker, *lags), stats(broker, 1, topic="%RETRY%billing")]}
        body = BrokerConsumeStatsBody(consume_stats_list=[entry, {"idle": []}])
        servers.answer(f"{broker}:1", STATS, reply(body=body))
    found = servers.run(list_progress(servers.core, deadline=DEADLINE))
    assert found.unanswered == ()
    retries, orders = found.topics
    assert (retries.topic, retries.lag) == ("%RETRY%billing", 2)
    assert (orders.group, orders.topic, orders.lag, orders.rate) == ("billing", "orders", 7, 3.0)
    assert (orders.queues, orders.consumed_at) == (3, datetime.fromtimestamp(2, UTC))


def test_progress_of_other_namespaces_is_left_out() -> None:
    servers = servers_of("prod")
    entry = {
        "prod%billing": [stats("a", 1, topic="prod%orders")],
        "test%billing": [stats("a", 1, topic="test%orders")],
    }
    body = BrokerConsumeStatsBody(consume_stats_list=[entry])
    servers.answer("a:1", STATS, reply(body=body))
    servers.answer("b:1", STATS, reply(body=BrokerConsumeStatsBody()))
    found = servers.run(list_progress(servers.core, deadline=DEADLINE))
    assert [(each.group, each.topic) for each in found.topics] == [("billing", "orders")]


def test_a_broker_that_fails_is_named_and_all_of_them_are_an_error() -> None:
    servers = servers_of()
    servers.answer("a:1", STATS, reply(body=BrokerConsumeStatsBody()))
    servers.answer("b:1", STATS, refusal(ResponseCode.SYSTEM_ERROR, "broken"))
    found = servers.run(list_progress(servers.core, deadline=DEADLINE))
    assert [(each.broker, each.address, each.problem) for each in found.unanswered] == [
        ("b", "b:1", "code 1: broken")
    ]
    servers.answer("a:1", STATS, refusal(ResponseCode.SYSTEM_ERROR, "broken"))
    with pytest.raises(ServerFailure, match="broken"):
        servers.run(list_progress(servers.core, deadline=DEADLINE))
