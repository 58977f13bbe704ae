"""Which queues a member has: the members of the group divide them by the same strategy.

Every member looks for itself, at its start, every `rebalance_interval`, when a broker says that the
members changed, and when a route changed. A queue that it loses is released, one that it gains is
locked first: as long as the former owner has the lock, it is not done with the queue.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.allocation import in_order, members_in_order
from downrange.client.flows.consuming.first_offset import FirstOffset, first_offset, start_offset
from downrange.client.flows.consuming.missing_shares import NoShare, no_share
from downrange.client.flows.consuming.pull import pull_raw
from downrange.client.flows.consuming.queue_locks import lock, unlock
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, UserCall, Wait
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.notices import AssignmentChanged, HandoverEnded
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import heartbeat_failures
from downrange.errors import RocketMQError
from downrange.options.consumers import LOCK_TRUST
from downrange.wire.bodies import ConsumerConnectionsBody, GroupMembersBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import ConsumerConnectionsRequest, GroupMembersRequest

if TYPE_CHECKING:
    from downrange.client.flows.consuming.group_state import GroupState
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId

#: Seconds until the next look while a queue waits for its former owner, and while brokers fail.
_SOON: Final = 0.2
_UNBALANCED: Final = 1.0
#: Queues whose first pulls are sent together. With thousands at a time a broker would be busy with
#: them for seconds, and heartbeats would be late.
_TAKEN_AT_ONCE: Final = 256
#: Seconds after a lost connection in which no further queue of the broker is taken.
_RETURN: Final = 2.0
#: Seconds for which a member remembers how far it got in a queue that it lost.
_REMEMBERED: Final = 60.0
#: Why a member begins behind what the broker has: it has handled more itself.
HANDLED: Final = "handled before"
#: Why a broadcast consumer begins at an offset of its store.
SAVED: Final = "saved"


def rebalance_loop(member: GroupState) -> Flow[None]:
    """Divide the queues again and again, until the member leaves."""
    clock = member.core.clock
    wait = _SOON
    while True:
        yield Wait(member.changed, clock.now() + wait)
        if member.is_closing:
            return
        if member.changed.is_fired:
            member.changed = Signal()
        member.rebalancing, member.upcoming = member.upcoming, Signal()
        try:
            is_balanced = yield from rebalance(member)
        finally:
            member.rebalancing.fire()
        wait = member.options.rebalance_interval
        if member.refused_since:
            wait = _SOON
        elif not is_balanced:
            wait = min(wait, _UNBALANCED)


def rebalance(member: GroupState) -> Flow[bool]:
    """Take and release queues until the member has its share of every topic.

    Returns:
        Whether it has. If not, a broker does not answer, or the former owner of a queue is not
        done with it.
    """
    member.counts.rebalances += 1
    is_balanced = True
    member.forget_unsubscribed()
    subscribed = set(member.subscriptions.topics)
    yield from member.release(
        [window for window in member.windows.values() if window.queue.topic not in subscribed]
    )
    for topic in member.subscriptions.topics:
        try:
            share = yield from _share_of(member, topic)
        except RocketMQError as error:
            share = no_share(error)
        if member.is_closing or not isinstance(share, list):
            _note_missing(member, topic, share)
            is_balanced = False
            continue
        member.missing.note_found(topic)
        is_balanced = (yield from _apply(member, topic, share)) and is_balanced
    if is_balanced and member.is_shared and member.options.check_subscriptions:
        yield from _compare_subscriptions(member)
    yield from member.core.publish()
    return is_balanced


# ---- which queues --------------------------------------------------------------------------------


def _note_missing(member: GroupState, topic: str, share: list[QueueId] | NoShare | None) -> None:
    """Note why the member gets no queues of a topic, unless it leaves."""
    if isinstance(share, NoShare) and not member.is_closing:
        member.missing.note(topic, share)
    else:  # without a route, `note_route` has noted why
        member.missing.forget(topic)


def _share_of(member: GroupState, topic: str) -> Flow[list[QueueId] | NoShare | None]:
    """Return the queues of this member, or why they are not known; None without a route.

    Raises:
        RocketMQError: No name server answered.
    """
    core = member.core
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    route = core.routes.get(name)
    if route is None or route.is_borrowed:
        deadline = core.clock.now() + core.options.call_timeout
        route = yield from refresh_route(core, name, deadline)
    yield from member.note_route(topic, route)
    if route is None:
        return None
    queues = in_order(route.readable)
    if member.is_shared:
        members = yield from _find_members(member, topic, route)
        if isinstance(members, NoShare):
            return members
        try:
            queues = yield UserCall(
                member.strategy.allocate,
                (member.named_group, core.client_id, queues, members_in_order(members)),
            )
        except Exception as error:
            core.user_errors += 1
            return NoShare(f"the allocation strategy failed: {error!r}", False, error)
    return [shown_queue(queue, namespace) for queue in queues]


def _find_members(member: GroupState, topic: str, route: Route) -> Flow[list[str] | NoShare]:
    """Ask the brokers of a topic for the members; if none knows that we are one, return why."""
    core = member.core
    addresses = sorted(route.masters.values())
    first = core.randomness.below(len(addresses)) if addresses else 0
    answers: list[NoShare] = []
    if not addresses:
        brokers = ", ".join(sorted(route.brokers)) or "none is registered"
        answers.append(NoShare(f"none of its brokers has a master now: {brokers}", may_pass=True))
    for index in range(len(addresses)):
        address = addresses[(first + index) % len(addresses)]
        command = request_command(GroupMembersRequest(member.named_group))
        deadline = core.clock.now() + core.options.call_timeout
        try:
            reply = yield from core.ask(address, command, deadline)
            members = decode_body(GroupMembersBody, reply.body).consumer_id_list
        except RocketMQError as error:
            answers.append(no_share(error, "a broker does not tell the members of the group: "))
            continue
        if core.client_id in members:
            return members
        reason = f"broker {address} does not have this client among the members of the group"
        answers.append(NoShare(reason, may_pass=True))
    return (yield from _why_unknown(member, topic, addresses, answers[0]))


def _why_unknown(
    member: GroupState, topic: str, addresses: list[str], answer: NoShare
) -> Flow[NoShare]:
    """Register again, and return why no broker knows that we are a member.

    Right after a start a broker may not have the heartbeat yet. It does not say in its answer that
    it left a group out which does not exist, and which it may not create; only a pull tells.
    """
    failures = yield from heartbeat_failures(member.core)
    for address in addresses:
        if address in failures:
            return no_share(failures[address], "a heartbeat failed: ")
    error = yield from _missing_group(member, topic)
    return answer if error is None else no_share(error)


def _missing_group(member: GroupState, topic: str) -> Flow[RocketMQError | None]:
    """Return the error of a broker that does not have the group; None if no broker says so.

    The pull gets no message: it is that of a member, and the broker knows of none.
    """
    core = member.core
    route = core.routes.get(with_namespace(topic, core.options.namespace))
    if route is None or not route.readable:
        return None
    try:
        yield from pull_raw(
            core,
            shown_queue(route.readable[0], core.options.namespace),
            0,
            group=member.group,
            max_count=1,
            subscription_version=0,
            deadline=core.clock.now() + core.options.call_timeout,
        )
    except RocketMQError as error:
        return error if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST else None
    return None


# ---- taking and releasing ------------------------------------------------------------------------


def _apply(member: GroupState, topic: str, share: list[QueueId]) -> Flow[bool]:
    """Release what is not in the share, take what is new; return whether all of it was taken."""
    wanted = set(share)
    lost = [
        window
        for window in member.windows.values()
        if window.queue.topic == topic and window.queue not in wanted and not window.is_stopped
    ]
    yield from member.release(lost)
    for queue in [*member.refused_since, *member.untaken]:
        if queue.topic == topic and queue not in wanted:
            member.refused_since.pop(queue, None)
            member.untaken.pop(queue, None)
    new = [queue for queue in share if queue not in member.windows]
    busy = any(member.windows[queue].is_stopped for queue in share if queue in member.windows)
    taken = yield from _take(member, new) if new else _nothing()
    if lost or taken:
        member.core.notices.append(
            AssignmentChanged(
                member.group,
                {queue: (first.offset, first.reason) for queue, first in taken.items()},
                [window.queue for window in lost],
            )
        )
        yield from member.core.publish()
    return len(taken) == len(new) and not busy


def _nothing() -> Flow[dict[QueueId, FirstOffset]]:
    return {}
    yield  # a flow


class _Locks(NamedTuple):
    """What brokers answered to a request for locks.

    Attributes:
        queues: Whose lock this member got.
        until: Until when that is trusted.
        before: The doubts of the member when it asked.
    """

    queues: set[QueueId]
    until: float
    before: Counter[str]

    def trusted_until(self, member: GroupState, queue: QueueId) -> float | None:
        """Return until when a lock is trusted; 0 if it is in doubt, None without one."""
        if queue not in self.queues:
            return None
        return 0.0 if member.is_doubted(queue, self.before) else self.until


def _take(member: GroupState, queues: list[QueueId]) -> Flow[dict[QueueId, FirstOffset]]:
    """Lock queues, find where they begin, and open their windows; return those."""
    locks = _Locks(set(), 0.0, Counter())
    if member.is_shared:
        queues = [queue for queue in queues if not _has_just_returned(member, queue)]
        queues, locks = yield from _lock(member, queues)
    taken: dict[QueueId, FirstOffset] = {}
    for first in range(0, len(queues), _TAKEN_AT_ONCE):
        taken |= yield from _open(member, queues[first : first + _TAKEN_AT_ONCE], locks)
    if taken and not member.is_shared:
        until = member.core.clock.now() + member.core.options.call_timeout
        begun = [member.windows[queue] for queue in taken if queue in member.windows]
        yield from member.commit(begun, until)
    left = [queue for queue in queues if queue in locks.queues and queue not in member.windows]
    if left:  # no member would renew or return these locks
        until = member.core.clock.now() + member.core.options.call_timeout
        yield from unlock(member.core, member.lock_group, left, deadline=until)
    return taken


def _has_just_returned(member: GroupState, queue: QueueId) -> bool:
    """Return whether a queue's broker may have begun anew.

    Then it has forgotten locks and the last commits. The members that have its queues come first:
    they lock them again within a second, and commit.
    """
    core = member.core
    lost_at = member.lost_at.get(core.routes.master_of(queue.broker) or "")
    return lost_at is not None and core.clock.now() - lost_at < _RETURN


def _open(
    member: GroupState, queues: list[QueueId], locks: _Locks
) -> Flow[dict[QueueId, FirstOffset]]:
    """Find where queues begin, and open their windows; return those."""
    finding = [_first_offset(member, queue) for queue in queues]
    found: list[FirstOffset | RocketMQError] = yield Gather(finding, CALLS_AT_ONCE)
    begun: dict[QueueId, FirstOffset] = {}
    for queue, first in zip(queues, found, strict=True):
        if isinstance(first, FirstOffset):
            begun[queue] = first
            member.untaken.pop(queue, None)
        else:
            member.note_untaken(queue, first)
    if begun and member.on_assigned is not None:
        member.is_assigning = True
        try:
            yield from member.call_user("on_assigned", member.on_assigned, list(begun))
        finally:
            member.is_assigning = False
    taken: dict[QueueId, FirstOffset] = {}
    for queue, first in begun.items():
        entry = member.subscriptions.get(queue.topic)
        if member.is_closing or entry is None or queue in member.windows:
            continue
        taken[queue] = first
        yield from member.open_window(
            queue,
            first.offset,
            entry.message_filter,
            is_committed=(member.is_shared or first.reason == SAVED) and first.reason != HANDLED,
            locked_until=locks.trusted_until(member, queue),
        )
    return taken


def _first_offset(member: GroupState, queue: QueueId) -> Flow[FirstOffset]:
    core, options = member.core, member.options
    deadline = core.clock.now() + core.options.call_timeout
    saved = member.local_offsets
    if saved is not None and queue in saved:
        return FirstOffset(saved[queue], SAVED)
    if not member.is_shared:
        return (yield from start_offset(core, queue, options.start, deadline=deadline))
    first = yield from first_offset(core, member.group, queue, options.start, deadline=deadline)
    lost_at, position = member.unsaved.pop(queue, (-_REMEMBERED, first.offset))
    if position > first.offset and core.clock.now() - lost_at < _REMEMBERED:
        return FirstOffset(position, HANDLED)  # the broker does not know of the last commits
    return first


def _lock(member: GroupState, queues: list[QueueId]) -> Flow[tuple[list[QueueId], _Locks]]:
    """Return the queues that may be taken now, and the locks that this member got."""
    core, options = member.core, member.options
    deadline = core.clock.now() + core.options.call_timeout
    before = member.doubts.copy()
    locked, refused = yield from lock(core, member.lock_group, queues, deadline=deadline)
    now = core.clock.now()
    for queue in locked:
        member.refused_since.pop(queue, None)
    ended: set[QueueId] = set()
    # The former owner may wait as long for its handlers; then it commits and unlocks.
    limit = options.handover_timeout + core.options.call_timeout
    for queue in (queue for queue in queues if queue in refused):
        since = member.refused_since.setdefault(queue, now)
        if now - since >= limit and options.mode != "orderly":
            del member.refused_since[queue]
            ended.add(queue)
            core.notices.append(HandoverEnded(member.group, queue, now - since))
    taken = [queue for queue in queues if queue in locked or queue in ended]
    return taken, _Locks(locked, now + LOCK_TRUST, before)


# ---- subscriptions -------------------------------------------------------------------------------


def _compare_subscriptions(member: GroupState) -> Flow[None]:
    """Compare with what a broker has for the group: that of the member whose heartbeat was last.

    Not while this member changes its own: the broker may have those before.
    """
    registering = member.registering
    core = member.core
    routes = [core.routes.get(name) for name in member.named_topics()]
    masters = sorted({each for route in routes if route for each in route.masters.values()})
    if not masters or not registering.is_fired:
        return
    deadline = core.clock.now() + core.options.call_timeout
    command = request_command(ConsumerConnectionsRequest(member.named_group))
    try:
        reply = yield from core.ask(masters[0], command, deadline)
        found = decode_body(ConsumerConnectionsBody, reply.body)
    except RocketMQError:
        return  # not allowed to ask, or no answer: the next rebalance asks again
    if member.registering is not registering:
        return
    table = found.subscription_table
    yield from member.note_mismatch({name: body.sub_string for name, body in table.items()})
    ours = (each for each in found.connection_set if each.client_id == core.client_id)
    yield from member.note_connections(tuple(sorted(each.client_addr for each in ours)))
