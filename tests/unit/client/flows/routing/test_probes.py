"""The detector: which brokers are probed, with which request, and what a reply changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.effects import Gather, Pause
from downrange.client.flows.routing.probes import detect, probe_due
from downrange.errors import ConnectFailed
from downrange.options import FaultTolerance
from downrange.wire.codes import RequestCode
from tests.unit.client.flows.flow_steps import (
    clock_of,
    core_with,
    expect,
    expect_call,
    finish,
    play,
    refused,
    route,
)

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.routing.health import BrokerHealth

SETTINGS = FaultTolerance(style="5.x", detect_interval=2.0, detect_timeout=0.2)


def unreachable(core: ClientCore, *brokers: str) -> BrokerHealth:
    health = core.health_for(SETTINGS)
    for broker in brokers:
        health.failed(broker, ConnectFailed(broker, "refused"), 0.0, 100.0)
    return health


def test_a_broker_that_was_not_reachable_is_asked_for_an_offset() -> None:
    core = core_with(route("a", "b"))
    health = unreachable(core, "a")
    flow = probe_due(core, health)
    gather = expect(Gather, next(flow))
    (probe,) = gather.flows
    call = expect_call(next(probe))
    assert (call.address, call.deadline) == ("a:10911", 100.2)
    assert call.command.code == RequestCode.GET_MAX_OFFSET
    assert call.command.fields["topic"] == "orders"
    assert call.command.fields["queueId"] == "0"
    finish(probe, refused(1))  # any reply shows that the broker is back
    assert health.is_reachable("a")
    assert finish(flow, [None]) == 0


def test_a_broker_that_does_not_answer_stays_unreachable_and_is_counted() -> None:
    core = core_with(route("a"))
    health = unreachable(core, "a")
    assert play(probe_due(core, health), lambda call: ConnectFailed(call.address, "no")) == 1
    assert not health.is_reachable("a")


def test_each_broker_is_probed_once_per_interval() -> None:
    core = core_with(route("a"))
    health = unreachable(core, "a")
    play(probe_due(core, health), lambda call: ConnectFailed(call.address, "no"))
    assert expect(Gather, next(probe_due(core, health))).flows == []
    clock_of(core).seconds += 2.0
    assert len(expect(Gather, next(probe_due(core, health))).flows) == 1


def test_a_broker_that_no_route_names_is_forgotten() -> None:
    core = core_with(route("b"))
    health = unreachable(core, "a")
    assert play(probe_due(core, health), lambda _: refused(1)) == 0
    assert health.snapshot(100.0) == ()


def test_without_a_topic_there_is_nothing_to_ask_for() -> None:
    core = core_with()
    health = unreachable(core, "a")
    assert play(probe_due(core, health), lambda _: refused(1)) == 0
    assert health.snapshot(100.0) == ()


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (FaultTolerance(style="5.x"), 1),
        (FaultTolerance(style="5.x", detect=False), 0),
        (FaultTolerance(style="4.x"), 0),
        (FaultTolerance(style="off"), 0),
    ],
)
def test_only_5_x_style_has_a_detector(settings: FaultTolerance, count: int) -> None:
    core = core_with()
    assert len(detect(core, core.health_for(settings))) == count


def test_the_detector_looks_as_often_as_the_settings_say_but_not_less_than_java() -> None:
    core = core_with()
    quick = FaultTolerance(style="5.x", detect_interval=1.0)
    (flow,) = detect(core, core.health_for(quick))
    assert next(flow) == Pause(1.0)
    slow = FaultTolerance(style="5.x", detect_interval=9.0)
    (flow,) = detect(core, core.health_for(slow))
    assert next(flow) == Pause(3.0)
    assert expect(Gather, next(flow)).flows == []
    assert flow.send([]) == Pause(3.0)


def test_producers_that_share_their_health_share_the_detector() -> None:
    core = core_with()
    (flow,) = detect(core, core.health_for(SETTINGS))
    next(flow)
    assert detect(core, core.health_for(SETTINGS)) == []


def test_producers_with_other_settings_have_a_detector_of_their_own() -> None:
    core = core_with()
    core.health_for("off")
    for settings in (SETTINGS, FaultTolerance(style="5.x", detect_interval=9.0)):
        (flow,) = detect(core, core.health_for(settings))
        next(flow)
    assert list(core.timers) == ["detector", "detector-2"]
