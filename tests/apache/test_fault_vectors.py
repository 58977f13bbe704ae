"""Our choice of queues, compared with that of the real Java classes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from downrange.client.flows.routing.health import BrokerHealth, tolerance_of
from downrange.client.flows.routing.queue_picker import QueuePicker, RoundRobin
from downrange.client.flows.routing.selectors import by_hash
from downrange.errors import CallTimeout, RocketMQError, RouteNotFound, SystemBusy
from downrange.model import Message, QueueId
from tests.support.waiting import wait_until
from tests.unit.client.flows.randomness import FakeRandomness

if TYPE_CHECKING:
    from downrange.options.clients import FaultStyle
    from tests.apache.fixtures import ApacheVersions
    from tests.apache.java_client import JavaClient

#: The release whose classes are the reference for a style.
RELEASES: dict[FaultStyle, str] = {"4.x": "4.9.4", "5.x": "5.5.0"}
STYLES = list(RELEASES)
COUNTS = {"a": 3, "b": 1, "c": 2}
WRITABLE = [
    QueueId("topic", broker, number) for broker in COUNTS for number in range(COUNTS[broker])
]
INDEX = 1_000
#: Java's clock must advance less while it runs the steps; they take some milliseconds.
QUICK_MS = 300
RANDOMS = [7, 12, 3, 2_000_000_000, 0, 5, 11] * 5


class Outcome(NamedTuple):
    """The result of a send for us, and the flags that Java's producers derive from it."""

    error: RocketMQError | None
    is_isolated_in_4x: bool
    is_isolated_in_5x: bool
    is_reachable_in_5x: bool


OUTCOMES = {
    "stored": Outcome(None, False, False, True),
    "lost": Outcome(CallTimeout("h:1", 3.0), True, True, False),
    "refused": Outcome(SystemBusy(2, "busy", "h:1"), True, True, False),
    "own fault": Outcome(RouteNotFound("topic", ["h:1"], ""), True, False, True),
}


# ---- steps: run by Java, and by our code ---------------------------------------------------------


def sent(broker: str, outcome: str, latency_ms: int) -> dict[str, Any]:
    return {"do": "update", "broker": broker, "latencyMs": latency_ms, "outcome": outcome}


def passed(seconds: int) -> dict[str, Any]:
    # Java also reads the real clock, which advances meanwhile. All avoidance times are whole
    # seconds, so with 50 ms more neither side is near a limit, if a test has few such steps and
    # Java is not paused.
    return {"do": "pass", "ms": seconds * 1000 + 50}


def picked(last: str | None = None) -> dict[str, Any]:
    return {"do": "pick", "last": last}


def probed(*up: str) -> dict[str, Any]:
    return {"do": "probe", "up": list(up)}


BEST = {"do": "best"}


def run_in_java(java: JavaClient, style: FaultStyle, steps: list[dict[str, Any]]) -> list[Any]:
    sent_steps = [dict(step) for step in steps]
    for step in sent_steps:
        if step["do"] == "update":
            outcome = OUTCOMES[step.pop("outcome")]
            is_old = style == "4.x"
            step["isolation"] = outcome.is_isolated_in_4x if is_old else outcome.is_isolated_in_5x
            step["reachable"] = outcome.is_reachable_in_5x

    def tell() -> Any:
        story = java.call(
            "fault.story", writeCounts=COUNTS, index=INDEX, randoms=RANDOMS, steps=sent_steps
        )
        return story if story["elapsedMs"] < QUICK_MS else None

    told = wait_until(tell)["told"]
    return [(one["result"], one["available"], one["reachable"]) for one in told]


def run_ours(style: FaultStyle, steps: list[dict[str, Any]]) -> list[Any]:
    health = BrokerHealth(tolerance_of(style), FakeRandomness())
    picker = QueuePicker(health, FakeRandomness(*RANDOMS))
    round_robin = RoundRobin()
    round_robin.indexes["topic"] = INDEX
    now, results = 0.0, []
    for step in steps:
        result: object = None
        match step:
            case {"do": "update", "broker": broker, "latencyMs": latency_ms, "outcome": outcome}:
                error = OUTCOMES[outcome].error
                if error is None:
                    health.answered(broker, latency_ms / 1000, now)
                else:
                    health.failed(broker, error, latency_ms / 1000, now)
            case {"do": "pass", "ms": ms}:
                now += ms / 1000
            case {"do": "pick", "last": last}:
                queue = picker.pick(round_robin, "topic", WRITABLE, COUNTS, last, now)
                result = f"{queue.broker}/{queue.number}"
            case {"do": "probe", "up": up}:
                result = health.to_probe(now)
                for broker in result:
                    health.probed(broker, broker in up, now)
            case _:
                result = health.best_of_all(now)
        available = {broker: health.is_available(broker, now) for broker in COUNTS}
        reachable = {broker: health.is_reachable(broker) for broker in COUNTS}
        results.append((result, available, reachable if style == "5.x" else None))
    return results


def random_steps(style: FaultStyle, seed: int) -> list[dict[str, Any]]:
    """Return 40 random steps; all latencies differ, because Java ranks brokers by them."""
    source = random.Random(seed)
    latencies = source.sample([*range(40, 560), *range(600, 20_000, 7)], 40)
    brokers = [*COUNTS, "elsewhere"]
    steps: list[dict[str, Any]] = []
    for latency_ms in latencies:
        if source.random() < 0.45:
            outcome = source.choices([*OUTCOMES], [3, 2, 2, 1])[0]
            steps.append(sent(source.choice(brokers), outcome, latency_ms))
        elif source.random() < 0.15:
            steps.append(passed(source.choice([1, 5, 9, 31, 200])))
        elif style == "4.x" and source.random() < 0.2:
            steps.append(BEST)
        else:
            steps.append(picked(source.choice([None, *COUNTS])))
    return steps


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_a_latency_is_avoided_as_long_as_in_java(
    apache_versions: ApacheVersions, style: FaultStyle
) -> None:
    borders = [50, 100, 550, 1_000, 1_800, 2_000, 3_000, 5_000, 10_000, 15_000]
    near = [border + step for border in borders for step in (-1, 0, 1)]
    latencies = sorted({*near, *range(0, 20_001, 137), 30_000})
    health = BrokerHealth(tolerance_of(style), FakeRandomness())
    ours = [round(health.seconds_to_avoid(ms / 1000) * 1000) for ms in latencies]
    java = apache_versions.java_client(RELEASES[style])
    assert ours == java.call("fault.durations", latencies=latencies)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(30))
def test_brokers_are_avoided_and_queues_picked_as_in_java(
    apache_versions: ApacheVersions, style: FaultStyle, seed: int
) -> None:
    steps = random_steps(style, seed)
    theirs = run_in_java(apache_versions.java_client(RELEASES[style]), style, steps)
    for number, (ours, java) in enumerate(zip(run_ours(style, steps), theirs, strict=True)):
        assert ours == java, f"step {number} of seed {seed}: {steps[number]}"


def test_the_better_half_is_ranked_as_in_java(apache_versions: ApacheVersions) -> None:
    steps = [
        *(sent("later", "lost", 20), passed(1), sent("a", "lost", 30)),
        *(sent("quick", "lost", 10), sent("available", "stored", 500), BEST, BEST, BEST, BEST),
        # The same latency as a broker before, but available again sooner.
        *(sent("sooner", "stored", 3_000), passed(1), sent("b", "stored", 3_000), BEST, BEST, BEST),
    ]
    assert run_ours("4.x", steps) == run_in_java(apache_versions.java_client("4.9.4"), "4.x", steps)


def test_unreachable_brokers_are_probed_as_in_java(apache_versions: ApacheVersions) -> None:
    steps = [
        *(sent("a", "lost", 100), sent("b", "refused", 100), probed(), probed("a")),
        *(passed(1), probed("a", "b"), passed(1), probed("a"), picked(), picked("c")),
        *(sent("b", "stored", 1), picked(), passed(8), picked(), picked("a")),
    ]
    assert run_ours("5.x", steps) == run_in_java(apache_versions.java_client("5.5.0"), "5.x", steps)


@pytest.mark.parametrize("queue_count", [1, 3, 4, 7, 16])
def test_a_hash_lands_in_the_queue_that_java_chooses(
    java_client: JavaClient, queue_count: int
) -> None:
    source = random.Random(queue_count)
    letters = "abcXYZ019-_ äß中文🚀\x00"
    texts = ["", "polygenelubricants", *("".join(source.choices(letters, k=k)) for k in range(200))]
    ints = [0, 1, -1, 2**31 - 1, -(2**31), *(source.randrange(-(2**31), 2**31) for _ in range(100))]
    longs = [2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**32]
    longs += [source.randrange(2**31, 2**63) for _ in range(100)]
    longs += [-number for number in longs[5:] if number > 2**31]
    queues = [QueueId("topic", "broker", number) for number in range(queue_count)]
    message = Message("topic", b"")
    values: list[str] | list[int]
    for kind, values in (("text", texts), ("int", ints), ("long", [*range(9), *longs])):
        ours = [by_hash(value)(queues, message).number for value in values]
        java = java_client.call("select.byHash", type=kind, values=values, queueCount=queue_count)
        assert ours == java, kind
