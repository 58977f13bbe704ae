"""Hand-made pop requests and the receipts in their answers, for tests of any server."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The revive queue of every orderly pop.
ORDERLY_REVIVE_QUEUE = 999


@dataclass(frozen=True, slots=True)
class Receipt:
    """One popped message: where it is, and the words that acknowledge it.

    Attributes:
        popped_topic: The topic of the pop.
        topic: The topic to name in a request about this message, which may be a retry topic.
        group: The group that popped it.
        start: First offset of the pop in this queue.
        kind: "0" for the topic itself, "1" for the group's retry topic.
    """

    popped_topic: str
    topic: str
    group: str
    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    offset: int

    @property
    def text(self) -> str:
        """The receipt as requests carry it and as the property POP_CK has it."""
        return (
            f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_queue} {self.kind} "
            f"{self.broker} {self.queue_id} {self.offset}"
        )

    def fields(self, **changes: str | int) -> dict[str, str]:
        """Return the fields of a request that acknowledges the message, or as the changes say."""
        fields: dict[str, str | int] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": self.queue_id,
            "extraInfo": self.text,
            "offset": self.offset,
        }
        return {name: str(value) for name, value in (fields | changes).items()}

    def batch_entry(self, offsets: Iterable[int]) -> dict[str, object]:
        """Return the entry of a batch that acknowledges offsets of the same pop and queue.

        It names the topic of the pop; the broker finds the retry topic by the kind.
        """
        bits = sum(1 << offset - self.start for offset in offsets)
        packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return {
            "c": self.group,
            "t": self.popped_topic,
            "r": self.kind,
            "so": self.start,
            "q": self.queue_id,
            "rq": self.revive_queue,
            "pt": self.pop_ms,
            "it": self.invisible_ms,
            "b": base64.b64encode(packed).decode(),
        }


def pop_fields(
    topic: str,
    group: str,
    *,
    queue_id: int = 0,
    count: int = 32,
    invisible_ms: int = 60_000,
    poll_ms: int = 0,
    born_ms: int = 0,
    **more: str,
) -> dict[str, str]:
    """Return the fields of a pop.

    Args:
        topic: Topic.
        group: Consumer group.
        queue_id: Queue, or -1 for all.
        count: Most messages in the answer.
        invisible_ms: Time until an unacknowledged message returns.
        poll_ms: Time to wait for a message.
        born_ms: When the request was made; a broker never finds 0 too old, but does not hold it.
        **more: Further fields, such as `order` and `attemptId`.
    """
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "maxMsgNums": str(count),
        "invisibleTime": str(invisible_ms),
        "pollTime": str(poll_ms),
        "bornTime": str(born_ms),
        "initMode": "0",
        **more,
    }


def batch_body(broker: str, entries: Iterable[Mapping[str, object]]) -> bytes:
    """Return the body of a request that acknowledges several pops."""
    return json.dumps({"brokerName": broker, "acks": list(entries)}).encode()


def receipts(
    fields: Mapping[str, str], topic: str, group: str, broker: str
) -> dict[tuple[str, int, int], Receipt]:
    """Return the receipts in a pop's answer by kind, queue and offset, in their order."""
    starts: dict[tuple[str, str], int] = {}
    for entry in fields["startOffsetInfo"].split(";"):
        kind, queue, start = entry.split(" ")
        starts[kind, queue] = int(start)
    found: dict[tuple[str, int, int], Receipt] = {}
    for entry in fields["msgOffsetInfo"].split(";"):
        kind, queue, offsets = entry.split(" ")
        for offset in map(int, offsets.split(",")):
            found[kind, int(queue), offset] = Receipt(
                popped_topic=topic,
                topic=topic if kind == "0" else f"%RETRY%{group}_{topic}",
                group=group,
                start=starts[kind, queue],
                pop_ms=int(fields["popTime"]),
                invisible_ms=int(fields["invisibleTime"]),
                revive_queue=int(fields["reviveQid"]),
                kind=kind,
                broker=broker,
                queue_id=int(queue),
                offset=offset,
            )
    return found
