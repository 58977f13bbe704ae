"""Which queue the next message goes to."""

from __future__ import annotations

import pytest

from downrange.client.flows.routing.health import BrokerHealth, tolerance_of
from downrange.client.flows.routing.queue_picker import QueuePicker, RoundRobin
from downrange.errors import CallTimeout, SystemBusy
from downrange.model import QueueId
from downrange.options.clients import FaultStyle, FaultTolerance
from tests.unit.client.flows.randomness import FakeRandomness

LOST = CallTimeout("a:10911", 3.0)
NOW = 50.0


def queues(brokers: str, count: int = 2, topic: str = "orders") -> tuple[QueueId, ...]:
    """Return `count` queues on each broker; brokers are named by one letter."""
    return tuple(QueueId(topic, broker, number) for broker in brokers for number in range(count))


class World:
    """A picker with its health and round robin, and the queues of one topic."""

    def __init__(
        self,
        style: FaultStyle,
        brokers: str,
        *,
        index: int = -1,
        randomness: FakeRandomness | None = None,
    ) -> None:
        self.randomness = randomness or FakeRandomness()
        self.health = BrokerHealth(tolerance_of(style), self.randomness)
        self.picker = QueuePicker(self.health, self.randomness)
        self.round_robin = RoundRobin()
        self.round_robin.indexes["orders"] = index
        self.writable = queues(brokers)
        self.counts = dict.fromkeys(brokers, 2)

    def pick(self, failed: str | None = None, now: float = NOW) -> str:
        queue = self.picker.pick(
            self.round_robin, "orders", self.writable, self.counts, failed, now
        )
        assert queue.topic == "orders"
        return f"{queue.broker}{queue.number}"

    def fail(self, *brokers: str, now: float = NOW) -> None:
        for broker in brokers:
            self.health.failed(broker, LOST, 0.1, now)


# ---- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["off", "4.x", "5.x"])
def test_queues_take_turns(style: FaultStyle) -> None:
    world = World(style, "ab")
    assert [world.pick() for _ in range(5)] == ["a0", "a1", "b0", "b1", "a0"]


@pytest.mark.parametrize("style", ["off", "4.x", "5.x"])
def test_the_first_turn_is_random(style: FaultStyle) -> None:
    world = World(style, "ab", randomness=FakeRandomness(6))
    world.round_robin.indexes.clear()
    assert [world.pick(), world.pick()] == ["b0", "b1"]
    assert world.randomness.limits == [0x7FFFFFFF]


@pytest.mark.parametrize("style", ["off", "4.x", "5.x"])
def test_turns_wrap_to_zero_where_java_numbers_end(style: FaultStyle) -> None:
    world = World(style, "ab", index=0x7FFFFFFE)
    assert [world.pick(), world.pick()] == ["b1", "a0"]


def test_each_topic_and_each_lane_has_turns_of_its_own() -> None:
    world = World("off", "ab", randomness=FakeRandomness(1, 2))
    world.pick()
    others = queues("ab", topic="bills")
    pick = world.picker.pick
    assert pick(world.round_robin, "bills", others, world.counts, None, NOW) == others[1]
    assert (
        pick(RoundRobin(), "orders", world.writable, world.counts, None, NOW) == world.writable[2]
    )
    assert world.pick() == "a1"


# ---- off -----------------------------------------------------------------------------------------


def test_a_retry_passes_over_the_queues_of_the_broker_that_failed() -> None:
    world = World("off", "ab")
    assert world.pick(failed="a") == "b0"
    assert world.pick(failed="a") == "b1"
    assert world.pick(failed="a") == "b0"


def test_a_retry_takes_the_next_queue_when_there_is_no_other_broker() -> None:
    world = World("off", "a")
    assert world.pick(failed="a") == "a0"
    assert world.pick(failed="a") == "a1"


def test_a_first_attempt_avoids_no_broker_when_tolerance_is_off() -> None:
    world = World("off", "ab")
    world.fail("a")
    assert world.pick() == "a0"


# ---- 4.x -----------------------------------------------------------------------------------------


def test_4x_takes_the_next_queue_of_an_available_broker() -> None:
    world = World("4.x", "abc")
    world.fail("a")
    assert world.pick() == "b0"
    # The whole search was one turn.
    assert world.round_robin.indexes["orders"] == 0
    assert world.pick() == "b0"


def test_4x_looks_at_every_queue_before_it_takes_a_bad_one() -> None:
    world = World("4.x", "ab")
    world.writable = (*queues("a"), *queues("b", count=1))
    world.fail("a")
    assert world.pick() == "b0"


def test_4x_does_not_avoid_the_last_broker_unless_it_is_unavailable() -> None:
    assert World("4.x", "ab").pick(failed="a") == "a0"


def test_4x_takes_a_queue_of_a_better_broker_when_all_are_bad() -> None:
    world = World("4.x", "ab", randomness=FakeRandomness(0))
    world.fail("a")
    world.health.failed("b", LOST, 0.05, NOW)  # its failure was quicker, so it ranks higher
    assert [world.pick() for _ in range(3)] == ["b0", "b1", "b0"]
    assert world.writable == queues("ab")


def test_4x_forgets_a_better_broker_that_does_not_serve_the_topic() -> None:
    world = World("4.x", "ab")
    world.fail("a", "b")
    world.health.failed("gone", LOST, 0.01, NOW)
    assert world.pick() == "a1"
    assert [state.broker for state in world.health.snapshot(NOW)] == ["a", "b"]


def test_4x_comes_back_to_a_broker_when_its_time_is_over() -> None:
    world = World("4.x", "ab")
    world.fail("a")
    assert world.pick(now=NOW + 599.9) == "b0"
    assert world.pick(now=NOW + 600) == "a1"


# ---- 5.x -----------------------------------------------------------------------------------------


def test_5x_takes_the_next_queue_of_an_available_broker() -> None:
    world = World("5.x", "abc")
    world.fail("a")
    assert [world.pick() for _ in range(5)] == ["b0", "b1", "c0", "c1", "b0"]


def test_5x_starts_the_turns_anew_on_a_retry_and_avoids_the_last_broker() -> None:
    world = World("5.x", "ab", randomness=FakeRandomness(2, 3))
    assert world.pick(failed="a") == "b1"
    assert world.pick(failed="a") == "b0"
    assert world.randomness.limits == [0x7FFFFFFF] * 2


def test_5x_takes_a_reachable_broker_when_none_is_available() -> None:
    world = World("5.x", "abc")
    world.fail("a", "c")
    world.health.answered("b", 20.0, NOW)  # slow, but reachable
    assert [world.pick(), world.pick()] == ["b0", "b1"]


def test_5x_takes_another_reachable_broker_than_the_last_one() -> None:
    world = World("5.x", "ab", randomness=FakeRandomness(3))
    world.health.answered("a", 20.0, NOW)
    world.health.answered("b", 20.0, NOW)
    assert world.pick(failed="a") == "b0"


def test_5x_avoids_the_last_broker_even_when_it_is_the_only_reachable_one() -> None:
    world = World("5.x", "ab", randomness=FakeRandomness(3))
    world.fail("b")
    world.health.answered("a", 20.0, NOW)
    # Two full rounds lead back to index 3; then the next queue is taken.
    assert world.pick(failed="a") == "a0"


def test_5x_takes_the_next_queue_when_no_broker_is_reachable() -> None:
    world = World("5.x", "ab")
    world.fail("a", "b")
    assert [world.pick(), world.pick()] == ["a0", "a1"]


def test_5x_uses_an_unreachable_broker_again_when_its_time_is_over() -> None:
    world = World("5.x", "ab")
    world.fail("a")
    assert world.pick(now=NOW + 10) == "a0"


def test_5x_without_probes_prefers_a_broker_that_was_lost_to_one_that_refused() -> None:
    randomness = FakeRandomness()
    health = BrokerHealth(FaultTolerance(style="5.x", detect=False), randomness)
    health.failed("a", LOST, 0.1, NOW)
    health.failed("b", SystemBusy(2, "busy", "b:10911"), 0.1, NOW)
    picked = QueuePicker(health, randomness).pick(
        RoundRobin(), "orders", queues("ba"), {}, None, NOW
    )
    assert picked.broker == "a"
