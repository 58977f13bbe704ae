"""Heartbeats and unregistering: which brokers get them, and what they contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.effects import Call, Gather
from downrange.client.flows.notices import HeartbeatEnded
from downrange.client.flows.routing.membership import (
    ensure_registered,
    heartbeat_targets,
    send_heartbeat,
    send_heartbeats,
    unregister,
)
from downrange.errors import ConnectionLost, SystemBusy
from downrange.wire.bodies import ConsumerMember
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from tests.unit.client.flows.flow_steps import (
    clock_of,
    core_with,
    expect,
    expect_call,
    finish,
    heartbeat_of,
    play,
    refused,
    route,
)

if TYPE_CHECKING:
    from downrange.client.flows.notices import Notice
    from downrange.errors import RocketMQError


class FakeConsumer:
    def membership(self) -> ConsumerMember:
        return ConsumerMember(group_name="readers")


def test_the_end_of_a_heartbeat_is_published() -> None:
    core = core_with(route("a"))
    published: list[Notice] = []
    core.observe = published.append
    lost = ConnectionLost("a:10911", "cut")

    def serve(call: Call) -> Command | RocketMQError:
        clock_of(core).seconds += 0.5
        return answers.pop(0)

    answers: list[Command | RocketMQError] = [Command(0), lost, refused(2)]
    play(send_heartbeat(core, "a:10911"), serve)
    with pytest.raises(ConnectionLost):
        play(send_heartbeat(core, "a:10911"), serve)
    with pytest.raises(SystemBusy) as busy:
        play(send_heartbeat(core, "a:10911"), serve)
    assert published == [
        HeartbeatEnded("a:10911", 0.5),
        HeartbeatEnded("a:10911", 0.5, lost),
        HeartbeatEnded("a:10911", 0.5, busy.value),
    ]


def test_heartbeats_go_to_the_masters_of_all_routes() -> None:
    core = core_with(route("b", "a", topic="one"), route("a", "c", topic="two", masterless="c"))
    assert heartbeat_targets(core) == ["a:10911", "b:10911"]


def test_with_a_consumer_heartbeats_go_to_slaves_too() -> None:
    core = core_with(route("a"))
    core.add_consumer("readers", FakeConsumer())
    assert heartbeat_targets(core) == ["a:10911", "a:10921"]


def test_a_broker_that_no_route_names_any_more_gets_no_heartbeat() -> None:
    core = core_with(route("a", "b"))
    core.add_producer("shop", object())
    core.routes.replace(route("b"))
    gather = expect(Gather, next(send_heartbeats(core)))
    assert [expect_call(next(flow)).address for flow in gather.flows] == ["b:10911"]


def test_without_members_or_brokers_there_is_nothing_to_say() -> None:
    assert finish(send_heartbeats(core_with(route("a")))) == 0
    core = core_with()
    core.add_producer("shop", object())
    assert finish(send_heartbeats(core)) == 0


def test_a_heartbeat_names_the_client_and_its_groups() -> None:
    core = core_with(route("a"))
    core.add_producer("shop", object())
    core.add_producer("bank", object())
    core.add_consumer("readers", FakeConsumer())
    flow = send_heartbeat(core, "a:10911")
    call = expect_call(next(flow))
    assert (call.command.code, call.deadline) == (RequestCode.HEART_BEAT, 103.0)
    said = heartbeat_of(call)
    assert said["clientID"] == "10.0.0.1@7#1"
    assert [one["groupName"] for one in said["producerDataSet"]] == ["shop", "bank"]
    assert [one["groupName"] for one in said["consumerDataSet"]] == ["readers"]
    finish(flow, Command(0))
    assert core.registered == {"a:10911"}


def test_a_broker_that_refuses_a_heartbeat_is_not_registered() -> None:
    core = core_with(route("a"))
    core.registered.add("a:10911")
    flow = send_heartbeat(core, "a:10911")
    next(flow)
    with pytest.raises(SystemBusy):
        flow.send(refused(2))
    assert core.registered == set()


def test_heartbeats_that_fail_are_counted_and_stop_no_other() -> None:
    core = core_with(route("a", "b", "c"))
    core.add_producer("shop", object())

    def serve(call: Call) -> Command | ConnectionLost:
        address = call.address
        if address == "a:10911":
            return ConnectionLost(address, "cut")
        return refused(1) if address == "b:10911" else Command(0)

    assert play(send_heartbeats(core), serve) == 2
    assert core.registered == {"c:10911"}


def test_heartbeats_can_go_to_chosen_brokers() -> None:
    core = core_with(route("a", "b"))
    core.add_producer("shop", object())
    assert play(send_heartbeats(core, ["b:10911"]), lambda _: Command(0)) == 0
    assert core.registered == {"b:10911"}


def test_a_registered_broker_gets_no_second_heartbeat() -> None:
    core = core_with(route("a", "b"))
    core.registered.add("a:10911")
    flow = ensure_registered(core, ["a:10911", "b:10911"], 103.0)  # at 100.0: a third is 1 s
    gather = expect(Gather, next(flow))
    calls = [expect_call(next(one)) for one in gather.flows]
    assert [(call.address, call.deadline) for call in calls] == [("b:10911", 101.0)]
    finish(flow, [None])
    assert finish(ensure_registered(core, ["a:10911"], 103.0)) is None


def test_a_new_group_must_be_registered_at_all_brokers() -> None:
    core = core_with(route("a"))
    core.registered.add("a:10911")
    core.add_producer("shop", object())
    assert core.registered == set()
    core.registered.add("a:10911")
    core.add_consumer("readers", FakeConsumer())
    assert core.registered == set()


# ---- unregistering -------------------------------------------------------------------------------


def test_goodbye_is_said_to_brokers_that_know_us_and_are_still_there() -> None:
    core = core_with(route("a", "b"))
    core.registered |= {"b:10911", "gone:10911"}
    clock_of(core).seconds = 200.0
    gather = expect(Gather, next(unregister(core, producer="shop")))
    calls = [expect_call(next(flow)) for flow in gather.flows]
    assert [(call.address, call.deadline) for call in calls] == [("b:10911", 203.0)]
    assert calls[0].command.code == RequestCode.UNREGISTER_CLIENT
    assert calls[0].command.fields == {"clientID": "10.0.0.1@7#1", "producerGroup": "shop"}


def test_a_consumer_unregisters_its_consumer_group() -> None:
    core = core_with(route("a"))
    core.registered.add("a:10911")
    said: list[dict[str, str]] = []

    def serve(call: Call) -> Command:
        said.append(call.command.fields)
        return Command(0)

    assert play(unregister(core, consumer="readers"), serve) == 0
    assert said == [{"clientID": "10.0.0.1@7#1", "consumerGroup": "readers"}]


def test_requests_to_unregister_that_fail_are_counted() -> None:
    core = core_with(route("a", "b"))
    core.registered |= {"a:10911", "b:10911"}
    assert (
        play(unregister(core, producer="shop"), lambda call: ConnectionLost(call.address, "x")) == 2
    )


def test_goodbye_is_said_but_not_waited_for_beyond_the_deadline_of_a_close() -> None:
    core = core_with(route("a"))
    core.registered.add("a:10911")
    clock_of(core).seconds = 200.0
    gather = expect(Gather, next(unregister(core, producer="shop", deadline=199.5)))
    assert [expect_call(next(flow)).deadline for flow in gather.flows] == [199.5]
