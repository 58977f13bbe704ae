"""Routes: read, cached, compared."""

from __future__ import annotations

import pytest

from downrange.client.flows.routing.routes import Route, RouteTable, route_of
from downrange.model import QueueId
from downrange.wire.bodies import BrokerQueues, BrokerReplicas, QueueMapping, RouteBody
from tests.unit.client.flows.flow_steps import (
    body,
    route,
)


def queues(*names: str, topic: str = "orders") -> tuple[QueueId, ...]:
    """Return queues from texts such as "a0"."""
    return tuple(QueueId(topic, name[0], int(name[1:])) for name in names)


# ---- from a name server's answer -----------------------------------------------------------------


def test_queues_are_those_of_each_broker_in_the_order_of_their_names() -> None:
    found = route_of("orders", body("b", "a", queues=2))
    assert found.writable == found.readable == queues("a0", "a1", "b0", "b1")
    assert found.write_counts == {"a": 2, "b": 2}
    assert found.masters == {"a": "a:10911", "b": "b:10911"}
    assert found.brokers["a"] == {0: "a:10911", 1: "a:10921"}
    assert (found.is_order_topic, found.is_borrowed) == (False, False)


def test_a_broker_without_a_master_can_be_read_from_but_not_written_to() -> None:
    found = route_of("orders", body("a", "b", queues=1, masterless=["a"]))
    assert found.writable == queues("b0")
    assert found.readable == queues("a0", "b0")
    assert found.masters == {"b": "b:10911"}


def test_a_broker_that_has_no_addresses_cannot_be_written_to() -> None:
    said = body("a", "b", queues=1)
    del said.broker_datas[0]
    assert route_of("orders", said).writable == queues("b0")


@pytest.mark.parametrize(
    ("perm", "writable", "readable"),
    [(6, 1, 1), (4, 0, 1), (2, 1, 0), (0, 0, 0), (1, 0, 0), (7, 1, 1)],
)
def test_permission_decides_which_queues_can_be_written_to_and_read_from(
    perm: int, writable: int, readable: int
) -> None:
    found = route_of("orders", body("a", queues=1, perm=perm))
    assert (len(found.writable), len(found.readable)) == (writable, readable)


def test_queues_to_write_to_and_to_read_from_are_counted_apart() -> None:
    said = body("a")
    said.queue_datas = [
        BrokerQueues(broker_name="a", read_queue_nums=3, write_queue_nums=1, perm=6)
    ]
    found = route_of("orders", said)
    assert (found.writable, found.readable) == (queues("a0"), queues("a0", "a1", "a2"))


def test_the_order_config_says_where_the_queues_of_an_order_topic_are() -> None:
    found = route_of("orders", body("a", "b", queues=8, order="b:2; a : 1;nonsense;:4;a:x"))
    assert found.is_order_topic
    assert found.writable == queues("b0", "b1", "a0")
    assert found.write_counts == {"b": 2, "a": 1}
    assert len(found.readable) == 16


@pytest.mark.parametrize(("there", "limit", "expected"), [(8, 4, 4), (2, 4, 2), (4, 4, 4)], ids=str)
def test_a_borrowed_route_has_no_more_queues_than_the_limit(
    there: int, limit: int, expected: int
) -> None:
    found = route_of("orders", body("a", queues=there), queue_count_max=limit)
    assert found.is_borrowed
    assert len(found.writable) == len(found.readable) == expected
    assert {queue.topic for queue in found.writable} == {"orders"}


def test_a_borrowed_route_is_limited_by_the_queues_that_can_be_read() -> None:
    said = body("a")
    said.queue_datas = [
        BrokerQueues(broker_name="a", read_queue_nums=2, write_queue_nums=8, perm=6)
    ]
    assert len(route_of("orders", said, queue_count_max=4).writable) == 2


# ---- the table -----------------------------------------------------------------------------------


def changes_of(table: RouteTable) -> list[tuple[Route | None, Route]]:
    changes: list[tuple[Route | None, Route]] = []
    table.on_change.append(lambda old, new: changes.append((old, new)))
    return changes


def test_all_listeners_get_a_new_route() -> None:
    table = RouteTable()
    changes, others = changes_of(table), changes_of(table)
    found = route("a")
    assert table.replace(found) is found
    assert table.get("orders") is found
    assert changes == others == [(None, found)]


def test_a_route_that_says_the_same_in_another_order_changes_nothing() -> None:
    table = RouteTable()
    first = table.replace(route("a", "b"))
    changes = changes_of(table)
    assert table.replace(route("b", "a")) is first
    assert not changes


CHANGED: dict[str, RouteBody] = {
    "a broker more": body("a", "b", "c"),
    "a queue more": body("a", "b", queues=5),
    "another permission": body("a", "b", perm=4),
    "a master less": body("a", "b", masterless=["b"]),
    "an order config": body("a", "b", order="a:4"),
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
def test_all_listeners_get_a_changed_route(changed: RouteBody) -> None:
    table = RouteTable()
    old = table.replace(route("a", "b"))
    changes = changes_of(table)
    new = route_of("orders", changed)
    assert table.replace(new) is new
    assert changes == [(old, new)]


def test_a_mapping_of_queues_is_a_change_too() -> None:
    table = RouteTable()
    table.replace(route("a"))
    mapped = body("a")
    mapped.topic_queue_mapping_by_broker = {"a": QueueMapping(bname="a")}
    changes = changes_of(table)
    table.replace(route_of("orders", mapped))
    assert len(changes) == 1


def test_a_borrowed_route_gives_way_to_the_topics_own_even_if_it_looks_the_same() -> None:
    table = RouteTable()
    table.replace(route_of("orders", body("a"), queue_count_max=4))
    changes = changes_of(table)
    table.replace(route("a"))
    assert [new.is_borrowed for _, new in changes] == [False]


def test_a_topic_that_is_used_no_more_can_be_forgotten() -> None:
    table = RouteTable()
    table.replace(route("a"))
    table.forget("orders")
    table.forget("orders")  # no error
    assert table.get("orders") is None
    assert table.topics() == []


def test_the_table_lists_the_brokers_of_all_routes() -> None:
    table = RouteTable()
    table.replace(route("a", topic="one"))
    table.replace(route("b", topic="two", masterless=["b"]))
    assert table.brokers() == {"a": {0: "a:10911", 1: "a:10921"}, "b": {1: "b:10921"}}
    assert table.topics() == ["one", "two"]
    assert table.master_of("a") == "a:10911"
    assert table.master_of("b") is None
    assert table.broker_at("b:10921") == "b"
    assert table.broker_at("c:10911") is None


def test_a_replica_without_a_master_among_brokers_is_known_by_its_address() -> None:
    said = RouteBody(broker_datas=[BrokerReplicas(broker_name="a", broker_addrs={2: "a:3"})])
    found = route_of("orders", said)
    assert (found.masters, found.brokers) == ({}, {"a": {2: "a:3"}})
    assert found.writable == found.readable == ()
