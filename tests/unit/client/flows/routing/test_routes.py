"""Routes: read, kept, compared, looked for once for everybody, and borrowed."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.effects import Gather, Once
from downrange.client.flows.routing.routes import (
    Route,
    RouteTable,
    find_readable,
    find_writable,
    refresh_all,
    refresh_route,
    route_of,
)
from downrange.errors import CallTimeout, ConnectFailed, RouteNotFound, ServerError
from downrange.model import QueueId
from downrange.wire.bodies import BrokerQueues, BrokerReplicas, RouteBody
from downrange.wire.codes import RequestCode
from tests.unit.client.flows.stepping import (
    body,
    core_with,
    expect,
    expect_call,
    finish,
    play,
    refused,
    route,
    routed,
)


def queues(*names: str, topic: str = "orders") -> tuple[QueueId, ...]:
    """Return queues from texts such as "a0"."""
    return tuple(QueueId(topic, name[0], int(name[1:])) for name in names)


# ---- reading what a name server says -------------------------------------------------------------


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
def test_permission_decides_who_can_be_written_to_and_read_from(
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


def told(table: RouteTable) -> list[tuple[Route | None, Route]]:
    changes: list[tuple[Route | None, Route]] = []
    table.on_change.append(lambda old, new: changes.append((old, new)))
    return changes


def test_everyone_is_told_of_a_route_that_is_new() -> None:
    table = RouteTable()
    changes, others = told(table), told(table)
    found = route("a")
    assert table.replace(found) is found
    assert table.get("orders") is found
    assert changes == others == [(None, found)]


def test_a_route_that_says_the_same_in_another_order_changes_nothing() -> None:
    table = RouteTable()
    first = table.replace(route("a", "b"))
    changes = told(table)
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
def test_everyone_is_told_of_a_route_that_has_changed(changed: RouteBody) -> None:
    table = RouteTable()
    old = table.replace(route("a", "b"))
    changes = told(table)
    new = route_of("orders", changed)
    assert table.replace(new) is new
    assert changes == [(old, new)]


def test_a_mapping_of_queues_is_a_change_too() -> None:
    table = RouteTable()
    table.replace(route("a"))
    mapped = body("a")
    mapped.topic_queue_mapping_by_broker = {"a": {}}
    changes = told(table)
    table.replace(route_of("orders", mapped))
    assert len(changes) == 1


def test_a_borrowed_route_gives_way_to_the_topics_own_even_if_it_looks_the_same() -> None:
    table = RouteTable()
    table.replace(route_of("orders", body("a"), queue_count_max=4))
    changes = told(table)
    table.replace(route("a"))
    assert [new.is_borrowed for _, new in changes] == [False]


def test_a_topic_that_is_used_no_more_can_be_forgotten() -> None:
    table = RouteTable()
    table.replace(route("a"))
    table.forget("orders")
    table.forget("orders")  # harmless
    assert table.get("orders") is None
    assert table.topics() == []


def test_the_table_knows_the_brokers_of_all_routes() -> None:
    table = RouteTable()
    table.replace(route("a", topic="one"))
    table.replace(route("b", topic="two", masterless=["b"]))
    assert table.brokers() == {"a": {0: "a:10911", 1: "a:10921"}, "b": {1: "b:10921"}}
    assert table.topics() == ["one", "two"]
    assert table.master_of("a") == "a:10911"
    assert table.master_of("b") is None
    assert table.broker_at("b:10921") == "b"
    assert table.broker_at("c:10911") is None


# ---- finding -------------------------------------------------------------------------------------


def look_for(core: Any, *, default_topic: str | None = "TBW102", queue_count: int = 4) -> Any:
    return find_writable(
        core, "orders", 103.0, default_topic=default_topic, queue_count=queue_count
    )


def test_a_route_that_is_known_costs_no_request() -> None:
    core = core_with(route("a"))
    assert finish(look_for(core)) is core.routes.get("orders")


def test_all_who_miss_a_route_share_one_lookup() -> None:
    core = core_with()
    one, other = expect(Once, next(look_for(core))), expect(Once, next(look_for(core)))
    assert one.key == other.key


def test_who_reads_does_not_share_the_lookup_of_who_writes() -> None:
    """A writer may borrow a route; a reader must not get that, nor may a writer go without."""
    core = core_with()
    writing = expect(Once, next(look_for(core)))
    reading = expect(Once, next(find_readable(core, "orders", 103.0)))
    assert writing.key != reading.key


def test_a_missing_route_is_asked_for_and_kept() -> None:
    core = core_with()
    lookup = expect(Once, next(look_for(core))).flow()
    call = expect_call(next(lookup))
    assert (call.address, call.deadline) == ("ns:9876", 103.0)
    assert call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert call.command.fields == {"topic": "orders", "acceptStandardJsonOnly": "true"}
    found: Any = finish(lookup, routed(body("a")))
    assert not found.is_borrowed
    assert core.routes.get("orders") is found


def test_a_route_that_cannot_be_written_to_is_asked_for_again() -> None:
    core = core_with(route_of("orders", body("a", perm=4)))
    found = play(look_for(core), lambda _: routed(body("a")))
    assert found.writable


def test_an_unknown_topic_borrows_the_route_of_the_default_topic() -> None:
    core = core_with()
    asked: list[str] = []

    def serve(call: Any) -> Any:
        asked.append(call.command.fields["topic"])
        return routed(body("a", queues=8) if asked[-1] == "MINE" else None)

    found = play(look_for(core, default_topic="MINE", queue_count=3), serve)
    assert asked == ["orders", "MINE"]
    assert found.is_borrowed
    assert len(found.writable) == 3
    assert core.routes.get("orders") is found
    assert core.routes.get("MINE") is None


def test_without_a_default_topic_an_unknown_topic_has_no_route() -> None:
    asked: list[Any] = []

    def serve(call: Any) -> Any:
        asked.append(call)
        return routed(None)

    with pytest.raises(RouteNotFound, match="downrange topic create orders") as caught:
        play(look_for(core_with(), default_topic=None), serve)
    assert len(asked) == 1
    assert "automatically" not in str(caught.value)
    assert (caught.value.topic, caught.value.addresses) == ("orders", ("ns:9876",))


def test_a_cluster_that_creates_no_topics_is_named_as_the_reason() -> None:
    with pytest.raises(RouteNotFound, match=r"automatically \(no TBW102 route\)") as caught:
        play(look_for(core_with()), lambda _: routed(None))
    assert caught.value.code == 10005


def test_a_topic_that_exists_but_cannot_be_written_to_borrows_nothing() -> None:
    asked: list[Any] = []

    def serve(call: Any) -> Any:
        asked.append(call)
        return routed(body("a", perm=4))

    with pytest.raises(RouteNotFound, match="Check its permission"):
        play(look_for(core_with()), serve)
    assert len(asked) == 1


def test_a_name_server_that_refuses_says_why() -> None:
    with pytest.raises(ServerError, match=r"ns:9876 answered with code 1: no") as caught:
        play(look_for(core_with()), lambda _: refused(1))
    assert caught.value.topic == "orders"


def test_name_servers_that_are_away_are_no_missing_route() -> None:
    with pytest.raises(ConnectFailed, match="no name server answered"):
        play(look_for(core_with()), lambda call: ConnectFailed(call.address, "refused"))


# ---- finding what can be read --------------------------------------------------------------------


def test_a_readable_route_that_is_known_costs_no_request() -> None:
    core = core_with(route("a"))
    assert finish(find_readable(core, "orders", 103.0)) is core.routes.get("orders")


@pytest.mark.parametrize(
    "known",
    [
        [],
        [route_of("orders", body("a"), queue_count_max=4)],
        [route_of("orders", body("a", perm=2))],
    ],
    ids=["none", "borrowed", "unreadable"],
)
def test_a_route_that_cannot_be_read_from_is_asked_for(known: list[Route]) -> None:
    found = play(find_readable(core_with(*known), "orders", 103.0), lambda _: routed(body("b")))
    assert [queue.broker for queue in found.readable] == ["b"] * 4


@pytest.mark.parametrize("said", [None, body("a", perm=2)], ids=["unknown", "unreadable"])
def test_a_topic_that_cannot_be_read_from_has_no_route(said: RouteBody | None) -> None:
    with pytest.raises(RouteNotFound, match="'orders' has no route at ns:9876"):
        play(find_readable(core_with(), "orders", 103.0), lambda _: routed(said))


# ---- refreshing ----------------------------------------------------------------------------------


def test_a_refresh_replaces_a_route_that_has_changed() -> None:
    core = core_with(route("a"))
    found = play(refresh_route(core, "orders", 103.0), lambda _: routed(body("a", "b")))
    assert core.routes.get("orders") is found
    assert found is not None
    assert found.masters.keys() == {"a", "b"}


def test_a_topic_that_the_name_server_does_not_know_keeps_what_it_has() -> None:
    core = core_with(route("a"))
    assert play(refresh_route(core, "orders", 103.0), lambda _: routed(None)) is None
    assert core.routes.get("orders") is not None


def test_all_used_topics_are_refreshed_side_by_side() -> None:
    core = core_with(route("a", topic="one"), route("a", topic="two"))
    gather = expect(Gather, next(refresh_all(core)))
    calls = [expect_call(next(flow)) for flow in gather.flows]
    assert [call.command.fields["topic"] for call in calls] == ["one", "two"]
    assert {call.deadline for call in calls} == {103.0}  # now and call_timeout
    assert gather.limit == 8


def test_routes_are_served_from_the_cache_when_all_name_servers_are_away() -> None:
    core = core_with(route("a", topic="one"), route("a", topic="two"))
    assert play(refresh_all(core), lambda call: CallTimeout(call.address, 3.0)) == 2
    assert core.routes.topics() == ["one", "two"]
    assert finish(find_readable(core, "one", 103.0)).readable


def test_chosen_topics_can_be_refreshed() -> None:
    core = core_with(route("a", topic="one"))
    assert play(refresh_all(core, ["two"]), lambda _: routed(body("b"))) == 0
    assert core.routes.topics() == ["one", "two"]


def test_a_replica_without_a_master_among_brokers_is_known_by_its_address() -> None:
    said = RouteBody(broker_datas=[BrokerReplicas(broker_name="a", broker_addrs={2: "a:3"})])
    found = route_of("orders", said)
    assert (found.masters, found.brokers) == ({}, {"a": {2: "a:3"}})
    assert found.writable == found.readable == ()
