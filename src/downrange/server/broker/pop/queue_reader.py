"""What one pop takes from one queue.

A pop continues where the last pop of the group ended. For a group that is new in a queue, the
request says where to begin (Java: PopMessageProcessor.getInitOffset). How much one pop examines is
bounded, also if its filter matches nothing: the next pop continues after it.

A message of a retry topic is written anew for the reply: with the topic that the consumer asked
for, and with its receipt as property POP_CK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from downrange.server.broker.queues import is_new
from downrange.server.broker.record_fields import join_properties, make_room
from downrange.server.broker.record_scan import scan, scan_tags
from downrange.wire.limits import TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import MAGIC_V1, MAGIC_V2, decode_records, encode_record
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.server.broker.message_filter import MessageFilter
    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.pop_receipts import Receipt

#: `initMode`: a new group begins with the first message; any other value: with the last one.
_FROM_FIRST: Final = 0


class Taken(msgspec.Struct, frozen=True, gc=False):  # made per pop, and part of no cycle
    """Messages of one queue.

    Attributes:
        topic: The topic that has them.
        kind: See `Receipt.kind`.
        queue_id: The queue.
        start: Where the search began.
        next_offset: Where the next pop continues.
        offsets: Of the messages.
        parts: Their records.
        size: The bytes of these.
    """

    topic: str
    kind: str
    queue_id: int
    start: int
    next_offset: int
    offsets: Sequence[int]
    parts: Sequence[bytes | memoryview]
    size: int


def start_offset(
    state: BrokerState, queue: QueueIndex, group: str, queue_id: int, init_mode: int
) -> int:
    """Return where a pop of a group begins in a queue."""
    offset = state.checkpoints.next_offset(queue.topic, group, queue_id)
    if offset is None or offset < 0:
        offset = _first_offset(state, queue, init_mode)
    if queue.min_offset <= offset <= queue.max_offset:
        return offset
    return min(max(offset, queue.min_offset), queue.max_offset)


def _first_offset(state: BrokerState, queue: QueueIndex, init_mode: int) -> int:
    """Return where a group begins that is new in a queue."""
    if init_mode == _FROM_FIRST or queue.topic.startswith(RETRY_PREFIX):
        return queue.min_offset
    return 0 if is_new(state, queue) else max(queue.max_offset - 1, 0)


def take(
    state: BrokerState,
    queue: QueueIndex,
    queue_id: int,
    start: int,
    wanted: MessageFilter,
    kind: str,
    count_max: int,
    bytes_max: int,
    examined_max: int | None = None,
) -> Taken:
    """Read messages of a queue that a filter matches, from an offset on.

    Args:
        state: The broker.
        queue: The queue.
        queue_id: Its number.
        start: Where to begin.
        wanted: The filter.
        kind: See `Taken`.
        count_max: How many messages to take at most.
        bytes_max: The limit of all together. The first one is taken in any case.
        examined_max: How many messages to examine for tags at most; None for the usual limit.
    """
    topic, high = queue.topic, queue.max_offset
    if start >= high or not count_max:
        return Taken(topic, kind, queue_id, start, start, (), (), 0)
    hashes, expression = wanted
    if expression is not None:
        found, next_offset, _ = scan(state.store, queue, start, expression, count_max, bytes_max)
        offsets: Sequence[int] = [offset for offset, _ in found]
        parts: Sequence[bytes | memoryview] = [record for _, record in found]
    elif hashes is None:
        count, parts = state.store.read_range(queue.packed(start, count_max), bytes_max)
        # Without a message, those that are asked for have been removed.
        next_offset = start + (count or min(count_max, high - start))
        offsets = range(start, start + count)
    else:
        offsets, units, next_offset = scan_tags(
            queue, start, hashes, count_max, bytes_max, examined_max
        )
        count, parts = state.store.read_range(units, bytes_max)
        if 0 < count < len(offsets):
            next_offset = offsets[count]
        offsets = offsets[:count]
    size = sum(map(len, parts))
    return Taken(topic, kind, queue_id, start, next_offset, offsets, parts, size)


def with_receipts(taken: Taken, topic: str, receipt: Receipt) -> bytes:
    """Return the records of a retry topic as a reply has them.

    Args:
        taken: What was taken.
        topic: The topic that the consumer asked for.
        receipt: Of the checkpoint; its offset does not matter.
    """
    magic = MAGIC_V2 if len(topic.encode()) > TOPIC_BYTES_MAX else MAGIC_V1
    records: list[bytes] = []
    for record in decode_records(b"".join(taken.parts)):
        properties = record.properties()
        own = receipt._replace(queue_id=record.queue_id, offset=record.queue_offset)
        properties[PropertyKey.POP_CHECKPOINT] = str(own)
        if not make_room(properties, 0):  # a producer sent it to the retry topic
            del properties[PropertyKey.POP_CHECKPOINT]
        renamed = replace(
            record,
            magic=magic,
            topic_bytes=topic.encode(),
            property_bytes=join_properties(properties),
        )
        records.append(encode_record(renamed))
    return b"".join(records)
