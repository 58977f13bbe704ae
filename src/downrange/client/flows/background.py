"""The flows that every client runs in the background: routes and heartbeats, each on a timer.

`to_its_end` runs another flow there, which must not end half-way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.client.flows.effects import Signal, UserCall, Wait
from downrange.client.flows.routing.lookup import refresh_all
from downrange.client.flows.routing.membership import send_heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: Seconds until each timer runs for the first time.
_FIRST_REFRESH: Final = 0.01
_FIRST_HEARTBEAT: Final = 1.0
#: Seconds of one wait for the end of a flow, after which it is looked at again.
_WAIT_MAX: Final = 60.0


def background_flows(core: ClientCore) -> list[Flow[None]]:
    """Return the flows that run as long as the client does."""
    options = core.options
    refresh = partial(refresh_all, core)
    heartbeat = partial(_send_heartbeats, core)
    return [
        core.timer("routes", options.route_refresh_interval, _FIRST_REFRESH, refresh),
        core.timer("heartbeats", options.heartbeat_interval, _FIRST_HEARTBEAT, heartbeat),
    ]


def _send_heartbeats(core: ClientCore) -> Flow[int]:
    """Send heartbeats, and drop the health of brokers that no route names any more."""
    known = core.routes.brokers()
    for health in core.healths:
        for state in health.snapshot(core.clock.now()):
            if state.broker not in known:
                health.forget(state.broker)
    return (yield from send_heartbeats(core))


def to_its_end(
    core: ClientCore, spawn: Callable[[Flow[None]], object], flow: Flow[object]
) -> Flow[None]:
    """Run a flow in the background, and wait for it: a caller that gives up does not end it."""
    ended = Signal()

    def running() -> Flow[None]:
        try:
            yield from flow
        finally:
            ended.fire()

    yield UserCall(spawn, (running(),))
    while not ended.is_fired:
        yield Wait(ended, core.clock.now() + _WAIT_MAX)
