"""What users hold in their hands: messages, queues, offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NewType

import msgspec

from downrange.errors import ConnectFailed, OptionError, RocketMQError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

#: Position of a message in its queue: 0, 1, 2, …
QueueOffset = NewType("QueueOffset", int)
#: Position of a record in a broker's commit log, in bytes.
LogOffset = NewType("LogOffset", int)


class QueueId(
    msgspec.Struct,
    frozen=True,
    order=True,
    gc=False,
    rename={"broker": "brokerName", "number": "queueId"},
):
    """One queue of a topic on one broker. Queues sort as Java's `MessageQueue` does."""

    topic: str
    broker: str
    number: int


class Message:
    """A message to send.

    Args:
        topic: Where it goes.
        body: Any bytes; text becomes UTF-8.
        tags: One word that consumers can filter by.
        keys: Words that the message can be looked up by later; no blanks in them.
        properties: Your own names and values.
        sharding_key: Messages with the same key go to the same queue, in order.
        delay_level: Deliver after the delay of this level (1 to 18, broker's setting).
        deliver_at: Deliver at this time, which must know its time zone (5.x brokers).
        deliver_in: Deliver after so many seconds (5.x brokers).
        flag: A number of your own that travels along.
        wait_stored: Whether a broker that flushes or copies synchronously answers only then.

    Raises:
        OptionError: Arguments contradict each other or cannot be carried.

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
        # Most messages have no delay; looking costs less than asking.
        if delay_level or deliver_at is not None or deliver_in:
            self._check_delay()
        if self.keys:
            self._check_keys()

    def _check_delay(self) -> None:
        ways = [name for name in ("delay_level", "deliver_at", "deliver_in") if getattr(self, name)]
        if len(ways) > 1:
            raise OptionError(f"a message can be delayed in one way only, not {' and '.join(ways)}")
        if self.deliver_at is not None and self.deliver_at.utcoffset() is None:
            raise OptionError(f"deliver_at={self.deliver_at!r} does not say its time zone")

    def _check_keys(self) -> None:
        for key in self.keys:
            if not key or len(key.split()) != 1 or key.strip() != key:
                raise OptionError(f"key {key!r} is empty or holds blanks, which separate keys")

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, body=<{len(self.body)} bytes>, "
            f"tags={self.tags!r}, keys={list(self.keys)!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as a consumer gets it.

    Attributes:
        message_id: The producer's unique id, or the offset id of a message sent without one.
        queue: The queue it was read from.
        offset: Its position there.
        body: The body, decompressed.
        properties: All properties, the protocol's own included.
        offset_id: Broker address and commit-log position as one text; a broker finds it by this.
        log_offset: Its position in the broker's commit log.
        born_at_ms: When the producer made it.
        born_host: Who sent it, as `host:port`.
        stored_at_ms: When the broker stored it.
        delivery_attempts: How often a consumer group has given it back.
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

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.queue.topic

    @property
    def tags(self) -> str | None:
        """The word that consumers filter by."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The words that it can be looked up by."""
        return self.properties.get("KEYS", "").split()


class SendStatus(Enum):
    """What a broker says about a message that it stored."""

    STORED = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


_LATE_STATUSES: Final = {status.value for status in SendStatus if status is not SendStatus.STORED}


class Attempt(msgspec.Struct, frozen=True):
    """One try to send that did not end well.

    Attributes:
        broker: The broker's name.
        address: Its "host:port".
        queue_number: The queue there.
        error: What happened.
        elapsed: How long it took, in seconds.
    """

    broker: str
    address: str
    queue_number: int
    error: RocketMQError
    elapsed: float

    def __str__(self) -> str:
        return (
            f"{self.broker} {self.address} queue {self.queue_number}: "
            f"{type(self.error).__name__} after {self.elapsed:.1f} s ({self.error.brief})"
        )


class SendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says about a message, or a batch, that it took.

    Attributes:
        message_id: The unique id; for a batch, those of its messages, joined by commas.
        queue: Where it was stored.
        offset: Its position there; the first message's for a batch.
        offset_id: The broker's own id, for one or joined by commas.
        status: STORED, or what the broker was not in time for; the message is stored then, too.
        transaction_id: Of a half message.
        recall_handle: Takes a timed message back: `producer.recall(handle)`.
        region: Where the broker says it stands.
        is_traced: Whether the broker wants traces of this message.
        failures: The attempts before this one.
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
        """Whether an attempt before may have stored it, too: its answer was lost, or late."""
        return any(map(_may_have_stored, self.failures))


class Outcome(Enum):
    """How a transaction ended; the values are the protocol's."""

    COMMIT = 8
    ROLLBACK = 12
    #: Not known yet; the broker asks again.
    UNKNOWN = 0


class TransactionReceipt(msgspec.Struct, frozen=True):
    """What became of a message that was sent in a transaction.

    Attributes:
        receipt: What the broker says about the half message.
        outcome: What the broker was told.
        error: What the local work raised; the outcome is UNKNOWN then.
    """

    receipt: SendReceipt
    outcome: Outcome
    error: Exception | None = None


def _may_have_stored(attempt: Attempt) -> bool:
    error = attempt.error
    if isinstance(error, TransportError):
        return not isinstance(error, ConnectFailed)
    return error.code in _LATE_STATUSES


class BatchReceipt(msgspec.Struct, frozen=True):
    """What became of a list of messages.

    Attributes:
        receipts: One per request that it took, in order.
        counts: How many messages each of them carried.
    """

    receipts: tuple[SendReceipt, ...]
    counts: tuple[int, ...]

    @property
    def request_count(self) -> int:
        """How many requests it took."""
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
