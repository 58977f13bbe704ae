from __future__ import annotations

from datetime import UTC, datetime

import pytest

from downrange.client.flows.admin.clusters import cluster_facts
from downrange.client.flows.admin.topics import (
    TopicName,
    list_topics,
    topic_route,
    topic_settings,
    topic_stats,
)
from downrange.client.flows.routing.lookup import find_route
from downrange.errors import ConnectFailed, OptionError, RouteNotFound, ServerFailure, TopicNotFound
from downrange.model import QueueId
from downrange.wire.bodies import (
    BrokerReplicas,
    ClusterBody,
    KeyValueBody,
    TopicConfig,
    TopicNamesBody,
    TopicOffset,
    TopicStatsBody,
    TopicTableBody,
)
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply, route

DEADLINE = 103.0


def test_cluster_facts_name_clusters_brokers_and_releases() -> None:
    servers = FakeServers()
    body = ClusterBody(
        cluster_addr_table={"main": ["b", "a"]},
        broker_addr_table={
            "b": BrokerReplicas(broker_name="b", cluster="main", broker_addrs={0: "b:1", 1: "b:2"}),
            "a": BrokerReplicas(broker_name="a", broker_addrs={1: "a:2"}),
            "c": BrokerReplicas(broker_name="c", broker_addrs={0: "c:1"}),
        },
    )
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=body))
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    servers.answer("b:1", code, reply(body=KeyValueBody(table={"brokerVersionDesc": "V5_5_0"})))
    servers.answer("c:1", code, reply(body=KeyValueBody()))
    facts = servers.run(cluster_facts(servers.core, deadline=DEADLINE, with_versions=True))
    assert facts.clusters == {"main": ("a", "b")}
    assert [(broker.name, broker.cluster, broker.version) for broker in facts.brokers] == [
        ("a", "main", None),  # did not answer
        ("b", "main", "5.5.0"),
        ("c", "", None),  # names no cluster
    ]
    assert facts.brokers[1].addresses == {0: "b:1", 1: "b:2"}


def test_cluster_facts_ask_no_broker_by_default() -> None:
    servers = FakeServers()
    body = ClusterBody(
        broker_addr_table={"a": BrokerReplicas(broker_name="a", broker_addrs={0: "a:1"})}
    )
    servers.answer(NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO, reply(body=body))
    facts = servers.run(cluster_facts(servers.core, deadline=DEADLINE))
    assert facts.brokers[0].version is None
    assert [address for address, _ in servers.calls] == [NAME_SERVER]


def test_name_server_that_refuses_is_named() -> None:
    servers = FakeServers()
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    servers.answer(NAME_SERVER, code, refusal(ResponseCode.SYSTEM_ERROR, "disable"))
    with pytest.raises(ServerFailure, match=f"{NAME_SERVER} answered with code 1: disable"):
        servers.run(cluster_facts(servers.core, deadline=DEADLINE))


def name_lists(servers: FakeServers, *topics: str) -> None:
    everything = TopicNamesBody(topic_list=list(topics))
    servers.answer(
        NAME_SERVER, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, reply(body=everything)
    )
    own = TopicNamesBody(topic_list=["main", "broker-a"])
    servers.answer(NAME_SERVER, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, reply(body=own))


def test_list_of_topics_says_what_each_is_for() -> None:
    servers = FakeServers()
    names = ("orders", "TBW102", "main", "main_REPLY_TOPIC", "%RETRY%billing", "%DLQ%billing")
    name_lists(servers, *names)
    assert servers.run(list_topics(servers.core, deadline=DEADLINE)) == [
        TopicName("%DLQ%billing", "dead-letter"),
        TopicName("%RETRY%billing", "retry"),
        TopicName("TBW102", "system"),
        TopicName("main", "system"),
        TopicName("main_REPLY_TOPIC", "system"),
        TopicName("orders", "normal"),
    ]


def test_list_of_topics_shows_one_namespace_and_the_system() -> None:
    servers = FakeServers(namespace="prod")
    name_lists(servers, "prod%orders", "test%orders", "plain", "TBW102", "%RETRY%prod%billing")
    assert servers.run(list_topics(servers.core, deadline=DEADLINE)) == [
        TopicName("%RETRY%billing", "retry"),
        TopicName("TBW102", "system"),
        TopicName("orders", "normal"),
    ]


def test_route_of_a_topic_carries_the_name_that_users_know() -> None:
    servers = FakeServers(namespace="prod")
    servers.answer_route("prod%orders", route("a"))
    found = servers.run(topic_route(servers.core, "orders", deadline=DEADLINE))
    assert found.writable == (QueueId("orders", "a", 0), QueueId("orders", "a", 1))


def test_route_of_an_unknown_topic_is_an_error_with_a_next_step() -> None:
    servers = FakeServers()
    servers.answer_route("orders", None)
    with pytest.raises(RouteNotFound, match="downrange topic create orders"):
        servers.run(topic_route(servers.core, "orders", deadline=DEADLINE))


def test_settings_of_a_topic_are_returned_by_broker() -> None:
    servers = FakeServers(namespace="prod")
    servers.answer_route("prod%orders", route("ab"))
    for broker, count in (("a", 4), ("b", 8)):
        config = TopicConfig(topic_name="prod%orders", read_queue_nums=count, attributes={"x": "1"})
        servers.answer(f"{broker}:1", RequestCode.GET_TOPIC_CONFIG, reply(body=config))
    settings = servers.run(topic_settings(servers.core, "orders", deadline=DEADLINE))
    assert {broker: each.read_queues for broker, each in settings.items()} == {"a": 4, "b": 8}
    assert settings["a"].topic == "orders"
    assert settings["a"].attributes == {"x": "1"}
    assert settings["b"].brokers == ("b",)


def test_settings_come_out_of_the_whole_table_of_an_older_broker() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a"))
    old = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    servers.answer("a:1", RequestCode.GET_TOPIC_CONFIG, old)
    table = TopicTableBody(
        topic_config_table={"orders": TopicConfig(topic_name="orders", write_queue_nums=3)}
    )
    servers.answer("a:1", RequestCode.GET_ALL_TOPIC_CONFIG, reply(body=table))
    settings = servers.run(topic_settings(servers.core, "orders", deadline=DEADLINE))
    assert (settings["a"].write_queues, settings["a"].attributes) == (3, {})

    servers.answer("a:1", RequestCode.GET_ALL_TOPIC_CONFIG, reply(body=TopicTableBody()))
    with pytest.raises(TopicNotFound, match="a:1"):
        servers.run(topic_settings(servers.core, "orders", deadline=DEADLINE))


def test_settings_fail_with_the_broker_that_fails() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("a"))
    with pytest.raises(ConnectFailed, match="a:1"):
        servers.run(topic_settings(servers.core, "orders", deadline=DEADLINE))


def test_stats_of_a_topic_list_the_queues_of_all_brokers_in_order() -> None:
    servers = FakeServers(namespace="prod")
    servers.answer_route("prod%orders", route("ab"))
    for broker in "ab":
        table = {
            QueueId("prod%orders", broker, 1): TopicOffset(min_offset=2, max_offset=5),
            QueueId("prod%orders", broker, 0): TopicOffset(last_update_timestamp=5_000),
        }
        body = TopicStatsBody(offset_table=table)
        servers.answer(f"{broker}:1", RequestCode.GET_TOPIC_STATS_INFO, reply(body=body))
    stats = servers.run(topic_stats(servers.core, "orders", deadline=DEADLINE))
    assert [state.queue for state in stats] == [
        QueueId("orders", broker, number) for broker in "ab" for number in (0, 1)
    ]
    assert [state.count for state in stats] == [0, 3, 0, 3]
    assert stats[0].stored_at == datetime.fromtimestamp(5, UTC)
    assert stats[1].stored_at is None


def test_a_fresh_route_replaces_one_in_the_cache_and_no_other() -> None:
    servers = FakeServers(namespace="prod")
    servers.answer_route("prod%orders", route("a"))
    servers.run(topic_route(servers.core, "orders", deadline=DEADLINE))
    assert servers.core.routes.get("prod%orders") is None
    servers.run(find_route(servers.core, "prod%orders", DEADLINE))
    servers.answer_route("prod%orders", route("b"))
    servers.run(topic_route(servers.core, "orders", deadline=DEADLINE))
    cached = servers.core.routes.get("prod%orders")
    assert cached is not None
    assert list(cached.brokers) == ["b"]


def test_stats_are_asked_of_some_brokers_only() -> None:
    servers = FakeServers()
    servers.answer_route("orders", route("ab"))
    table = {QueueId("orders", "b", 0): TopicOffset(min_offset=1, max_offset=3)}
    body = TopicStatsBody(offset_table=table)
    servers.answer("b:1", RequestCode.GET_TOPIC_STATS_INFO, reply(body=body))
    (state,) = servers.run(topic_stats(servers.core, "orders", brokers=["b"], deadline=DEADLINE))
    assert (state.queue.broker, state.count) == ("b", 2)
    with pytest.raises(OptionError, match=r"brokers=\['z'\] are not among \['a', 'b'\]"):
        servers.run(topic_stats(servers.core, "orders", brokers=["z"], deadline=DEADLINE))
