"""The flow that fills one window: pull after pull, while there is room and the queue is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.consuming.delivery_window import body_bytes
from downrange.client.flows.consuming.pull import PullStatus, pull
from downrange.client.flows.consuming.verdicts import show_as_sent
from downrange.client.flows.effects import Flow, Pause, Signal, UserCall, Wait
from downrange.client.flows.hooks import name_of
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import send_heartbeats
from downrange.errors import RocketMQError, TransportError
from downrange.wire.codes import ReleaseVersion, ResponseCode
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.client.flows.consuming.group_state import GroupState
    from downrange.model import QueueOffset, ReceivedMessage

#: Seconds that the reply to a held pull may take in addition.
_ANSWER_MARGIN: Final = 15.0
#: Least seconds between two pulls of a broker that answers at once although it was asked to wait.
_HELD_MIN: Final = 0.05
#: Most seconds that it waits for room before it looks again.
_WAIT_MAX: Final = 60.0
#: The broker does not know the subscription or its SQL, yet: the heartbeat is on the way, or lost.
_NOT_REGISTERED: Final = frozenset(
    map(
        int,
        (
            *(ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST),
            *(ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST),
        ),
    )
)
#: Seconds in which that is normal: after a start, and after a broker's restart.
_REGISTER_GRACE: Final = 10.0


def fetch(member: GroupState, window: DeliveryWindow) -> Flow[None]:
    """Fill a window until it is stopped; go on after errors."""
    options = member.options
    pause = options.retry_backoff
    while not window.is_stopped:
        try:
            yield from _fetch_once(member, window)
            pause = options.retry_backoff
        except RocketMQError as error:
            if window.is_stopped:
                return
            yield from _note_failure(member, window, error)
            yield Pause(pause)
            pause = min(2 * pause, options.retry_backoff_max)
            yield from _repair(member, window, error)


def _fetch_once(member: GroupState, window: DeliveryWindow) -> Flow[None]:
    core, options = member.core, member.options
    now = core.clock.now()
    entry = member.subscriptions.get(window.queue.topic)
    if entry is None or not member.may_fetch(window):
        if window.room.is_fired:
            window.room = Signal()
        yield Wait(window.room, now + _WAIT_MAX)
        return
    max_count, max_bytes = member.buffer.pull_limits(len(member.windows), options.pull_batch)
    batch = yield from pull(
        core,
        window.queue,
        window.next_offset,
        group=member.group,
        max_count=max_count,
        max_bytes=max_bytes,
        message_filter=window.message_filter,
        subscription_version=entry.version,
        suspend=options.suspend,
        replica=window.replica,
        deadline=now + options.suspend + _ANSWER_MARGIN,
        decode_body=options.decode_body,
        message_class=member.message_class,
    )
    if window.is_stopped:
        return
    window.pulled_at = core.clock.now()
    rates = member.rates_of(window.queue.topic)
    rates.pulled(len(batch.messages), window.pulled_at - now, window.pulled_at)
    if window.failing_since is not None:
        yield from member.note_recovery(window)
    window.replica = batch.replica
    window.has_timer = batch.version >= ReleaseVersion.V5_0_0
    if batch.status is PullStatus.MOVED:
        yield from member.move(window, batch.next_offset, "the broker moved the group's offset")
    elif batch.messages:
        messages = yield from passed_by_hooks(member, batch.messages)
        _take_in(member, window, messages, batch.next_offset)
    else:
        window.next_offset = batch.next_offset
        if batch.status is PullStatus.NO_NEW and window.pulled_at - now < _HELD_MIN:
            yield Pause(_HELD_MIN)


def passed_by_hooks(
    member: GroupState, messages: list[ReceivedMessage]
) -> Flow[list[ReceivedMessage]]:
    """Return the messages that the user's hooks let pass; one whose hook fails passes, too."""
    for hook in member.hooks.filter_message:
        passed: list[ReceivedMessage] = []
        for message in messages:
            try:
                verdict: object = yield UserCall(hook, (message,))
            except Exception as error:
                yield from member.core.report(f"hook {name_of(hook)}", error)
                verdict = True
            if verdict is not False:
                passed.append(message)
        messages = passed
    return messages


def _take_in(
    member: GroupState,
    window: DeliveryWindow,
    messages: list[ReceivedMessage],
    next_offset: QueueOffset,
) -> None:
    """Add what was pulled, unless it does not fit: then it is pulled again when there is room."""
    if window.is_stopped:
        return
    buffer = member.buffer
    size = body_bytes(messages)
    if buffer.count and buffer.bytes + size > buffer.bytes_max:
        member.counts.dropped_answers += 1
        window.needed = size
        return
    window.needed = 0
    if window.queue.topic.startswith(RETRY_PREFIX):
        for message in messages:
            show_as_sent(message, member.core.options.namespace)
    if member.link is not None:
        for message in messages:
            member.link(message)
    window.add(messages, next_offset)
    member.counts.fetched += len(messages)
    member.arrived(window)


def _note_failure(member: GroupState, window: DeliveryWindow, error: RocketMQError) -> Flow[None]:
    """Publish a failure when it begins; one that is normal after a start only when it stays."""
    now = member.core.clock.now()
    if window.failing_since is None:
        window.failing_since = now
    if isinstance(error, TransportError) and window.is_sure:
        member.doubt_locks(lambda broker: broker == window.queue.broker)
    is_new = window.failure is None
    if error.code in _NOT_REGISTERED and now - window.failing_since < _REGISTER_GRACE:
        return
    window.failure = error
    if is_new:
        yield from member.note_failure(window, error)


def _repair(member: GroupState, window: DeliveryWindow, error: RocketMQError) -> Flow[None]:
    """Do what may help: register again, or look the broker up again."""
    core = member.core
    try:
        if error.code in _NOT_REGISTERED:
            yield from send_heartbeats(core)
        else:
            topic = with_namespace(window.queue.topic, core.options.namespace)
            yield from refresh_route(core, topic, core.clock.now() + core.options.call_timeout)
    except RocketMQError:
        return  # the next pull fails and says why
