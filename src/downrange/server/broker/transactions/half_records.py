"""The records of half messages and of the op records that end them, and how they are read.

    half   RMQ_SYS_TRANS_HALF_TOPIC, queue 0: the message, with REAL_TOPIC and REAL_QID
    op     RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0: tag d, body "12" or, by 5.x, "12,15,16,"

A half is identified by its offset in its queue. TRANSACTION_CHECK_TIMES counts the checks of its
producer. FIRST_OFFSET, a property of ours, is the offset that the half had before it was first
copied. Apache's TRAN_PREPARED_QUEUE_OFFSET would hold the same value, but with Apache the end of a
copy also ends its original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from downrange.errors import MalformedRecord, StoreError
from downrange.server.broker.record_fields import join_properties
from downrange.wire import ended_runs
from downrange.wire.codes import CLIENT_FLAGS, SysFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.send_runs import FIRST_OFFSET
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from downrange.server.broker.record_fields import StoreHost
    from downrange.store.message_store import MessageStore
    from downrange.store.queue_index import Unit
    from downrange.wire.records import Record

CHECKS: Final = str(PropertyKey.TRANSACTION_CHECK_TIMES)
IMMUNITY: Final = str(PropertyKey.CHECK_IMMUNITY_TIME)
#: The properties of every op record; shared, so never changed.
OP_PROPERTIES: Final = {str(PropertyKey.TAGS): "d"}

_BORN_HOST_V6: Final = int(SysFlag.BORN_HOST_V6)
_KEPT_FLAGS: Final = CLIENT_FLAGS | _BORN_HOST_V6


def queued_record_at(store: MessageStore, position: int, *topics: str) -> Record | None:
    """Return the record at a log position if queue 0 of one of the topics contains it.

    Bytes within a body may look like a record; the queue shows where records begin.
    """
    record = store.find_record(position)
    if record is None or not record.is_intact or record.topic not in topics:
        return None
    unit = _unit_of(store, record.topic, record.queue_offset)
    return record if unit is not None and unit.log_offset == position else None


def read_half(store: MessageStore, offset: int) -> Record | None:
    """Return the half at an offset, or None if it cannot be read."""
    unit = _unit_of(store, HALF_TOPIC, offset)
    return None if unit is None else _record_of(store, unit)


def read_ops(store: MessageStore, offset: int) -> Iterator[list[int]]:
    """Yield, for each op record from an offset on, the offsets of the halves that it ends."""
    for unit in store.queue(HALF_DONE_TOPIC, 0).walk(offset):
        op = _record_of(store, unit)
        yield [] if op is None else _offsets_in(op.body)


def _record_of(store: MessageStore, unit: Unit) -> Record | None:
    try:
        return store.read_record(unit)
    except (StoreError, MalformedRecord):
        return None


def _unit_of(store: MessageStore, topic: str, offset: int) -> Unit | None:
    queue = store.queue(topic, 0)
    is_there = queue.min_offset <= offset < queue.max_offset
    return queue.units(offset, 1)[0] if is_there else None


def copy_to(host: StoreHost, half: Record, topic: str, properties: Mapping[str, str]) -> Record:
    """Return a copy of a half for queue 0 of one of the broker's topics."""
    return replace(
        half,
        topic_bytes=topic.encode(),
        queue_id=0,
        sys_flag=half.sys_flag & _KEPT_FLAGS | host.sys_flag,
        store_ip=host.ip,
        store_port=host.port,
        property_bytes=join_properties(properties),
    )


def op_record(host: StoreHost, offset: int, now_ms: int) -> Record:
    """Return the op record that ends a half."""
    return ended_runs.op_record((host.ip, host.port), offset, now_ms)


def first_offset(half: Record, properties: Mapping[str, str]) -> int:
    """Return the offset that a half had before it was first copied."""
    text = properties.get(FIRST_OFFSET, "")
    return int(text) if text.isdecimal() and len(text) < 20 else half.queue_offset


def checks_of(properties: Mapping[str, str]) -> int:
    """Return the number of checks of a half's producer so far."""
    return _number(properties.get(CHECKS))


def immunity_ms(timeout: float, properties: Mapping[str, str]) -> float:
    """Return the age at which a half's producer is first checked.

    Args:
        timeout: The broker's `transaction_timeout`; the message may ask for a longer time.
        properties: Those of the half.
    """
    return max(_number(properties.get(IMMUNITY)), timeout) * 1000


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 0


def _offsets_in(op_body: bytes) -> list[int]:
    return [int(word) for word in op_body.split(b",") if word.isdigit() and len(word) < 20]
