"""Pops: take messages that are invisible to others until they are acknowledged.

    200050   pop: consumerGroup, topic, queueId (-1: all), maxMsgNums, invisibleTime, pollTime,
             bornTime, initMode, expType and exp (filter), order, attemptId

Checked in Apache's order (Java: PopMessageProcessor): age of the request, permission, number,
topic, queue, group, filter. The reply is sent when the checkpoint is in the log, so what is popped
is never lost; in sync mode when it is durable, or a receipt would be void after a loss of power. A
pop that finds nothing and may wait is held (`pop_polls.py`), then answered with 210; beyond the
limits of held pops and of open checkpoints with 209.

Other than in Apache, a negative number of messages and a queue below -1 are refused (29), a filter
does not apply to the retry topics, and a pop is held until its time is over, not some 30 ms less.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.pop_checks import (
    NO_MESSAGE,
    check_age,
    check_group,
    check_topic,
    is_late,
    with_zeros,
)
from downrange.server.broker.handlers.pop_polls import hold
from downrange.server.broker.message_filter import MessageFilter, filter_of_expression
from downrange.server.broker.pop.checkpoint_records import REVIVE_QUEUES
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.pop.orders import Order
from downrange.server.broker.pop.pop_plan import PopOrder, take_messages
from downrange.server.broker.pop.queue_reader import with_receipts
from downrange.server.broker.pop.revival import is_loaded
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import (
    STORE_PENDING,
    LateReply,
    Output,
    Peer,
    Reply,
    TablesChanged,
    refusal,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.pop_headers import PopReply, PopRequest
from downrange.wire.pop_receipts import (
    IN_ORDER,
    PLAIN,
    PoppedOffsets,
    Receipt,
    message_offsets_text,
    order_counts_text,
    start_offsets_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.pop.queue_reader import Taken
    from downrange.server.broker.state import BrokerState
    from downrange.wire.batches import RunItem

#: The most messages of one pop.
_COUNT_MAX: Final = 32
_SUCCESS: Final = int(ResponseCode.SUCCESS)


# ---- pops --------------------------------------------------------------------------------------


def _pop(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PopRequest.from_fields(request.fields)
    outputs: list[Output] = []
    if not _is_accepted(state, header, now_ms):
        refused = _refuse(state, header, peer, now_ms, outputs)
        if refused is not None:
            return [*outputs, Reply(with_zeros(refused))]
    wanted = filter_of_expression(state, header.exp, header.exp_type)
    if not isinstance(wanted, MessageFilter):
        return [*outputs, Reply(with_zeros(wanted))]
    asked = _asked(header, wanted)
    found = _attempt(state, request, header, peer, asked, now_ms)
    if found is not None:
        return [*outputs, *found] if outputs else found
    attempt = partial(_attempt, state, request, header, peer, asked)
    give_up = partial(_give_up, state, request, header, peer)
    is_full = len(state.checkpoints) >= state.options.pop_checkpoints_max
    if not is_full and (header.poll_time <= 0 or request.is_oneway):
        return [*outputs, Reply(_empty(state, header, ResponseCode.POLLING_TIMEOUT, now_ms))]
    if not is_full and hold(state, header, peer, attempt, give_up, now_ms):
        if not wanted.is_all:  # there may be more to examine: the next tick goes on
            state.held_pops.wake_at((header.topic, header.consumer_group), now_ms + 1)
        return outputs
    return [*outputs, Reply(_empty(state, header, ResponseCode.POLLING_FULL, now_ms))]


def _asked(header: PopRequest, wanted: MessageFilter) -> PopOrder:
    return PopOrder(
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.max_msg_nums,
        wanted,
        header.init_mode,
        bool(header.order),
        header.attempt_id,
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
    checkpoints = state.checkpoints
    if not (state.is_pop_loaded or is_loaded(state, now_ms)):
        return None
    if len(checkpoints) >= state.options.pop_checkpoints_max:
        return None
    turn = state.next_number()
    found, rest = take_messages(state, asked, turn, now_ms)
    if not found:
        if rest:  # the filter matched none of those that were examined: go on in the next tick
            state.held_pops.wake_at((asked.topic, asked.group), now_ms + 1)
        return None
    group = asked.group
    for taken in found:
        state.statistics.consumed(group, taken.topic, len(taken.offsets), taken.size)
    if asked.is_ordered:
        return _pop_in_order(state, request, header, peer, found, rest, now_ms)
    revive_queue = turn % REVIVE_QUEUES
    invisible_ms = header.invisible_time
    pop_ms = now_ms  # the name of a checkpoint is unique, also if an offset was set back
    while checkpoints.has_any([(t.topic, group, t.queue_id, t.start, pop_ms) for t in found]):
        pop_ms += 1
    records = state.pop_records
    popped: list[Checkpoint] = []
    items: list[RunItem] = []
    for topic, _, queue_id, start, next_offset, offsets, _, _ in found:
        name = (topic, group, queue_id, start, pop_ms)
        checkpoint = Checkpoint(name, offsets, invisible_ms, revive_queue)
        popped.append(checkpoint)
        items.append(records.checkpoint_item(checkpoint, now_ms))
        checkpoints.hand_out(topic, group, queue_id, next_offset, is_checkpoint=True)
    answer = _found(state, header, found, rest, revive_queue, pop_ms)
    on_stored = partial(_popped, state, request, peer, popped, answer)
    if state.unwritable is not None:
        return on_stored(RocketMQError(f"no message is popped: {state.unwritable}"), 0)
    # A checkpoint behind one that is missing in the log would hide its messages after a restart.
    state.write_queue.add_run(items, on_stored, (asked.topic, group))
    return STORE_PENDING


def _popped(
    state: BrokerState,
    request: Command,
    peer: Peer,
    popped: list[Checkpoint],
    answer: Command,
    error: RocketMQError | None,
    offset: int,
) -> Sequence[Output]:
    """Answer a pop whose checkpoints are stored from an offset of the timer's queue on."""
    if error is not None:
        for checkpoint in popped:
            state.checkpoints.take_back(checkpoint)
        refused = with_zeros(refusal(ResponseCode.SYSTEM_ERROR, str(error)))
        return (LateReply(peer.number, request, refused),)
    for checkpoint in popped:
        checkpoint.timer_offset = offset
        state.checkpoints.add_first(checkpoint)
        state.timers.pass_over(offset)
        offset += 1
    return (LateReply(peer.number, request, answer),)


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
        # Others may be held already: they are served when the block ends.
        state.held_pops.wake_at((taken.topic, header.consumer_group), order.blocked_until_ms())
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
    pop_ms: int,
) -> Command:
    """Return the reply with messages."""
    popped: list[PoppedOffsets] = []
    parts: list[bytes | memoryview] = []
    for taken in found:
        kind, queue_id, start = taken.kind, taken.queue_id, taken.start
        popped.append((kind, queue_id, start, taken.offsets))
        if kind == PLAIN:
            parts += taken.parts
            continue
        receipt = Receipt(
            start=start,
            pop_ms=pop_ms,
            invisible_ms=header.invisible_time,
            revive_queue=revive_queue,
            kind=kind,
            broker=state.options.name,
            queue_id=queue_id,
            offset=0,
        )
        parts.append(with_receipts(taken, header.topic, receipt))
    fields = {
        "popTime": str(pop_ms),
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
    return Command(int(code), reply.to_fields(), b"", NO_MESSAGE)


def _give_up(
    state: BrokerState, request: Command, header: PopRequest, peer: Peer, now_ms: int
) -> Sequence[Output]:
    answer = _empty(state, header, ResponseCode.POLLING_TIMEOUT, now_ms)
    return (LateReply(peer.number, request, answer),)


def _is_accepted(state: BrokerState, header: PopRequest, now_ms: int) -> bool:
    """Whether nothing is wrong with a request; if not, `_refuse` says what, or creates a group."""
    topic, group = state.topics.get(header.topic), state.groups.get(header.consumer_group)
    return (
        topic is not None
        and group is not None
        and group.consume_enable
        and topic.perm & READ != 0
        and ALL_QUEUES <= header.queue_id < topic.read_queue_nums
        and 0 <= header.max_msg_nums <= _COUNT_MAX
        and state.accepts_pulls
        and not is_late(header.born_time, header.poll_time, now_ms)
    )


def _refuse(
    state: BrokerState, header: PopRequest, peer: Peer, now_ms: int, outputs: list[Output]
) -> Command | None:
    return (
        check_age(state, header.born_time, header.poll_time, now_ms)
        or _check_pop(state, header)
        or check_topic(state, header.topic, header.queue_id, peer)
        or check_group(state, header.consumer_group, now_ms, outputs)
    )


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


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.POP_MESSAGE): _pop,
}
