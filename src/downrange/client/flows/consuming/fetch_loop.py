"""The flow that fills one window: pull after pull, while there is room and the queue is ours.

Apache's brokers return at most 32 messages, so a queue that lags would wait for the broker most of
the time. Where answers are regular, several pulls are in flight, each for the messages behind those
of the one before. An answer that does not follow the one before is dropped, and pulled again.
So is one to a pull with the filter that the window had before: a broker may hold that for long.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.client.flows.consuming.delivery_window import body_bytes
from downrange.client.flows.consuming.missing_shares import REGISTER_GRACE
from downrange.client.flows.consuming.pull import PullStatus, pull
from downrange.client.flows.consuming.verdicts import show_as_sent
from downrange.client.flows.effects import Flow, Gather, Pause, Signal, UserCall, Wait
from downrange.client.flows.hooks import name_of
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.client.flows.routing.membership import send_heartbeats
from downrange.errors import RocketMQError, TransportError
from downrange.wire.codes import ReleaseVersion, ResponseCode
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.client.flows.consuming.group_state import GroupState
    from downrange.client.flows.consuming.pull import PullBatch
    from downrange.model import ReceivedMessage

#: Seconds that the reply to a held pull may take in addition.
_ANSWER_MARGIN: Final = 15.0
#: Least seconds between two pulls of a broker that answers at once although it was asked to wait.
_HELD_MIN: Final = 0.05
#: Most seconds that it waits for room before it looks again.
_WAIT_MAX: Final = 60.0
#: Most seconds that the next pull waits for a worker that was woken.
_TAKEN_MAX: Final = 0.01
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


def fetch(member: GroupState, window: DeliveryWindow, epoch: int = 0) -> Flow[None]:
    """Fill a window until it is stopped, or goes on with another filter; go on after errors.

    Args:
        member: The member.
        window: The window.
        epoch: Its epoch when this began; each has a flow of its own.
    """
    options = member.options
    pause = options.retry_backoff
    if not member.registering.is_fired:
        yield Wait(member.registering, member.core.clock.now() + _WAIT_MAX)
    while not window.is_stopped and window.epoch == epoch:
        try:
            yield from _fetch_once(member, window, epoch)
            pause = options.retry_backoff
        except RocketMQError as error:
            if window.epoch != epoch or window.is_stopped:
                return
            yield from _note_failure(member, window, error)
            yield Pause(pause)
            pause = min(2 * pause, options.retry_backoff_max)
            yield from _repair(member, window, error)


def _fetch_once(member: GroupState, window: DeliveryWindow, epoch: int) -> Flow[None]:
    core, options = member.core, member.options
    now = core.clock.now()
    entry = member.subscriptions.get(window.queue.topic)
    if entry is None or not member.may_fetch(window):
        if window.room.is_fired:
            window.room = Signal()
        yield Wait(window.room, now + _WAIT_MAX)
        return
    max_count, max_bytes = member.buffer.pull_limits(len(member.windows), options.pull_batch)
    ask = partial(_pull, member, window, entry.version, max_bytes=max_bytes)
    pull_count = window.pulls_at_once(max_count, len(member.windows))
    first = window.next_offset
    if pull_count == 1:
        batch = yield from ask(first, max_count, member.suspend)
        if window.epoch != epoch and not _tells_reset(batch, first):
            member.counts.dropped_answers += 1
            return
        yield from _take_answer(member, window, epoch, batch, now)
        if batch.messages and batch.next_offset >= batch.max_offset:
            yield from _let_handler_begin(core, window)
        return
    stride = window.stride
    counts = [stride] * (pull_count - 1) + [max_count]  # the last one finds out if more can be had
    pulls = [ask(first + index * stride, count, 0.0) for index, count in enumerate(counts)]
    answers: list[PullBatch | RocketMQError] = yield Gather(pulls, pull_count)
    reset = _reset_among(answers, range(first, first + pull_count * stride, stride))
    if reset is not None:
        yield from _take_answer(member, window, epoch, reset, now)
        return
    for index, answer in enumerate(answers):
        if window.epoch != epoch or window.next_offset != first + index * stride:
            member.counts.dropped_answers += pull_count - index
            return
        if isinstance(answer, RocketMQError):
            raise answer
        yield from _take_answer(member, window, epoch, answer, now)


def _reset_among(
    answers: Sequence[PullBatch | RocketMQError], asked: Iterable[int]
) -> PullBatch | None:
    """Return the answer that says that the group was reset, if there is one.

    It counts even if those before it are dropped: the broker says it once, to whichever pull comes
    first. Another pull is answered so if the queue does not have its offset; that one waits for
    those before it.
    """
    for answer, offset in zip(answers, asked, strict=True):
        if not isinstance(answer, RocketMQError) and _tells_reset(answer, offset):
            return answer
    return None


def _tells_reset(batch: PullBatch, asked: int) -> bool:
    """Return whether an answer says that the group was reset: the queue has the offset."""
    return batch.status is PullStatus.MOVED and batch.min_offset <= asked <= batch.max_offset


def _let_handler_begin(core: ClientCore, window: DeliveryWindow) -> Flow[None]:
    """Let the handler begin before the next pull: the queue does not lag, so that counts more.

    The pull costs a system call. A worker that is a thread would also wait for the interpreter's
    lock, which this thread has until then.
    """
    if window.taken is None:
        yield Pause(0.0)
    else:
        yield Wait(window.taken, core.clock.now() + _TAKEN_MAX)


def _pull(
    member: GroupState,
    window: DeliveryWindow,
    version: int,
    offset: int,
    max_count: int,
    suspend: float,
    *,
    max_bytes: int | None,
) -> Flow[PullBatch]:
    core = member.core
    return pull(
        core,
        window.queue,
        offset,
        group=member.group,
        max_count=max_count,
        max_bytes=max_bytes,
        message_filter=window.message_filter,
        subscription_version=version,
        suspend=suspend,
        replica=window.replica,
        deadline=core.clock.now() + suspend + _ANSWER_MARGIN,
        decode_body=member.options.decode_body,
        message_class=member.message_class,
    )


def _take_answer(
    member: GroupState, window: DeliveryWindow, epoch: int, batch: PullBatch, asked_at: float
) -> Flow[None]:
    """Do what the answer of a pull says; its messages count only in the epoch of the pull."""
    if batch.status is PullStatus.MOVED:
        window.reset_to = batch.next_offset  # also of one that is given up: see `BrokerCommits`
    if window.is_stopped:
        return
    window.pulled_at = member.core.clock.now()
    seconds = window.pulled_at - asked_at
    rates = member.rates_of(window.queue.topic)
    rates.pulled(len(batch.messages), seconds, window.pulled_at)
    if window.failing_since is not None:
        yield from member.note_recovery(window)
    window.replica = batch.replica
    window.has_timer = batch.version >= ReleaseVersion.V5_0_0
    if batch.status is PullStatus.MOVED:
        reason = "the group was reset, or the queue does not have its offset any more"
        yield from member.move(window, batch.next_offset, reason)
    elif batch.messages:
        messages = yield from passed_by_hooks(member, batch.messages)
        _take_in(member, window, epoch, batch, messages)
    elif window.epoch == epoch:
        window.stride = 0
        window.next_offset = batch.next_offset
        if batch.status is PullStatus.NO_NEW and seconds < _HELD_MIN:
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
    epoch: int,
    batch: PullBatch,
    messages: list[ReceivedMessage],
) -> None:
    """Add what passed the hooks, unless it does not fit: then it is pulled again later."""
    if window.is_stopped or window.epoch != epoch:
        return
    buffer = member.buffer
    size = body_bytes(messages)
    if buffer.count and buffer.bytes + size > buffer.bytes_max:
        member.counts.dropped_answers += 1
        window.needed, window.stride = size, 0
        return
    window.needed = 0
    if window.queue.topic.startswith(RETRY_PREFIX):
        for message in messages:
            show_as_sent(message, member.core.options.namespace)
    if member.link is not None:
        for message in messages:
            member.link(message)
    window.note_answer(len(batch.messages), size, batch.next_offset, batch.max_offset)
    window.add(messages, batch.next_offset)
    member.counts.fetched += len(messages)
    member.arrived(window)


def _note_failure(member: GroupState, window: DeliveryWindow, error: RocketMQError) -> Flow[None]:
    """Publish a failure when it begins; one that is normal after a start only when it stays."""
    now = member.core.clock.now()
    if window.failing_since is None:
        window.failing_since = now
    if isinstance(error, TransportError) and window.is_sure:
        member.doubt_locks({window.queue.broker})
    is_new = window.failure is None
    if error.code in _NOT_REGISTERED and now - window.failing_since < REGISTER_GRACE:
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
