"""How half messages and the op records that end them look, and where they are read from.

    half   RMQ_SYS_TRANS_HALF_TOPIC, queue 0: the message, with REAL_TOPIC and REAL_QID
    op     RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0: tag d, body "12" or, by 5.x, "12,15,16,"

A half is named by its number in its queue. TRANSACTION_CHECK_TIMES counts how often its producer
was asked; FIRST_OFFSET, a property of ours, is the number that it had before it was first copied.
Apache's TRAN_PREPARED_QUEUE_OFFSET would say the same, but there a copy is ended with its original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from downrange.errors import MalformedRecord, StoreError
from downrange.server.broker.store_message import CLIENT_FLAGS, join_properties
from downrange.wire.codes import SysFlag
from downrange.wire.properties import PropertyKey
from downrange.wire.records import Record
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import Unit

CHECKS: Final = str(PropertyKey.TRANSACTION_CHECK_TIMES)
FIRST_OFFSET: Final = "DOWNRANGE_FIRST_OFFSET"
IMMUNITY: Final = str(PropertyKey.CHECK_IMMUNITY_TIME)
#: Given along with each op record; nobody changes it.
OP_PROPERTIES: Final = {str(PropertyKey.TAGS): "d"}

_OP_PROPERTY_BYTES: Final = join_properties(OP_PROPERTIES)
_OP_TOPIC: Final = HALF_DONE_TOPIC.encode()
_BORN_HOST_V6: Final = int(SysFlag.BORN_HOST_V6)
_KEPT_FLAGS: Final = CLIENT_FLAGS | _BORN_HOST_V6


def queued_record_at(state: BrokerState, position: int, *topics: str) -> Record | None:
    """Return the record at a position of the log if it is in queue 0 of one of the topics.

    Bytes within a body may look like a record; only the queue says where one lies.
    """
    record = state.store.find_record(position)
    if record is None or not record.is_intact or record.topic not in topics:
        return None
    unit = _unit_of(state, record.topic, record.queue_offset)
    return record if unit is not None and unit.log_offset == position else None


def read_half(state: BrokerState, offset: int) -> Record | None:
    """Return the half with a number, or None where it cannot be read."""
    unit = _unit_of(state, HALF_TOPIC, offset)
    return None if unit is None else _record_of(state, unit)


def read_ops(state: BrokerState, offset: int) -> Iterator[list[int]]:
    """Go over the op records from a number on: the halves that each names."""
    for unit in state.store.queue(HALF_DONE_TOPIC, 0).walk(offset):
        op = _record_of(state, unit)
        yield [] if op is None else _named_by(op.body)


def _record_of(state: BrokerState, unit: Unit) -> Record | None:
    try:
        return state.store.read_record(unit)
    except (StoreError, MalformedRecord):
        return None


def _unit_of(state: BrokerState, topic: str, offset: int) -> Unit | None:
    queue = state.store.queue(topic, 0)
    is_there = queue.min_offset <= offset < queue.max_offset
    return queue.units(offset, 1)[0] if is_there else None


def copy_to(state: BrokerState, half: Record, topic: str, properties: Mapping[str, str]) -> Record:
    """Return a half as it is stored anew in queue 0 of one of the broker's topics."""
    return replace(
        half,
        topic_bytes=topic.encode(),
        queue_id=0,
        sys_flag=half.sys_flag & _KEPT_FLAGS | state.host.sys_flag,
        store_ip=state.host.ip,
        store_port=state.host.port,
        property_bytes=join_properties(properties),
    )


def op_record(state: BrokerState, offset: int, now_ms: int) -> Record:
    """Return the record that says that a half is ended."""
    host = state.host
    return Record(
        sys_flag=host.sys_flag | (_BORN_HOST_V6 if host.sys_flag else 0),
        born_ms=now_ms,
        born_ip=host.ip,
        born_port=host.port,
        store_ip=host.ip,
        store_port=host.port,
        body=str(offset).encode(),
        topic_bytes=_OP_TOPIC,
        property_bytes=_OP_PROPERTY_BYTES,
    )


def first_offset(half: Record, properties: Mapping[str, str]) -> int:
    """Return the number that a half had before it was first copied."""
    text = properties.get(FIRST_OFFSET, "")
    return int(text) if text.isdecimal() and len(text) < 20 else half.queue_offset


def checks_of(properties: Mapping[str, str]) -> int:
    """Return how often a half's producer was asked."""
    return _number(properties.get(CHECKS))


def immunity_ms(state: BrokerState, properties: Mapping[str, str]) -> float:
    """Return how old a half gets before its producer is asked."""
    own = _number(properties.get(IMMUNITY))
    return max(own, state.options.transaction_timeout) * 1000


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 0


def _named_by(op_body: bytes) -> list[int]:
    return [int(word) for word in op_body.split(b",") if word.isdigit() and len(word) < 20]
