"""Reset the offsets of a consumer group: a preview first, then the change.

`plan_reset` computes the new offset of each queue, and `apply_reset` sets exactly these. How it
does that depends on the broker:

- With `useServerSideResetOffset` (5.x, on by default) the broker keeps the new offset, ignores
  commits until the next pull, and tells members with that pull. Members may be connected or not.
- Without it (4.9, or switched off) the broker can only tell connected members a time (222, which
  it sends on as 220). Then a reset to a time, to "earliest" or "latest" goes this way. A reset to
  offsets is refused while members are connected: they would commit their own offsets again.
- Without members, such a broker gets the offsets as commits.

Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from downrange.checks import check_flag, check_name, check_type, check_whole
from downrange.client.flows.admin.brokers import read_properties
from downrange.client.flows.admin.clusters import all_masters, ask_each
from downrange.client.flows.admin.groups import group_settings
from downrange.client.flows.admin.members import members_at
from downrange.client.flows.admin.reports import OffsetReset, QueueReset, ResetTarget, Shift
from downrange.client.flows.admin.topics import topic_route, topic_stats
from downrange.client.flows.consuming.offsets import (
    group_offset,
    ms_of,
    search_offset,
    set_group_offset,
)
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import named_queue, with_namespace, without_namespace
from downrange.client.flows.routing.lookup import find_master
from downrange.client.flows.routing.queue_mapping import is_logical
from downrange.client.flows.validation import check_group, check_queue
from downrange.errors import OptionError, PartlyDone, RocketMQError
from downrange.wire.bodies import ConsumeStatsBody, ResetOffsetBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import ConsumeStatsRequest, ResetOffsetRequest
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.admin.topics import QueueState
    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId, QueueOffset

ResultT = TypeVar("ResultT")

_RESET: Final = int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
_BY_SERVER: Final = "useServerSideResetOffset"
_WORDS: Final = ("earliest", "latest")
#: The times of request 222 for the two words.
_TIMES: Final = {"earliest": 0, "latest": -1}


# ---- previews ------------------------------------------------------------------------------------


def plan_reset(
    core: ClientCore, group: str, topic: str, to: ResetTarget, *, deadline: float
) -> Flow[OffsetReset]:
    """Return what a reset would change; nothing is changed.

    An offset that a queue does not have is replaced by the first one, or by the end.

    Raises:
        OptionError: The target is not valid, or the topic does not have one of its queues.
        GroupNotFound: No broker has the group.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    check_group(group)
    check_name("topic", topic)
    _check_target(to)
    yield from group_settings(core, group, deadline=deadline)  # 4.9 takes offsets of any group
    states = yield from _readable_states(core, topic, deadline)
    if isinstance(to, Mapping):
        missing = sorted(to.keys() - states.keys())
        if missing:
            raise OptionError(f"topic {topic!r} does not have the queue {missing[0]}")
        states = {queue: state for queue, state in states.items() if queue in to}
    committed = yield from _all(
        [group_offset(core, group, queue, deadline=deadline) for queue in states]
    )
    found: list[QueueOffset | None] = [None] * len(states)
    if isinstance(to, datetime):
        searches = [search_offset(core, queue, to, deadline=deadline) for queue in states]
        found = [*(yield from _all(searches))]
    queues = tuple(
        _queue_reset(state, old, to, hit)
        for state, old, hit in zip(states.values(), committed, found, strict=True)
    )
    at = None if isinstance(to, int | Shift | Mapping) else to
    return OffsetReset(group=group, topic=topic, queues=queues, at=at)


def _check_target(to: ResetTarget) -> None:
    if isinstance(to, datetime):
        ms_of("to", to)
    elif isinstance(to, Shift):
        check_whole("messages of Shift", to.messages)
    elif isinstance(to, Mapping):
        if not to:
            raise OptionError("to={} names no queue")
        for queue, offset in to.items():
            check_queue(queue, "each key of to")
            _check_offset(f"to[{queue}]", offset)
    elif isinstance(to, int):
        _check_offset("to", to)
    elif to not in _WORDS:
        raise OptionError(
            f"to={to!r} is not 'earliest', 'latest', a datetime, an offset, a Shift, or a mapping "
            "of queues to offsets"
        )


def _check_offset(name: str, offset: int) -> None:
    check_whole(name, offset)
    if offset < 0:
        raise OptionError(f"{name}={offset} is below 0; use Shift({offset}) to go back")


def _readable_states(
    core: ClientCore, topic: str, deadline: float
) -> Flow[dict[QueueId, QueueState]]:
    route = yield from topic_route(core, topic, deadline=deadline)
    states = yield from topic_stats(core, topic, deadline=deadline)
    return {state.queue: state for state in states if state.queue in route.readable}


def _all(flows: list[Flow[ResultT]]) -> Flow[list[ResultT]]:
    """Run flows at the same time; return their results, or raise the first error."""
    outcomes: list[ResultT] = yield Gather(list(flows), CALLS_AT_ONCE)
    for outcome in outcomes:
        if isinstance(outcome, RocketMQError):
            raise outcome
    return outcomes


def _queue_reset(
    state: QueueState, old: int | None, to: ResetTarget, found: int | None
) -> QueueReset:
    first, end = state.min_offset, state.max_offset
    if found is not None:
        wanted = found
    elif isinstance(to, Shift):
        wanted = max(first if old is None else old, first) + to.messages
    elif isinstance(to, Mapping):
        wanted = to[state.queue]
    elif isinstance(to, int):
        wanted = to
    else:
        wanted = first if to == "earliest" else end
    new = min(max(wanted, first), end)
    return QueueReset(
        queue=state.queue, old=old, new=new, first=first, end=end, is_cut=new != wanted
    )


def plan_clone(
    core: ClientCore, source: str, target: str, topic: str, *, deadline: float
) -> Flow[OffsetReset]:
    """Return what it would change to give one group the offsets of another.

    Queues in which the source has no offset stay as they are.

    Raises:
        OptionError: The source has no offset in the topic, or both groups are the same.
        GroupNotFound: No broker has the target.
        RouteNotFound: There is no such topic.
        RocketMQError: A broker did not answer.
    """
    check_group(source)
    check_group(target)
    check_name("topic", topic)
    if source == target:
        raise OptionError(f"source and target are the same group, {source!r}")
    states = yield from _readable_states(core, topic, deadline)
    committed = yield from _all(
        [group_offset(core, source, queue, deadline=deadline) for queue in states]
    )
    offsets = {
        queue: offset for queue, offset in zip(states, committed, strict=True) if offset is not None
    }
    if not offsets:
        raise OptionError(f"group {source!r} has no offset in topic {topic!r}")
    return (yield from plan_reset(core, target, topic, offsets, deadline=deadline))


def group_topics(
    core: ClientCore, group: str, *, with_retries: bool = False, deadline: float
) -> Flow[list[str]]:
    """Return the topics in which a group has offsets, by name.

    Args:
        core: The client.
        group: The group.
        with_retries: The retry topics, too.
        deadline: When to give up.

    Raises:
        RocketMQError: A broker did not answer.
    """
    check_group(group)
    check_flag("with_retries", with_retries)
    masters = yield from all_masters(core, deadline=deadline)
    namespace = core.options.namespace
    header = ConsumeStatsRequest(consumer_group=with_namespace(group, namespace))
    replies = yield from ask_each(core, masters, lambda: request_command(header), deadline)
    names = {
        without_namespace(queue.topic, namespace)
        for reply in replies.values()
        for queue in decode_body(ConsumeStatsBody, reply.body).offset_table
    }
    return sorted(name for name in names if with_retries or not name.startswith(RETRY_PREFIX))


# ---- changes -------------------------------------------------------------------------------------


def apply_reset(core: ClientCore, reset: OffsetReset, *, deadline: float) -> Flow[OffsetReset]:
    """Do what a preview says; return it with the offsets that the brokers confirmed.

    Raises:
        OptionError: The broker can tell connected members only a time, and offsets were given.
        PartlyDone: Some brokers did it, others failed.
        RocketMQError: No broker did it.
    """
    check_type("reset", reset, OffsetReset, "an OffsetReset of plan_reset")
    route = yield from topic_route(core, reset.topic, deadline=deadline)
    parts: dict[str, list[QueueReset]] = {}
    for queue in reset.queues:
        parts.setdefault(route.broker_of(queue.queue) or queue.queue.broker, []).append(queue)
    asked = [
        _reset_broker(core, reset, broker, queues, deadline) for broker, queues in parts.items()
    ]
    outcomes: list[list[QueueReset] | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    done: list[QueueReset] = []
    failures: dict[str, RocketMQError] = {}
    for broker, outcome in zip(parts, outcomes, strict=True):
        if isinstance(outcome, RocketMQError):
            failures[broker] = outcome
        else:
            done += outcome
    if failures and len(failures) == len(parts):
        raise next(iter(failures.values()))
    if failures:
        what = f"reset group {reset.group!r} in topic {reset.topic!r}"
        raise PartlyDone(what, sorted(parts.keys() - failures.keys()), failures)
    ordered = tuple(sorted(done, key=lambda each: each.queue))
    return msgspec.structs.replace(reset, queues=ordered, is_done=True)


def _reset_broker(
    core: ClientCore,
    reset: OffsetReset,
    broker: str,
    queues: list[QueueReset],
    deadline: float,
) -> Flow[list[QueueReset]]:
    """Reset the queues of one broker."""
    if is_logical(queues[0].queue.broker):
        yield from _commit(core, reset, queues, deadline)
        return queues
    any_queue = named_queue(queues[0].queue, core.options.namespace)
    address = yield from find_master(core, any_queue, deadline)
    command = Command(int(RequestCode.GET_BROKER_CONFIG))
    reply = yield from core.ask(address, command, deadline)
    if read_properties(reply.body.decode(errors="replace")).get(_BY_SERVER) == "true":
        yield from _all([_reset_queue(core, reset, address, queue, deadline) for queue in queues])
        return queues
    found = yield from members_at(core, reset.group, {broker: address}, False, deadline)
    if found.members and reset.at is None:
        raise OptionError(
            f"broker {broker} at {address} can tell connected members of group {reset.group!r} "
            f"only a time: it is a 4.9 broker, or {_BY_SERVER} is false. Stop the "
            f"{len(found.members)} member(s) first, or reset to earliest, latest or a time"
        )
    # 4.9 refuses to tell the members of a group that has no offset yet.
    yield from _commit(core, reset, queues, deadline)
    if found.members and reset.at is not None:
        return (yield from _tell_members(core, reset, address, queues, reset.at, deadline))
    return queues


def _commit(
    core: ClientCore, reset: OffsetReset, queues: list[QueueReset], deadline: float
) -> Flow[None]:
    yield from _all(
        [
            set_group_offset(core, reset.group, each.queue, each.new, deadline=deadline)
            for each in queues
        ]
    )


def _reset_queue(
    core: ClientCore, reset: OffsetReset, address: str, queue: QueueReset, deadline: float
) -> Flow[None]:
    namespace = core.options.namespace
    header = ResetOffsetRequest(
        topic=with_namespace(reset.topic, namespace),
        group=with_namespace(reset.group, namespace),
        timestamp=0,
        is_force=True,
        queue_id=queue.queue.number,
        offset=queue.new,
    )
    yield from core.ask(address, request_command(header, code=_RESET), deadline, reset.topic)


def _tell_members(
    core: ClientCore,
    reset: OffsetReset,
    address: str,
    queues: list[QueueReset],
    at: datetime | Literal["earliest", "latest"],
    deadline: float,
) -> Flow[list[QueueReset]]:
    """Have a broker tell its members a time; return the offsets that it told them."""
    namespace = core.options.namespace
    header = ResetOffsetRequest(
        topic=with_namespace(reset.topic, namespace),
        group=with_namespace(reset.group, namespace),
        timestamp=ms_of("at", at) if isinstance(at, datetime) else _TIMES[at],
        is_force=True,
    )
    command = request_command(header, code=_RESET)
    reply = yield from core.ask(address, command, deadline, reset.topic)
    told = decode_body(ResetOffsetBody, reply.body).offset_table
    return [
        msgspec.structs.replace(each, new=told.get(named_queue(each.queue, namespace), each.new))
        for each in queues
    ]
