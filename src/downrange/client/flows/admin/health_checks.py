"""A check of the brokers and groups of a cluster, after that of the network (`doctor`).

    findings = client.run(check_cluster(client.core, pause=2.0))

Brokers: the space on the disk, and the clock. Groups: members with different subscriptions, queues
that stand still (`stuck_queues`), a lag that grows between two looks, dead letters of the last
hour. Nothing is raised: what cannot be asked is a finding, and what the account may not ask is left
out.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from downrange.client.flows.admin.brokers import broker_figures
from downrange.client.flows.admin.clusters import cluster_facts
from downrange.client.flows.admin.doctor import Finding, Step
from downrange.client.flows.admin.groups import list_groups
from downrange.client.flows.admin.lag import group_lag
from downrange.client.flows.admin.members import group_members
from downrange.client.flows.admin.stuck_queues import (
    RECHECK_AFTER,
    judge_suspects,
    suspected_queues,
)
from downrange.client.flows.admin.topics import topic_stats
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Pause
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import NoPermission, RocketMQError, RouteNotFound
from downrange.wire.codes import ResponseCode
from downrange.wire.system_names import dead_letter_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.client.flows.admin.reports import GroupLag, GroupMembers, GroupSummary, QueueLag
    from downrange.client.flows.admin.stuck_queues import Judgement, Notify
    from downrange.client.flows.admin.topics import QueueState
    from downrange.client.flows.client_core import ClientCore

#: How often brokers are asked for their figures, and the seconds in between: one of Apache fails to
#: tell them in its first second.
_FIGURES_TRIES: Final = 3
_FIGURES_PAUSE: Final = 1.0
#: From this part of the disk on an operator should act; brokers delete early at 85 %.
DISK_USED_MAX: Final = 0.80
#: A broker's clock may be off by so many seconds; it is known to a second only.
CLOCK_SKEW_MAX: Final = 5.0
#: Dead letters that are older are mentioned, and not a failure.
_RECENT_MS: Final = 3_600_000
#: A lag grows if it is larger by so many messages, and by this part.
_GROWN_MIN: Final = 20
_GROWN_PART: Final = 0.1
#: How many groups are examined; those with the largest lags come first.
GROUPS_MAX: Final = 100

_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


def check_cluster(
    core: ClientCore,
    *,
    pause: float,
    recheck: float = RECHECK_AFTER,
    notify: Notify | None = None,
) -> Flow[tuple[Finding, ...]]:
    """Check all brokers and groups.

    Args:
        core: The client.
        pause: Seconds between the two looks at groups that have a lag.
        recheck: Seconds before queues that did not move are looked at again; longer than two
            commits of their consumers.
        notify: Called with the reason before it waits for that.

    Returns:
        The findings: a line per broker, and one or more per group.
    """
    findings = yield from _check_brokers(core)
    findings += yield from _check_groups(core, pause, recheck, notify)
    return tuple(findings)


def _finding(
    name: Step, target: str, text: str, next_step: str | None = None, *, is_ok: bool = True
) -> Finding:
    return Finding(name=name, target=target, is_ok=is_ok, text=text, next_step=next_step)


def _deadline(core: ClientCore) -> float:
    return core.clock.now() + core.options.call_timeout


def _not_asked(what: str, error: RocketMQError) -> Finding:
    if isinstance(error, NoPermission):
        text = "not examined: the account may not ask for it"
        return _finding("access", what, text, "give an administrator's account to see more")
    return _finding("answer", what, str(error), is_ok=False)


# ---- brokers -------------------------------------------------------------------------------------


def _check_brokers(core: ClientCore) -> Flow[list[Finding]]:
    """Look at each broker by itself: one that does not answer must not hide the others."""
    try:
        facts = yield from cluster_facts(core, deadline=_deadline(core))
    except RocketMQError as error:
        return [_not_asked("brokers", error)]
    names = [broker.name for broker in facts.brokers if MASTER in broker.addresses]
    if not names:
        return []
    asked = [_check_broker(core, name) for name in names]
    outcomes: list[list[Finding] | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    denied = [outcome for outcome in outcomes if isinstance(outcome, NoPermission)]
    if len(denied) == len(outcomes):
        return [_not_asked("brokers", denied[0])]
    findings: list[Finding] = []
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, RocketMQError):
            findings.append(_not_asked(f"broker {name}", outcome))
        else:
            findings += outcome
    return findings


def _check_broker(core: ClientCore, name: str) -> Flow[list[Finding]]:
    tries = 0
    while True:
        begun_ms = core.clock.wall_ms()
        try:
            figures = yield from broker_figures(core, name, deadline=_deadline(core))
        except RocketMQError as error:
            tries += 1
            if error.code != ResponseCode.SYSTEM_ERROR or tries == _FIGURES_TRIES:
                raise
            yield Pause(_FIGURES_PAUSE)
        else:
            target, table = f"broker {name}", figures[name]
            ended_ms = core.clock.wall_ms()
            return [*_disk(target, table), *_clock(target, table, begun_ms, ended_ms)]


def _disk(target: str, table: dict[str, str]) -> Iterator[Finding]:
    try:
        used = float(table["commitLogDiskRatio"])
    except (KeyError, ValueError):
        return
    text = f"{used:.0%} of the disk are in use"
    if used < DISK_USED_MAX:
        yield _finding("disk", target, text)
        return
    text += "; by default a broker deletes messages early from 85 % on, and refuses sends from 90 %"
    step = (
        "free space or enlarge the disk. Or keep messages for less time: "
        f"`downrange broker set fileReservedTime=24 --broker {target.removeprefix('broker ')}`"
    )
    yield _finding("disk", target, text, step, is_ok=False)


def _clock(target: str, table: dict[str, str], begun_ms: int, ended_ms: int) -> Iterator[Finding]:
    """Compare clocks: a broker says when it started, and how long it has run."""
    match = _RUNTIME.fullmatch(table.get("runtime", ""))
    started = table.get("bootTimestamp", "")
    if match is None or not started.isdecimal():
        return
    days, hours, minutes, seconds = map(int, match.groups())
    run = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    its_ms = int(started) + int(run.total_seconds() * 1000)  # rounded down to a second
    behind, ahead = (begun_ms - its_ms - 1000) / 1000, (its_ms - ended_ms) / 1000
    off = max(behind, ahead, 0.0)
    if off <= CLOCK_SKEW_MAX:
        yield _finding("clock", target, "its clock agrees with that of this machine")
        return
    word = "behind" if behind > ahead else "ahead of"
    text = f"its clock is {off:.0f} s {word} that of this machine"
    step = (
        "synchronize both clocks, for example with chrony: delays, timers, retention and searches "
        "by time depend on them"
    )
    yield _finding("clock", target, text, step, is_ok=False)


# ---- groups --------------------------------------------------------------------------------------


def _check_groups(
    core: ClientCore, pause: float, recheck: float, notify: Notify | None
) -> Flow[list[Finding]]:
    try:
        summaries = yield from list_groups(core, with_progress=True, deadline=_deadline(core))
    except RocketMQError as error:
        return [_not_asked("groups", error)]
    groups = sorted(
        (group for group in summaries if group.kind == "normal"),
        key=lambda group: (-(group.lag or 0), group.group),
    )
    if not groups:
        return [_finding("groups", "groups", "there are none")]
    examined, left_out = groups[:GROUPS_MAX], len(groups) - GROUPS_MAX
    findings = yield from _examine(core, examined, pause, recheck, notify)
    text = f"{len(examined)} examined"
    if left_out > 0:
        text += f"; {left_out} with smaller lags were left out"
    return [_finding("groups", "groups", text), *findings]


def _examine(
    core: ClientCore,
    groups: list[GroupSummary],
    pause: float,
    recheck: float,
    notify: Notify | None,
) -> Flow[list[Finding]]:
    behind = [group for group in groups if group.lag and group.model != "broadcast"]
    first = yield from _lags(core, behind)
    begun_at = core.clock.now()
    if behind and pause > 0:
        yield Pause(pause)
    second = yield from _lags(core, behind)
    suspects = _suspects(behind, first, second)
    third = yield from judge_suspects(core, suspects, recheck, notify)
    seconds = core.clock.now() - begun_at
    shared = [group for group in groups if (group.members or 0) > 1]
    members = yield from _of_each(
        shared,
        lambda group: group_members(core, group.group, with_filters=True, deadline=_deadline(core)),
    )
    letters = yield from _of_each(
        groups,
        lambda group: topic_stats(core, dead_letter_topic(group.group), deadline=_deadline(core)),
    )
    findings: list[Finding] = []
    for group in groups:
        name = group.group
        found = [
            *_subscriptions(name, members.get(name)),
            *_lag(group, first.get(name), second.get(name), pause, third.get(name), seconds),
            *_dead_letters(core, name, letters.get(name)),
        ]
        findings += found
    return findings


def _lags(core: ClientCore, groups: list[GroupSummary]) -> Flow[dict[str, Any]]:
    return (
        yield from _of_each(
            groups, lambda group: group_lag(core, group.group, deadline=_deadline(core))
        )
    )


def _suspects(
    groups: list[GroupSummary],
    first: dict[str, GroupLag | RocketMQError],
    second: dict[str, GroupLag | RocketMQError],
) -> dict[str, list[QueueLag]]:
    """Return the queues that did not move, of the groups that have members."""
    found: dict[str, list[QueueLag]] = {}
    for name in [group.group for group in groups if group.members]:
        before, now = first[name], second[name]
        if isinstance(before, RocketMQError) or isinstance(now, RocketMQError):
            continue
        if queues := suspected_queues(before, now):
            found[name] = queues
    return found


def _of_each(
    groups: list[GroupSummary], ask: Callable[[GroupSummary], Flow[Any]]
) -> Flow[dict[str, Any]]:
    """Ask for something of each group: group -> the answer, or the error."""
    if not groups:
        return {}
    outcomes: list[Any] = yield Gather([ask(group) for group in groups], CALLS_AT_ONCE)
    return {group.group: outcome for group, outcome in zip(groups, outcomes, strict=True)}


def _subscriptions(group: str, members: GroupMembers | RocketMQError | None) -> Iterator[Finding]:
    if members is None or isinstance(members, RocketMQError):
        return
    step = (
        "give all members of the group the same subscriptions, and start them again; use a group "
        "for each set of topics"
    )
    for difference in members.differences:
        text = f"members read differently, so that messages are missed: {difference}"
        yield _finding("subscriptions", f"group {group}", text, step, is_ok=False)


def _lag(
    group: GroupSummary,
    first: GroupLag | RocketMQError | None,
    second: GroupLag | RocketMQError | None,
    pause: float,
    third: Judgement | RocketMQError | None,
    seconds: float,
) -> Iterator[Finding]:
    target = f"group {group.group}"
    if first is None or second is None:
        return
    for outcome in (first, second, third):
        if isinstance(outcome, RocketMQError):
            yield _not_asked(target, outcome)
            return
    assert not isinstance(first, RocketMQError)
    assert not isinstance(second, RocketMQError)
    assert not isinstance(third, RocketMQError)
    before, now = first.messages, second.messages
    if not group.members:
        step = f"start its members; or, if it is not used: `downrange group delete {group.group}`"
        yield _finding("lag", target, f"{now} messages wait, and no member is connected", step)
        return
    standing = [] if third is None else list(_standing(target, group.group, third, seconds))
    yield from standing
    if now - before >= max(_GROWN_MIN, before * _GROWN_PART):
        text = f"its lag grew from {before} to {now} messages in {pause:g} s"
        step = (
            "start more members, up to one for each queue, or make its handlers faster: "
            f"`downrange group runinfo {group.group} CLIENT` shows where the time goes"
        )
        yield _finding("lag", target, text, step, is_ok=False)
    elif not standing:
        now = now if third is None else third.lag.messages
        yield _finding("lag", target, f"{now} messages wait, and it moves on")


def _standing(target: str, group: str, third: Judgement, seconds: float) -> Iterator[Finding]:
    for queue in third.stuck:
        yield _stuck(target, group, queue, seconds)
    if third.slow:
        yield _slow(target, group, third.slow, seconds)


def _stuck(target: str, group: str, queue: QueueLag, seconds: float) -> Finding:
    topic, place = queue.queue.topic, f"{queue.queue.broker}:{queue.queue.number}"
    text = (
        f"{_where(queue)} stands still at {queue.committed}: its oldest message has waited for "
        f"{_age(queue)}, the offset did not move in {seconds:.0f} s"
    )
    if queue.owner is None:
        text += ", and no member that answers reads it"
        step = "check that all members have the same subscriptions, and start them again"
        return _finding("stuck", target, text, step, is_ok=False)
    text += f", and {queue.owner}, which reads it, handled no message of it"
    step = (
        f"look what the handler does: `downrange group runinfo {group} {queue.owner} --stack`, and "
        f"at the message: `downrange pull {topic} {place} {queue.committed} --count 1`. Only if "
        f"that message can be lost for the group, skip it: `downrange group reset {group} {topic} "
        f"--queue {place} --to {queue.committed + 1} --apply`. It is not delivered again, and a "
        "handler that still has it may have done a part of its work"
    )
    return _finding("stuck", target, text, step, is_ok=False)


def _slow(target: str, group: str, queues: list[QueueLag], seconds: float) -> Finding:
    """Return one finding for all slow queues of a group; it names the one that waits longest."""
    queue = max(queues, key=lambda each: each.age or timedelta())
    others = len(queues) - 1
    also = f", and so for {others} more queues" if others else ""
    text = (
        f"{_where(queue)} is slow: its offset {queue.committed} did not move in {seconds:.0f} s, "
        f"and its oldest message has waited for {_age(queue)}, but {queue.owner} handles messages "
        f"of it{also}"
    )
    step = f"how long a message takes: `downrange group runinfo {group} {queue.owner}`"
    return _finding("slow", target, text, step)


def _where(queue: QueueLag) -> str:
    return f"queue {queue.queue.number} of {queue.queue.topic} on {queue.queue.broker}"


def _age(queue: QueueLag) -> timedelta:
    return timedelta(seconds=round((queue.age or timedelta()).total_seconds()))


def _dead_letters(
    core: ClientCore, group: str, states: list[QueueState] | RocketMQError | None
) -> Iterator[Finding]:
    if states is None or isinstance(states, RouteNotFound):
        return
    target = f"group {group}"
    if isinstance(states, RocketMQError):
        yield _not_asked(f"{target}, dead letters", states)
        return
    count = sum(each.count for each in states)
    newest = max((each.stored_at for each in states if each.stored_at is not None), default=None)
    if not count or newest is None:
        return
    age_ms = core.clock.wall_ms() - int(newest.timestamp() * 1000)
    is_recent = age_ms < _RECENT_MS
    text = f"{count} dead letters, the last one at {newest.astimezone().isoformat(' ', 'seconds')}"
    step = (
        f"see why: `downrange dlq list {group}`; deliver them again: `downrange dlq resend {group}`"
    )
    yield _finding("dead letters", target, text, step if is_recent else None, is_ok=not is_recent)
