"""Locks on queues at the brokers: only the member that holds the lock of a queue consumes it.

With "orderly" the lock guarantees the order. In other modes it serves the handover, under a name of
its own (`HANDOVER_SUFFIX`): a member that loses a queue keeps the lock until its handlers have
ended and its offset is committed, and the next owner waits for it, so that no message is handled
twice. Java members take locks only with orderly consumption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import named_queue, shown_queue
from downrange.client.flows.routing.lookup import find_master
from downrange.errors import RocketMQError, ServerError
from downrange.wire.bodies import LockedQueuesBody, LockQueuesBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.system_names import HANDOVER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId


def lock(
    core: ClientCore, group: str, queues: Iterable[QueueId], *, deadline: float
) -> Flow[tuple[set[QueueId], set[QueueId]]]:
    """Take or renew the locks of queues, one request per broker.

    Args:
        core: The client.
        group: The group, with the namespace, and with the suffix if it is for handovers.
        queues: The queues, without the namespace.
        deadline: When to give up.

    Returns:
        The queues that are locked now, and those that another member holds. A queue whose broker
        did not answer is in neither.
    """
    parts = yield from _by_address(core, queues, deadline)
    flows = [_lock_at(core, group, address, part, deadline) for address, part in parts.items()]
    outcomes: list[set[QueueId] | RocketMQError] = yield Gather(flows, CALLS_AT_ONCE)
    locked: set[QueueId] = set()
    refused: set[QueueId] = set()
    for part, outcome in zip(parts.values(), outcomes, strict=True):
        if not isinstance(outcome, RocketMQError):
            locked |= outcome & set(part)
            refused |= set(part) - outcome
        elif isinstance(outcome, ServerError) and group.endswith(HANDOVER_SUFFIX):
            locked |= set(part)  # no right to take such locks: go on without
    return locked, refused


def unlock(
    core: ClientCore, group: str, queues: Iterable[QueueId], *, deadline: float
) -> Flow[int]:
    """Give locks back; return how many requests failed. Arguments: `lock`."""
    parts = yield from _by_address(core, queues, deadline)
    flows = [_unlock_at(core, group, address, part, deadline) for address, part in parts.items()]
    outcomes: list[object] = yield Gather(flows, CALLS_AT_ONCE)
    return sum(isinstance(outcome, RocketMQError) for outcome in outcomes)


def _by_address(
    core: ClientCore, queues: Iterable[QueueId], deadline: float
) -> Flow[dict[str, list[QueueId]]]:
    parts: dict[str, list[QueueId]] = {}
    for queue in queues:
        named = named_queue(queue, core.options.namespace)
        try:
            address = yield from find_master(core, named, deadline)
        except RocketMQError:
            continue  # its broker is not known now
        parts.setdefault(address, []).append(queue)
    return parts


def _lock_at(
    core: ClientCore, group: str, address: str, queues: list[QueueId], deadline: float
) -> Flow[set[QueueId]]:
    command = _command(core, group, RequestCode.LOCK_BATCH_MQ, queues)
    reply = yield from core.ask(address, command, deadline)
    namespace = core.options.namespace
    return {
        shown_queue(queue, namespace) for queue in decode_body(LockedQueuesBody, reply.body).locked
    }


def _unlock_at(
    core: ClientCore, group: str, address: str, queues: list[QueueId], deadline: float
) -> Flow[None]:
    yield from core.ask(
        address, _command(core, group, RequestCode.UNLOCK_BATCH_MQ, queues), deadline
    )


def _command(core: ClientCore, group: str, code: RequestCode, queues: list[QueueId]) -> Command:
    body = LockQueuesBody(
        consumer_group=group,
        client_id=core.client_id,
        mq_set=[named_queue(queue, core.options.namespace) for queue in queues],
    )
    return Command(int(code), body=body.encode())
