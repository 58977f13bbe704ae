"""Acknowledgements of popped messages, and changes of the time for which they are invisible.

    200051   acknowledge one message: consumerGroup, topic, queueId, extraInfo (receipt), offset
    200151   acknowledge many: body with group, topic, receipt and a bit set of offsets, per
             checkpoint
    200053   change when a message becomes visible: fields of 200051, invisibleTime, from now on.
             The reply has the new receipt; the old one is no longer valid. With suspend, this
             delivery does not count; it has no effect on a message that was popped in order

Kept from Apache (Java: AckMessageProcessor, ChangeInvisibleTimeProcessor): an acknowledgement is
answered with 0 also if it is repeated or too late; an offset that the queue does not have with 208.
The reply is sent when the acknowledgement is in the log, and durable in sync mode. In a batch, an
element whose topic or queue does not exist is passed over.

Other than in Apache, a change with a receipt that is no longer valid is refused (208): Apache makes
the message visible a second time, even if it was acknowledged. A change that would open one
checkpoint more than `pop_checkpoints_max` is refused, too (2, busy). The message is visible again
at its earlier time then; Java's consumers only log such an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.handlers.answers import refuse
from downrange.server.broker.handlers.pop_checks import NO_REMARK, invisible_within
from downrange.server.broker.handlers.pop_polls import serve_when_free
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.pop.pop_store import store_items, until_durable
from downrange.server.broker.pop.revival import is_loaded
from downrange.server.broker.queues import find_queue
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
from downrange.wire.limits import INT64_MAX
from downrange.wire.pop_bodies import BatchAckBody, decode_pop_body
from downrange.wire.pop_headers import (
    AckRequest,
    ChangeInvisibleReply,
    ChangeInvisibleRequest,
)
from downrange.wire.pop_receipts import IN_ORDER, PLAIN, Receipt, parse_receipt, popped_topic
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.pop.checkpoints import CheckpointName
    from downrange.server.broker.state import BrokerState
    from downrange.wire.run_items import RunItem

#: How many checkpoints one request may acknowledge, so that it does not delay other clients.
_ACKS_MAX: Final = 1_024
_TOO_LATE: Final = (
    "the receipt is no longer valid: the message was acknowledged, or is visible again"
)
_NOT_LOADED: Final = "the broker has just started and still reads its checkpoints: try again"
_FULL: Final = (
    "{count} pops and changed messages are open, which is the limit: try again; the message is "
    "visible again at its earlier time"
)


# ---- acknowledgements --------------------------------------------------------------------------


def _ack(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = AckRequest.from_fields(request.fields)
    receipt = parse_receipt(header.extra_info, header.queue_id, header.offset)
    refused = _check(state, header.topic, header.queue_id, peer) or _check_offset(
        state, header, receipt
    )
    if refused is not None:
        return [Reply(refused)]
    topic = receipt.topic(header.topic, header.consumer_group)
    if receipt.is_in_order:
        place = (topic, header.consumer_group, header.queue_id)
        return _ack_in_order(state, [(place, receipt.pop_ms, [header.offset])], now_ms)
    name = (topic, header.consumer_group, header.queue_id, receipt.start, receipt.pop_ms)
    checkpoint = state.checkpoints.get(name)
    if checkpoint is None:
        checkpoint = _unread(state, name, receipt.invisible_ms, receipt.revive_queue)
        if checkpoint is None:
            return [Reply(Command(0))]
    offsets = [header.offset]
    bits = checkpoint.bits_of(offsets)
    if not bits and checkpoint.offsets:
        return [Reply(Command(0))]
    item = state.pop_records.acknowledgement_item(checkpoint, offsets, now_ms, is_batch=False)
    return _store_acks(state, [(checkpoint, bits)], [item], now_ms)


def _ack_many(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    body = decode_pop_body(BatchAckBody, request.body or b"{}")
    if not body.acks:
        return [Reply(Command(int(ResponseCode.NO_MESSAGE)))]
    if len(body.acks) > _ACKS_MAX:
        remark = f"{len(body.acks)} checkpoints are more than {_ACKS_MAX}"
        return refuse(ResponseCode.INVALID_PARAMETER, remark)
    acks: list[tuple[Checkpoint, int]] = []
    items: list[RunItem] = []
    ordered: list[tuple[tuple[str, str, int], int, Sequence[int]]] = []
    for ack in body.acks:
        offsets, topic, group, queue_id = ack.offsets(), ack.topic, ack.group, ack.queue_id
        config = state.topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            continue
        if ack.kind != PLAIN:
            topic = popped_topic(ack.kind, topic, group)
        if ack.revive_queue == IN_ORDER:
            ordered.append(((topic, group, queue_id), ack.pop_ms, offsets))
            continue
        name = (topic, group, queue_id, ack.start, ack.pop_ms)
        checkpoint = state.checkpoints.get(name)
        if checkpoint is None:
            checkpoint = _unread(state, name, ack.invisible_ms, ack.revive_queue)
            if checkpoint is None:
                continue
        bits = checkpoint.bits_of(offsets)
        if bits or not checkpoint.offsets:
            acks.append((checkpoint, bits))
            item = state.pop_records.acknowledgement_item
            items.append(item(checkpoint, offsets, now_ms, is_batch=True))
    if not ordered:
        return _store_acks(state, acks, items, now_ms)
    outputs = _ack_in_order(state, ordered, now_ms)
    if not acks:
        return outputs
    outputs = [output for output in outputs if not isinstance(output, Reply)]
    return [*outputs, *_store_acks(state, acks, items, now_ms)]


def _unread(
    state: BrokerState, name: CheckpointName, invisible_ms: int, revive_queue: int
) -> Checkpoint | None:
    """Return a checkpoint without messages in place of one that is not known, or None.

    As long as the records of the last run are not read, a receipt counts as valid: its
    acknowledgement is stored and applied when it is read.
    """
    if state.is_pop_loaded or state.groups.get(name[1]) is None:
        return None
    # The numbers are the client's: the time of the record, their sum, must have 64 bits.
    invisible_ms = min(invisible_within(invisible_ms), INT64_MAX - name[4])
    return Checkpoint(name, (), invisible_ms=invisible_ms, revive_queue=revive_queue)


def _store_acks(
    state: BrokerState,
    acks: Sequence[tuple[Checkpoint, int]],
    items: Sequence[RunItem],
    now_ms: int,
) -> Sequence[Output]:
    """Store acknowledgements and close what they acknowledge.

    Args:
        state: The broker.
        acks: Checkpoints, and the bits of the messages; what is acknowledged already, or unknown,
            is not among them.
        items: Their records.
        now_ms: The time.
    """
    if not acks:
        return [Reply(Command(0))]
    try:
        timer_offset = store_items(state, items, now_ms)
    except RocketMQError as error:
        return refuse(ResponseCode.SYSTEM_ERROR, str(error))
    for checkpoint, bits in acks:
        if checkpoint.offsets:
            state.timers.pass_over(timer_offset)
            bits &= checkpoint.open_bits  # a batch may name the same message twice
            if bits:
                state.checkpoints.close(checkpoint, bits)
        timer_offset += 1
    return [*until_durable(state), Reply(Command(0))]


def _ack_in_order(
    state: BrokerState,
    acks: Sequence[tuple[tuple[str, str, int], int, Sequence[int]]],
    now_ms: int,
) -> Sequence[Output]:
    """Acknowledge messages that were popped in order; the reply waits until that is saved."""
    outputs: list[Output] = []
    for place, pop_ms, offsets in acks:
        topic, group, queue_id = place
        for offset in offsets:
            committed = state.orders.acknowledge(place, offset, pop_ms, now_ms)
            if committed is not None:
                state.offsets.commit(group, topic, queue_id, committed)
        outputs += serve_when_free(state, place, now_ms)
    return [*outputs, TablesChanged(state.tables_version, is_confirmed=True), Reply(Command(0))]


# ---- changes -----------------------------------------------------------------------------------


def _change(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ChangeInvisibleRequest.from_fields(request.fields)
    header.invisible_time = invisible_within(header.invisible_time)
    receipt = parse_receipt(header.extra_info, header.queue_id, header.offset)
    refused = _check(state, header.topic, header.queue_id, peer) or _check_change(
        state, header, receipt
    )
    if refused is not None:
        return _refuse_change(refused)
    topic = receipt.topic(header.topic, header.consumer_group)
    if receipt.is_in_order:
        place = (topic, header.consumer_group, header.queue_id)
        return _change_in_order(state, place, header, receipt, now_ms)
    name = (topic, header.consumer_group, header.queue_id, receipt.start, receipt.pop_ms)
    if not is_loaded(state, now_ms):
        return _refuse_change(refusal(ResponseCode.SYSTEM_BUSY, _NOT_LOADED))
    old = state.checkpoints.get(name)
    bits = 0 if old is None else old.bits_of([header.offset])
    if old is None or not bits:
        return _refuse_change(refusal(ResponseCode.NO_MESSAGE, _TOO_LATE))
    count = len(state.checkpoints)  # an earlier change of this turn is stored: see `Broker.handle`
    is_one_more = old.open_bits != bits  # otherwise the new checkpoint takes the place of the old
    if is_one_more and count >= state.options.pop_checkpoints_max:
        return _refuse_change(refusal(ResponseCode.SYSTEM_BUSY, _FULL.format(count=count)))
    # A receipt is never valid twice, also if changes have the same time or the clock is set back.
    pop_ms = max(now_ms, old.pop_ms + 1)
    while state.checkpoints.get((*name[:3], header.offset, pop_ms)) is not None:
        pop_ms += 1
    new = Checkpoint(
        (*name[:3], header.offset, pop_ms),
        [header.offset],
        invisible_ms=max(now_ms + header.invisible_time - pop_ms, 0),
        revive_queue=old.revive_queue,
        is_suspended=header.suspend,
    )
    return _store_change(state, request, peer, old, new, now_ms)


def _refuse_change(refused: Command) -> Sequence[Output]:
    refused.fields = ChangeInvisibleReply().to_fields()
    return [Reply(refused)]


def _store_change(
    state: BrokerState,
    request: Command,
    peer: Peer,
    old: Checkpoint,
    new: Checkpoint,
    now_ms: int,
) -> Sequence[Output]:
    """Store the new checkpoint of a message, then the acknowledgement of the old one."""
    opened, opened_properties = state.pop_records.checkpoint(new, now_ms)
    closed, closed_properties = state.pop_records.acknowledgement(
        old, new.offsets, now_ms, is_batch=False
    )

    def on_stored(error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        if error is not None:
            refused = refusal(ResponseCode.SYSTEM_ERROR, str(error))
            return (LateReply(peer.number, request, refused),)
        new.timer_offset = opened.queue_offset
        state.timers.pass_over(opened.queue_offset)
        state.timers.pass_over(closed.queue_offset)
        state.checkpoints.add(new, moves_next=False)
        # Other changes and acknowledgements of this turn are stored before or after this one.
        state.checkpoints.close(old, old.bits_of(new.offsets))
        reply = ChangeInvisibleReply(
            pop_time=new.pop_ms, invisible_time=new.invisible_ms, revive_qid=new.revive_queue
        )
        answer = Command(0, reply.to_fields(), b"", NO_REMARK)
        return (LateReply(peer.number, request, answer),)

    if state.unwritable is not None:
        return refuse(ResponseCode.SYSTEM_ERROR, f"nothing is stored: {state.unwritable}")
    state.write_queue.add(
        [opened, closed],
        [opened_properties, closed_properties],
        on_stored,
        is_flush_awaited=True,
    )
    return STORE_PENDING


def _change_in_order(
    state: BrokerState,
    place: tuple[str, str, int],
    header: ChangeInvisibleRequest,
    receipt: Receipt,
    now_ms: int,
) -> Sequence[Output]:
    visible_ms = now_ms + header.invisible_time
    reply = ChangeInvisibleReply()
    outputs: Sequence[Output] = ()
    if state.orders.change(place, header.offset, receipt.pop_ms, visible_ms, now_ms):
        reply = ChangeInvisibleReply(
            pop_time=receipt.pop_ms,
            invisible_time=visible_ms - receipt.pop_ms,
            revive_qid=IN_ORDER,
        )
        outputs = serve_when_free(state, place, now_ms)
    answer = Command(0, reply.to_fields(), b"", NO_REMARK)
    return [*outputs, TablesChanged(state.tables_version, is_confirmed=True), Reply(answer)]


# ---- checks ------------------------------------------------------------------------------------


def _check(state: BrokerState, name: str, queue_id: int, peer: Peer) -> Command | None:
    topic = state.topics.get(name)
    if topic is None:
        remark = f"topic[{name}] not exist, apply first please! {FAQ}"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not 0 <= queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{queue_id}] is illegal, topic:[{name}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]"
        )
        return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
    return None


def _check_offset(state: BrokerState, header: AckRequest, receipt: Receipt) -> Command | None:
    topic = receipt.topic(header.topic, header.consumer_group)
    queue = find_queue(state, topic, header.queue_id)
    if queue is None or queue.min_offset <= header.offset <= queue.max_offset:
        return None
    remark = (
        f"offset is illegal, key:{topic}@{header.queue_id}, commit:{header.offset}, "
        f"store:{queue.min_offset}~{queue.max_offset}"
    )
    return refusal(ResponseCode.NO_MESSAGE, remark)


def _check_change(
    state: BrokerState, header: ChangeInvisibleRequest, receipt: Receipt
) -> Command | None:
    topic = receipt.topic(header.topic, header.consumer_group)
    queue = find_queue(state, topic, header.queue_id)
    if queue is not None and queue.min_offset <= header.offset < queue.max_offset:
        return None
    return refusal(ResponseCode.NO_MESSAGE, NO_REMARK)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.ACK_MESSAGE): _ack,
    int(RequestCode.BATCH_ACK_MESSAGE): _ack_many,
    int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME): _change,
}
