"""The registry: brokers from registration until they unregister, expire or disconnect."""

from __future__ import annotations

import pytest

from downrange.server.nameserver.registry import (
    NOT_YET_REGISTERED,
    TOO_MANY_BROKERS,
    TOO_MANY_TOPICS,
    BrokerKey,
    RouteRegistry,
)
from downrange.wire.bodies import (
    BrokerQueues,
    DataVersion,
    QueueMapping,
    RouteBody,
    TopicConfig,
    decode_body,
)
from tests.unit.server.nameserver.registry_stage import register, topic_table

A0 = BrokerKey("c", "a0:10911")
A1 = BrokerKey("c", "a1:10911")


def _perms(registry: RouteRegistry, topic: str = "T") -> dict[str, int]:
    route = registry.route(topic)
    return {} if route is None else {part.broker_name: part.perm for part in route.queue_datas}


def _addresses(registry: RouteRegistry, name: str = "a") -> dict[int, str]:
    return registry.replicas()[name].broker_addrs


# ---- registering -------------------------------------------------------------------------------


def test_a_registered_broker_is_in_the_routes_of_its_topics() -> None:
    registry = RouteRegistry()
    config = TopicConfig(
        topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=7, topic_sys_flag=1
    )
    result = register(registry, table=topic_table(config, "U"), zone="z1")
    assert (result.refused, result.is_new, result.master_address) == (None, True, None)
    route = registry.route("T")
    assert route is not None
    assert route.queue_datas == [
        BrokerQueues(
            broker_name="a", read_queue_nums=3, write_queue_nums=2, perm=7, topic_sys_flag=1
        )
    ]
    (group,) = route.broker_datas
    assert (group.cluster, group.broker_addrs) == ("c", {0: "a0:10911"})
    assert (group.zone_name, group.enable_acting_master) == ("z1", False)
    assert route.topic_queue_mapping_by_broker is None
    assert registry.route("other") is None
    assert not register(registry).is_new


def test_brokers_of_several_names_share_a_topic() -> None:
    registry = RouteRegistry()
    register(registry, "a")
    register(registry, "b")
    assert _perms(registry) == {"a": 6, "b": 6}
    assert registry.clusters() == {"c": ["a", "b"]}
    assert registry.topics() == ["T", "U"]
    assert registry.topics_of_cluster("c") == ["T", "U"]
    assert registry.topics_of_cluster("other") == []


def test_a_slave_gets_the_address_of_its_master_and_adds_no_topics() -> None:
    registry = RouteRegistry()
    early = register(registry, "a", 1, table=topic_table("S", "R"))
    assert (early.master_address, registry.topics()) == (None, [])
    register(registry, "a", 0)
    late = register(registry, "a", 1, table=topic_table("S", "R"))
    assert (late.master_address, late.ha_address) == ("a0:10911", "a0:10912")
    assert registry.topics() == ["T", "U"]
    assert _addresses(registry) == {1: "a1:10911", 0: "a0:10911"}


def test_a_slave_whose_master_is_announced_but_of_another_cluster_gets_no_address() -> None:
    registry = RouteRegistry()
    register(registry, "a", 0, cluster="other")
    assert register(registry, "a", 1).master_address is None


def test_a_slave_that_becomes_master_leaves_its_old_id() -> None:
    registry = RouteRegistry()
    register(registry, "a", 1)
    register(registry, "a", 0, address="a1:10911")
    assert _addresses(registry) == {0: "a1:10911"}


def test_the_first_table_of_a_broker_may_not_be_a_single_topic() -> None:
    registry = RouteRegistry()
    assert register(registry, table=topic_table("T")).refused == NOT_YET_REGISTERED
    assert (registry.replicas(), registry.clusters(), registry.live_brokers()) == ({}, {}, {})
    register(registry, "a", 0)
    assert register(registry, "a", 1, table=topic_table("T")).refused == NOT_YET_REGISTERED
    assert register(registry, "a", 1, table=topic_table()).refused is None


def test_a_table_of_one_topic_adds_to_what_is_known() -> None:
    registry = RouteRegistry()
    register(registry)
    register(registry, table=topic_table("V", counter=2))
    assert registry.topics() == ["T", "U", "V"]


def test_a_known_topic_changes_only_with_the_data_version() -> None:
    registry = RouteRegistry()
    register(registry)
    read_only = TopicConfig(topic_name="T", perm=4)
    register(registry, table=topic_table(read_only, "U", "V"))
    assert _perms(registry) == {"a": 6}
    assert _perms(registry, "V") == {"a": 6}  # new ones are stored anyway
    register(registry, table=topic_table(read_only, "U", counter=2))
    assert _perms(registry) == {"a": 4}


def test_a_4_9_data_version_equals_the_same_with_state_0() -> None:
    registry = RouteRegistry()
    register(registry, table=topic_table("T", "U", state=None))
    assert not registry.is_changed(A0, DataVersion(timestamp=1000, counter=1, state_version=0))
    assert registry.is_changed(A0, DataVersion(timestamp=1000, counter=1, state_version=1))
    assert registry.is_changed(A1, DataVersion(timestamp=1000, counter=1))


def test_an_address_with_an_older_state_does_not_take_an_id_over() -> None:
    registry = RouteRegistry()
    register(registry, address="new:1", table=topic_table("T", "U", state=5))
    result = register(registry, address="old:1", table=topic_table("T", "X", state=4))
    assert (result.refused, _addresses(registry)) == (None, {0: "new:1"})
    assert registry.topics() == ["T", "U"]
    register(registry, address="newer:1", table=topic_table("T", "U", state=5))
    assert _addresses(registry) == {0: "newer:1"}


def test_an_id_is_free_after_its_broker_expired() -> None:
    registry = RouteRegistry()
    register(registry, address="x:1", table=topic_table("T", "U", state=5), cluster="other")
    register(registry, address="y:1", table=topic_table("T", "U", state=4))
    assert _addresses(registry) == {0: "y:1"}


def test_a_renamed_broker_leaves_its_old_name() -> None:
    registry = RouteRegistry()
    register(registry, "old", address="x:1")
    register(registry, "new", address="x:1")
    assert list(registry.replicas()) == ["new"]
    assert registry.clusters() == {"c": ["new"]}


def test_brokers_and_topics_beyond_the_limits_are_refused_and_change_nothing() -> None:
    registry = RouteRegistry(brokers_max=1, topics_max=3)
    register(registry)
    assert register(registry, "b").refused == TOO_MANY_BROKERS
    assert register(registry, table=topic_table("T", "V", "W")).refused == TOO_MANY_TOPICS
    assert register(registry, table=topic_table("T", "U", "V", counter=2)).refused is None
    assert registry.topics() == ["T", "U", "V"]
    full = BrokerQueues(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert not registry.put_topic("W", [full])


def test_queue_mappings_are_in_the_route_until_the_broker_is_removed() -> None:
    registry = RouteRegistry()
    table = topic_table("T", "U")
    table.topic_queue_mapping_info_map = {"T": {"bname": "a", "totalQueues": 8}}
    register(registry, table=table)
    route = registry.route("T")
    assert route is not None
    read = decode_body(RouteBody, route.encode())  # the broker's own words are passed on
    assert read.topic_queue_mapping_by_broker == {"a": QueueMapping(bname="a", total_queues=8)}
    register(registry, table=table)  # the same version: nothing changes
    registry.unregister(A0, "a")
    register(registry)
    route = registry.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None


def test_filter_servers_are_in_the_route_until_they_are_gone() -> None:
    registry = RouteRegistry()
    register(registry, filter_servers=["f:1"])
    register(registry, "b", filter_servers=["g:1"], table=topic_table("V", "W"))
    route = registry.route("T")
    assert route is not None
    assert route.filter_server_table == {"a0:10911": ["f:1"]}
    register(registry, filter_servers=[])
    route = registry.route("T")
    assert route is not None
    assert route.filter_server_table == {}


# ---- removal -----------------------------------------------------------------------------------


def test_the_last_replica_takes_the_name_and_its_topics_along() -> None:
    registry = RouteRegistry()
    register(registry, "a", 0)
    register(registry, "a", 1)
    register(registry, "b", 0, table=topic_table("T", "V"))
    assert registry.unregister(A0, "a")
    assert _addresses(registry) == {1: "a1:10911"}
    assert _perms(registry) == {"a": 6, "b": 6}
    assert registry.unregister(A1, "a")
    assert _perms(registry) == {"b": 6}
    assert registry.topics() == ["T", "V"]
    assert registry.clusters() == {"c": ["b"]}
    registry.unregister(BrokerKey("c", "b0:10911"), "b")
    assert (registry.topics(), registry.clusters(), registry.replicas()) == ([], {}, {})


def test_unregistering_twice_or_an_unknown_broker_does_nothing() -> None:
    registry = RouteRegistry()
    assert not registry.unregister(A0, "a")
    register(registry)
    assert not registry.unregister(BrokerKey("c", "elsewhere:1"), "a")
    assert registry.topics() == ["T", "U"]


def test_a_broker_expires_one_ms_after_its_timeout() -> None:
    registry = RouteRegistry()
    register(registry, "a", timeout_ms=3_000, now_ms=1_000)
    register(registry, "b", now_ms=1_000)
    assert registry.expire(4_000) == []
    ((key, live),) = registry.expire(4_001)
    assert (key, live.name) == (A0, "a")
    assert _perms(registry) == {"b": 6}


def test_a_heartbeat_restarts_the_timeout() -> None:
    registry = RouteRegistry()
    register(registry, timeout_ms=3_000, now_ms=0)
    registry.on_heartbeat(A0, 2_000)
    registry.on_heartbeat(A1, 2_000)  # never registered: ignored
    assert registry.expire(5_000) == []
    assert len(registry.expire(5_001)) == 1


def test_the_end_of_a_connection_takes_all_its_brokers_at_once() -> None:
    registry = RouteRegistry()
    register(registry, "a", connection=1)
    register(registry, "b", connection=1)
    register(registry, "d", connection=2)
    assert [live.name for _, live in registry.on_disconnect(1)] == ["a", "b"]
    assert _perms(registry) == {"d": 6}


def test_the_end_of_an_older_connection_of_the_broker_is_ignored() -> None:
    registry = RouteRegistry()
    register(registry, connection=1)
    register(registry, connection=2)
    assert registry.on_disconnect(1) == []
    assert _perms(registry) == {"a": 6}


def test_the_end_of_a_replaced_address_leaves_its_successor() -> None:
    registry = RouteRegistry()
    register(registry, address="old:1", connection=1)
    register(registry, address="new:1", connection=2)
    assert len(registry.on_disconnect(1)) == 1
    assert _addresses(registry) == {0: "new:1"}


# ---- acting master -----------------------------------------------------------------------------


def test_the_lowest_slave_acts_as_master_for_reading_when_the_group_allows_it() -> None:
    registry = RouteRegistry()
    register(registry, "a", 0, acting_master=True)
    register(registry, "a", 1, acting_master=True)
    register(registry, "a", 2, acting_master=True, table=topic_table("V", "W"))
    assert registry.topics() == ["T", "U"]
    registry.unregister(A0, "a")
    assert _perms(registry) == {"a": 4}
    plain = registry.route("T")
    assert plain is not None
    assert plain.broker_datas[0].broker_addrs == {1: "a1:10911", 2: "a2:10911"}
    acting = registry.route("T", is_acting_master_supported=True)
    assert acting is not None
    assert acting.broker_datas[0].broker_addrs == {0: "a1:10911", 2: "a2:10911"}
    assert _addresses(registry) == {1: "a1:10911", 2: "a2:10911"}  # the stored table is unchanged


def test_a_first_slave_announces_its_topics_without_write_permission() -> None:
    registry = RouteRegistry()
    register(registry, "a", 1, acting_master=True)
    register(registry, "b", 1, acting_master=False)
    assert _perms(registry) == {"a": 4, "b": 6}


@pytest.mark.parametrize("acting_master", [None, False])
def test_without_permission_a_slave_never_acts_as_master(acting_master: bool | None) -> None:
    registry = RouteRegistry()
    register(registry, "a", 0, acting_master=acting_master)
    register(registry, "a", 1, acting_master=acting_master)
    registry.unregister(A0, "a")
    assert _perms(registry) == {"a": 6}
    route = registry.route("T", is_acting_master_supported=True)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "a1:10911"}


# ---- topics by hand ----------------------------------------------------------------------------


def test_write_permission_is_taken_and_given_until_the_version_changes() -> None:
    registry = RouteRegistry()
    register(registry, table=topic_table(TopicConfig(topic_name="T", perm=7), "U"))
    register(registry, "b")
    assert registry.wipe_write_permission("a") == 2
    assert _perms(registry) == {"a": 5, "b": 6}
    assert registry.add_write_permission("a") == 2
    assert _perms(registry) == {"a": 6, "b": 6}  # the inherit bit is lost, as in Apache's
    assert registry.wipe_write_permission("unknown") == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    registry = RouteRegistry()
    register(registry, "a", cluster="c")
    register(registry, "b", cluster="d")
    registry.delete_topic("T", "c")
    assert _perms(registry) == {"b": 6}
    registry.delete_topic("T", "no such cluster")
    registry.delete_topic("T", "d")
    registry.delete_topic("T", "d")
    registry.delete_topic("U")
    registry.delete_topic("U")
    assert registry.topics() == []


def test_a_topic_is_set_by_hand_for_known_brokers_only() -> None:
    registry = RouteRegistry()
    register(registry)

    def queues(name: str) -> BrokerQueues:
        return BrokerQueues(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)

    assert registry.put_topic("X", [queues("a")])
    assert not registry.put_topic("Y", [queues("b")])
    assert registry.topics() == ["T", "U", "X"]


def test_topics_are_found_by_their_flag() -> None:
    registry = RouteRegistry()
    register(registry, table=topic_table(TopicConfig(topic_name="F", topic_sys_flag=2), "T"))
    assert registry.topics_by_flag(lambda flag: flag == 2) == ["F"]
