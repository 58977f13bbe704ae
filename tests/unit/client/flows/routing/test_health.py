"""Which brokers are avoided, and for how long."""

from __future__ import annotations

import pytest

from downrange.client.flows.routing.health import BrokerHealth, HealthSnapshot, tolerance_of
from downrange.errors import (
    CallTimeout,
    LinkClosed,
    RocketMQError,
    RouteNotFound,
    ServerError,
    SystemBusy,
)
from downrange.options.clients import FaultStyle, FaultTolerance
from tests.unit.client.flows.randomness import FakeRandomness

LOST = CallTimeout("a:10911", 3.0)
REFUSED = SystemBusy(2, "busy", "a:10911")
OWN_FAULT = RouteNotFound("orders", ["n:9876"], "")


def health(style: FaultStyle, **options: object) -> BrokerHealth:
    return BrokerHealth(FaultTolerance(style=style, **options), FakeRandomness())  # type: ignore[arg-type]


def avoided(brokers: BrokerHealth, now: float, broker: str = "a") -> float:
    """Return how many seconds a broker is still avoided."""
    (left,) = [state.avoided_for for state in brokers.snapshot(now) if state.broker == broker]
    return left


# ---- options -------------------------------------------------------------------------------------


def test_a_style_stands_for_its_default_settings() -> None:
    assert tolerance_of("4.x") == FaultTolerance(style="4.x")


def test_settings_stand_for_themselves() -> None:
    settings = FaultTolerance(style="5.x", detect=False)
    assert tolerance_of(settings) is settings


# ---- off -----------------------------------------------------------------------------------------


def test_health_that_is_off_records_nothing_and_finds_every_broker_fine() -> None:
    brokers = health("off")
    brokers.answered("a", 100.0, now=0.0)
    brokers.failed("a", LOST, 3.0, now=0.0)
    brokers.probed("a", True, now=0.0)
    assert not brokers.is_on
    assert brokers.is_available("a", now=0.0)
    assert brokers.is_reachable("a")
    assert brokers.to_probe(now=0.0) == []
    assert brokers.best_of_all(now=0.0) is None
    assert brokers.snapshot(now=0.0) == ()


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "latency_ms", "avoid"),
    [
        ("4.x", 549, 0.0),
        ("4.x", 550, 30.0),
        ("4.x", 1_000, 60.0),
        ("4.x", 2_000, 120.0),
        ("4.x", 3_000, 180.0),
        ("4.x", 14_999, 180.0),
        ("4.x", 15_000, 600.0),
        ("5.x", 0, 0.0),
        ("5.x", 549, 0.0),
        ("5.x", 550, 2.0),
        ("5.x", 1_799, 2.0),
        ("5.x", 1_800, 5.0),
        ("5.x", 3_000, 6.0),
        ("5.x", 5_000, 10.0),
        ("5.x", 20_000, 30.0),
    ],
)
def test_a_slow_broker_is_avoided_as_long_as_its_latency_class_says(
    style: FaultStyle, latency_ms: int, avoid: float
) -> None:
    brokers = health(style)
    brokers.answered("a", latency_ms / 1000, now=100.0)
    assert avoided(brokers, now=100.0) == avoid
    assert brokers.is_available("a", now=100.0 + avoid)
    assert brokers.is_available("a", now=100.0) == (avoid == 0.0)


def test_own_tables_take_the_place_of_the_styles() -> None:
    brokers = health("5.x", latency_ms=(10, 20_000), avoid_ms=(7_000, 9_000))
    brokers.answered("a", 0.0099, now=0.0)
    assert avoided(brokers, now=0.0) == 0.0
    brokers.answered("a", 0.01, now=0.0)
    assert avoided(brokers, now=0.0) == 7.0


@pytest.mark.parametrize(("style", "avoid"), [("4.x", 1.0), ("5.x", 2.0)])
def test_an_error_counts_as_a_latency_in_own_tables_too(style: FaultStyle, avoid: float) -> None:
    table = {"latency_ms": (9_999, 10_000, 30_000), "avoid_ms": (3_000, 2_000, 1_000)}
    brokers = health(style, **table)
    brokers.failed("a", REFUSED, 0.1, now=0.0)
    assert avoided(brokers, now=0.0) == avoid


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LOST, REFUSED, OWN_FAULT])
def test_every_error_isolates_a_broker_in_4x_style(error: RocketMQError) -> None:
    brokers = health("4.x")
    brokers.failed("a", error, 0.1, now=0.0)
    assert avoided(brokers, now=0.0) == 600.0
    assert brokers.is_reachable("a")


@pytest.mark.parametrize(
    ("error", "detect", "avoid", "is_reachable"),
    [
        (LOST, True, 10.0, False),
        (LOST, False, 10.0, True),
        (LinkClosed("cut"), True, 10.0, False),
        (REFUSED, True, 10.0, False),
        (REFUSED, False, 10.0, False),
        (ServerError(13, "illegal", "a:10911"), True, 10.0, False),
        (OWN_FAULT, True, 0.0, True),
    ],
)
def test_an_error_isolates_a_broker_in_5x_style_unless_it_is_our_own_fault(
    error: RocketMQError, detect: bool, avoid: float, is_reachable: bool
) -> None:
    brokers = health("5.x", detect=detect)
    brokers.failed("a", error, 0.1, now=0.0)
    assert avoided(brokers, now=0.0) == avoid
    assert brokers.is_reachable("a") == is_reachable


def test_our_own_fault_counts_with_the_time_it_took_in_5x_style() -> None:
    brokers = health("5.x")
    brokers.failed("a", OWN_FAULT, 3.0, now=0.0)
    assert avoided(brokers, now=0.0) == 6.0


# ---- sequences of results ------------------------------------------------------------------------


def test_a_quick_answer_ends_the_avoiding_at_once_in_4x_style() -> None:
    brokers = health("4.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.answered("a", 0.001, now=1.0)
    assert brokers.is_available("a", now=1.0)


def test_a_quick_answer_does_not_shorten_the_avoiding_in_5x_style() -> None:
    brokers = health("5.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.answered("a", 0.001, now=1.0)
    assert not brokers.is_available("a", now=9.99)
    assert brokers.is_available("a", now=10.0)
    assert brokers.is_reachable("a")


def test_a_smaller_fault_does_not_shorten_a_larger_one_in_5x_style() -> None:
    brokers = health("5.x")
    brokers.answered("a", 20.0, now=0.0)
    brokers.answered("a", 0.6, now=1.0)
    assert avoided(brokers, now=1.0) == 29.0
    brokers.answered("a", 0.6, now=29.0)
    assert avoided(brokers, now=29.0) == 2.0


def test_brokers_are_judged_one_by_one() -> None:
    brokers = health("5.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.answered("b", 0.001, now=0.0)
    assert not brokers.is_available("a", now=0.0)
    assert brokers.is_available("b", now=0.0)
    assert brokers.is_available("c", now=0.0)


def test_a_forgotten_broker_is_fine_again() -> None:
    brokers = health("5.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.forget("a")
    brokers.forget("never heard of")
    assert brokers.is_available("a", now=0.0)
    assert brokers.is_reachable("a")


# ---- when all brokers are avoided ----------------------------------------------------------------


def test_the_only_known_broker_is_the_best() -> None:
    brokers = health("4.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    assert brokers.best_of_all(now=0.0) == "a"


def test_the_better_half_is_that_of_available_then_quick_then_sooner_brokers() -> None:
    brokers = health("4.x")
    brokers.failed("later", LOST, 0.2, now=5.0)
    brokers.failed("sooner", LOST, 0.2, now=4.0)
    brokers.failed("quick", LOST, 0.1, now=9.0)
    brokers.answered("available", 0.5, now=0.0)
    brokers.failed("slow", LOST, 0.3, now=0.0)
    brokers.failed("slower", LOST, 0.4, now=0.0)
    assert [brokers.best_of_all(now=10.0) for _ in range(4)] == [
        *("available", "quick", "sooner"),
        "available",
    ]


def test_turns_among_the_better_half_start_at_random_and_wrap_as_in_java() -> None:
    brokers = BrokerHealth(tolerance_of("4.x"), FakeRandomness(0x7FFFFFFE))
    for name, latency in [("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.4)]:
        brokers.failed(name, LOST, latency, now=0.0)
    assert [brokers.best_of_all(now=0.0) for _ in range(4)] == ["a", "b", "a", "b"]


# ---- probes --------------------------------------------------------------------------------------


def test_an_unreachable_broker_is_probed_once_per_interval() -> None:
    brokers = health("5.x", detect_interval=2.0)
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.answered("b", 0.001, now=0.0)
    assert brokers.to_probe(now=0.0) == ["a"]
    assert brokers.to_probe(now=1.99) == []
    brokers.probed("a", False, now=1.99)
    assert not brokers.is_reachable("a")
    assert brokers.to_probe(now=2.0) == ["a"]


def test_a_probe_that_is_answered_makes_a_broker_reachable_but_not_yet_available() -> None:
    brokers = health("5.x")
    brokers.failed("a", LOST, 0.1, now=0.0)
    brokers.probed("a", True, now=3.0)
    assert brokers.is_reachable("a")
    assert not brokers.is_available("a", now=3.0)
    assert brokers.to_probe(now=9.0) == []


def test_nothing_is_probed_when_disabled_or_in_4x_style() -> None:
    for brokers in (health("5.x", detect=False), health("4.x")):
        brokers.failed("a", REFUSED, 0.1, now=0.0)
        assert brokers.to_probe(now=99.0) == []


def test_a_probe_of_a_forgotten_broker_has_no_effect() -> None:
    brokers = health("5.x")
    brokers.probed("a", True, now=0.0)
    assert brokers.snapshot(now=0.0) == ()


# ---- on_change -----------------------------------------------------------------------------------


def test_on_change_is_called_when_a_broker_begins_to_be_avoided_and_when_it_is_back() -> None:
    heard: list[HealthSnapshot] = []
    brokers = BrokerHealth(tolerance_of("5.x"), FakeRandomness(), heard.append)
    brokers.answered("a", 0.001, now=0.0)
    assert heard == []
    brokers.failed("a", LOST, 0.5, now=1.0)
    brokers.failed("a", LOST, 0.5, now=2.0)
    assert heard == [HealthSnapshot("a", False, False, 0.5, 10.0)]
    brokers.probed("a", True, now=4.0)  # it answers, but is avoided until its time has passed
    brokers.probed("a", True, now=5.0)
    assert heard[1:] == []
    brokers.answered("a", 0.001, now=13.0)
    brokers.answered("a", 0.001, now=14.0)
    assert heard[1:] == [HealthSnapshot("a", True, True, 0.001, 0.0)]


def test_on_change_is_called_when_an_answered_probe_ends_the_avoidance() -> None:
    heard: list[HealthSnapshot] = []
    brokers = BrokerHealth(tolerance_of("5.x"), FakeRandomness(), heard.append)
    brokers.failed("a", LOST, 0.5, now=0.0)
    brokers.probed("a", False, now=11.0)
    assert len(heard) == 1
    brokers.probed("a", True, now=12.0)
    assert heard[1:] == [HealthSnapshot("a", True, True, 0.5, 0.0)]


def test_on_change_is_called_again_when_a_broker_is_avoided_again_after_its_time() -> None:
    heard: list[HealthSnapshot] = []
    brokers = BrokerHealth(tolerance_of("5.x"), FakeRandomness(), heard.append)
    brokers.answered("a", 1.0, now=0.0)  # slow: avoided for 2 s
    brokers.answered("a", 1.0, now=1.0)
    brokers.answered("a", 1.0, now=20.0)
    assert heard == [
        HealthSnapshot("a", False, True, 1.0, 2.0),
        HealthSnapshot("a", False, True, 1.0, 2.0),
    ]


def test_a_snapshot_has_the_health_of_each_broker() -> None:
    brokers = health("4.x")
    brokers.answered("a", 0.6, now=0.0)
    brokers.answered("b", 0.002, now=0.0)
    assert brokers.snapshot(now=10.0) == (
        HealthSnapshot("a", False, True, 0.6, 20.0),
        HealthSnapshot("b", True, True, 0.002, 0.0),
    )
