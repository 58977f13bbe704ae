"""Plain sends that arrive together, taken out of the bytes of a read as one object.

A `SendRun` carries them through link, write queue, store and replies: the records, the entries of
both indexes and the replies are written for all of them at once. The bytes are those of single
requests, in the same order.

A send is plain if nothing about it needs a decision of its own: code 310 or 10, a body, a unique
key of printable ASCII, no property that redirects the message or that the broker sets, and a topic
that fits a record of version 1. All sends of a run have the same header codec and the same `WAIT`.
A half message of a transaction (`TRAN_MSG`) is plain in the same way, and all sends of a run are
half messages or none is. Their records are in queue 0 of the half topic, with the message's own
place as properties.

A run ends before the first frame that is not of this kind, which is then read by itself. So
whatever is unusual, damaged or hostile is always handled, and reported, by `frames` and `command`.

The native twin leaves forms of such headers that clients do not write to `command`. On the other
hand it takes a single send, and JSON members in any order. So a run may be shorter or longer there,
but what is in it is the same.

A broker may find that a run needs a closer look: an unknown topic, a full disk. Then it handles
`single_requests` instead, one by one.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from zlib import crc32

from downrange.errors import WireError
from downrange.native import twin
from downrange.wire.batches import (
    QUEUE_UNIT,
    EncodedRun,
    QueueKey,
    RecordRun,
    add_key_entries,
)
from downrange.wire.codes import CLIENT_FLAGS, CommandFlag, HeaderCodec, RequestCode
from downrange.wire.command import Command, decode
from downrange.wire.frames import Frame, FrameSplitter
from downrange.wire.hashes import tag_hash
from downrange.wire.headers import SendRequest, SendRequestV2
from downrange.wire.limits import TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey, decode_properties
from downrange.wire.records import FORMS, MAGIC_V1, V6_BITS
from downrange.wire.send_replies import StoredForm, StoredReply
from downrange.wire.system_names import HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Runs of more queues end early: a run is also a list of its queues.
QUEUES_MAX: Final = 64
#: A longer unique key is not plain. So a reply is small, whatever the limit of a frame is.
KEY_BYTES_MAX: Final = 256
#: Properties that redirect a message.
REDIRECT_KEYS: Final = frozenset(
    {
        PropertyKey.DELAY.value,
        PropertyKey.TIMER_DELAY_SEC.value,
        PropertyKey.TIMER_DELAY_MS.value,
        PropertyKey.TIMER_DELIVER_MS.value,
    }
)
#: A message with one of these properties is not a plain one.
UNUSUAL_KEYS: Final = REDIRECT_KEYS | {
    PropertyKey.CLUSTER.value,
    PropertyKey.REGION.value,
    PropertyKey.TRACE_ON.value,
    PropertyKey.POP_CHECKPOINT.value,
}
#: The offset that a half message had before it was first copied: a property of ours.
FIRST_OFFSET: Final = "DOWNRANGE_FIRST_OFFSET"
#: A half message with one of these properties is not a plain one: only brokers set them, or they
#: matter for its end.
UNUSUAL_HALF_KEYS: Final = frozenset(
    {
        PropertyKey.TRANSACTION_ID.value,
        PropertyKey.REAL_TOPIC.value,
        PropertyKey.REAL_QUEUE_ID.value,
        PropertyKey.TRANSACTION_CHECK_TIMES.value,
        PropertyKey.CHECK_IMMUNITY_TIME.value,
        FIRST_OFFSET,
    }
)

_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_KEYS: Final = PropertyKey.KEYS.value
_TAGS: Final = PropertyKey.TAGS.value
_WAIT: Final = PropertyKey.WAIT.value
_PREPARED: Final = PropertyKey.TRANSACTION_PREPARED.value
_TRANSACTION_ID: Final = PropertyKey.TRANSACTION_ID.value
_GROUP: Final = PropertyKey.PRODUCER_GROUP.value
_REAL_TOPIC: Final = PropertyKey.REAL_TOPIC.value
_REAL_QUEUE_ID: Final = PropertyKey.REAL_QUEUE_ID.value
_HALF_QUEUE: Final = (HALF_TOPIC.encode(), 0)
_SEND_V1: Final = int(RequestCode.SEND_MESSAGE)
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = HeaderCodec.JSON
_BINARY: Final = HeaderCodec.BINARY
_BINARY_MARK: Final = HeaderCodec.BINARY << 24
_WORDS: Final = Struct(">ii")
_I16: Final = Struct(">h").pack
_SEPARATOR: Final = 2
#: How the headers of sends begin; those of other requests need not be read.
_FRONTS: Final = {
    _JSON: (b'{"code":%d,' % _SEND_V2, b'{"code":%d,' % _SEND_V1),
    _BINARY: (_SEND_V2.to_bytes(2, "big"), _SEND_V1.to_bytes(2, "big")),
}


#: A plain half message: offset in its queue, born time, group of its producer, its own topic and
#: queue, and the stored record. A plain tuple: one per message.
HalfRecord: TypeAlias = tuple[int, int, str, str, int, bytes]


class SendRun(RecordRun, Protocol):
    """Plain sends of one read."""

    @property
    def is_half(self) -> bool:
        """Whether all of them are half messages."""
        ...

    @property
    def asked_queues(self) -> Sequence[QueueKey]:
        """The queues that the clients named: those of the records, unless they are halves."""
        ...

    @property
    def end(self) -> int:
        """Where the frame behind the last send begins, in the bytes of the read."""
        ...

    @property
    def reply_count(self) -> int:
        """How many of the sends are answered: all but the one-way ones."""
        ...

    @property
    def is_flush_awaited(self) -> bool:
        """Whether, in sync mode, the replies wait until the records are durable."""
        ...

    @property
    def body_bytes_max(self) -> int:
        """The size of the largest body."""
        ...

    @property
    def property_bytes_max(self) -> int:
        """The size of the longest property string, without what `prepare` adds."""
        ...

    def frames(self) -> bytes:
        """Return the bytes of all frames; not after `release`."""
        ...

    def prepare(
        self,
        born: tuple[bytes, int],
        store: tuple[bytes, int],
        sys_flag: int,
        properties: bytes,
    ) -> None:
        """Set what the broker adds to the records.

        Args:
            born: Address and port of the producer.
            store: Address and port of the broker.
            sys_flag: The bits that say which of them is an IPv6 address.
            properties: Added to each property string.
        """
        ...

    def halves(self) -> list[tuple[int, HalfRecord]]:
        """Return half messages that are written, by their log offsets."""
        ...

    def release(self) -> None:
        """Drop the bytes of the read; only `replies` is called after this."""
        ...

    def replies(self, form: StoredForm, code: int) -> bytes:
        """Return the frames of all replies.

        Args:
            form: The fields that all replies of the broker have.
            code: SUCCESS, or a code that says what the broker was not in time for.
        """
        ...


#: One send: the number of its queue among `asked_queues`, request id, flag bits of the command,
#: flag, sysFlag, born time, reconsume times, body, properties as sent, those of a half, and all of
#: them parsed. A plain tuple: one per message.
_Item: TypeAlias = tuple[int, int, int, int, int, int, int, bytes, bytes, bytes, dict[str, str]]


class PureSendRun:
    """See `SendRun`; the methods are those of `SendRun` and `RecordRun`."""

    __slots__ = (
        "_born",
        "_data",
        "_halves",
        "_items",
        "_log_offsets",
        "_numbers",
        "_properties",
        "_sizes",
        "_start",
        "_store",
        "_store_ms",
        "_sys_flag",
        "asked_queues",
        "body_bytes_max",
        "codec",
        "end",
        "is_flush_awaited",
        "is_half",
        "property_bytes_max",
        "queue_offsets",
        "reply_count",
    )

    def __init__(self, data: bytes, start: int, codec: HeaderCodec) -> None:
        self._data = data
        self._start = start
        self.codec = codec
        self._items: list[_Item] = []
        self._numbers: list[int] = []  # of each record's queue among `queues`
        self._born = self._store = (b"\x00\x00\x00\x00", 0)
        self._sys_flag = 0
        self._properties = b""
        self._store_ms = 0
        self._log_offsets: list[int] = []
        self._sizes: list[int] = []
        self._halves: list[tuple[int, HalfRecord]] = []
        self.end = start
        self.is_half = False
        self.asked_queues: list[QueueKey] = []
        self.queue_offsets: Sequence[int] = ()
        self.reply_count = 0
        self.is_flush_awaited = False
        self.body_bytes_max = 0
        self.property_bytes_max = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def requests(self) -> int:
        return len(self._items)

    @property
    def has_nul(self) -> bool:
        return False  # such a send is not plain

    @property
    def queues(self) -> Sequence[QueueKey]:
        return (_HALF_QUEUE,) if self.is_half else self.asked_queues

    @property
    def counts(self) -> Sequence[int]:
        counts = [0] * len(self.queues)
        for number in self._numbers:
            counts[number] += 1
        return counts

    @property
    def queue_bytes(self) -> Sequence[int]:
        totals = [0] * len(self.queues)
        for number, size in zip(self._numbers, self._sizes, strict=False):
            totals[number] += size
        return totals

    def frames(self) -> bytes:
        return self._data[self._start : self.end]

    def add(self, command: Command) -> bool:
        """Take a send of code 310 or 10 in, if it is a plain one that fits this run."""
        if command.flags & ~_ONEWAY or not command.body:
            return False
        kind = SendRequest if command.code == _SEND_V1 else SendRequestV2
        try:
            header = kind.from_fields(command.fields)
        except WireError:
            return False
        text = header.properties or ""
        known = decode_properties(text)
        unique_key = known.get(_UNIQUE_KEY, "")
        is_awaited = known.get(_WAIT) != "false"
        is_half = _PREPARED in known
        if (
            header.batch
            or not _is_plain_key(unique_key)
            or not UNUSUAL_KEYS.isdisjoint(known)
            or (is_half and not is_plain_half(known))
            or "\x00" in text
            or (self._items and is_awaited is not self.is_flush_awaited)
            or (self._items and is_half is not self.is_half)
        ):
            return False
        number = self._number_of((header.topic.encode(), header.queue_id))
        if number is None:
            return False
        properties, last = text.encode(), b""
        if is_half:
            last = half_properties(unique_key, header.topic, header.queue_id).encode()
        self._items.append(
            (
                number,
                command.request_id,
                command.flags,
                header.flag,
                header.sys_flag & CLIENT_FLAGS,
                header.born_timestamp,
                header.reconsume_times or 0,
                command.body,
                properties,
                last,
                known,
            )
        )
        self._numbers.append(0 if is_half else number)
        self.is_half = is_half
        self.is_flush_awaited = is_awaited
        self.reply_count += not command.flags
        self.body_bytes_max = max(self.body_bytes_max, len(command.body))
        self.property_bytes_max = max(self.property_bytes_max, len(properties) + len(last))
        return True

    def _number_of(self, queue: QueueKey) -> int | None:
        """Return the number of a queue in this run, or None if it cannot be part of it."""
        queues = self.asked_queues
        if queue in queues:
            return queues.index(queue)
        if len(queues) == QUEUES_MAX or not 0 < len(queue[0]) <= TOPIC_BYTES_MAX:
            return None
        queues.append(queue)
        return len(queues) - 1

    def prepare(
        self,
        born: tuple[bytes, int],
        store: tuple[bytes, int],
        sys_flag: int,
        properties: bytes,
    ) -> None:
        self._born, self._store = born, store
        self._sys_flag = sys_flag
        self._properties = properties

    def begin(self, store_ms: int, queue_offsets: list[int]) -> None:
        self._store_ms = store_ms
        self.queue_offsets = queue_offsets
        self._log_offsets, self._sizes, self._halves = [], [], []

    def encode(self, log_offset: int, room: int) -> EncodedRun:
        written = len(self._sizes)
        next_offsets = list(self.queue_offsets)
        numbers, queues = self._numbers, self.queues
        for number in numbers[:written]:
            next_offsets[number] += 1
        added = self._properties
        form, _, _ = FORMS[self._sys_flag & V6_BITS]
        pack, fixed_size, host_bits = form.pack, form.size, self._sys_flag
        (born_ip, born_port), (store_ip, store_port) = self._born, self._store
        store_ms = self._store_ms
        topics = [bytes((len(topic),)) + topic for topic, _ in queues]
        note_offset, note_size = self._log_offsets.append, self._sizes.append
        parts: list[bytes | memoryview] = []
        items = self._items[written:] if written else self._items
        for asked, _, _, flag, sys_flag, born_ms, times, body, properties, last, known in items:
            number = 0 if last else asked
            if properties[-1] != _SEPARATOR and (added or last):
                properties += b"\x02"
            topic = topics[number]
            body_size, properties_size = len(body), len(properties) + len(added) + len(last)
            size = fixed_size + body_size + len(topic) + 2 + properties_size
            if size > room:
                return parts, size
            head = pack(
                size,
                MAGIC_V1,
                crc32(body) & 0x7FFFFFFF,
                queues[number][1],
                flag,
                next_offsets[number],
                log_offset,
                sys_flag | host_bits,
                born_ms,
                born_ip,
                born_port,
                store_ms,
                store_ip,
                store_port,
                times,
                0,
                body_size,
            )
            record = (head, body, topic, _I16(properties_size), properties, added, last)
            parts += record
            if last:
                own, queue_id = self.asked_queues[asked]
                group, offset = known[_GROUP], next_offsets[number]
                half = (offset, born_ms, group, own.decode(), queue_id, b"".join(record))
                self._halves.append((log_offset, half))
            note_offset(log_offset)
            note_size(size)
            next_offsets[number] += 1
            log_offset += size
            room -= size
        return parts, 0

    def queue_units(self) -> Sequence[bytes]:
        units = [bytearray() for _ in self.queues]
        pack = QUEUE_UNIT.pack
        places = zip(self._numbers, self._items, self._log_offsets, self._sizes, strict=True)
        for number, item, offset, size in places:
            units[number] += pack(offset, size, tag_hash(item[-1].get(_TAGS)))
        return [bytes(each) for each in units]

    def key_entries(self, fronts: list[int], index_tags: bool) -> bytes:
        entries = bytearray()
        places = zip(self._numbers, self._items, self._log_offsets, strict=True)
        for number, item, log_offset in places:
            known = item[-1]
            tag = known.get(_TAGS) if index_tags else None
            unique_key, keys = known[_UNIQUE_KEY], known.get(_KEYS)
            add_key_entries(entries, fronts[number], log_offset, unique_key, keys, tag)
        return bytes(entries)

    def halves(self) -> list[tuple[int, HalfRecord]]:
        return self._halves

    def release(self) -> None:
        self._data = b""
        self._halves = []

    def replies(self, form: StoredForm, code: int) -> bytes:
        next_offsets = list(self.queue_offsets)
        request = Command(_SEND_V2, codec=self.codec)
        frames: list[bytes] = []
        places = zip(self._numbers, self._items, self._log_offsets, strict=True)
        for number, item, log_offset in places:
            asked, request.request_id, is_oneway = item[:3]
            offset = next_offsets[number]
            next_offsets[number] = offset + 1
            if not is_oneway:
                key, queue_id = item[-1][_UNIQUE_KEY], self.asked_queues[asked][1]
                reply = StoredReply(form, queue_id, key, log_offset, offset, code)
                frames.append(reply.encode(request))
        return b"".join(frames)


def pure_take_sends(data: bytes, start: int, length_max: int) -> SendRun | None:
    """Take the plain sends that begin at a position, as far as they are whole.

    Args:
        data: The bytes of a read.
        start: Where a frame begins in them.
        length_max: The largest length word that is accepted.

    Returns:
        The run; or None if the frame at `start` is not a plain send, or the only one. Nothing is
        reported here: the frame is read again, by itself.
    """
    size, at = len(data), start
    if at + 4 + int.from_bytes(data[at : at + 4], "big") >= size:
        return None  # a single send costs less as a request
    run: PureSendRun | None = None
    while size - at >= 8:
        length, word = _WORDS.unpack_from(data, at)
        codec, header_size = _JSON, word
        if word >= _BINARY_MARK:
            codec, header_size = _BINARY, word - _BINARY_MARK
        header_at, end = at + 8, at + 4 + length
        if (
            length > length_max
            or end > size
            or not 0 <= header_size <= length - 4
            or not data.startswith(_FRONTS[codec], header_at)
        ):
            break
        if run is None:
            run = PureSendRun(data, start, codec)
        elif codec is not run.codec:
            break
        body_at = header_at + header_size
        try:
            command = decode(Frame(codec, data[header_at:body_at], data[body_at:end]))
        except WireError:
            break
        if not run.add(command):
            break
        at = run.end = end
    return run if run is not None and len(run) else None


take_sends = twin(pure_take_sends)


def single_requests(run: SendRun) -> list[Command]:
    """Return the sends of a run as single requests, in their order."""
    data = run.frames()
    splitter = FrameSplitter(len(data))
    splitter.receive(data)
    requests: list[Command] = []
    while (frame := splitter.next_frame()) is not None:
        requests.append(decode(frame))
    return requests


def is_plain_half(properties: Mapping[str, str]) -> bool:
    """Whether a message is a half whose properties are kept as they were sent."""
    return (
        properties.get(_PREPARED) == "true"
        and _GROUP in properties
        and UNUSUAL_HALF_KEYS.isdisjoint(properties)
    )


def half_properties(unique_key: str, topic: str, queue_id: int) -> str:
    """Return what a half message has behind the properties of its message."""
    return f"{_TRANSACTION_ID}\x01{unique_key}\x02{half_place(topic, queue_id)}"


def half_place(topic: str, queue_id: int | str) -> str:
    """Return the last properties of a plain half: those that its message does not have."""
    return f"{_REAL_TOPIC}\x01{topic}\x02{_REAL_QUEUE_ID}\x01{queue_id}\x02"


def _is_plain_key(key: str) -> bool:
    """Whether a unique key can be written into a reply as it is."""
    return (
        0 < len(key) <= KEY_BYTES_MAX
        and key.isascii()
        and key.isprintable()
        and '"' not in key
        and "\\" not in key
    )
