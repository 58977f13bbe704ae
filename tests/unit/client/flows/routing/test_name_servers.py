"""Which name server is asked: a random order, then the one that answered, the next on failure."""

from __future__ import annotations

import pytest

from downrange.client.flows.effects import UserCall
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.routing.name_servers import NameServers
from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    HostNotFound,
    NoNameServer,
    NotSupported,
    TooManyInFlight,
)
from downrange.wire.command import Command
from tests.unit.client.flows.flow_steps import clock_of, core_with, expect, expect_call, finish
from tests.unit.client.flows.randomness import FakeRandomness

REQUEST = Command(105)


def test_the_order_is_random_so_that_clients_spread() -> None:
    servers = ["a:1", "b:1", "c:1"]
    orders = {
        tuple(NameServers(servers, FakeRandomness(x, y)).addresses)
        for x in range(3)
        for y in range(2)
    }
    assert len(orders) == 6


def test_each_address_counts_once() -> None:
    assert NameServers(["a:1", "a:1"], FakeRandomness()).addresses == ["a:1"]


def test_a_list_of_the_same_addresses_changes_nothing() -> None:
    servers = NameServers(["a:1", "b:1"], FakeRandomness())
    before = servers.addresses
    assert not servers.replace(["b:1", "a:1", "a:1"])
    assert servers.addresses == before


def test_the_one_in_use_stays_so_when_the_list_changes() -> None:
    servers = NameServers(["a:1", "b:1"], FakeRandomness(1))
    assert servers.addresses[0] == "a:1"
    servers.pass_over("a:1")
    assert servers.replace(["a:1", "b:1", "c:1"])
    assert servers.addresses[0] == "b:1"
    assert set(servers.addresses) == {"a:1", "b:1", "c:1"}


def test_another_one_is_taken_when_the_one_in_use_has_left_the_list() -> None:
    servers = NameServers(["a:1"], FakeRandomness())
    assert servers.replace(["b:1"])
    assert servers.addresses == ["b:1"]


def test_only_the_one_in_use_is_passed_over() -> None:
    servers = NameServers(["a:1", "b:1"], FakeRandomness(1))
    servers.pass_over("b:1")  # another flow's call failed there earlier
    assert servers.addresses == ["a:1", "b:1"]
    servers.pass_over("a:1")
    assert servers.addresses == ["b:1", "a:1"]
    servers.pass_over("b:1")
    assert servers.addresses == ["a:1", "b:1"]


def test_an_empty_list_has_no_server_to_pass_over() -> None:
    servers = NameServers([], FakeRandomness())
    servers.pass_over("a:1")
    assert servers.addresses == []


# ---- asking --------------------------------------------------------------------------------------


def test_the_one_that_answered_is_asked_again() -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    for _ in range(3):
        flow = core.call_name_server(REQUEST, 103.0)
        assert expect_call(next(flow)).address == "a:1"
        assert finish(flow, Command(17)).code == 17  # any code


@pytest.mark.parametrize(
    "error", [ConnectFailed("a:1", "refused"), ConnectionLost("a:1", "cut"), CallTimeout("a:1", 1)]
)
def test_the_next_one_is_asked_in_the_same_call_when_one_does_not_answer(
    error: ConnectFailed | ConnectionLost | CallTimeout,
) -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    flow = core.call_name_server(REQUEST, 103.0)
    next(flow)
    assert expect_call(flow.throw(error)).address == "b:1"
    finish(flow, Command(0))
    assert core.name_servers.addresses == ["b:1", "a:1"]  # and stays so


def test_each_name_server_gets_an_equal_share_of_the_time() -> None:
    core = core_with(name_servers=["a:1", "b:1", "c:1"])
    flow = core.call_name_server(REQUEST, 103.0)
    assert expect_call(next(flow)).deadline == 101.0
    clock_of(core).seconds = 100.1
    assert expect_call(flow.throw(ConnectFailed("a:1", "x"))).deadline == pytest.approx(101.55)
    clock_of(core).seconds = 104.0
    assert expect_call(flow.throw(ConnectFailed("b:1", "x"))).deadline == 103.0


def test_a_broker_in_the_list_is_passed_over() -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    flow = core.call_name_server(REQUEST, 103.0)
    next(flow)
    assert expect_call(flow.send(Command(3))).address == "b:1"
    assert finish(flow, Command(0)).code == 0
    assert core.name_servers.addresses == ["b:1", "a:1"]


def test_a_broker_in_place_of_all_name_servers_is_named_with_the_next_step() -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    flow = core.call_name_server(REQUEST, 103.0)
    next(flow)
    flow.send(Command(3, remark=" request type 105 not supported"))
    with pytest.raises(NotSupported) as caught:
        flow.throw(ConnectFailed("b:1", "refused"))
    assert str(caught.value) == (
        "a:1 is not a name server: it answered with code 3: request type 105 not supported.\n"
        "  Give the address of the name server, which usually has port 9876, not that of a broker. "
        "`downrange doctor a:1` shows more."
    )
    assert (caught.value.code, caught.value.address, caught.value.retryable) == (3, "a:1", False)


def test_when_no_name_server_answers_the_error_names_all() -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    flow = core.call_name_server(REQUEST, 103.0)
    next(flow)
    flow.throw(ConnectFailed("a:1", "refused"))
    with pytest.raises(ConnectFailed, match=r"a:1 \(refused\), b:1 \(no answer within 1 s\)"):
        flow.throw(CallTimeout("b:1", 1))


@pytest.mark.parametrize("kind", [HostNotFound, ConnectionLost])
def test_when_all_fail_in_the_same_way_the_error_is_of_that_kind(
    kind: type[HostNotFound | ConnectionLost],
) -> None:
    flow = core_with().call_name_server(REQUEST, 103.0)
    next(flow)
    with pytest.raises(kind, match="no name server answered"):
        flow.throw(kind("ns:9876", "gone"))


def test_a_fault_of_our_own_is_not_blamed_on_the_name_server() -> None:
    core = core_with(name_servers=["a:1", "b:1"], randomness=FakeRandomness(1))
    flow = core.call_name_server(REQUEST, 103.0)
    next(flow)
    with pytest.raises(TooManyInFlight):
        flow.throw(TooManyInFlight(1))
    assert core.name_servers.addresses == ["a:1", "b:1"]


def test_without_an_address_no_request_is_made() -> None:
    flow = core_with(name_servers=[]).call_name_server(REQUEST, 103.0)
    with pytest.raises(NoNameServer, match="discovery_url") as caught:
        next(flow)
    assert caught.value.code == 10004


def test_hooks_see_requests_to_name_servers_too() -> None:
    core = core_with(hooks=Hooks(before_call=(lambda *_: None,)))
    flow = core.call_name_server(REQUEST, 103.0)
    assert expect(UserCall, next(flow)).args == ("ns:9876", REQUEST)
    assert expect_call(flow.send(None)).address == "ns:9876"
    assert finish(flow, Command(0)).code == 0
