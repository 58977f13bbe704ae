"""Builds send requests for load generators, in about a microsecond each.

The wire layer encodes a frame once, with placeholders for the unique key and the request id. Both
have a fixed width, so a new frame is the same bytes with other digits.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from downrange.wire.codes import RequestCode
from downrange.wire.command import encode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequestV2
from downrange.wire.records import BatchItem, encode_batch

if TYPE_CHECKING:
    from downrange.wire.command import Command

BODY: Final = b"0123456789abcdef" * 64
BATCH: Final = 100

# All request ids have ten digits, from the first one to the largest.
_FIRST_ID: Final = 1_000_000_000
_ID: Final = 1_999_999_999
_KEY: Final = "K" * 16


class Sends:
    """Generates send requests for the queues in turn, each with its own key."""

    def __init__(self, topic: str, queue_count: int, *, tag: str | None = None) -> None:
        """Encode one header per queue."""
        prefix = _key_prefix()
        self._heads = [_send_head(topic, queue, prefix, tag) for queue in range(queue_count)]
        self._sent = 0

    def take(self, count: int) -> bytes:
        """Return the next requests, concatenated."""
        heads, queue_count = self._heads, len(self._heads)
        first = self._sent
        self._sent = first + count
        parts: list[bytes] = []
        for number in range(first, first + count):
            parts += (heads[number % queue_count] % (number, _FIRST_ID + number), BODY)
        return b"".join(parts)


class Batches:
    """Generates batches for the queues in turn; each message has its own key."""

    def __init__(
        self, topic: str, queue_count: int, *, tag: str | None = None, body: bytes = BODY
    ) -> None:
        """Encode one header per queue, and the bytes between two keys of a batch."""
        properties = _properties(_key_prefix(), tag)
        made = [_batch_parts(topic, queue, properties, body) for queue in range(queue_count)]
        self._heads = [head for head, _, _ in made]
        _, self._between, self._end = made[0]
        self._sent = 0

    def take(self, count: int) -> bytes:
        """Return the next requests, concatenated."""
        parts: list[bytes] = []
        for number in range(self._sent, self._sent + count):
            key = number * (BATCH + 1)  # the batch has a key, too
            parts.append(self._heads[number % len(self._heads)] % (key, _FIRST_ID + number))
            keys = [b"%016X" % each for each in range(key + 1, key + 1 + BATCH)]
            parts += (self._between.join(keys), self._end)
        self._sent += count
        return b"".join(parts)


def _key_prefix() -> str:
    return os.urandom(8).hex().upper()


def _send_head(topic: str, queue: int, prefix: str, tag: str | None) -> bytes:
    command = request_command(_send_header(topic, queue, _properties(prefix, tag)), BODY)
    return _fillable(command).removesuffix(BODY)


def _batch_parts(
    topic: str, queue: int, properties: str, body: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return the bytes before the first message key, between two keys, and after the last."""
    header = _send_header(topic, queue, properties)
    header.batch = True
    items = encode_batch([BatchItem(0, body, properties.encode())] * BATCH)
    command = request_command(header, items, code=RequestCode.SEND_BATCH_MESSAGE)
    head, between, *_, end = _fillable(command).split(_KEY.encode())
    return head, between, end


def _send_header(topic: str, queue: int, properties: str) -> SendRequestV2:
    return SendRequestV2(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )


def _properties(prefix: str, tag: str | None) -> str:
    tags = "" if tag is None else f"TAGS\x01{tag}\x02"
    return f"UNIQ_KEY\x01{prefix}{_KEY}\x02WAIT\x01true\x02{tags}"


def _fillable(command: Command) -> bytes:
    """Return a frame with `%` placeholders for the first key and the request id."""
    command.request_id = _ID
    frame = encode(command)
    assert b"%" not in frame
    return frame.replace(_KEY.encode(), b"%016X", 1).replace(b"%d" % _ID, b"%d")
