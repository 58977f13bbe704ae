"""Lookups: from the cache, one request for all that ask at the same time, borrowed routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.admin.changes import create_missing_topic
from downrange.client.flows.admin.topics import topic_route
from downrange.client.flows.effects import Gather, Once
from downrange.client.flows.notices import RouteChanged
from downrange.client.flows.routing.lookup import (
    find_master,
    find_master_or_proxy,
    find_readable,
    find_replica,
    find_route,
    find_send_address,
    find_writable,
    publish_queues,
    read_queues,
    refresh_all,
    refresh_route,
)
from downrange.client.flows.routing.routes import Route, route_of
from downrange.errors import (
    BrokerNotFound,
    CallTimeout,
    ConnectFailed,
    RocketMQError,
    RouteNotFound,
    ServerError,
)
from downrange.model import QueueId
from downrange.options import ClientOptions
from downrange.wire.bodies import BrokerReplicas, ClusterBody, RouteBody
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from tests.unit.client.flows import fake_servers
from tests.unit.client.flows.fake_servers import FakeServers
from tests.unit.client.flows.flow_steps import (
    body,
    clock_of,
    core_with,
    expect,
    expect_call,
    finish,
    play,
    play_together,
    refused,
    route,
    routed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Call, Flow

QUEUE = QueueId("orders", "a", 1)

# ---- writable routes -----------------------------------------------------------------------------


def look_for(core: Any, *, default_topic: str | None = "TBW102", queue_count: int = 4) -> Any:
    return find_writable(
        core, "orders", 103.0, default_topic=default_topic, queue_count=queue_count
    )


def test_a_route_that_is_known_costs_no_request() -> None:
    core = core_with(route("a"))
    assert finish(look_for(core)) is core.routes.get("orders")


#: Every reason to ask a name server for the route of a topic.
LOOKUPS: dict[str, Callable[[ClientCore], Flow[object]]] = {
    "send": lambda core: look_for(core),
    "send to a queue": lambda core: find_send_address(core, QUEUE, 103.0),
    "read": lambda core: find_readable(core, "orders", 103.0),
    "pull": lambda core: find_replica(core, QUEUE, 0, 103.0),
    "offset": lambda core: find_master(core, QUEUE, 103.0),
    "search": lambda core: find_route(core, "orders", 103.0),
    "recall": lambda core: find_master_or_proxy(core, "orders", "a", 103.0),
    "refresh": lambda core: refresh_route(core, "orders", 103.0),
}


@pytest.mark.parametrize("other", LOOKUPS)
def test_flows_that_miss_a_topic_for_different_reasons_ask_once(other: str) -> None:
    core = core_with()
    asked: list[Call] = []

    def serve(call: Call) -> Command:
        asked.append(call)
        return routed(body("a"))

    outcomes = play_together([LOOKUPS["send"](core), LOOKUPS[other](core)], serve)
    assert len(outcomes) == 2
    assert [call.command.code for call in asked] == [RequestCode.GET_ROUTEINFO_BY_TOPIC]


def test_flows_that_borrow_a_route_ask_once_for_the_default_topic() -> None:
    core = core_with()
    asked: list[str] = []

    def serve(call: Call) -> Command:
        asked.append(call.command.fields["topic"])
        return routed(body("a") if asked[-1] == "TBW102" else None)

    one, other = play_together([look_for(core), look_for(core)], serve)
    assert asked == ["orders", "TBW102"]
    assert one is other


def test_a_flow_that_reads_never_gets_a_borrowed_route() -> None:
    core = core_with()
    flows: list[Flow[Any]] = [look_for(core), find_readable(core, "orders", 103.0)]

    def serve(call: Call) -> Command:
        return routed(body("a") if call.command.fields.get("topic") == "TBW102" else None)

    written, read = play_together(flows, serve)
    assert written.is_borrowed
    assert isinstance(read, RouteNotFound)


def test_a_flow_whose_shared_request_had_an_earlier_deadline_asks_again() -> None:
    core = core_with()
    asked: list[float] = []

    def serve(call: Call) -> Command | RocketMQError:
        asked.append(call.deadline)
        clock_of(core).seconds = min(call.deadline, 101.0)
        return CallTimeout(call.address, 1.0) if call.deadline < 101.0 else routed(body("a"))

    hasty, patient = refresh_route(core, "orders", 100.5), refresh_route(core, "orders", 103.0)
    failed, found = play_together([hasty, patient], serve)
    assert isinstance(failed, CallTimeout)
    assert found is core.routes.get("orders")
    assert asked == [100.5, 103.0]


def test_a_flow_that_has_no_time_left_does_not_ask_again() -> None:
    core = core_with()
    asked: list[float] = []

    def serve(call: Call) -> RocketMQError:
        asked.append(call.deadline)
        clock_of(core).seconds = 103.0
        return CallTimeout(call.address, 3.0)

    flows = [refresh_route(core, "orders", 103.0) for _ in range(3)]
    assert [type(outcome) for outcome in play_together(flows, serve)] == [CallTimeout] * 3
    assert asked == [103.0]


def test_a_missing_route_is_asked_for_and_kept() -> None:
    core = core_with()
    lookup = expect(Once, next(refresh_route(core, "orders", 103.0))).flow()
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
    assert [call.command.code for call in asked] == [ROUTE, BROKERS]
    assert "automatically" not in str(caught.value)
    assert (caught.value.topic, caught.value.addresses) == ("orders", ("ns:9876",))


def test_a_missing_route_names_the_zone_that_was_asked_for() -> None:
    core = core_with(options=ClientOptions(zone="east", zone_mode=True))
    with pytest.raises(BrokerNotFound, match="no broker of zone 'east' is registered"):
        play(look_for(core), lambda _: Command(0, body=RouteBody().encode()))
    with pytest.raises(RouteNotFound, match=r"Only brokers of zone 'east' are used \(zone_mode\)"):
        play(find_readable(core, "orders", 103.0), lambda _: Command(0, body=RouteBody().encode()))


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


# ---- no brokers ----------------------------------------------------------------------------------

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BROKERS = RequestCode.GET_BROKER_CLUSTER_INFO


def brokerless(call: Call) -> Command:
    """Answer as a name server at which no broker is registered."""
    if call.command.code == BROKERS:
        return Command(0, body=ClusterBody(cluster_addr_table={"DefaultCluster": []}).encode())
    return routed(None)


@pytest.mark.parametrize(
    "find",
    [
        lambda core: look_for(core),
        lambda core: look_for(core, default_topic=None),
        lambda core: find_readable(core, "orders", 103.0),
        lambda core: find_route(core, "orders", 103.0),
        lambda core: topic_route(core, "orders", deadline=103.0),
        lambda core: create_missing_topic(core, "orders", 4, 103.0),
    ],
)
def test_a_name_server_without_brokers_is_not_a_missing_topic(find: Any) -> None:
    with pytest.raises(BrokerNotFound, match="ns:9876: no broker is registered") as caught:
        play(find(core_with()), brokerless)
    error = caught.value
    assert isinstance(error, ConnectFailed)
    assert (error.code, error.retryable, error.topic) == (10003, True, "orders")
    assert "topic create" not in str(error)


@pytest.mark.parametrize(
    "said",
    [
        refused(1),
        ConnectFailed("ns:9876", "refused"),
        Command(0, body=b"?"),
        Command(0, body=ClusterBody(broker_addr_table={"a": BrokerReplicas("a", {})}).encode()),
    ],
    ids=["refused", "away", "malformed", "some"],
)
def test_a_name_server_that_does_not_say_that_it_has_no_broker_misses_the_topic(said: Any) -> None:
    with pytest.raises(RouteNotFound, match="downrange topic create"):
        play(
            look_for(core_with()),
            lambda call: said if call.command.code == BROKERS else routed(None),
        )


def test_flows_that_miss_a_topic_together_ask_for_the_brokers_once() -> None:
    asked: list[int] = []

    def serve(call: Call) -> Command:
        asked.append(call.command.code)
        return brokerless(call)

    core = core_with()
    failed = play_together([find_route(core, "orders", 103.0) for _ in range(3)], serve)
    assert [type(error) for error in failed] == [BrokerNotFound] * 3
    assert asked == [ROUTE, BROKERS]


def test_brokers_without_a_master_are_missing() -> None:
    said = routed(body("a", "b", masterless="ab"))
    with pytest.raises(BrokerNotFound, match="no master of a, b is registered"):
        play(look_for(core_with()), lambda _: said)


# ---- readable routes -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, ".\n  Create it with `downrange topic create orders`."),
        (body("a", perm=2), " with queues that may be read. Check its permission."),
    ],
    ids=["unknown", "unreadable"],
)
def test_a_topic_that_cannot_be_read_from_has_no_route(said: RouteBody | None, words: str) -> None:
    text = re.escape(f"topic 'orders' has no route at ns:9876{words}")
    with pytest.raises(RouteNotFound, match=text):
        play(find_readable(core_with(), "orders", 103.0), lambda _: routed(said))


def test_a_route_that_was_found_or_borrowed_is_published() -> None:
    core = core_with()
    published: list[Any] = []
    core.observe = published.append

    def serve(call: Call) -> Command:
        return routed(body("a") if call.command.fields["topic"] == "TBW102" else None)

    borrowed = play(look_for(core), serve)
    found = play(refresh_route(core, "orders", 103.0), lambda _: routed(body("b")))
    assert found is not None
    assert published == [RouteChanged(None, borrowed), RouteChanged(borrowed, found)]


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
    calls = [expect_call(next(expect(Once, next(flow)).flow())) for flow in gather.flows]
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


# ---- queues of topics ----------------------------------------------------------------------------


@pytest.mark.parametrize("find", [publish_queues, read_queues])
def test_queues_carry_the_name_that_users_know(
    find: Callable[..., Flow[list[QueueId]]],
) -> None:
    for namespace in (None, "prod"):
        servers = FakeServers(namespace=namespace)
        topic = "orders" if namespace is None else f"{namespace}%orders"
        servers.answer_route(topic, fake_servers.route("a"))
        queues = servers.run(find(servers.core, "orders", deadline=103.0))
        assert queues == [QueueId("orders", "a", 0), QueueId("orders", "a", 1)]


def test_queues_to_send_to_are_never_borrowed() -> None:
    servers = FakeServers()
    servers.answer_route("TBW102", fake_servers.route())
    with pytest.raises(RouteNotFound, match="'ordres'"):
        servers.run(publish_queues(servers.core, "ordres", deadline=103.0))
