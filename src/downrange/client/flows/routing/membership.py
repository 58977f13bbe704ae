"""How brokers learn of this client and its groups: heartbeats, and a word at the end.

Without a heartbeat a broker has nowhere to send its questions about transactions and the replies to
requests; with one it keeps the connection open.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.effects import Flow, Gather
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

_AT_ONCE: Final = 16


def send_heartbeats(core: ClientCore, addresses: Iterable[str] | None = None) -> Flow[int]:
    """Send a heartbeat to all masters that routes name, all replicas if there are consumers.

    Brokers that no route names any more get none, and so forget this client.

    Returns:
        How many did not take it.
    """
    targets = heartbeat_targets(core) if addresses is None else list(addresses)
    if not targets or not core.has_members:
        return 0
    outcomes: list[object] = yield Gather(
        [send_heartbeat(core, target) for target in targets], _AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)


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
    """Send one heartbeat; afterwards the broker knows our groups.

    Args:
        core: The client.
        address: The broker's.
        deadline: When to give up; after `call_timeout` unless given.

    Raises:
        RocketMQError: It did not arrive, or was refused.
    """
    body = HeartbeatBody(
        client_id=core.client_id,
        producer_data_set=[ProducerMember(group_name=group) for group in core.producers],
        consumer_data_set=[consumer.membership() for consumer in core.consumers.values()],
    )
    command = Command(int(RequestCode.HEART_BEAT), body=msgspec.json.encode(body))
    if deadline is None:
        deadline = core.clock.now() + core.options.call_timeout
    reply = yield from core.call(address, command, deadline)
    if reply.code != ResponseCode.SUCCESS:
        core.registered.discard(address)
        raise core.refused(reply, address)
    core.registered.add(address)


def ensure_registered(core: ClientCore, addresses: Iterable[str], deadline: float) -> Flow[None]:
    """Send a heartbeat to brokers that have not had one with the groups of today.

    What they ask and answer later comes over the connection of that heartbeat. So it must not be
    one that a thread uses for itself: flows that are gathered run where requests are read.
    """
    strangers = [address for address in addresses if address not in core.registered]
    if strangers:
        yield Gather([send_heartbeat(core, address, deadline) for address in strangers], _AT_ONCE)


def unregister(
    core: ClientCore,
    *,
    producer: str | None = None,
    consumer: str | None = None,
    deadline: float = inf,
) -> Flow[int]:
    """Tell all brokers that a group has no member here any more; return how many did not hear.

    At the deadline nobody is waited for any more; they are told even so.
    """
    header = UnregisterClientRequest(core.client_id, producer, consumer)

    def send_unregister(address: str) -> Flow[None]:
        until = min(deadline, core.clock.now() + core.options.call_timeout)
        yield from core.call(address, request_command(header), until)

    targets = sorted(set(heartbeat_targets(core)) & core.registered)
    outcomes: list[object] = yield Gather(
        [send_unregister(address) for address in targets], _AT_ONCE
    )
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)
