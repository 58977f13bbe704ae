"""The shared state of a client: groups, requests, answers, timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.background import background_flows
from downrange.client.flows.client_core import TimerFacts
from downrange.client.flows.effects import Flow, Once, Pause, UserCall
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.notices import (
    NOTICES_MAX,
    HeartbeatEnded,
    RouteChanged,
    UserCodeFailed,
)
from downrange.client.flows.routing.health import HealthSnapshot
from downrange.client.flows.routing.lookup import refresh_all
from downrange.client.flows.routing.membership import heartbeat_on_connect
from downrange.errors import ConnectFailed, ConnectionLost, GroupTaken, NoPermission
from downrange.options import ClientOptions, Credentials, FaultTolerance
from downrange.wire.bodies import ConsumerMember
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.signatures import sign, signature
from tests.unit.client.flows.flow_steps import (
    answer_user_call,
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


class FakeConsumer:
    def membership(self) -> ConsumerMember:
        return ConsumerMember(group_name="readers")


# ---- members -------------------------------------------------------------------------------------


def test_a_second_producer_of_a_group_is_refused() -> None:
    core = core_with()
    core.add_producer("shop", object())
    with pytest.raises(GroupTaken, match="already has a producer of group 'shop'") as caught:
        core.add_producer("shop", object())
    assert caught.value.group == "shop"
    core.add_consumer("shop", FakeConsumer())  # a consumer may have the same group name


def test_a_second_consumer_of_a_group_is_refused() -> None:
    core = core_with()
    core.add_consumer("readers", FakeConsumer())
    with pytest.raises(GroupTaken, match="already has a consumer of group 'readers'"):
        core.add_consumer("readers", FakeConsumer())


def test_a_group_is_free_again_when_its_member_has_gone() -> None:
    core = core_with()
    assert not core.has_members
    core.add_producer("shop", object())
    core.add_consumer("readers", FakeConsumer())
    core.remove_producer("shop")
    assert core.has_members
    core.remove_consumer("readers")
    assert not core.has_members
    core.remove_producer("shop")  # no error
    core.remove_consumer("readers")
    core.add_producer("shop", object())


def test_producers_of_equal_settings_share_what_they_know_of_brokers() -> None:
    core = core_with()
    assert core.health_for("5.x") is core.health_for(FaultTolerance(style="5.x"))
    assert core.health_for("4.x") is not core.health_for("5.x")
    assert core.healths == [core.health_for("5.x"), core.health_for("4.x")]


# ---- requests ------------------------------------------------------------------------------------


def test_a_plain_request_is_a_call_and_nothing_else() -> None:
    core = core_with()
    command = Command(11)
    flow = core.call("a:1", command, 103.0, is_oneway=True)
    call = expect_call(next(flow))
    assert (call.address, call.command, call.deadline) == ("a:1", command, 103.0)
    assert call.is_oneway
    assert finish(flow, Command(17)).code == 17
    assert command.fields == {}


def test_requests_carry_the_namespace_and_request_type_of_the_options() -> None:
    core = core_with(options=ClientOptions(namespace_v2="prod", is_stream_request=True))
    flow = core.call("a:1", Command(11, {"topic": "orders"}), 103.0)
    call = expect_call(next(flow))
    assert call.command.fields == {"topic": "orders", "nsd": "true", "ns": "prod", "ReqT": "0"}
    assert finish(flow, Command(0)).code == 0


def test_requests_carry_the_zone_and_it_is_signed() -> None:
    options = ClientOptions(zone="east", zone_mode=True)
    core = core_with(options=options, credentials=Credentials("me", "secret"))
    request = Command(11, {"topic": "orders"})
    sent = expect_call(next(core.call("a:1", request, 103.0))).command
    zone = {"__ZONE_NAME": "east", "__ZONE_MODE": "true"}
    assert {name: sent.fields[name] for name in zone} == zone
    signed = Command(11, {"topic": "orders", **zone})
    sign(signed, "me", "secret", None)
    assert sent.fields == signed.fields


def test_a_zone_without_zone_mode_is_only_named() -> None:
    core = core_with(options=ClientOptions(zone="east"))
    fields = expect_call(next(core.call("a:1", Command(11), 103.0))).command.fields
    assert fields == {"__ZONE_NAME": "east"}


def test_hooks_see_each_request_and_its_reply_around_the_wire() -> None:
    seen: list[Any] = []
    hooks = Hooks(
        before_call=(lambda *args: seen.append(("first", *args)), lambda *_: seen.append("second")),
        after_call=(lambda *args: seen.append(("after", *args)),),
    )
    command, reply = Command(11), Command(0)

    def serve(_: object) -> Command:
        seen.append("wire")
        return reply

    assert play(core_with(hooks=hooks).call("a:1", command, 103.0), serve) is reply
    assert seen == [
        ("first", "a:1", command),
        "second",
        "wire",
        ("after", "a:1", command, reply),
    ]


def test_what_a_hook_adds_to_a_request_is_signed() -> None:
    def add(_: str, command: Command) -> None:
        command.fields["trace"] = "7"

    core = core_with(
        hooks=Hooks(before_call=(add,)), credentials=Credentials("me", "secret", "token")
    )
    flow = core.call("a:1", Command(11, body=b"x"), 103.0)
    expect(UserCall, next(flow)).function("a:1", command := Command(11, body=b"x"))
    assert command.fields["trace"] == "7"
    flow = core.call("a:1", command, 103.0)
    next(flow)
    fields = expect_call(flow.send(None)).command.fields
    assert (fields["AccessKey"], fields["SecurityToken"]) == ("me", "token")
    assert fields["Signature"] == signature(fields, b"x", "secret")


def test_an_error_in_a_hook_of_calls_is_reported_and_the_request_goes_on() -> None:
    notices: list[Any] = []

    def broken(*_: object) -> None:
        raise KeyError("oops")

    core = core_with(hooks=Hooks(before_call=(broken,), after_call=(broken,)))
    core.observe = notices.append
    reply = Command(0)
    assert play(core.call("a:1", Command(11), 103.0), lambda _: reply) is reply
    assert [type(notice) for notice in notices] == [UserCodeFailed] * 2
    assert [repr(notice.error) for notice in notices] == ["KeyError('oops')"] * 2
    assert all("broken" in notice.where for notice in notices)
    assert core.user_errors == 2


def test_an_error_in_a_hook_is_counted_without_an_observer() -> None:
    core = core_with(hooks=Hooks(after_call=(lambda *_: None,)))
    flow = core.call("a:1", Command(11), 103.0)
    next(flow)
    flow.send(Command(0))
    with pytest.raises(StopIteration):
        flow.throw(ValueError("oops"))
    assert core.user_errors == 1


def test_a_request_that_is_agreed_to_returns_the_reply() -> None:
    core = core_with()
    flow = core.ask("a:1", Command(11), 103.0)
    next(flow)
    reply = Command(0, {"offset": "7"})
    assert finish(flow, reply) is reply


def test_a_request_that_is_refused_says_by_whom_and_about_what() -> None:
    core = core_with()
    flow = core.ask("a:1", Command(11), 103.0, "orders")
    next(flow)
    with pytest.raises(NoPermission, match="a:1 answered with code 16: no") as caught:
        flow.send(refused(16))
    assert (caught.value.address, caught.value.topic) == ("a:1", "orders")
    assert isinstance(core.refused(refused(16), "a:1"), NoPermission)


# ---- answering -----------------------------------------------------------------------------------


def test_a_brokers_request_is_answered_by_the_handler_of_its_code() -> None:
    core = core_with()

    def handle(address: str, command: Command) -> Flow[Command | None]:
        yield Pause(0.0)
        return Command(0, remark=f"{address} {command.code}")

    core.handlers[39] = handle
    flow = core.answer("a:1", Command(39))
    assert next(flow) == Pause(0.0)
    answer = finish(flow)
    assert answer is not None
    assert answer.remark == "a:1 39"


def test_a_brokers_request_without_a_handler_is_not_supported() -> None:
    answer = finish(core_with().answer("a:1", Command(999)))
    assert answer is not None
    assert (answer.code, answer.remark) == (3, " request type 999 not supported")


def test_a_broker_gets_a_heartbeat_on_every_new_connection() -> None:
    core = core_with(route("a"))
    assert heartbeat_on_connect(core, "a:10911") is None  # no group yet
    core.add_producer("shop", object())
    assert heartbeat_on_connect(core, "ns:9876") is None
    flow = heartbeat_on_connect(core, "a:10911")
    assert flow is not None
    assert heartbeat_of(expect_call(next(flow)))["producerDataSet"] == [{"groupName": "shop"}]
    finish(flow, Command(0))
    assert core.registered == {"a:10911"}
    core.on_disconnect("a:10911")
    assert core.registered == set()


# ---- timers --------------------------------------------------------------------------------------


def test_routes_and_heartbeats_run_in_the_background() -> None:
    core = core_with(
        route("a"), options=ClientOptions(route_refresh_interval=7.0, heartbeat_interval=9.0)
    )
    core.add_producer("shop", object())
    routes, heartbeats = background_flows(core)
    assert next(routes) == Pause(0.01)
    assert next(heartbeats) == Pause(1.0)
    assert core.timers == {"routes": TimerFacts(7.0), "heartbeats": TimerFacts(9.0)}
    (refresh,) = next(routes).flows  # type: ignore[union-attr]
    assert expect(Once, next(refresh)).key == ("route", "orders")
    (heartbeat,) = next(heartbeats).flows  # type: ignore[union-attr]
    assert expect_call(next(heartbeat)).command.code == RequestCode.HEART_BEAT
    assert routes.send([None]) == Pause(7.0)
    assert heartbeats.send([ConnectFailed("a:10911", "x")]) == Pause(9.0)
    assert core.timers["routes"] == TimerFacts(7.0, 1, 0, 100_000)
    assert core.timers["heartbeats"] == TimerFacts(9.0, 1, 1, 100_000)


def test_a_timer_survives_the_errors_of_what_it_does() -> None:
    core = core_with()

    def action() -> Flow[int]:
        yield Pause(0.5)
        return 2

    flow = core.timer("mine", 10.0, 1.0, action)
    assert [next(flow) for _ in range(2)] == [Pause(1.0), Pause(0.5)]
    assert flow.throw(ConnectFailed("a:1", "refused")) == Pause(10.0)
    clock_of(core).seconds = 110.0
    assert [next(flow) for _ in range(2)] == [Pause(0.5), Pause(10.0)]
    assert core.timers["mine"] == TimerFacts(10.0, runs=2, failures=3, last_run_ms=110_000)


def test_a_timer_does_not_hide_a_fault_of_ours() -> None:
    core = core_with()
    flow = core.timer("mine", 10.0, 1.0, lambda: refresh_all(core))
    next(flow)
    with pytest.raises(ZeroDivisionError):
        flow.throw(ZeroDivisionError())


def test_brokers_that_no_route_names_any_more_are_no_longer_judged() -> None:
    core = core_with(route("a"))
    health = core.health_for("5.x")
    for broker in ("a", "gone"):
        health.failed(broker, ConnectionLost(f"{broker}:1", "cut"), 0.1, core.clock.now())
    beating = background_flows(core)[1]
    next(beating)
    beating.send(None)
    assert [state.broker for state in health.snapshot(core.clock.now())] == ["a"]


# ---- notices -------------------------------------------------------------------------------------


def test_notices_are_published_to_the_observer_in_order() -> None:
    core = core_with()
    published: list[Notice] = []
    core.observe = published.append
    health = core.health_for("4.x")
    found = core.routes.replace(route("a"))
    health.failed("a", ConnectionLost("a:1", "cut"), 0.1, core.clock.now())
    play(core.publish(), lambda _: None)
    assert published == [RouteChanged(None, found), HealthSnapshot("a", False, True, 0.1, 600.0)]
    assert not core.notices


def test_notices_without_an_observer_are_dropped() -> None:
    core = core_with()
    core.routes.replace(route("a"))
    assert len(core.notices) == 1
    finish(core.publish())
    assert not core.notices


def test_notices_that_are_never_published_are_limited() -> None:
    core = core_with()
    for number in range(NOTICES_MAX + 5):
        core.notices.append(HeartbeatEnded("a:1", float(number)))
    assert len(core.notices) == NOTICES_MAX
    assert core.notices[0] == HeartbeatEnded("a:1", 5.0)


def test_a_timer_publishes_what_its_action_noted() -> None:
    core = core_with()
    published: list[Notice] = []
    core.observe = published.append

    def act() -> Flow[int]:
        core.notices.append(HeartbeatEnded("a:1", 0.5))
        yield Pause(0.0)
        return 0

    flow = core.timer("mine", 10.0, 1.0, act)
    next(flow)
    flow.send(None)
    answer_user_call(flow.send(None))
    assert published == [HeartbeatEnded("a:1", 0.5)]
    assert expect(Pause, flow.send(None)).seconds == 10.0
