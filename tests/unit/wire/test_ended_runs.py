"""Ends of half messages as one run, in Python; tests/unit/native compares the native twin."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from downrange.wire.batches import KEY_ENTRY, QUEUE_UNIT
from downrange.wire.ended_runs import op_record, pure_ended_run
from downrange.wire.records import Record, decode_records, encode_record
from downrange.wire.send_runs import half_properties

STORE = (b"\x0a\x00\x00\x02", 10911)
OP_QUEUE = (b"RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)


def half(key: str, queue_id: int = 1) -> bytes:
    """Return the record of a half message of a broker that had an IPv6 address then."""
    own = half_properties(key, "orders", queue_id)
    return encode_record(
        Record(
            flag=7,
            queue_offset=3,
            log_offset=500,
            sys_flag=0x21,
            born_ms=5,
            born_ip=b"\x0a\x00\x00\x01",
            born_port=42,
            store_ip=bytes(16),
            reconsume_times=2,
            body=key.encode(),
            topic_bytes=b"RMQ_SYS_TRANS_HALF_TOPIC",
            property_bytes=f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02{own}".encode(),
        )
    )


def test_a_commit_stores_the_message_and_an_op_record_and_a_rollback_the_latter() -> None:
    run = pure_ended_run(STORE)
    run.add_end(half("K1"), "orders", 1, 3, 77)
    run.add_end(None, "orders", 1, 4, 78)
    run.add_end(half("K2", 2), "orders", 2, 12, 79)
    assert (len(run), run.requests, run.has_nul) == (5, 5, False)
    assert run.queues == [(b"orders", 1), OP_QUEUE, (b"orders", 2)]
    assert run.counts == [1, 3, 1]
    run.begin(88, [1, 2, 3])
    run.encode(0, 1 << 20)
    run.begin(99, [10, 20, 30])  # as after a failure
    first, unfit_size = run.encode(1000, 320)
    second, end = run.encode(5000, 1 << 20)
    assert (unfit_size > 0, end) == (True, 0)
    records = decode_records(b"".join([*first, *second]))
    assert [record.body for record in records] == [b"K1", b"3", b"4", b"K2", b"12"]
    assert [record.queue_offset for record in records] == [10, 20, 21, 30, 22]
    message, op = records[:2]
    assert op == replace(
        op_record(STORE, 3, 77),
        size=op.size,
        body_crc=op.body_crc,
        queue_offset=20,
        log_offset=op.log_offset,
        store_ms=99,
    )
    assert (message.topic, message.queue_id, message.sys_flag) == ("orders", 1, 9)
    assert (message.prepared_offset, message.log_offset, message.store_ms) == (500, 1000, 99)
    assert (message.born_ms, message.born_host, message.flag) == (5, "10.0.0.1:42", 7)
    assert (message.store_host, message.reconsume_times) == ("10.0.0.2:10911", 2)
    assert message.properties() == {"UNIQ_KEY": "K1", "TAGS": "t", "__transactionId__": "K1"}
    assert run.queue_bytes == [
        sum(each.size for each in records if (each.topic_bytes, each.queue_id) == queue)
        for queue in run.queues
    ]
    assert [
        (unit[0], unit[2]) for units in run.queue_units() for unit in QUEUE_UNIT.iter_unpack(units)
    ] == [
        (records[0].log_offset, ord("t")),
        *((records[number].log_offset, ord("d")) for number in (1, 2, 4)),
        (records[3].log_offset, ord("t")),
    ]
    entries = [entry[1] for entry in KEY_ENTRY.iter_unpack(run.key_entries([0, 0, 0], False))]
    assert entries == [records[0].log_offset, records[3].log_offset]
    assert len(run.key_entries([0, 0, 0], True)) == (2 + 5) * KEY_ENTRY.size


def test_the_records_of_a_broker_with_an_ipv6_address_have_its_bits() -> None:
    run = pure_ended_run((bytes(16), 10911))
    run.add_end(half("K1"), "orders", 1, 3, 77)
    run.begin(99, [0, 0])
    parts, _ = run.encode(0, 1 << 20)
    assert [record.sys_flag for record in decode_records(b"".join(parts))] == [0x29, 0x30]


def test_bytes_that_are_not_a_half_are_refused() -> None:
    run = pure_ended_run(STORE)
    for record, queue_id in ((half("K"), 2), (half("K")[:-1], 1)):
        with pytest.raises(ValueError, match="not the bytes of a half"):
            run.add_end(record, "orders", queue_id, 3, 77)
    assert len(run) == 0
