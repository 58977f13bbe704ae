"""Dead letters of pops in order: the head of a queue that was delivered too often.

The head is the first open message of a batch. Those behind it wait for it, so only the head is
moved, and the next one begins with a count of its own. (Apache's broker delivers the head for
ever.)

    a pop finds such a head        it is not delivered: the queue is blocked for the group
    the next tick                  stores the dead letter
    a tick when that is durable    goes on behind the head, and wakes the held pops

One rule: the table of orders passes the head only when the dead letter is durable, as the table is
saved apart from the log. A kill in between leads to a second dead letter, never to none. A head
that cannot be stored is delivered again, and so is one that the disk fails to read: another attempt
may succeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from downrange.errors import RocketMQError
from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.server.broker.pop.orders import DeadHead
from downrange.server.broker.pop.revival import delivery_record, read_message
from downrange.server.broker.scheduled.redirect import TICK_BYTES_MAX, TICK_RECORDS_MAX
from downrange.server.outputs import Note
from downrange.wire.pop_receipts import IN_ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.server.broker.pop.orders import Place
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output
    from downrange.wire.records import Record


def is_blocked(state: BrokerState, place: Place, attempt_id: str | None, now_ms: int) -> bool:
    """Whether a pop in order gets nothing from a queue now; notes a head that is to be moved."""
    orders = state.orders
    order = orders.get(place)
    if order is None:
        return False
    dead = orders.dead_heads.get(place)
    if dead is not None and dead.order is order:
        return True
    if orders.is_blocked(place, attempt_id, now_ms):
        return True
    is_repeated = attempt_id is not None and order.attempt_id == attempt_id
    group = state.groups.get(place[1])
    if not order.open or is_repeated or group is None or state.unwritable is not None:
        return False
    if order.tries_of(order.next_offset()) <= group.retry_max_times:
        return False
    orders.dead_heads[place] = DeadHead(order)
    return True


def move_dead_heads(state: BrokerState, now_ms: int) -> list[Output]:
    """Store dead letters of heads, and go on behind those whose dead letter is durable."""
    outputs: list[Output] = []
    dead_heads = state.orders.dead_heads
    count = size = 0
    for place, dead in list(dead_heads.items()):
        if _is_void(state, place, dead, now_ms):
            _forget(state, place, now_ms)
        elif dead.log_end is not None:
            if dead.log_end <= state.store.log.flushed:
                _pass(state, place, now_ms)
        elif count < TICK_RECORDS_MAX and size < TICK_BYTES_MAX:
            try:
                size += _store(state, place, dead, now_ms)
                count += 1
            except RocketMQError as error:
                text = f"message {dead.offset} of {place[0]} cannot be a dead letter: {error}"
                outputs.append(Note(text, is_warning=True))
                _pass(state, place, now_ms)
            except OSError as error:
                text = f"message {dead.offset} of {place[0]} cannot be read now: {error}"
                outputs.append(Note(text, is_warning=True))
                _deliver_again(state, place, dead, now_ms)
    return outputs


def _is_void(state: BrokerState, place: Place, dead: DeadHead, now_ms: int) -> bool:
    """Whether the batch was replaced, the head acknowledged or prolonged, or nothing is stored."""
    order = dead.order
    if state.orders.get(place) is not order or not order.open:
        return True
    if order.next_offset() != dead.offset:
        return True
    if dead.log_end is not None:
        return False
    return state.unwritable is not None or order.blocked_until_ms() > now_ms


def _forget(state: BrokerState, place: Place, now_ms: int) -> None:
    del state.orders.dead_heads[place]
    state.held_pops.wake_at(place[:2], now_ms)


def _deliver_again(state: BrokerState, place: Place, dead: DeadHead, now_ms: int) -> None:
    dead.order.head_tries = 0  # as often as the group allows
    _forget(state, place, now_ms)


def _pass(state: BrokerState, place: Place, now_ms: int) -> None:
    topic, group, queue_id = place
    state.offsets.commit(group, topic, queue_id, state.orders.pass_head(place, now_ms))
    _forget(state, place, now_ms)


def _store(state: BrokerState, place: Place, dead: DeadHead, now_ms: int) -> int:
    """Add the dead letter to the write queue; return its size.

    Raises:
        RocketMQError: The message was removed or is damaged.
        OSError: The disk fails.
    """
    topic, group, queue_id = place
    order, offset = dead.order, dead.offset
    name = (topic, group, queue_id, offset, order.pop_ms)
    delivery = Checkpoint(name, [offset], order.invisible_ms, IN_ORDER)
    message = replace(
        read_message(state, delivery, offset), reconsume_times=order.counts.get(offset, 0)
    )
    record, properties = delivery_record(state, delivery, message, now_ms, is_dead=True)

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is None:
            dead.log_end = _end_of(record)
            state.statistics.events.dead_letter(topic, group)
            return ()
        _deliver_again(state, place, dead, now_ms)
        return (Note(f"a dead letter cannot be stored: {error}", is_warning=True),)

    state.write_queue.add([record], [properties], on_stored)
    return len(record.body)


def _end_of(record: Record) -> int:
    return record.log_offset + record.size
