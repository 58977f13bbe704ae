"""The detector of 5.x: probes brokers that were not reachable.

Without it, a broker is tried again only when its time to avoid has passed, and a message that finds
it still away pays for the attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.errors import RocketMQError
from downrange.wire.fields import request_command
from downrange.wire.headers import MaxOffsetRequest

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.routing.health import BrokerHealth

#: Seconds between two checks for brokers to probe, as in Java.
_TICK: Final = 3.0


def detect(core: ClientCore, health: BrokerHealth) -> list[Flow[None]]:
    """Return the flow that probes in the background; no flow when the settings disable it.

    Producers that share their health share the detector.
    """
    if not _is_probed(health):
        return []
    number = [one for one in core.healths if _is_probed(one)].index(health) + 1
    name = "detector" if number == 1 else f"detector-{number}"
    if name in core.timers:
        return []
    tick = min(_TICK, health.tolerance.detect_interval)
    return [core.timer(name, tick, tick, lambda: probe_due(core, health))]


def _is_probed(health: BrokerHealth) -> bool:
    return health.style == "5.x" and health.tolerance.detect


def probe_due(core: ClientCore, health: BrokerHealth) -> Flow[int]:
    """Probe each broker that is due; return how many probes failed."""
    brokers = health.to_probe(core.clock.now())
    outcomes: list[object] = yield Gather(
        [_probe(core, health, broker) for broker in brokers], CALLS_AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)


def _probe(core: ClientCore, health: BrokerHealth, broker: str) -> Flow[None]:
    address = core.routes.master_of(broker)
    topics = core.routes.topics()
    if address is None or not topics:
        health.forget(broker)
        return
    command = request_command(MaxOffsetRequest(topics[0], 0))
    deadline = core.clock.now() + health.tolerance.detect_timeout
    try:
        yield from core.call(address, command, deadline)
    except RocketMQError:
        health.probed(broker, False, core.clock.now())
        raise
    health.probed(broker, True, core.clock.now())
