"""The messages in the body of a reply: records that follow each other, as in a commit log.

Splitting checks all lengths, so reading a field later cannot fail. A message gets its body, queue
and offset at once. It keeps copies of the fixed part and the properties of its record and reads the
other fields from them when they are used (`model.ReceivedMessage`). So a kept message does not keep
the whole reply in memory, and a message whose body alone is used pays for nothing else.

What is checked when: magic and lengths of all records first (`MalformedRecord`), then, record by
record, inner batches and compressed bodies (`MalformedBody`), all before a message is returned. The
CRC of a body is not checked. Text that is not UTF-8 is no error: it shows as U+FFFD.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from downrange.model import QueueId, ReadLater, ReceivedMessage
from downrange.native import twin
from downrange.wire.codes import SysFlag
from downrange.wire.compression import Compression, compression_of, decompress
from downrange.wire.limits import TOPIC_BYTES_MAX
from downrange.wire.properties import decode_properties, find_property
from downrange.wire.records import MAGIC_V1, Record, decode_fixed, decode_record, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.model import CompressionName

MessageT = TypeVar("MessageT", bound=ReceivedMessage)

# Plain numbers: arithmetic with enum members costs more than reading a record.
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_INNER_BITS: Final = int(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP)
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_V6_BITS: Final = _BORN_V6 | _STORE_V6
#: sysFlag's host bits -> reads size, magic, queue id, queue offset, sysFlag and the body's length.
_HEADS: Final = {
    bits: Struct(f">ii4xi4xq8xi8x{born}x4x8x{store}x4x4x8xi")
    for bits, born, store in [
        (0, 4, 4),
        (_BORN_V6, 16, 4),
        (_STORE_V6, 4, 16),
        (_V6_BITS, 16, 16),
    ]
}
_FIXED_BYTES_MAX: Final = _HEADS[_V6_BITS].size
#: The topic and the lengths of topic and properties.
_TOPIC_ROOM_MAX: Final = TOPIC_BYTES_MAX + 3
_I16: Final = Struct(">h")
_COMPRESSION_NAMES: Final[dict[Compression, CompressionName]] = {
    Compression.ZLIB: "zlib",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}
#: The positions of two fields in the fixed part of a record.
_FLAG_AT: Final = 16
_SYS_FLAG_AT: Final = 36

# Users cannot change a message, but its slots can be set. That is also faster than its constructor.
_set: Final = object.__setattr__
_slots: Final[dict[str, Any]] = {**vars(ReadLater), **vars(ReceivedMessage)}
_set_record: Final = _slots["_record"].__set__
_set_body: Final = _slots["body"].__set__
_set_queue: Final = _slots["queue"].__set__
_set_offset: Final = _slots["offset"].__set__
#: Runs an iterator to its end.
_run: Final = deque[None](maxlen=0).extend


class RecordBytes(msgspec.Struct, gc=False):
    """What a message keeps of its record, to read fields from it; see `model.StoredRecord`."""

    fixed: bytes
    properties: bytes

    def read(self, message: ReceivedMessage, name: str) -> None:
        """Set the slot of a field of the message, and of those that are read together with it."""
        if name == "message_id":
            unique_id = find_property(self.properties, "UNIQ_KEY")
            _set(message, "message_id", message.offset_id if unique_id is None else unique_id)
        elif name == "properties":
            text = self.properties.decode("utf-8", "replace")
            _set(message, "properties", decode_properties(text))
        elif name == "compression":
            _set(message, "compression", None)  # it is set already if the body is still compressed
        else:
            _read_fixed(message, name, decode_fixed(self.fixed))

    def property_text(self, key: str) -> str | None:
        """Return the value of a property, without decoding the others."""
        return find_property(self.properties, key)


def _read_fixed(message: ReceivedMessage, name: str, record: Record) -> None:
    if name == "offset_id":
        _set(message, "offset_id", record.offset_id)
    elif name == "born_host":
        _set(message, "born_host", record.born_host)
    else:
        _set(message, "log_offset", record.log_offset)
        _set(message, "flag", record.flag)
        _set(message, "born_at_ms", record.born_ms)
        _set(message, "stored_at_ms", record.store_ms)
        _set(message, "delivery_attempts", record.reconsume_times)


def messages_in(
    data: bytes,
    broker: str,
    message_class: type[MessageT],
    *,
    body_bytes_max: int | None,
    shown_topic: Callable[[str], str] | None = None,
) -> list[MessageT]:
    """Return the messages in the body of a reply to a pull, pop, query or view request.

    Args:
        data: The body.
        broker: The name of the broker that sent it; a record does not contain it.
        message_class: `ReceivedMessage`, or a subclass with further slots. Its constructor is not
            called; set its slots with `object.__setattr__`.
        body_bytes_max: The largest body after decompression; None leaves bodies compressed.
        shown_topic: Changes the name of a topic; called once for each run of equal topics.

    Raises:
        MalformedRecord: A record is damaged; `data[:error.position]` has those before it.
        MalformedBody: A body cannot be decompressed, or an inner batch is malformed.
    """
    split = _Split(data, broker, message_class, shown_topic)
    at, end = 0, len(data)
    while at < end:
        at = split.usual_run(at)
        if at < end:
            record = decode_record(data, at)
            split.entries.append((at, record))
            split.is_plain = False
            at += record.size
    return split.entries if split.is_plain else list(split.unpacked(body_bytes_max))


def place(message: ReceivedMessage, queue: QueueId, offset: int) -> None:
    """Set where a message was read from, instead of copying it.

    Only for a message that no user has seen yet: for users, a message never changes.
    """
    _set_queue(message, queue)
    _set_offset(message, offset)


#: Where the records end, whether a body is compressed; then a list for each column: fixed parts,
#: properties, bodies, queues, queue offsets.
Columns: TypeAlias = tuple[
    int, bool, list[bytes], list[bytes], list[bytes], list[QueueId], list[int]
]


def pure_usual_records(data: bytes, at: int, queue_of: Callable[[bytes, int], QueueId]) -> Columns:
    """Split records from a position on into columns, up to the first one of an unusual form.

    That is one that is damaged, cut off, has a long topic (V2) or an inner batch, or lies close to
    the end of the data.

    Args:
        data: Records that follow each other.
        at: Where a record begins.
        queue_of: Returns the queue for the bytes of a topic and a queue id; called once for each
            run of equal ones.
    """
    fixed: list[bytes] = []
    properties: list[bytes] = []
    bodies: list[bytes] = []
    queues: list[QueueId] = []
    offsets: list[int] = []
    is_compressed = False
    starts_with, i16_at = data.startswith, _I16.unpack_from
    data_end = len(data)
    last_at = data_end - _FIXED_BYTES_MAX
    # Records of a reply are alike: the same flags, topic and queue id as the one before.
    flags = number = queue = None
    unpack_from, fixed_size = _HEADS[0].unpack_from, _HEADS[0].size
    topic_field, topic_room = b"", 0
    while at <= last_at:
        size, magic, queue_id, offset, sys_flag, body_size = unpack_from(data, at)
        if sys_flag != flags:
            if sys_flag & _INNER_BITS == _INNER_BITS:
                break
            head = _HEADS[sys_flag & _V6_BITS]
            unpack_from, fixed_size, flags = head.unpack_from, head.size, sys_flag
            continue
        body_at = at + fixed_size
        tail_at = body_at + body_size
        end = at + size
        if magic != MAGIC_V1 or body_size < 0 or not tail_at < end <= data_end:
            break
        if queue_id != number or not starts_with(topic_field, tail_at):
            topic_at = tail_at + 1
            topic_field = data[tail_at : topic_at + data[tail_at]]
            topic_room = data[tail_at] + 3  # the lengths of topic and properties
            queue = None
        properties_at = tail_at + topic_room
        if (
            properties_at > end
            or i16_at(data, properties_at - 2)[0] != end - properties_at
            or topic_room > _TOPIC_ROOM_MAX
        ):
            break
        if queue is None:
            queue, number = queue_of(topic_field[1:], queue_id), queue_id
        is_compressed = is_compressed or sys_flag & _COMPRESSED != 0
        fixed.append(data[at:body_at])
        properties.append(data[properties_at:end])
        bodies.append(data[body_at:tail_at])
        queues.append(queue)
        offsets.append(offset)
        at = end
    return at, is_compressed, fixed, properties, bodies, queues, offsets


usual_records: Final = twin(pure_usual_records)


class _Split(Generic[MessageT]):
    """The body of a reply, while it is split into messages.

    Attributes:
        entries: The messages; for an unusual record, its position and the record.
        is_plain: Whether all entries are messages, and no body is compressed.
    """

    __slots__ = ("_broker", "_data", "_message_class", "_shown_topic", "entries", "is_plain")

    def __init__(
        self,
        data: bytes,
        broker: str,
        message_class: type[MessageT],
        shown_topic: Callable[[str], str] | None,
    ) -> None:
        self._data = data
        self._broker = broker
        self._message_class = message_class
        self._shown_topic = shown_topic
        self.entries: list[Any] = []
        self.is_plain = True

    def usual_run(self, at: int) -> int:
        """Add the messages from a position on, and return the position behind them."""
        end, is_compressed, fixed, properties, bodies, queues, offsets = usual_records(
            self._data, at, self._queue
        )
        self.is_plain = self.is_plain and not is_compressed
        # Loops in C: a loop in Python over the columns would cost three times as much.
        kind = self._message_class
        messages = list(map(kind.__new__, repeat(kind, len(bodies))))
        _run(map(_set_record, messages, map(RecordBytes, fixed, properties)))
        _run(map(_set_body, messages, bodies))
        _run(map(_set_queue, messages, queues))
        _run(map(_set_offset, messages, offsets))
        self.entries += messages
        return end

    def unpacked(self, body_bytes_max: int | None) -> Iterator[MessageT]:
        """Return the messages of all entries, in order, after unwrapping and decompressing.

        Raises:
            MalformedBody: A body cannot be decompressed, or an inner batch is malformed.
        """
        for entry in self.entries:
            if isinstance(entry, tuple):
                at, record = entry
                fixed = self._data[at : at + _FIXED_BYTES_MAX]  # it may be shorter
                for inner in unwrap(record):
                    message = self._message(fixed, inner)
                    _unpack(message, inner.sys_flag, body_bytes_max)
                    yield message
            else:
                sys_flag = int.from_bytes(entry._record.fixed[_SYS_FLAG_AT : _SYS_FLAG_AT + 4])
                _unpack(entry, sys_flag, body_bytes_max)
                yield entry

    def _message(self, fixed: bytes, record: Record) -> MessageT:
        """Return a message of an unusual record: its own one, or one of its inner batch."""
        flag = record.flag.to_bytes(4, "big", signed=True)
        fixed = b"".join((fixed[:_FLAG_AT], flag, fixed[_FLAG_AT + 4 :]))
        message = self._message_class.__new__(self._message_class)
        _set_record(message, RecordBytes(fixed, record.property_bytes))
        _set_body(message, record.body)
        _set_queue(message, self._queue(record.topic_bytes, record.queue_id))
        _set_offset(message, record.queue_offset)
        return message

    def _queue(self, topic_bytes: bytes, number: int) -> QueueId:
        topic = topic_bytes.decode(errors="replace")
        if self._shown_topic is not None:
            topic = self._shown_topic(topic)
        return QueueId(topic, self._broker, number)


def _unpack(message: ReceivedMessage, sys_flag: int, body_bytes_max: int | None) -> None:
    """Decompress the body, or, without a limit, set how it is compressed."""
    compression = compression_of(sys_flag)
    if compression is None:
        return
    if body_bytes_max is None:
        _set(message, "compression", _COMPRESSION_NAMES[compression])
    else:
        _set_body(message, decompress(message.body, sys_flag, body_bytes_max))
