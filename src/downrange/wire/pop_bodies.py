"""JSON bodies of pop consumption: checkpoints and acknowledgements as records, batches of acks.

The members have short names and are declared in the order of these: Java writes them in this order,
without blanks, and so does `encode_pop_body` (Java: PopCheckPoint, AckMsg, BatchAckMsg, BatchAck).
A member with a `default_factory` is always written, one with the default None only if it is set.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
from msgspec import field

from downrange.errors import MalformedBody
from downrange.wire.bodies import Body, decode_body
from downrange.wire.limits import POPPED_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: How many offsets the bit set of an acknowledgement may span. It begins where the search of a pop
#: began, so this is at least what a pop by tags or by SQL92 examines (`record_scan.py`).
SPAN_MAX: Final = 16_384

BodyT = TypeVar("BodyT", bound=Body)


class CheckpointBody(Body, kw_only=True, omit_defaults=True):
    """The messages of one queue that one pop returned (Java: PopCheckPoint).

    Attributes:
        bits: Always 0 in records.
        broker: The broker's name.
        group: The group.
        differences: Offsets of the messages, relative to `start`.
        invisible_ms: For how long they are invisible.
        count: How many they are.
        pop_ms: When they were popped.
        queue_id: Their queue.
        revive_ms: When they become visible again.
        revive_offset: Always 0 in records.
        put_times: How often an Apache broker has stored the checkpoint again.
        start: The first offset that was examined.
        is_suspended: Whether the delivery does not count, when the message becomes visible again.
        topic: Their topic.
    """

    bits: int = field(name="bm", default_factory=int)
    broker: str = field(name="bn", default_factory=str)
    group: str = field(name="c")
    differences: list[int] | None = field(name="d", default=None)
    invisible_ms: int = field(name="it")
    count: int = field(name="n")
    pop_ms: int = field(name="pt")
    queue_id: int = field(name="q")
    revive_ms: int | None = field(name="reviveTime", default=None)
    revive_offset: int = field(name="ro", default_factory=int)
    put_times: str | None = field(name="rp", default=None)
    start: int = field(name="so")
    is_suspended: bool = field(name="sp", default_factory=bool)
    topic: str = field(name="t")


class AckBody(Body, kw_only=True, omit_defaults=True):
    """Acknowledged messages of one checkpoint (Java: AckMsg, BatchAckMsg).

    Attributes:
        offset: The message, or -1 for a batch.
        offsets: The messages of a batch.
        broker: The broker's name.
        group: The group.
        pop_ms: When the messages were popped.
        queue_id: Their queue.
        start: The start of the checkpoint.
        topic: Their topic.
    """

    offset: int = field(name="ao")
    offsets: list[int] | None = field(name="aol", default=None)
    broker: str = field(name="bn", default_factory=str)
    group: str = field(name="c")
    pop_ms: int = field(name="pt")
    queue_id: int = field(name="q")
    start: int = field(name="so")
    topic: str = field(name="t")


class BatchAck(Body, kw_only=True):
    """The messages of one checkpoint in a request that acknowledges many.

    Attributes:
        bits: A bit set of offsets relative to `start`, base64.
        group: The group.
        invisible_ms: As in the receipt.
        pop_ms: As in the receipt.
        queue_id: As in the receipt.
        kind: As in the receipt.
        revive_queue: As in the receipt.
        start: As in the receipt.
        topic: The topic, without the group's retry topic.
    """

    bits: str = field(name="b")
    group: str = field(name="c")
    invisible_ms: int = field(name="it")
    pop_ms: int = field(name="pt")
    queue_id: int = field(name="q")
    kind: str = field(name="r")
    revive_queue: int = field(name="rq")
    start: int = field(name="so")
    topic: str = field(name="t")

    def offsets(self) -> Sequence[int]:
        """Return the offsets of the messages, as a range if they begin at `start` without a gap.

        Raises:
            MalformedBody: The bit set cannot be read, spans too much, or has too many messages.
        """
        differences, start = _differences(self.bits), self.start
        if type(differences) is range:
            return range(start, start + len(differences))
        return [start + difference for difference in differences]


@lru_cache(maxsize=256)
def _differences(text: str) -> Sequence[int]:
    """Return what a bit set contains; most consumers acknowledge all messages of a pop."""
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise MalformedBody("BatchAck", f"the bit set is not base64: {error}") from error
    if len(data) * 8 > SPAN_MAX:
        raise MalformedBody("BatchAck", f"the bit set has more than {SPAN_MAX} bits")
    bits = int.from_bytes(data, "little")
    count = bits.bit_count()
    if count > POPPED_MAX:  # before they are listed: a request may have a thousand such sets
        raise MalformedBody("BatchAck", f"a pop has {POPPED_MAX} messages at most, not {count}")
    if bits == (1 << count) - 1:
        return range(count)
    differences: list[int] = []
    while bits:
        lowest = bits & -bits
        differences.append(lowest.bit_length() - 1)
        bits ^= lowest
    return differences


class BatchAckBody(Body, kw_only=True):
    """Acknowledge messages of several checkpoints (Java: BatchAckMessageRequestBody)."""

    acks: list[BatchAck] | None = None
    broker_name: str | None = None


def bit_set(start: int, offsets: Iterable[int]) -> str:
    """Return offsets relative to a start as a bit set, as `BatchAck.bits` has it."""
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


_encode: Final = msgspec.json.Encoder().encode
_DECODERS: Final[dict[type[Body], msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind, strict=False)
    for kind in (CheckpointBody, AckBody, BatchAckBody)
}


def encode_pop_body(body: CheckpointBody | AckBody) -> bytes:
    """Encode a body as Java writes it."""
    return _encode(body)


def json_text(text: str) -> str:
    """Return a text as it is in a body."""
    return _encode(text).decode()


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as they are in a body, in brackets; much faster than one by one.

    The text of a range is kept for a while: a pop needs it, and then its acknowledgement.
    """
    return _range_text(numbers) if type(numbers) is range else _encode(numbers).decode()


@lru_cache(maxsize=1024)
def _range_text(numbers: range) -> str:
    return _encode(list(numbers)).decode()


def decode_pop_body(kind: type[BodyT], data: bytes) -> BodyT:
    """Decode a body; much faster than `decode_body` for those that have no quirks of Java's JSON.

    Raises:
        MalformedBody: The bytes are not JSON, or a member is of the wrong type.
    """
    try:
        return cast("BodyT", _DECODERS[kind].decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # it names the fault
        return decode_body(kind, data)
