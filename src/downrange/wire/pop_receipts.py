"""Texts of pop consumption: receipts, and the offsets in the reply to a pop.

A receipt ("extraInfo", property POP_CK) identifies one delivery of a message. Eight words:

    start offset, pop time, invisible time, revive queue, kind, broker, queue id, message offset

The first seven identify the checkpoint, which covers all messages of one queue that one pop
returned. The last one is added by the client. The texts in the reply have one entry per queue,
joined by semicolons (Java: ExtraInfoUtil):

    startOffsetInfo   kind, queue id, start offset of the checkpoint
    msgOffsetInfo     kind, queue id, offsets of the messages, joined by commas
    orderCountInfo    kind, queue id, deliveries so far; or kind, qo<queue id>%<offset>, deliveries
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from downrange.errors import InvalidField
from downrange.native import twin
from downrange.wire.fields import int32, int64
from downrange.wire.pop_bodies import numbers_text
from downrange.wire.system_names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Kinds of topics from which a message was popped: the topic itself, and the two forms of the
#: retry topic of a group.
PLAIN: Final = "0"
RETRY: Final = "1"
RETRY_V2: Final = "2"
#: In place of a revive queue: the message was popped in order and has no checkpoint.
IN_ORDER: Final = 999

_WORDS: Final = 8
_NEEDED_WORDS: Final = 6


class Receipt(NamedTuple):
    """One delivery of a message.

    Attributes:
        start: The start offset of the checkpoint.
        pop_ms: When the message was popped.
        invisible_ms: For how long no other consumer gets it.
        revive_queue: The revive queue of the checkpoint, or `IN_ORDER`.
        kind: `PLAIN`, `RETRY` or `RETRY_V2`.
        broker: The name of the broker.
        queue_id: The queue.
        offset: The message's offset in the queue.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        """Return the receipt as Java writes it."""
        return " ".join(map(str, self))

    @property
    def is_in_order(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue == IN_ORDER

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that has the message; see `popped_topic`."""
        return popped_topic(self.kind, topic, group)


def popped_topic(kind: str, topic: str, group: str) -> str:
    """Return the topic that has a message.

    Args:
        kind: See `Receipt`.
        topic: The topic in the request: the one that was popped from, or already the retry topic
            of the group that has the message.
        group: The group.
    """
    if kind not in (RETRY, RETRY_V2) or topic.startswith(RETRY_PREFIX):
        return topic
    form = pop_retry_topic if kind == RETRY else pop_retry_topic_v2
    return form(group, topic)


def parse_receipt(text: str, queue_id: int | None = None, offset: int | None = None) -> Receipt:
    """Parse a receipt.

    Args:
        text: The words of a receipt.
        queue_id: The queue, if the request has it. Then the last two words are not needed.
        offset: The offset of the message, likewise.

    Raises:
        InvalidField: A word is missing or not a number.
    """
    words = text.split(" ")
    needed = _WORDS if queue_id is None or offset is None else _NEEDED_WORDS
    if len(words) < needed:
        raise InvalidField("receipt", "extraInfo", f"{text[:80]!r} has fewer than {needed} words")
    try:
        return Receipt(
            start=int64(words[0]),
            pop_ms=int64(words[1]),
            invisible_ms=int64(words[2]),
            revive_queue=int32(words[3]),
            kind=words[4],
            broker=words[5],
            queue_id=int32(words[6]) if queue_id is None else queue_id,
            offset=int64(words[7]) if offset is None else offset,
        )
    except ValueError as error:
        raise InvalidField("receipt", "extraInfo", str(error)) from error


#: What a pop returned from one queue: kind, queue id, start offset, offsets of the messages.
PoppedOffsets: TypeAlias = tuple[str, int, int, Sequence[int]]


def parse_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """Return the start offsets in `startOffsetInfo` by kind and queue id.

    Raises:
        InvalidField: An entry has other than three words, or a word is not a number.
    """
    starts: dict[tuple[str, int], int] = {}
    try:
        for entry in text.split(";"):
            kind, queue_id, start = entry.split(" ")
            starts[kind, int32(queue_id)] = int64(start)
    except ValueError as error:
        raise InvalidField("pop reply", "startOffsetInfo", f"{text[:80]!r}: {error}") from error
    return starts


def pure_offsets_texts(popped: Iterable[PoppedOffsets]) -> tuple[str, str]:
    """Return `startOffsetInfo` and `msgOffsetInfo`."""
    starts = messages = ""
    for kind, queue_id, start, offsets in popped:
        starts += f";{kind} {queue_id} {start}"
        messages += f";{kind} {queue_id} {numbers_text(offsets)[1:-1]}"
    return starts[1:], messages[1:]


offsets_texts = twin(pure_offsets_texts)


def order_counts_text(counts: Iterable[tuple[str, int, int | None, int]]) -> str:
    """Return `orderCountInfo`.

    Args:
        counts: Kind, queue id, offset of a message or None for the whole queue, deliveries so far.
    """
    return ";".join(
        [
            f"{kind} {queue_id if offset is None else f'qo{queue_id}%{offset}'} {count}"
            for kind, queue_id, offset, count in counts
        ]
    )
