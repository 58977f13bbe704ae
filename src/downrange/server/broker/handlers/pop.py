"""Pops: take messages that are invisible to others until they are acknowledged.

    200050   pop: consumerGroup, topic, queueId (-1: all), maxMsgNums, invisibleTime, pollTime,
             bornTime, initMode, expType and exp (filter), order, attemptId
    200052   peek: topic, queueId, maxMsgNums, consumerGroup; nothing becomes invisible
    200054   notification: wait until a pop would find a message; fields as in a pop
    200055   how many pops wait: consumerGroup, topic, queueId
    200056   move the state to files: ours is there already

Checked in Apache's order (Java: PopMessageProcessor): age of the request, permission, number,
topic, queue, group, filter. The reply is sent when the checkpoint is in the log, so what is popped
is never lost; in sync mode when it is durable, or a receipt would be void after a loss of power. A
pop that finds nothing and may wait is held (`pop/held_pops.py`), then answered with 210; beyond the
limits of held pops with 209.

Other than in Apache, a negative number of messages is refused (29), and a pop is held until its
time is over, not some 30 ms less.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.answers import ensure_group, succeed
from downrange.server.broker.message_filter import EVERYTHING, MessageFilter, filter_of_expression
from downrange.server.broker.pop.checkpoint_records import REVIVE_QUEUES
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.pop.held_pops import ALL_QUEUES, HeldPop
from downrange.server.broker.pop.orders import Order
from downrange.server.broker.pop.pop_plan import (
    PopOrder,
    has_message,
    retry_topics,
    take_messages,
)
from downrange.server.broker.pop.queue_reader import reply_bytes, start_offset, take
from downrange.server.broker.pop.revival import is_loaded
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import (
    LateReply,
    Output,
    Peer,
    Reply,
    StorePending,
    TablesChanged,
    refusal,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.pop_headers import (
    NotificationReply,
    NotificationRequest,
    PeekRequest,
    PollingCountReply,
    PollingCountRequest,
    PopReply,
    PopRequest,
)
from downrange.wire.pop_receipts import (
    IN_ORDER,
    PLAIN,
    PoppedOffsets,
    Receipt,
    message_offsets_text,
    order_counts_text,
    start_offsets_text,
)
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.pop.queue_reader import Taken
    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import TopicConfig
    from downrange.wire.records import Record

#: The most messages of one pop.
_COUNT_MAX: Final = 32
#: A request that is older than its waiting time and this much more is not answered with messages:
#: its sender has given up.
_LATE_MS: Final = 500
#: How many held pops with a filter one message may wake in vain.
_MISSES_MAX: Final = 16
_NO_MESSAGE: Final = "NO_MESSAGE_IN_QUEUE"
#: Apache writes it into replies that it gives no remark.
_NO_REMARK: Final = "not set any response code"
_SUCCESS: Final = int(ResponseCode.SUCCESS)


# ---- pops --------------------------------------------------------------------------------------


def _pop(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PopRequest.from_fields(request.fields)
    outputs: list[Output] = []
    refused = _check_age(state, header.born_time, header.poll_time, now_ms) or _check_pop(
        state, header
    )
    if refused is None:
        refused = _check_topic(state, header.topic, header.queue_id, peer) or _check_group(
            state, header.consumer_group, now_ms, outputs
        )
    if refused is not None:
        return [*outputs, Reply(_with_zeros(refused))]
    wanted = filter_of_expression(state, header.exp, header.exp_type)
    if not isinstance(wanted, MessageFilter):
        return [*outputs, Reply(_with_zeros(wanted))]
    attempt = partial(_attempt, state, request, header, peer, _asked(header, wanted))
    found = attempt(now_ms)
    if found is not None:
        return [*outputs, *found]
    give_up = partial(_give_up, state, request, header, peer)
    if header.poll_time <= 0 or request.is_oneway:
        return [*outputs, Reply(_empty(state, header, ResponseCode.POLLING_TIMEOUT, now_ms))]
    is_full = len(state.checkpoints) >= state.options.pop_checkpoints_max
    if not is_full and _hold(state, header, peer, attempt, give_up, now_ms):
        return outputs
    return [*outputs, Reply(_empty(state, header, ResponseCode.POLLING_FULL, now_ms))]


def _asked(header: PopRequest | NotificationRequest, wanted: MessageFilter) -> PopOrder:
    count_max, init_mode = 1, 0
    if isinstance(header, PopRequest):
        count_max, init_mode = header.max_msg_nums, header.init_mode
    return PopOrder(
        topic=header.topic,
        group=header.consumer_group,
        queue_id=header.queue_id,
        count_max=count_max,
        wanted=wanted,
        init_mode=init_mode,
        is_ordered=bool(header.order),
        attempt_id=header.attempt_id,
    )


def _attempt(
    state: BrokerState,
    request: Command,
    header: PopRequest,
    peer: Peer,
    asked: PopOrder,
    now_ms: int,
) -> Sequence[Output] | None:
    """Pop messages; None if there are none. The reply follows when the checkpoints are stored."""
    if (
        not is_loaded(state, now_ms)
        or state.topics.get(asked.topic) is None
        or len(state.checkpoints) >= state.options.pop_checkpoints_max
    ):
        return None
    turn = state.next_number()
    found, rest = take_messages(state, asked, turn, now_ms)
    if not found:
        return None
    state.statistics.pulled(
        sum(len(taken.offsets) for taken in found),
        sum(len(part) for taken in found for part in taken.parts),
    )
    if asked.is_ordered:
        return _pop_in_order(state, request, header, peer, found, rest, now_ms)
    revive_queue = turn % REVIVE_QUEUES
    checkpoints = [
        Checkpoint(
            (taken.topic, asked.group, taken.queue_id, taken.start, now_ms),
            taken.offsets,
            invisible_ms=header.invisible_time,
            revive_queue=revive_queue,
        )
        for taken in found
    ]
    records = [state.pop_records.checkpoint(checkpoint, now_ms) for checkpoint in checkpoints]
    for taken in found:
        state.checkpoints.hand_out(
            taken.topic, asked.group, taken.queue_id, taken.next_offset, is_checkpoint=True
        )
    answer = _found(state, header, found, rest, revive_queue, now_ms)

    def on_stored(error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        if error is not None:
            for checkpoint in checkpoints:
                state.checkpoints.take_back(checkpoint)
            refused = _with_zeros(refusal(ResponseCode.SYSTEM_ERROR, str(error)))
            return (LateReply(peer.number, request, refused),)
        for checkpoint, (record, _) in zip(checkpoints, records, strict=True):
            checkpoint.timer_offset = record.queue_offset
            state.checkpoints.add_first(checkpoint)
            state.timers.pass_over(record.queue_offset)
        return (LateReply(peer.number, request, answer),)

    if state.unwritable is not None:
        return on_stored(RocketMQError(f"no message is popped: {state.unwritable}"), now_ms)
    state.write_queue.add(
        [record for record, _ in records],
        [properties for _, properties in records],
        on_stored,
        is_flush_awaited=True,
    )
    return (StorePending(),)


def _pop_in_order(
    state: BrokerState,
    request: Command,
    header: PopRequest,
    peer: Peer,
    found: list[Taken],
    rest: int,
    now_ms: int,
) -> Sequence[Output]:
    """Note what was popped in order, and answer when that is saved."""
    counts: list[tuple[str, int, int | None, int]] = []
    for taken in found:
        order = Order(taken.offsets, now_ms, header.invisible_time, header.attempt_id)
        state.orders.pop((taken.topic, header.consumer_group, taken.queue_id), order)
        counts += [
            (PLAIN, taken.queue_id, offset, order.counts[offset])
            for offset in taken.offsets
            if offset in order.counts
        ]
        least = min(order.counts.get(offset, 0) for offset in taken.offsets)
        counts.append((PLAIN, taken.queue_id, None, least))
        if state.offsets.get(header.consumer_group, taken.topic, taken.queue_id) is None:
            state.offsets.commit(
                header.consumer_group, taken.topic, taken.queue_id, taken.offsets[0]
            )
    answer = _found(state, header, found, rest, IN_ORDER, now_ms)
    answer.fields["orderCountInfo"] = order_counts_text(counts)
    change = TablesChanged(state.tables_version, is_confirmed=True)
    return [change, LateReply(peer.number, request, answer)]


def _found(
    state: BrokerState,
    header: PopRequest,
    found: list[Taken],
    rest: int,
    revive_queue: int,
    now_ms: int,
) -> Command:
    """Return the reply with messages."""
    popped: list[PoppedOffsets] = []
    parts: list[bytes] = []
    for taken in found:
        popped.append(PoppedOffsets(taken.kind, taken.queue_id, taken.start, taken.offsets))
        receipt = Receipt(
            start=taken.start,
            pop_ms=now_ms,
            invisible_ms=header.invisible_time,
            revive_queue=revive_queue,
            kind=taken.kind,
            broker=state.options.name,
            queue_id=taken.queue_id,
            offset=0,
        )
        parts.append(reply_bytes(taken, header.topic, receipt))
    fields = {
        "popTime": str(now_ms),
        "invisibleTime": str(header.invisible_time),
        "reviveQid": str(revive_queue),
        "restNum": str(rest),
        "startOffsetInfo": start_offsets_text(popped),
        "msgOffsetInfo": message_offsets_text(popped),
    }
    return Command(_SUCCESS, fields, b"".join(parts), "FOUND")


def _empty(state: BrokerState, header: PopRequest, code: ResponseCode, now_ms: int) -> Command:
    """Return the reply without messages."""
    reply = PopReply(
        pop_time=now_ms,
        invisible_time=header.invisible_time,
        revive_qid=IN_ORDER if header.order else state.next_number() % REVIVE_QUEUES,
        start_offset_info="",
        msg_offset_info="",
        order_count_info="" if header.order else None,
    )
    return Command(int(code), reply.to_fields(), b"", _NO_MESSAGE)


def _give_up(
    state: BrokerState, request: Command, header: PopRequest, peer: Peer, now_ms: int
) -> Sequence[Output]:
    answer = _empty(state, header, ResponseCode.POLLING_TIMEOUT, now_ms)
    return (LateReply(peer.number, request, answer),)


# ---- checks ------------------------------------------------------------------------------------


def _check_age(state: BrokerState, born_ms: int, poll_ms: int, now_ms: int) -> Command | None:
    if born_ms <= 0 or now_ms - born_ms - poll_ms <= _LATE_MS:
        return None
    remark = f"the broker[{state.host.host}] pop message is timeout too much"
    return refusal(ResponseCode.POLLING_TIMEOUT, remark)


def _check_pop(state: BrokerState, header: PopRequest) -> Command | None:
    if not state.accepts_pulls:
        remark = f"the broker[{state.host.host}] pop message is forbidden"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    if header.max_msg_nums > _COUNT_MAX:
        remark = f"the broker[{state.host.host}] pop message's num is greater than {_COUNT_MAX}"
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    if header.max_msg_nums < 0:
        remark = f"maxMsgNums is {header.max_msg_nums}, and must not be negative"
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    return None


def _check_topic(state: BrokerState, name: str, queue_id: int, peer: Peer) -> Command | None:
    topic = state.topics.get(name)
    if topic is None:
        remark = f"topic[{name}] not exist, apply first please! {FAQ}"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not topic.perm & READ:
        remark = f"the topic[{name}] peeking message is forbidden"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    return _check_queue(topic, queue_id, peer)


def _check_queue(topic: TopicConfig, queue_id: int, peer: Peer) -> Command | None:
    if ALL_QUEUES <= queue_id < topic.read_queue_nums:
        return None
    remark = (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
    )
    return refusal(ResponseCode.INVALID_PARAMETER, remark)


def _check_group(
    state: BrokerState, name: str, now_ms: int, outputs: list[Output]
) -> Command | None:
    group = ensure_group(state, name, now_ms, outputs)
    if group is None:
        remark = f"subscription group [{name}] does not exist, {FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group.consume_enable:
        remark = f"subscription group no permission, {name}"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    return None


def _with_zeros(refused: Command) -> Command:
    """Add the fields that every reply to a pop has."""
    refused.fields = PopReply().to_fields()
    return refused


# ---- waiting -----------------------------------------------------------------------------------


def _hold(
    state: BrokerState,
    header: PopRequest | NotificationRequest,
    peer: Peer,
    attempt: Callable[[int], Sequence[Output] | None],
    give_up: Callable[[int], Sequence[Output]],
    now_ms: int,
) -> bool:
    """Hold a request; return False if there are too many."""
    topic, group = header.topic, header.consumer_group
    held = HeldPop(
        (topic, group), header.queue_id, peer, now_ms + header.poll_time, attempt, give_up
    )
    if header.order:
        held.wake_ms = _unblocked_ms(state, held, now_ms)
        return state.held_pops.hold(held, [topic])
    return state.held_pops.hold(held, [topic, *(name for _, name in retry_topics(topic, group))])


def _unblocked_ms(state: BrokerState, held: HeldPop, now_ms: int) -> int | None:
    """Return when the first blocked queue of a request becomes free, or None."""
    topic, group = held.place
    config = state.topics.get(topic)
    if config is None:
        return None
    is_one = held.queue_id != ALL_QUEUES
    queue_ids = [held.queue_id] if is_one else range(config.read_queue_nums)
    orders = [state.orders.get((topic, group, queue_id)) for queue_id in queue_ids]
    times = [order.blocked_until_ms() for order in orders if order is not None]
    return min((time_ms for time_ms in times if time_ms > now_ms), default=None)


def wake(state: BrokerState, record: Record, now_ms: int) -> list[Output]:
    """Serve the held pops that a stored record may concern."""
    outputs: list[Output] = []
    for place in state.held_pops.places_of(record.topic):
        is_own = record.topic == place[0]
        outputs += serve(state, place, record.queue_id if is_own else None, now_ms)
    return outputs


def serve(
    state: BrokerState, place: tuple[str, str], queue_id: int | None, now_ms: int
) -> list[Output]:
    """Try held pops of a place again, in order, as long as there are messages.

    Args:
        state: The broker.
        place: Topic and group.
        queue_id: The queue that has a new message; None for any.
        now_ms: The time.
    """
    outputs: list[Output] = []
    misses = 0
    for held in state.held_pops.at(place):
        if queue_id is not None and held.queue_id not in (queue_id, ALL_QUEUES):
            continue
        found = held.retry(now_ms)
        if found is None:
            misses += 1
            if misses > _MISSES_MAX:
                break
            continue
        state.held_pops.remove(held)
        outputs += found
    return outputs


def answer_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer held pops whose time is over, and those whose queue is free again."""
    outputs: list[Output] = []
    for held in state.held_pops.woken(now_ms):
        found = held.retry(now_ms)
        if found is not None:
            state.held_pops.remove(held)
            outputs += found
        elif (wake_ms := _unblocked_ms(state, held, now_ms)) is not None:
            state.held_pops.wake_at(held, wake_ms)
    for held in state.held_pops.expired(now_ms):
        outputs += held.retry(now_ms) or held.give_up(now_ms)
    return outputs


def answer_all_held(state: BrokerState, now_ms: int) -> list[Output]:
    """Answer all held pops without messages: the broker stops."""
    return [output for held in state.held_pops.all() for output in held.give_up(now_ms)]


# ---- peeks, notifications, counts --------------------------------------------------------------


def _peek(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PeekRequest.from_fields(request.fields)
    refused = _check_topic(state, header.topic, header.queue_id, peer)
    outputs: list[Output] = []
    refused = refused or _check_group(state, header.consumer_group, now_ms, outputs)
    if refused is not None:
        return [*outputs, Reply(_with_zeros(refused))]
    config = state.topics.get(header.topic)
    assert config is not None
    is_one = header.queue_id != ALL_QUEUES
    queue_ids = [header.queue_id] if is_one else range(config.read_queue_nums)
    count_left = min(max(header.max_msg_nums, 0), state.options.pull_messages_max)
    bytes_left = state.options.pull_bytes_max
    rest, parts = 0, list[bytes | memoryview]()
    for queue_id in queue_ids:
        start = start_offset(state, header.topic, header.consumer_group, queue_id, 0)
        taken = take(
            state,
            header.topic,
            queue_id,
            start,
            EVERYTHING,
            kind=PLAIN,
            count_max=count_left,
            bytes_max=bytes_left,
        )
        rest += state.store.queue(header.topic, queue_id).max_offset - start
        parts += taken.parts
        count_left -= len(taken.offsets)
        bytes_left -= sum(map(len, taken.parts))
        if bytes_left <= 0:
            count_left = 0
    fields = PopReply(rest_num=rest).to_fields()
    if parts:
        return [*outputs, Reply(Command(_SUCCESS, fields, b"".join(parts), "FOUND"))]
    code = int(ResponseCode.PULL_NOT_FOUND)
    return [*outputs, Reply(Command(code, fields, b"", _NO_MESSAGE))]


def _notify(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = NotificationRequest.from_fields(request.fields)
    outputs: list[Output] = []
    refused = _check_topic(state, header.topic, header.queue_id, peer)
    refused = refused or _check_group(state, header.consumer_group, now_ms, outputs)
    wanted = refused or filter_of_expression(state, header.exp, header.exp_type)
    if not isinstance(wanted, MessageFilter):
        wanted.fields = NotificationReply().to_fields()
        return [*outputs, Reply(wanted)]
    asked = _asked(header, wanted)

    def attempt(now_ms: int) -> Sequence[Output] | None:
        if not is_loaded(state, now_ms) or not has_message(state, asked, now_ms):
            return None
        return (LateReply(peer.number, request, _notification(has_msg=True)),)

    def give_up(now_ms: int) -> Sequence[Output]:
        return (LateReply(peer.number, request, _notification()),)

    if attempt(now_ms) is not None:
        return [*outputs, Reply(_notification(has_msg=True))]
    is_old = _check_age(state, header.born_time, header.poll_time, now_ms) is not None
    if header.poll_time <= 0 or is_old or request.is_oneway:
        return [*outputs, Reply(_notification())]
    if _hold(state, header, peer, attempt, give_up, now_ms):
        return outputs
    return [*outputs, Reply(_notification(polling_full=True))]


def _notification(*, has_msg: bool = False, polling_full: bool = False) -> Command:
    fields = NotificationReply(has_msg=has_msg, polling_full=polling_full).to_fields()
    return Command(_SUCCESS, fields, b"", _NO_REMARK)


def _count_polls(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PollingCountRequest.from_fields(request.fields)
    refused = _check_topic(state, header.topic, header.queue_id, peer)
    if refused is not None:
        refused.fields = PollingCountReply().to_fields()
        return [Reply(refused)]
    count = state.held_pops.count((header.topic, header.consumer_group), header.queue_id)
    return succeed(PollingCountReply(polling_num=count), remark=_NO_REMARK)


def _roll_back(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(remark=_NO_REMARK)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.POP_MESSAGE): _pop,
    int(RequestCode.PEEK_MESSAGE): _peek,
    int(RequestCode.NOTIFICATION): _notify,
    int(RequestCode.POLLING_INFO): _count_polls,
    int(RequestCode.POP_ROLLBACK): _roll_back,
}
