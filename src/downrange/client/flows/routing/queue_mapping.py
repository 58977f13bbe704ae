"""Queue mappings: which broker serves each logical queue of a static topic (5.x).

A static topic has a fixed number of logical queues. Each one is served by one broker at a time, and
`mqadmin remappingStaticTopic` moves it to another one. Requests name a logical queue by its number
and go to its broker, which translates number and offsets to those of a queue of its own.

Users see all logical queues as queues of one broker that does not exist, `__syslo__global__`, so
that a queue keeps its identity when it moves. The truth is Java's
`ClientMetadata.topicRouteData2EndpointsForStaticTopic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.wire.limits import QUEUES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.wire.bodies import QueueMapping

_PREFIX: Final = "__syslo__"
_GLOBAL_SCOPE: Final = "__global__"


def logical_broker(scope: str) -> str:
    """Return the name that stands for the broker of all logical queues of a scope.

    Example:
        >>> logical_broker("__global__")
        '__syslo__global__'
    """
    return _PREFIX + (scope[2:] if scope == _GLOBAL_SCOPE else scope)


def is_logical(broker: str) -> bool:
    """Return whether a broker's name stands for the brokers of logical queues."""
    return broker.startswith(_PREFIX)


def read_mapping(
    topic: str, mappings: Mapping[str, QueueMapping]
) -> tuple[dict[QueueId, str | None], dict[str, str]]:
    """Return the logical queues of a topic with their brokers, and the name that stands for each.

    Args:
        topic: The topic of the queues.
        mappings: Broker -> the logical queues that it serves.

    Returns:
        Each logical queue, in order, with the name of its broker, or None while no broker has it;
        and for each broker the logical one.

    Raises:
        MalformedBody: A number of queues is below 0 or too large.
    """
    totals: dict[str, int] = {}
    serving: dict[tuple[str, int], QueueMapping] = {}
    for mapping in mappings.values():
        if not 0 <= mapping.total_queues <= QUEUES_MAX:
            raise MalformedBody(
                "QueueMapping",
                f"static topic {topic!r} has {mapping.total_queues} queues on broker "
                f"{mapping.bname!r}; 0 to {QUEUES_MAX} are possible",
            )
        scope = mapping.scope
        totals[scope] = max(totals.get(scope, 0), mapping.total_queues)
        for number in mapping.curr_id_map:
            known = serving.get((scope, number))
            if known is None or known.epoch <= mapping.epoch:
                serving[scope, number] = mapping
    hosts: dict[QueueId, str | None] = {}
    for scope in sorted(totals):
        name = logical_broker(scope)
        for number in range(totals[scope]):
            found = serving.get((scope, number))
            hosts[QueueId(topic, name, number)] = None if found is None else found.bname
    return hosts, {mapping.bname: logical_broker(mapping.scope) for mapping in mappings.values()}
