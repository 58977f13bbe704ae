"""Detours: how a message is kept in one of the broker's own topics, and comes back from there.

A delayed or timed message is stored in a topic of the broker with its own topic and queue as
properties. When it is due, it is stored a second time, where it belongs, as Apache does.

One rule: what comes back is what went in. Born data, body and properties are the same bytes; only
place and store host are new.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedRecord
from downrange.wire.codes import SysFlag
from downrange.wire.limits import TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.wire.records import Record

#: How much the deliveries of one tick may store: the event loop must not stall, nor memory fill.
TICK_RECORDS_MAX: Final = 200
TICK_BYTES_MAX: Final = 4 * 1024 * 1024
#: How long storing is left alone after it failed.
RETRY_MS: Final = 1_000

_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_REAL_QUEUE_ID: Final = str(PropertyKey.REAL_QUEUE_ID)
_STORE_HOST_V6: Final = int(SysFlag.STORE_HOST_V6)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def read_number(text: str) -> int | None:
    """Read a number as Java does, who knows no blanks or underscores; None if it is none."""
    return int(text) if _NUMBER.fullmatch(text) is not None else None


def redirect(record: Record, properties: dict[str, str], topic: bytes, queue_id: int) -> None:
    """Let a record go to a topic of the broker, and its properties remember where it belongs."""
    properties[_REAL_TOPIC] = record.topic
    properties[_REAL_QUEUE_ID] = str(record.queue_id)
    record.topic_bytes = topic
    record.queue_id = queue_id


def undo_redirect(state: BrokerState, record: Record, properties: dict[str, str]) -> None:
    """Turn a record that waited into the one that is stored where it belongs.

    A topic that was deleted meanwhile is no obstacle, as with Apache: its queue gets the record.

    Raises:
        MalformedRecord: The properties do not say where it belongs.
    """
    topic = properties.get(_REAL_TOPIC, "").encode()
    queue_id = properties.get(_REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        raise MalformedRecord(0, "no topic or queue to bring it back to")
    record.topic_bytes = topic
    record.queue_id = int(queue_id)
    record.magic = MAGIC_V2 if len(topic) > TOPIC_BYTES_MAX else MAGIC_V1
    record.store_ip, record.store_port = state.host.ip, state.host.port
    record.sys_flag = record.sys_flag & ~_STORE_HOST_V6 | state.host.sys_flag
