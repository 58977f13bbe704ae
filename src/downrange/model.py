"""Messages, queues and receipts: the values of the public API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from reprlib import Repr
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NewType,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    final,
    get_args,
)

import msgspec

from downrange.checks import (
    check_flag,
    check_number,
    check_one_of,
    check_text,
    check_type,
    check_whole,
    iterated,
    wrong_type,
)
from downrange.errors import (
    ConnectFailed,
    MalformedCommand,
    OptionError,
    RocketMQError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Position of a message in its queue: 0, 1, 2, …
QueueOffset = NewType("QueueOffset", int)
#: Position of a record in a broker's commit log, in bytes.
LogOffset = NewType("LogOffset", int)
#: How a body is compressed.
CompressionName: TypeAlias = Literal["zlib", "lz4", "zstd"]

_NO_KEYS: Final[tuple[str, ...]] = ()
_DELAY_LEVEL_MAX: Final = 2**31 - 1
#: Seconds, about 3,000 years. Brokers add the delay to the time in 64 bits without a check.
_DELIVER_IN_MAX: Final = 10**11
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_TIME_MIN_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_TIME_MAX_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
#: Properties that the repr of a received message shows as parts of their own.
_SHOWN_APART: Final = frozenset({"TAGS", "KEYS", "UNIQ_KEY"})
#: A message may have many long properties; its repr stays readable.
_SHORT: Final = Repr()
_SHORT.maxdict = _SHORT.maxlist = 20
_SHORT.maxstring = _SHORT.maxother = 100


class QueueId(
    msgspec.Struct,
    frozen=True,
    order=True,
    gc=False,
    rename={"broker": "brokerName", "number": "queueId"},
):
    """One queue of a topic on one broker. The sort order is that of Java's `MessageQueue`."""

    topic: str
    broker: str
    number: int


class Message:
    """A message to send.

    Two messages are equal when all their fields are. A message can be changed until it is sent, so
    it has no hash: to find one again, use its key, or the `message_id` of its receipt.

    Args:
        topic: The topic to send to.
        body: Any bytes; a string is encoded as UTF-8.
        tags: One word that consumers can filter by.
        keys: Words for later lookup of the message; without blanks.
        properties: Your own names and values.
        sharding_key: Messages with the same key go to the same queue, in order.
        delay_level: Deliver after the delay of this level (1 to 18; brokers can define others).
        deliver_at: Deliver at this time, which must have a time zone (5.x brokers).
        deliver_in: Deliver after this many seconds (5.x brokers).
        flag: A number of your own that is stored with the message.
        wait_stored: Whether a broker that flushes or replicates synchronously answers only after
            that.

    Raises:
        OptionError: An argument has the wrong type, contradicts another one, or cannot be sent.

    Example:
        >>> Message("orders", "42 apples", tags="new", keys=["o-1"]).body
        b'42 apples'
    """

    __slots__ = (
        "body",
        "delay_level",
        "deliver_at",
        "deliver_in",
        "flag",
        "keys",
        "properties",
        "sharding_key",
        "tags",
        "topic",
        "wait_stored",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = _NO_KEYS,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        deliver_in: float | None = None,
        flag: int = 0,
        wait_stored: bool = True,
    ) -> None:
        # Most messages have none of the optional parts, so each costs one comparison.
        if topic.__class__ is not str:
            check_text("topic", topic)
        if tags is not None:
            _check_tags(tags)
        if sharding_key is not None:
            _check_sharding_key(sharding_key)
        if delay_level is not None or deliver_at is not None or deliver_in is not None:
            _check_delay(delay_level, deliver_at, deliver_in)
        if flag.__class__ is not int:
            check_whole("flag", flag)
        if wait_stored is not True:
            check_flag("wait_stored", wait_stored)
        self.topic = topic
        # pyright does not narrow by `__class__`, which is faster than a call of `type`.
        self.body: bytes = body if body.__class__ is bytes else _body_of(body)  # pyright: ignore
        self.tags = tags
        self.keys: tuple[str, ...] = () if keys is _NO_KEYS else _keys_of(keys)
        self.properties: dict[str, str] = {} if properties is None else _properties_of(properties)
        self.sharding_key = sharding_key
        self.delay_level = delay_level
        self.deliver_at = deliver_at
        self.deliver_in = deliver_in
        self.flag = flag
        self.wait_stored = wait_stored

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        fields = (*Message.__slots__, *type(self).__slots__)
        return all(getattr(self, name) == getattr(other, name) for name in fields)

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        parts = {
            "tags": self.tags,
            "keys": list(self.keys),
            "properties": self.properties,
            "sharding_key": self.sharding_key,
            "delay_level": self.delay_level,
            "deliver_at": None if self.deliver_at is None else str(self.deliver_at),
            "deliver_in": self.deliver_in,
            "flag": self.flag,
            "compression": getattr(self, "compression", None),
        }
        text = f"topic={self.topic!r}, body={_size_of(self.body)}{_listed(parts)}"
        if not self.wait_stored:
            text += ", wait_stored=False"
        return f"{type(self).__name__}({text})"


def _body_of(body: Any) -> bytes:
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"body has half a surrogate pair at character {error.start}, which UTF-8 does not "
                "have; encode it yourself, and give bytes"
            ) from error
    try:
        return bytes(memoryview(body))
    except TypeError:
        hint = "encode it yourself, or use a MessageTemplate, which converts values"
        raise wrong_type("body", body, "bytes or a str", hint) from None


def _check_tags(tags: str) -> None:
    check_text("tags", tags)
    if not tags or tags.strip() != tags or "||" in tags:
        raise OptionError(
            f"tags={tags!r} is not one tag: it is empty, begins or ends with a blank, or contains "
            "'||', so no consumer could choose it; give one tag, or leave it out"
        )


def _check_sharding_key(sharding_key: str) -> None:
    check_text("sharding_key", sharding_key)
    if not sharding_key:
        raise OptionError("sharding_key='' is empty; leave it out")


def _check_delay(
    delay_level: int | None, deliver_at: datetime | None, deliver_in: float | None
) -> None:
    if delay_level is not None:
        check_whole("delay_level", delay_level)
        if not 1 <= delay_level <= _DELAY_LEVEL_MAX:
            raise OptionError(
                f"delay_level={delay_level} is not a level; levels begin at 1, and a message "
                "without a delay has none"
            )
    if deliver_at is not None:
        check_type("deliver_at", deliver_at, datetime, "a datetime")
        if deliver_at.utcoffset() is None:
            raise OptionError(f"deliver_at={deliver_at!r} needs a time zone")
    if deliver_in is not None:
        check_number("deliver_in", deliver_in, "a number of seconds")
        if not 0 <= deliver_in <= _DELIVER_IN_MAX:
            raise OptionError(
                f"deliver_in={deliver_in} is not a number of seconds from 0 to {_DELIVER_IN_MAX}"
            )
    ways = {"delay_level": delay_level, "deliver_at": deliver_at, "deliver_in": deliver_in}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise OptionError(f"a message can be delayed in one way only, not by {' and '.join(given)}")


def _keys_of(keys: Any) -> tuple[str, ...]:
    expected = "a str or a list of str"
    if isinstance(keys, bytes):
        raise wrong_type("keys", keys, expected)
    words = (keys,) if isinstance(keys, str) else tuple(iterated("keys", keys, expected))
    for key in words:
        if key.__class__ is not str:
            check_text("each of keys", key)
        if not key or len(key.split()) != 1 or key.strip() != key:
            raise OptionError(f"key {key!r} is empty or contains blanks, which separate keys")
    return words


def _properties_of(properties: Any) -> dict[str, str]:
    if properties.__class__ is not dict:
        check_type("properties", properties, Mapping, "a dict of str to str")
    own = dict(properties)
    for name, value in own.items():
        if name.__class__ is not str or value.__class__ is not str:
            check_text("each name of properties", name)
            check_text(f"properties[{name!r}]", value)
    return own


# ---- how messages are shown ----------------------------------------------------------------------


def _size_of(body: bytes) -> str:
    return f"<{len(body)} byte{'' if len(body) == 1 else 's'}>"


def _listed(parts: Mapping[str, object]) -> str:
    """Return the parts that are set, each as a further argument; long ones are cut."""
    return "".join(f", {name}={_SHORT.repr(value)}" for name, value in parts.items() if value)


def _utc(at_ms: int) -> datetime:
    """Return a time since 1970, or the nearest one that a datetime can express."""
    return _EPOCH + timedelta(milliseconds=max(_TIME_MIN_MS, min(at_ms, _TIME_MAX_MS)))


class MessageDetails(TypedDict, total=False):
    """What a message can have besides topic and body; see `Message`."""

    tags: str | None
    keys: Iterable[str]
    properties: Mapping[str, str] | None
    sharding_key: str | None
    delay_level: int | None
    deliver_at: datetime | None
    deliver_in: float | None
    flag: int
    wait_stored: bool


@final
class CompressedMessage(Message):
    """A message whose body is compressed already, such as one read with `decode_body=False`.

    Its body is sent as it is, and consumers decompress it. It cannot be part of a batch.

    Args:
        topic: The topic to send to.
        body: The compressed body.
        compression: How the body is compressed.
        details: Tags, keys, properties and so on, as of `Message`.

    Raises:
        OptionError: Arguments contradict each other, or cannot be sent.
    """

    __slots__ = ("compression",)

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        compression: CompressionName,
        **details: Unpack[MessageDetails],
    ) -> None:
        super().__init__(topic, body, **details)
        check_one_of("compression", compression, get_args(CompressionName))
        self.compression: CompressionName = compression


class StoredRecord(Protocol):
    """The record of a message, from which its fields are read; see `wire/reply_messages.py`."""

    def read(self, message: ReceivedMessage, name: str) -> None:
        """Set the slot of a field of the message, and of those that are read together with it."""

    def property_text(self, key: str) -> str | None:
        """Return the value of the property "TAGS" or "KEYS", without decoding the others."""


class ReadLater:
    """Fields that are read from a record when they are first used.

    For a slot that is not set, Python calls `__getattr__`, which reads the field and sets the slot.
    So only the first use of a field costs more, and a field that is not used costs nothing. Two
    threads may both read a field; they get equal values.
    """

    __slots__ = ("_record",)
    _record: StoredRecord | None

    if not TYPE_CHECKING:  # else every misspelt name would be an attribute

        def __getattr__(self, name: str) -> Any:
            if name == "_record":
                return None  # the constructor made this message, with all its fields
            record = self._record
            if record is None or name not in _RECEIVED_FIELDS:
                problem = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(problem, name=name, obj=self)
            record.read(self, name)
            return getattr(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(ReadLater):
    """A message that was read.

    Messages are equal when all their fields are, and can be members of a set. A message that came
    from a broker decodes a field when it is first used; it keeps a copy of its own bytes, not the
    reply that it came in. `dataclasses.replace`, `copy` and `pickle` decode all fields.

    Attributes:
        message_id: The producer's unique id, or the offset id if it was sent without one.
        queue: The queue that it was read from.
        offset: Its position in the queue.
        body: The body, decompressed unless `compression` names how it is compressed.
        properties: All properties, including those of the protocol.
        offset_id: Broker address and log offset in one string; the broker finds the message by it.
        log_offset: Its position in the broker's commit log.
        flag: The number that the sender gave.
        born_at_ms: When the producer made it, in ms since 1970.
        born_host: The producer's address, "host:port".
        stored_at_ms: When the broker stored it, in ms since 1970.
        delivery_attempts: How often it was handled without success before: by its group, or by this
            member of an orderly or broadcast group.
        compression: How the body is still compressed, with `PullOptions(decode_body=False)`; None
            for a body that can be read.
    """

    message_id: str
    queue: QueueId
    offset: QueueOffset
    body: bytes
    properties: Mapping[str, str]
    offset_id: str
    log_offset: LogOffset
    flag: int
    born_at_ms: int
    born_host: str
    stored_at_ms: int
    delivery_attempts: int = 0
    compression: CompressionName | None = None

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.queue.topic

    @property
    def tags(self) -> str | None:
        """The word that consumers filter by."""
        record = self._record
        return self.properties.get("TAGS") if record is None else record.property_text("TAGS")

    @property
    def keys(self) -> list[str]:
        """The words that it can be found by."""
        record = self._record
        text = self.properties.get("KEYS") if record is None else record.property_text("KEYS")
        return [] if text is None else text.split()

    @property
    def born_at(self) -> datetime:
        """When the producer made it, in UTC."""
        return _utc(self.born_at_ms)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, in UTC."""
        return _utc(self.stored_at_ms)

    def __hash__(self) -> int:
        return hash((self.message_id, self.queue, self.offset))

    def __repr__(self) -> str:
        queue = self.queue
        parts = {
            "tags": self.tags,
            "keys": self.keys,
            "properties": {
                name: value for name, value in self.properties.items() if name not in _SHOWN_APART
            },
            "flag": self.flag,
            "delivery_attempts": self.delivery_attempts,
            "compression": self.compression,
        }
        return (
            f"ReceivedMessage(topic={queue.topic!r}, broker={queue.broker!r}, "
            f"queue={queue.number}, offset={self.offset}, message_id={self.message_id!r}, "
            f"body={_size_of(self.body)}{_listed(parts)}, born_at={self.born_at}, "
            f"stored_at={self.stored_at})"
        )


_RECEIVED_FIELDS: Final = frozenset(field.name for field in fields(ReceivedMessage))


class SendStatus(Enum):
    """The status of a stored message: what a broker confirmed, or was not in time for."""

    STORED = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


_LATE_STATUSES: Final = {status.value for status in SendStatus if status is not SendStatus.STORED}


class Attempt(msgspec.Struct, frozen=True):
    """One failed attempt to send.

    Attributes:
        broker: The broker's name.
        address: Its "host:port".
        queue_number: The queue on the broker.
        error: What happened.
        elapsed: Seconds that the attempt took.
    """

    broker: str
    address: str
    queue_number: int
    error: RocketMQError
    elapsed: float

    @property
    def may_be_stored(self) -> bool:
        """Whether it may have stored the message: its reply was lost, late or unreadable."""
        error = self.error
        if isinstance(error, TransportError):
            return not isinstance(error, ConnectFailed)
        return isinstance(error, MalformedCommand) or error.code in _LATE_STATUSES

    def __str__(self) -> str:
        return (
            f"{self.broker} {self.address} queue {self.queue_number}: "
            f"{type(self.error).__name__} after {self.elapsed:.1f} s ({self.error.brief})"
        )


class SendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's confirmation that it stored a message or a batch.

    Attributes:
        message_id: The unique id; for a batch, those of its messages, joined by commas.
        queue: The queue that it was stored in.
        offset: Its position there; for a batch, that of the first message.
        offset_id: The broker's own id; for a batch, all of them, joined by commas.
        status: STORED, or what the broker was not in time for. The message is stored in any case.
        transaction_id: The id of the transaction, for a half message.
        recall_handle: Recalls a timed message: `producer.recall(handle)`.
        region: The region in the broker's configuration.
        is_traced: Whether this send is traced: the producer has `trace`, and the broker allows it.
        failures: The failed attempts before this one.
    """

    message_id: str
    queue: QueueId
    offset: QueueOffset
    offset_id: str
    status: SendStatus = SendStatus.STORED
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    is_traced: bool = False
    failures: tuple[Attempt, ...] = ()

    @property
    def attempts(self) -> int:
        """How many attempts it took."""
        return 1 + len(self.failures)

    @property
    def may_be_stored_twice(self) -> bool:
        """Whether an earlier attempt may have stored it, too: its reply was lost or late."""
        return any(attempt.may_be_stored for attempt in self.failures)


class Outcome(Enum):
    """How a transaction ended; the values are those of the protocol."""

    COMMIT = 8
    ROLLBACK = 12
    #: Not known yet; the broker checks again later.
    UNKNOWN = 0


class TransactionReceipt(msgspec.Struct, frozen=True):
    """The result of a message that was sent in a transaction.

    Attributes:
        receipt: The broker's receipt for the half message.
        outcome: The outcome that was sent to the broker.
        error: The exception of the local transaction; the outcome is UNKNOWN then.
    """

    receipt: SendReceipt
    outcome: Outcome
    error: Exception | None = None


class BatchReceipt(msgspec.Struct, frozen=True):
    """The receipts of a list of messages. Its length is the number of messages.

    Attributes:
        receipts: One per request, in order.
        counts: How many messages each request carried.
    """

    receipts: tuple[SendReceipt, ...]
    counts: tuple[int, ...]

    @property
    def request_count(self) -> int:
        """How many requests were sent."""
        return len(self.receipts)

    @property
    def message_ids(self) -> list[str]:
        """The unique id of each message, in order."""
        return [
            message_id for receipt in self.receipts for message_id in receipt.message_id.split(",")
        ]

    def __len__(self) -> int:
        return sum(self.counts)

    def __repr__(self) -> str:
        topic = f" for {self.receipts[0].queue.topic!r}" if self.receipts else ""
        return f"<BatchReceipt of {len(self)} messages{topic} in {self.request_count} requests>"

    def __iter__(self) -> Iterator[SendReceipt]:
        return iter(self.receipts)
