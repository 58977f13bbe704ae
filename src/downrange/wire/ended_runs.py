"""The ends of half messages that are stored together: committed messages and op records.

A commit stores the message, and behind it an op record that lists its half; a rollback stores only
the op record. The message has the bytes of the half, except for its own place, the bit of a commit,
and the properties that only a half has.

This is for plain halves (`send_runs`), whose records are still in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from downrange.errors import MalformedRecord
from downrange.native import twin
from downrange.wire.batches import QUEUE_UNIT, EncodedRun, QueueKey, RecordRun, add_key_entries
from downrange.wire.codes import SysFlag, TransactionFlag
from downrange.wire.hashes import tag_hash
from downrange.wire.properties import PropertyKey, index_properties
from downrange.wire.records import MAGIC_V1, Record, decode_record, encode_parts, record_size
from downrange.wire.send_runs import half_place
from downrange.wire.system_names import HALF_DONE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

_OP_PROPERTIES: Final = f"{PropertyKey.TAGS}\x01d\x02".encode()
_NOT_A_HALF: Final = "these are not the bytes of a half message"
_OP_TOPIC: Final = HALF_DONE_TOPIC.encode()
_COMMIT: Final = int(TransactionFlag.COMMIT)
_BORN_HOST_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_HOST_V6: Final = int(SysFlag.STORE_HOST_V6)


def op_record(store: tuple[bytes, int], offset: int, now_ms: int) -> Record:
    """Return the op record that ends a half.

    Args:
        store: Address and port of the broker.
        offset: The offset of the half.
        now_ms: The time.
    """
    ip, port = store
    return Record(
        sys_flag=_BORN_HOST_V6 | _STORE_HOST_V6 if len(ip) == 16 else 0,
        born_ms=now_ms,
        born_ip=ip,
        born_port=port,
        store_ip=ip,
        store_port=port,
        body=b"%d" % offset,
        topic_bytes=_OP_TOPIC,
        property_bytes=_OP_PROPERTIES,
    )


class EndedRun(RecordRun, Protocol):
    """Ends of half messages."""

    def add_end(
        self, half: bytes | None, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        """Add the records of one end.

        Args:
            half: The record of the half if it is committed.
            topic: The topic of its message.
            queue_id: The queue there.
            offset: The offset of the half that the op record lists.
            now_ms: The time.

        Raises:
            ValueError: The bytes are not those of a half with this place. Nothing was added.
        """
        ...


class PureEndedRun:
    """See `EndedRun`; the methods are those of `EndedRun` and `RecordRun`."""

    __slots__ = ("_records", "_store", "_store_flag", "_written", "queue_offsets", "queues")

    def __init__(self, store: tuple[bytes, int]) -> None:
        self._store = store
        self._store_flag = _STORE_HOST_V6 if len(store[0]) == 16 else 0
        self._records: list[Record] = []
        self._written = 0
        self.queues: list[QueueKey] = []
        self.queue_offsets: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def requests(self) -> int:
        return len(self._records)

    @property
    def has_nul(self) -> bool:
        return False  # the half was stored

    @property
    def counts(self) -> Sequence[int]:
        return [len(self._of(queue)) for queue in self.queues]

    @property
    def queue_bytes(self) -> Sequence[int]:
        written = self._records[: self._written]
        return [sum(each.size for each in written if _queue(each) == key) for key in self.queues]

    def add_end(
        self, half: bytes | None, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        if half is not None:
            self._add(self._committed(half, topic, queue_id))
        self._add(op_record(self._store, offset, now_ms))

    def _committed(self, half: bytes, topic: str, queue_id: int) -> Record:
        place = half_place(topic, queue_id).encode()
        try:
            record = decode_record(half)
        except MalformedRecord as error:
            raise ValueError(_NOT_A_HALF) from error
        if not _is_plain(record) or not record.property_bytes.endswith(place):
            raise ValueError(_NOT_A_HALF)
        record.prepared_offset = record.log_offset
        record.topic_bytes, record.queue_id = topic.encode(), queue_id
        record.store_ip, record.store_port = self._store
        record.sys_flag = record.sys_flag & ~_STORE_HOST_V6 | self._store_flag | _COMMIT
        record.property_bytes = record.property_bytes[: -len(place)]
        return record

    def _add(self, record: Record) -> None:
        self._records.append(record)
        if _queue(record) not in self.queues:
            self.queues.append(_queue(record))

    def _of(self, queue: QueueKey) -> list[Record]:
        return [record for record in self._records if _queue(record) == queue]

    def begin(self, store_ms: int, queue_offsets: list[int]) -> None:
        self.queue_offsets = queue_offsets
        self._written = 0
        next_offsets = dict(zip(self.queues, queue_offsets, strict=True))
        for record in self._records:
            queue = _queue(record)
            record.store_ms = store_ms
            record.queue_offset = next_offsets[queue]
            next_offsets[queue] += 1

    def encode(self, log_offset: int, room: int) -> EncodedRun:
        parts: list[bytes] = []
        for record in self._records[self._written :]:
            size = record_size(record)
            if size > room:
                return parts, size
            record.log_offset = log_offset
            parts += encode_parts(record)
            self._written += 1
            log_offset += size
            room -= size
        return parts, 0

    def queue_units(self) -> Sequence[bytes]:
        return [b"".join(map(_unit, self._of(queue))) for queue in self.queues]

    def key_entries(self, fronts: list[int], index_tags: bool) -> bytes:
        entries = bytearray()
        for record in self._records:
            unique_key, keys, tag = index_properties(record.property_bytes)
            front = fronts[self.queues.index(_queue(record))]
            shown = tag if index_tags else None
            add_key_entries(entries, front, record.log_offset, unique_key, keys, shown)
        return bytes(entries)


def _is_plain(record: Record) -> bool:
    """Whether a record is one that a run of sends writes: version 1, UTF-8 without NUL."""
    try:
        text = record.property_bytes.decode()
    except UnicodeDecodeError:
        return False
    return record.magic == MAGIC_V1 and "\x00" not in text


def _queue(record: Record) -> QueueKey:
    return record.topic_bytes, record.queue_id


def _unit(record: Record) -> bytes:
    _, _, tag = index_properties(record.property_bytes)
    return QUEUE_UNIT.pack(record.log_offset, record.size, tag_hash(tag))


def pure_ended_run(store: tuple[bytes, int]) -> EndedRun:
    """Return a run without records; `add_end` adds them.

    Args:
        store: Address and port of the broker.
    """
    return PureEndedRun(store)


ended_run = twin(pure_ended_run)
