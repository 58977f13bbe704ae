"""Pops: take messages that are invisible to others until they are acknowledged.

    200050   pop: consumerGroup, topic, queueId (-1: all), maxMsgNums, invisibleTime, pollTime,
             bornTime, initMode, expType and exp (filter), order, attemptId

Checked in Apache's order (Java: PopMessageProcessor): age of the request, permission, number,
topic, queue, group, filter. The reply is sent when the checkpoint is in the log, so what is popped
is never lost; in sync mode when it is durable, or a receipt would be void after a loss of power. A
pop that finds nothing and may wait is held (`pop_polls.py`), then answered with 210; beyond the
limits of held pops and of open checkpoints with 209.

Other than in Apache, a negative number of messages, a queue below -1 and a long attempt id are
refused (29), a filter does not apply to the retry topics, a pop is held until its time is over, not
some 30 ms less, and in order, too, a message becomes a dead letter (`dead_letters_in_order.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.pop_checks import (
    NO_MESSAGE,
    check_age,
    check_attempt,
    check_group,
    check_topic,
    invisible_within,
    is_late,
    with_zeros,
)
from downrange.server.broker.handlers.pop_polls import hold
from downrange.server.broker.message_filter import EVERYTHING, MessageFilter, filter_of_expression
from downrange.server.broker.pop.checkpoint_records import REVIVE_QUEUES
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.pop.held_pops import ALL_QUEUES
from downrange.server.broker.pop.orders import Order
from downrange.server.broker.pop.pop_plan import PopOrder, has_rest, plain_start, take_messages
from downrange.server.broker.pop.pop_store import store_items, until_durable
from downrange.server.broker.pop.queue_reader import with_receipts
from downrange.server.broker.pop.revival import is_loaded
from downrange.server.broker.pop.shared_retries import is_shared
from downrange.server.broker.tables.topic_table import READ
from downrange.server.outputs import HELD, LateReply, Output, Peer, Reply, TablesChanged, refusal
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.limits import INVISIBLE_MS_MAX, POPPED_MAX
from downrange.wire.pop_headers import PopReply, PopRequest
from downrange.wire.pop_receipts import (
    IN_ORDER,
    PLAIN,
    PoppedOffsets,
    Receipt,
    offsets_texts,
    order_counts_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.pop.queue_reader import Taken
    from downrange.server.broker.state import BrokerState
    from downrange.wire.run_items import RunItem

_SUCCESS: Final = int(ResponseCode.SUCCESS)


# ---- pops --------------------------------------------------------------------------------------


def _pop(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = PopRequest.from_fields(request.fields)
    if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
        header.invisible_time = invisible_within(header.invisible_time)
    outputs: list[Output] = []
    if not _is_accepted(state, header, now_ms):
        refused = _refuse(state, header, peer, now_ms, outputs)
        if refused is not None:
            return [*outputs, Reply(with_zeros(refused))]
    wanted = filter_of_expression(state, header.exp, header.exp_type)
    if not isinstance(wanted, MessageFilter):
        return [*outputs, Reply(with_zeros(wanted))]
    answer = _take(state, header, wanted, now_ms)
    if answer is not None:
        return [*outputs, *_conditions(state, header), Reply(answer)]
    attempt = partial(_attempt, state, request, header, peer, wanted)
    give_up = partial(_give_up, state, request, header, peer)
    is_full = len(state.checkpoints) >= state.options.pop_checkpoints_max
    if not is_full and (header.poll_time <= 0 or request.is_oneway):
        return [*outputs, Reply(_empty(state, header, ResponseCode.POLLING_TIMEOUT, now_ms))]
    if not is_full and hold(state, request, header, peer, wanted, attempt, give_up, now_ms):
        asked = _asked(header, wanted)
        is_partial = not wanted.is_all or is_shared(state, header.topic, header.consumer_group)
        if is_partial and has_rest(state, asked, now_ms):  # the next tick goes on
            state.held_pops.search_on((header.topic, header.consumer_group))
        return [*outputs, HELD]
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
    wanted: MessageFilter,
    now_ms: int,
) -> Sequence[Output] | None:
    """Answer a request that was held, if there are messages now."""
    answer = _take(state, header, wanted, now_ms)
    if answer is None:
        return None
    return (*_conditions(state, header), LateReply(peer.number, request, answer))


def _conditions(state: BrokerState, header: PopRequest) -> Sequence[Output]:
    """Return what stands before the answer to a pop with messages."""
    if header.order:
        return (TablesChanged(state.tables_version, is_confirmed=True),)
    return until_durable(state)


def _take(
    state: BrokerState, header: PopRequest, wanted: MessageFilter, now_ms: int
) -> Command | None:
    """Pop messages and store their checkpoints; None if there are none."""
    if not (state.is_pop_loaded or is_loaded(state, now_ms)):
        return None
    if len(state.checkpoints) >= state.options.pop_checkpoints_max:
        return None
    turn = state.next_number()
    if wanted is EVERYTHING and header.queue_id != ALL_QUEUES and not header.order:
        answer = _take_plain(state, header, turn, now_ms)
        if answer is not None:
            return answer
    asked = _asked(header, wanted)
    found, rest = take_messages(state, asked, turn, now_ms)
    if not found:
        if rest and asked.count_max:  # none matched so far: the next tick goes on
            state.held_pops.search_on((asked.topic, asked.group))
        return None
    group, consumed = asked.group, state.statistics.consumed
    for taken in found:
        consumed(group, taken.topic, len(taken.offsets), taken.size)
    if asked.is_ordered:
        return _pop_in_order(state, header, found, rest, now_ms)
    revive_queue = turn % REVIVE_QUEUES
    pop_ms = state.checkpoints.unused_ms(group, found, now_ms)
    popped: list[Checkpoint] = []
    items: list[RunItem] = []
    for taken in found:
        name = (taken.topic, group, taken.queue_id, taken.start, pop_ms)
        checkpoint = Checkpoint(name, taken.offsets, header.invisible_time, revive_queue)
        popped.append(checkpoint)
        items.append(state.pop_records.checkpoint_item(checkpoint, now_ms))
    try:
        timer_offset = store_items(state, items, now_ms)
    except RocketMQError as error:
        return _unstored(error)
    state.timers.pass_over(timer_offset, len(items))
    for number, checkpoint in enumerate(popped):
        checkpoint.timer_offset = timer_offset + number
        state.checkpoints.add_first(checkpoint, found[number].next_offset)
    return _found(state, header, found, rest, revive_queue, pop_ms)


def _take_plain(state: BrokerState, header: PopRequest, turn: int, now_ms: int) -> Command | None:
    """Do the same for most pops: everything of one queue, and the group has no retry topic.

    Returns:
        None if the pop is of another kind, or if there is no message; nothing is popped then.
    """
    topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
    found = plain_start(state, topic, group, queue_id, header.init_mode)
    if found is None:
        return None
    queue, start = found
    units = queue.packed(start, header.max_msg_nums)
    count, parts = state.store.read_range(units, state.options.pull_bytes_max)
    if not count:
        return None
    end = start + count
    name, checkpoints = (topic, group, queue_id, start, now_ms), state.checkpoints
    if checkpoints.get(name) is not None:  # an offset or the clock was set back
        return None
    offsets, body = range(start, end), b"".join(parts)
    state.statistics.consumed(group, topic, count, len(body))
    revive_queue, invisible_ms = turn % REVIVE_QUEUES, header.invisible_time
    checkpoint = Checkpoint(name, offsets, invisible_ms, revive_queue)
    item = state.pop_records.checkpoint_item(checkpoint, now_ms)
    try:
        checkpoint.timer_offset = timer_offset = store_items(state, (item,), now_ms)
    except RocketMQError as error:
        return _unstored(error)
    state.timers.pass_over(timer_offset)
    checkpoints.add_first(checkpoint, end)
    starts, messages = offsets_texts(((PLAIN, queue_id, start, offsets),))
    fields = {
        "popTime": f"{now_ms}",
        "invisibleTime": f"{invisible_ms}",
        "reviveQid": f"{revive_queue}",
        "restNum": f"{queue.max_offset - end}",
        "startOffsetInfo": starts,
        "msgOffsetInfo": messages,
    }
    return Command(_SUCCESS, fields, body, "FOUND")


def _unstored(error: RocketMQError) -> Command:
    return with_zeros(refusal(ResponseCode.SYSTEM_ERROR, f"no message is popped: {error}"))


def _pop_in_order(
    state: BrokerState, header: PopRequest, found: list[Taken], rest: int, now_ms: int
) -> Command:
    """Note what was popped in order; the answer waits until that is saved."""
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
    return answer


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
    starts, messages = offsets_texts(popped)
    fields = {
        "popTime": f"{pop_ms}",
        "invisibleTime": f"{header.invisible_time}",
        "reviveQid": f"{revive_queue}",
        "restNum": f"{rest}",
        "startOffsetInfo": starts,
        "msgOffsetInfo": messages,
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
        and 0 <= header.max_msg_nums <= POPPED_MAX
        and state.accepts_pulls
        and (header.attempt_id is None or check_attempt(header.attempt_id) is None)
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
    if header.max_msg_nums > POPPED_MAX:
        remark = f"the broker[{state.host.host}] pop message's num is greater than {POPPED_MAX}"
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    if header.max_msg_nums < 0:
        remark = f"maxMsgNums is {header.max_msg_nums}, and must not be negative"
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    return check_attempt(header.attempt_id)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.POP_MESSAGE): _pop,
}
