from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.store_message import store_message
from downrange.wire.codes import ResponseCode
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import decode_properties
from downrange.wire.records import MAGIC_V1, MAGIC_V2, Record
from tests.unit.server.broker.broker_stage import NOW_MS, a_state

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState


def a_record(state: BrokerState, topic: str = "T", body: bytes = b"x", **properties: str) -> Record:
    return Record(
        topic_bytes=topic.encode(),
        body=body,
        store_ip=state.host.ip,
        store_port=state.host.port,
        property_bytes=join_properties(properties),
    )


def code_of(state: BrokerState, record: Record, **properties: str) -> int | None:
    refused = store_message(state, record, dict(properties), NOW_MS)
    return None if refused is None else refused.code


def test_a_message_is_taken_in_as_it_is() -> None:
    state = a_state()
    record = a_record(state, KEYS="k")
    assert code_of(state, record, KEYS="k") is None
    (write,) = state.write_queue.take()
    assert write.records == [record]
    assert write.properties == [{"KEYS": "k"}]
    assert (record.magic, record.property_bytes) == (MAGIC_V1, b"KEYS\x01k\x02")
    assert list(write.on_stored(None, NOW_MS)) == []


def test_nothing_is_taken_in_while_nothing_can_be_stored() -> None:
    state = a_state()
    state.unwritable = "the disk is full"
    refused = store_message(state, a_record(state), {}, NOW_MS)
    assert refused is not None
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark == "no message is stored: the disk is full"
    assert not state.write_queue


@pytest.mark.parametrize(("size", "code"), [(100, None), (101, ResponseCode.MESSAGE_ILLEGAL)])
def test_a_body_is_as_large_as_allowed(size: int, code: int | None) -> None:
    state = a_state(message_bytes_max=100)
    assert code_of(state, a_record(state, body=bytes(size))) == code


def test_properties_are_as_large_as_a_record_can_say() -> None:
    state = a_state()
    record = a_record(state)
    record.property_bytes = b"k\x01".ljust(PROPERTIES_BYTES_MAX, b"v")
    assert code_of(state, record) is None
    record.property_bytes += b"v"
    refused = store_message(state, record, {}, NOW_MS)
    assert refused is not None
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert refused.remark == (
        "the message is illegal, maybe msg body or properties length not matched. "
        "msg body length limit 4194304B, msg properties length limit 32KB."
    )


def test_a_long_topic_makes_a_record_of_the_second_version() -> None:
    state = a_state()
    short, long = a_record(state, "t" * 127), a_record(state, "%RETRY%" + "g" * 121)
    for record in (short, long):
        assert code_of(state, record) is None
    assert (short.magic, long.magic) == (MAGIC_V1, MAGIC_V2)
    for write in state.write_queue.take():
        state.store.append(write.records, NOW_MS, write.properties)
    read = state.store.log.record_at(long.log_offset)
    assert read is not None
    assert read.topic == "%RETRY%" + "g" * 121


def test_a_delayed_message_takes_its_detour() -> None:
    state = a_state()
    record = a_record(state, DELAY="3")
    assert code_of(state, record, DELAY="3") is None
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    kept = decode_properties(record.property_bytes.decode())
    assert (kept["REAL_TOPIC"], kept["REAL_QID"]) == ("T", "0")


def test_what_a_detour_adds_counts_as_size() -> None:
    state = a_state()
    record = a_record(state, DELAY="3")
    filler = "v" * (PROPERTIES_BYTES_MAX - len(record.property_bytes) - 3)
    record = a_record(state, DELAY="3", k=filler)
    assert len(record.property_bytes) == PROPERTIES_BYTES_MAX
    assert code_of(state, record, DELAY="3", k=filler) == ResponseCode.MESSAGE_ILLEGAL
    assert not state.write_queue


def test_a_timed_message_takes_its_detour_and_one_too_far_ahead_is_refused() -> None:
    state = a_state(timer_delay_max=60.0)
    near, far = a_record(state), a_record(state)
    assert code_of(state, near, TIMER_DELAY_SEC="59") is None
    assert near.topic == "rmq_sys_wheel_timer"
    assert code_of(state, far, TIMER_DELAY_SEC="61") == ResponseCode.MESSAGE_ILLEGAL


def test_a_surrogate_in_a_property_is_stored_as_something_that_can_be_read() -> None:
    assert join_properties({"k": "a\ud800b"}) == b"k\x01a?b\x02"
