"""Which queues a member has: the members of the group divide them by the same strategy.

Every member looks for itself, at its start, every `rebalance_interval`, when a broker says that the
members changed, and when a route changed. A queue that it loses is released, one that it gains is
locked first: as long as the former owner has the lock, it is not done with the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.allocation import in_order, members_in_order
from downrange.client.flows.consuming.first_offset import FirstOffset, first_offset, start_offset
from downrange.client.flows.consuming.queue_locks import lock, unlock
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, UserCall, Wait
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.notices import AssignmentChanged, HandoverEnded
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import send_heartbeats
from downrange.errors import RocketMQError
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
        member.rebalancing = Signal()
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
    subscribed = set(member.subscriptions.topics)
    for queue in [queue for queue in member.refused_since if queue.topic not in subscribed]:
        del member.refused_since[queue]
    yield from member.release(
        [window for window in member.windows.values() if window.queue.topic not in subscribed]
    )
    for topic in member.subscriptions.topics:
        try:
            share = yield from _share_of(member, topic)
        except RocketMQError:
            share = None
        if share is None or member.is_closing:
            is_balanced = False
            continue
        is_balanced = (yield from _apply(member, topic, share)) and is_balanced
    if is_balanced and member.is_shared and member.options.check_subscriptions:
        yield from _compare_subscriptions(member)
    yield from member.core.publish()
    return is_balanced


# ---- which queues --------------------------------------------------------------------------------


def _share_of(member: GroupState, topic: str) -> Flow[list[QueueId] | None]:
    """Return the queues of this member; None when the members or the route are not known."""
    core = member.core
    namespace = core.options.namespace
    name = with_namespace(topic, namespace)
    route = core.routes.get(name)
    if route is None or route.is_borrowed:
        deadline = core.clock.now() + core.options.call_timeout
        route = yield from refresh_route(core, name, deadline)
    if route is None:
        return None
    queues = in_order(route.readable)
    if member.is_shared:
        members = yield from _find_members(member, route)
        if members is None:
            return None
        try:
            queues = yield UserCall(
                member.strategy.allocate,
                (member.named_group, core.client_id, queues, members_in_order(members)),
            )
        except Exception as error:
            yield from core.report("strategy", error)
            return None
    return [shown_queue(queue, namespace) for queue in queues]


def _find_members(member: GroupState, route: Route) -> Flow[list[str] | None]:
    """Ask a broker of the topic for the members; None when none knows that we are one.

    Right after a start a broker may not have the heartbeat yet, so it is sent again.
    """
    core = member.core
    addresses = sorted(route.masters.values())
    first = core.randomness.below(len(addresses)) if addresses else 0
    for index in range(len(addresses)):
        address = addresses[(first + index) % len(addresses)]
        command = request_command(GroupMembersRequest(member.named_group))
        deadline = core.clock.now() + core.options.call_timeout
        try:
            reply = yield from core.call(address, command, deadline)
            if reply.code != ResponseCode.SUCCESS:
                continue  # the broker knows no member of the group
            members = decode_body(GroupMembersBody, reply.body).consumer_id_list
        except RocketMQError:
            continue
        if core.client_id in members:
            return members
    yield from send_heartbeats(core)
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


def _take(member: GroupState, queues: list[QueueId]) -> Flow[dict[QueueId, FirstOffset]]:
    """Lock queues, find where they begin, and open their windows; return those."""
    locked: set[QueueId] = set()
    if member.is_shared:
        queues, locked = yield from _lock(member, queues)
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
        yield from member.call_user("on_assigned", member.on_assigned, list(begun))
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
            is_committed=member.is_shared or first.reason == SAVED,
            is_locked=queue in locked,
        )
    if taken and not member.is_shared:
        until = member.core.clock.now() + member.core.options.call_timeout
        yield from member.commit([member.windows[queue] for queue in taken], until)
    left = [queue for queue in queues if queue in locked and queue not in member.windows]
    if left:  # nobody would renew or return these locks
        until = member.core.clock.now() + member.core.options.call_timeout
        yield from unlock(member.core, member.lock_group, left, deadline=until)
    return taken


def _first_offset(member: GroupState, queue: QueueId) -> Flow[FirstOffset]:
    core, options = member.core, member.options
    deadline = core.clock.now() + core.options.call_timeout
    saved = member.local_offsets
    if saved is not None and queue in saved:
        return FirstOffset(saved[queue], SAVED)
    if not member.is_shared:
        return (yield from start_offset(core, queue, options.start, deadline=deadline))
    return (yield from first_offset(core, member.group, queue, options.start, deadline=deadline))


def _lock(member: GroupState, queues: list[QueueId]) -> Flow[tuple[list[QueueId], set[QueueId]]]:
    """Return the queues that may be taken now, and those of them whose lock this member has."""
    core, options = member.core, member.options
    deadline = core.clock.now() + core.options.call_timeout
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
    return [queue for queue in queues if queue in locked or queue in ended], locked


# ---- subscriptions -------------------------------------------------------------------------------


def _compare_subscriptions(member: GroupState) -> Flow[None]:
    """Compare with what a broker has for the group: that of the member whose heartbeat was last."""
    core = member.core
    routes = [core.routes.get(name) for name in member.named_topics()]
    masters = sorted({each for route in routes if route for each in route.masters.values()})
    if not masters:
        return
    deadline = core.clock.now() + core.options.call_timeout
    command = request_command(ConsumerConnectionsRequest(member.named_group))
    try:
        reply = yield from core.ask(masters[0], command, deadline)
        table = decode_body(ConsumerConnectionsBody, reply.body).subscription_table
    except RocketMQError:
        return  # not allowed to ask, or no answer: the next rebalance asks again
    yield from member.note_mismatch({name: body.sub_string for name, body in table.items()})
