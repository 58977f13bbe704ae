"""Heartbeats, which register a client and its groups at the brokers, and how it unregisters.

Without a heartbeat a broker has no connection for checks of transactions and replies to requests;
with heartbeats it keeps the connection open.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.notices import HeartbeatEnded
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import RocketMQError
from downrange.wire.bodies import HeartbeatBody, ProducerMember
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import UnregisterClientRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore

#: The share of a flow's time that the heartbeats before its request may take.
_HEARTBEAT_SHARE: Final = 1 / 3


def send_heartbeats(core: ClientCore, addresses: Iterable[str] | None = None) -> Flow[int]:
    """Send heartbeats, and return how many failed; see `heartbeat_failures`."""
    return len((yield from heartbeat_failures(core, addresses)))


def heartbeat_failures(
    core: ClientCore, addresses: Iterable[str] | None = None
) -> Flow[dict[str, RocketMQError]]:
    """Send a heartbeat to the masters of all cached routes; with consumers, to all replicas.

    Brokers that no route names any more get none, and so forget this client.

    Returns:
        Address -> the error, for each that failed.
    """
    targets = heartbeat_targets(core) if addresses is None else list(addresses)
    if not targets or not core.has_members:
        return {}
    outcomes: list[object] = yield Gather(
        [send_heartbeat(core, target) for target in targets], CALLS_AT_ONCE
    )
    return {
        target: outcome
        for target, outcome in zip(targets, outcomes, strict=True)
        if isinstance(outcome, RocketMQError)
    }


def heartbeat_targets(core: ClientCore) -> list[str]:
    """Return the addresses that heartbeats go to."""
    return sorted(
        {
            address
            for replicas in core.routes.brokers().values()
            for number, address in replicas.items()
            if number == MASTER or core.consumers
        }
    )


def heartbeat_on_connect(core: ClientCore, address: str) -> Flow[None] | None:
    """Return the heartbeat to send on a new connection; None when none is due there."""
    if core.has_members and address in heartbeat_targets(core):
        return send_heartbeat(core, address)
    return None


def send_heartbeat(core: ClientCore, address: str, deadline: float | None = None) -> Flow[None]:
    """Send one heartbeat, which registers the client's groups at the broker.

    Args:
        core: The client.
        address: The broker's address.
        deadline: When to give up; `call_timeout` from now unless given.

    Raises:
        RocketMQError: No reply came, or the broker refused.
    """
    body = HeartbeatBody(
        client_id=core.client_id,
        producer_data_set=[ProducerMember(group_name=group) for group in core.producers],
        consumer_data_set=[consumer.membership() for consumer in core.consumers.values()],
    )
    command = Command(int(RequestCode.HEART_BEAT), body=msgspec.json.encode(body))
    started = core.clock.now()
    if deadline is None:
        deadline = started + core.options.call_timeout
    failure: RocketMQError | None = None
    try:
        reply = yield from core.call(address, command, deadline)
        if reply.code != ResponseCode.SUCCESS:
            core.registered.discard(address)
            raise core.refused(reply, address)
        core.registered.add(address)
    except RocketMQError as error:
        failure = error
    core.notices.append(HeartbeatEnded(address, core.clock.now() - started, failure))
    yield from core.publish()
    if failure is not None:
        raise failure


def ensure_registered(core: ClientCore, addresses: Iterable[str], deadline: float) -> Flow[None]:
    """Send a heartbeat to those brokers that the client's groups are not registered at.

    For a flow that sends afterwards with the same deadline: heartbeats take a third of its time.

    A broker sends its own requests later over the connection of that heartbeat. So it must not be
    a connection that one thread uses for itself: flows in a `Gather` run on the driver's loop,
    which reads requests.
    """
    missing = [address for address in addresses if address not in core.registered]
    if missing:
        now = core.clock.now()
        until = now + (deadline - now) * _HEARTBEAT_SHARE
        yield Gather([send_heartbeat(core, address, until) for address in missing], CALLS_AT_ONCE)


def unregister(
    core: ClientCore,
    *,
    producer: str | None = None,
    consumer: str | None = None,
    deadline: float = inf,
) -> Flow[int]:
    """Remove a group of this client from all brokers; return how many requests failed.

    At the deadline it stops waiting for replies; the requests are sent even so.
    """
    header = UnregisterClientRequest(core.client_id, producer, consumer)

    def send_unregister(address: str) -> Flow[None]:
        until = min(deadline, core.clock.now() + core.options.call_timeout)
        yield from core.call(address, request_command(header), until)

    targets = sorted(set(heartbeat_targets(core)) & core.registered)
    outcomes: list[object] = yield Gather(
        [send_unregister(address) for address in targets], CALLS_AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)
