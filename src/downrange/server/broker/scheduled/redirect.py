"""Redirects: store a message in a topic of the broker first, and in its own topic later.

A delayed or timed message, and a half message, is stored in a topic of the broker. The properties
REAL_TOPIC and REAL_QID hold its own topic and queue. When it is due or committed, it is stored a
second time, there, as Apache does.

One rule: the second record equals the message that was sent. Body, properties and the fields of
its birth are the same bytes; only topic, queue and store host differ from the redirected record.
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
    from downrange.server.broker.record_fields import StoreHost
    from downrange.wire.records import Record

#: Limits of one tick: deliveries must neither stall the event loop nor fill the memory.
TICK_RECORDS_MAX: Final = 200
TICK_BYTES_MAX: Final = 4 * 1024 * 1024
#: The pause after a failed delivery.
RETRY_MS: Final = 1_000

_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_REAL_QUEUE_ID: Final = str(PropertyKey.REAL_QUEUE_ID)
_STORE_HOST_V6: Final = int(SysFlag.STORE_HOST_V6)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def read_number(text: str) -> int | None:
    """Parse a number as Java does, without blanks or underscores; None if that fails."""
    return int(text) if _NUMBER.fullmatch(text) is not None else None


def redirect(record: Record, properties: dict[str, str], topic: bytes, queue_id: int) -> None:
    """Change a record's topic and queue, and keep its own ones as properties."""
    properties[_REAL_TOPIC] = record.topic
    properties[_REAL_QUEUE_ID] = str(record.queue_id)
    record.topic_bytes = topic
    record.queue_id = queue_id


def undo_redirect(host: StoreHost, record: Record, properties: dict[str, str]) -> None:
    """Give a redirected record its own topic and queue again.

    A topic that was deleted since is ignored, as with Apache: its queue gets the record.

    Raises:
        MalformedRecord: The properties contain no topic or queue.
    """
    topic = properties.get(_REAL_TOPIC, "").encode()
    queue_id = properties.get(_REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        raise MalformedRecord(0, "REAL_TOPIC or REAL_QID is missing or malformed")
    record.topic_bytes = topic
    record.queue_id = int(queue_id)
    record.magic = MAGIC_V2 if len(topic) > TOPIC_BYTES_MAX else MAGIC_V1
    record.store_ip, record.store_port = host.ip, host.port
    record.sys_flag = record.sys_flag & ~_STORE_HOST_V6 | host.sys_flag
