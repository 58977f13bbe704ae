"""Queues of groups that stand still, for `doctor`; those that are only slow are told apart.

Clients commit every 5 seconds, Java's and ours: an offset that stays for 2 seconds means nothing.
So a suspected queue is looked at again after more than two commits. Its member is asked, too (307):
a handler may need longer for a message than that, and the member knows what it handled.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from downrange.client.flows.admin.lag import group_lag
from downrange.client.flows.admin.members import member_states
from downrange.client.flows.admin.reports import GroupLag, QueueLag
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Pause, UserCall
from downrange.errors import RocketMQError
from downrange.wire.consumer_bodies import RunningProperty

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.client.flows.admin.reports import MemberQueue, RunningState
    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId

    #: Called with the reason before the flow waits.
    Notify: TypeAlias = Callable[[str], object]

#: A queue stands still if its oldest message has waited for so long, and nothing moves.
STUCK_AFTER: Final = timedelta(seconds=60)
#: A member that handled a message of the queue in this time is at work.
_LATELY: Final = timedelta(seconds=60)
#: By how much a member may tell the same time differently.
_ROUNDING: Final = timedelta(milliseconds=100)
#: Seconds before suspected queues are looked at again: more than two commits of their consumers.
RECHECK_AFTER: Final = 12.0


class Judgement(msgspec.Struct):
    """What the look at the suspected queues of a group found.

    Attributes:
        lag: How far the group is behind now.
        stuck: Those that stand still, with their owner.
        slow: Those whose offset stands still while their owner handles messages.
    """

    lag: GroupLag
    stuck: list[QueueLag]
    slow: list[QueueLag]


def suspected_queues(first: GroupLag, second: GroupLag) -> list[QueueLag]:
    """Return the queues with an old message whose offset did not move between two looks."""
    before = {each.queue: each.committed for each in first.queues}
    return [
        each
        for each in second.queues
        if each.messages
        and each.age is not None
        and each.age >= STUCK_AFTER
        and before.get(each.queue) == each.committed
    ]


def judge_suspects(
    core: ClientCore,
    suspects: Mapping[str, list[QueueLag]],
    wait: float,
    notify: Notify | None,
) -> Flow[dict[str, Judgement | RocketMQError]]:
    """Look at suspected queues again after a time: group -> what was found, or the error.

    Args:
        core: The client.
        suspects: By group.
        wait: The seconds.
        notify: Called with the reason before it waits.
    """
    if not suspects:
        return {}
    asked: list[Flow[Any]] = [_states(core, group) for group in suspects]
    before: list[dict[str, RunningState] | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    if wait > 0:
        if notify is not None:
            yield UserCall(notify, (_reason(suspects, wait),))
        yield Pause(wait)
    asked = [
        _judge(core, group, queues, {} if isinstance(states, RocketMQError) else states)
        for (group, queues), states in zip(suspects.items(), before, strict=True)
    ]
    outcomes: list[Judgement | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    return dict(zip(suspects, outcomes, strict=True))


def _reason(suspects: Mapping[str, list[QueueLag]], wait: float) -> str:
    count = sum(map(len, suspects.values()))
    queues = "1 queue" if count == 1 else f"{count} queues"
    groups = f"group {next(iter(suspects))}" if len(suspects) == 1 else f"{len(suspects)} groups"
    return (
        f"{queues} of {groups} did not move; looking again in {wait:g} s, because consumers commit "
        "every 5 s by default"
    )


def _states(core: ClientCore, group: str) -> Flow[dict[str, RunningState]]:
    deadline = core.clock.now() + core.options.call_timeout
    return (yield from member_states(core, group, deadline=deadline))


def _judge(
    core: ClientCore,
    group: str,
    suspects: list[QueueLag],
    before: Mapping[str, RunningState],
) -> Flow[Judgement]:
    deadline = core.clock.now() + core.options.call_timeout
    lag = yield from group_lag(core, group, deadline=deadline)
    states = yield from _states(core, group)
    now = datetime.fromtimestamp(core.clock.wall_ms() / 1000, UTC)
    current = {each.queue: each for each in lag.queues}
    found = Judgement(lag, [], [])
    for suspect in suspects:
        queue = current.get(suspect.queue)
        if queue is None or not queue.messages or queue.committed != suspect.committed:
            continue
        owner = _owner_of(queue.queue, states)
        is_slow = owner is not None and _handles(queue.queue, before.get(owner), states[owner], now)
        named = msgspec.structs.replace(queue, owner=owner)
        (found.slow if is_slow else found.stuck).append(named)
    return found


def _owner_of(queue: QueueId, states: Mapping[str, RunningState]) -> str | None:
    return next((name for name, state in states.items() if _part(queue, state) is not None), None)


def _part(queue: QueueId, state: RunningState | None) -> MemberQueue | None:
    """Return what a member says about a queue that it reads."""
    if state is None:
        return None
    parts = (each for each in state.queues if each.queue == queue and not each.is_given_up)
    return next(parts, None)


def _handles(
    queue: QueueId, earlier: RunningState | None, state: RunningState, now: datetime
) -> bool:
    """Return whether a member handles messages of its queue, by what it says itself.

    A handler that needs long shows in the time of its last message. That time alone is no proof: it
    also moves when a message fails and is tried again. So rates without a success count more, and
    an orderly consumer that begins another message has ended the one before.
    """
    before, after = _part(queue, earlier), _part(queue, state)
    assert after is not None
    if before is not None and _went_on(before, after):
        return True
    consumed = next((each.consumed for each in state.rates if each.topic == queue.topic), None)
    if consumed == 0:
        return False
    if after.by_pop:
        return consumed is not None
    is_orderly = state.properties.get(RunningProperty.ORDERLY.value) == "true"
    if is_orderly and before is not None and _handled_since(before, after):
        return False  # the same message again
    return after.consumed_at is not None and now - after.consumed_at < _LATELY


def _went_on(before: MemberQueue, after: MemberQueue) -> bool:
    """Return whether messages were handled between two looks at a member."""
    if after.by_pop:
        return before.buffered != after.buffered
    if before.oldest is not None and (after.oldest is None or after.oldest > before.oldest):
        return True
    if before.committed is None or after.committed is None:
        return False
    return after.committed > before.committed


def _handled_since(before: MemberQueue, after: MemberQueue) -> bool:
    if before.consumed_at is None or after.consumed_at is None:
        return before.consumed_at is not after.consumed_at
    return after.consumed_at - before.consumed_at > _ROUNDING
