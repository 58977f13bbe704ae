"""Messages, queues and receipts: the values of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Final,
    Literal,
    NewType,
    TypeAlias,
    TypedDict,
    Unpack,
    final,
    get_args,
)

import msgspec

from downrange.errors import (
    ConnectFailed,
    MalformedCommand,
    OptionError,
    RocketMQError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

#: Position of a message in its queue: 0, 1, 2, …
QueueOffset = NewType("QueueOffset", int)
#: Position of a record in a broker's commit log, in bytes.
LogOffset = NewType("LogOffset", int)
#: How a body is compressed.
CompressionName: TypeAlias = Literal["zlib", "lz4", "zstd"]


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
        OptionError: Arguments contradict each other, or cannot be sent.

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
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        deliver_in: float | None = None,
        flag: int = 0,
        wait_stored: bool = True,
    ) -> None:
        self.topic = topic
        self.body = body.encode() if isinstance(body, str) else bytes(body)
        self.tags = tags
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.properties = dict(properties or {})
        self.sharding_key = sharding_key
        self.delay_level = delay_level
        self.deliver_at = deliver_at
        self.deliver_in = deliver_in
        self.flag = flag
        self.wait_stored = wait_stored
        # Most messages have no delay, so save the call.
        if delay_level or deliver_at is not None or deliver_in:
            self._check_delay()
        if self.keys:
            self._check_keys()

    def _check_delay(self) -> None:
        ways = [name for name in ("delay_level", "deliver_at", "deliver_in") if getattr(self, name)]
        if len(ways) > 1:
            raise OptionError(
                f"a message can be delayed in one way only, not by {' and '.join(ways)}"
            )
        if self.deliver_at is not None and self.deliver_at.utcoffset() is None:
            raise OptionError(f"deliver_at={self.deliver_at!r} needs a time zone")

    def _check_keys(self) -> None:
        for key in self.keys:
            if not key or len(key.split()) != 1 or key.strip() != key:
                raise OptionError(f"key {key!r} is empty or contains blanks, which separate keys")

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, body=<{len(self.body)} bytes>, "
            f"tags={self.tags!r}, keys={list(self.keys)!r})"
        )


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
        if compression not in get_args(CompressionName):
            raise OptionError(f"compression={compression!r} is none of {get_args(CompressionName)}")
        self.compression: CompressionName = compression


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message that was read.

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
        delivery_attempts: How often a consumer group has sent it back for another attempt.
        compression: How the body is still compressed, with `PullOptions(decode_body=False)`; None
            for a body that can be read.
    """

    message_id: str
    queue: QueueId
    offset: QueueOffset
    body: bytes = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    offset_id: str = field(repr=False)
    log_offset: LogOffset = field(repr=False)
    flag: int = field(repr=False)
    born_at_ms: int = field(repr=False)
    born_host: str = field(repr=False)
    stored_at_ms: int = field(repr=False)
    delivery_attempts: int = 0
    compression: CompressionName | None = None

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.queue.topic

    @property
    def tags(self) -> str | None:
        """The word that consumers filter by."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The words that it can be found by."""
        return self.properties.get("KEYS", "").split()


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
        is_traced: Whether the broker asks for traces of this message.
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
    is_traced: bool = True
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

    def __iter__(self) -> Iterator[SendReceipt]:
        return iter(self.receipts)
