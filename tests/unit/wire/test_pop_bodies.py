"""JSON bodies of pop consumption: the bytes of a 5.5.0 broker, bit sets, malformed input."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import MalformedBody
from downrange.wire.limits import POPPED_MAX
from downrange.wire.pop_bodies import (
    SPAN_MAX,
    AckBody,
    BatchAck,
    BatchAckBody,
    CheckpointBody,
    bit_set,
    decode_pop_body,
    encode_pop_body,
)

#: Records of a 5.5.0 broker.
CHECKPOINT = (
    b'{"bm":0,"bn":"broker-a","c":"GA","d":[0],"it":8000,"n":1,"pt":1794918618355,"q":0,'
    b'"reviveTime":1794918626355,"ro":0,"so":0,"sp":false,"t":"TA"}'
)
ACK = b'{"ao":0,"bn":"broker-a","c":"GA","pt":1794918618355,"q":0,"so":0,"t":"TA"}'
BATCH_ACK = (
    b'{"ao":-1,"aol":[1,2],"bn":"broker-a","c":"GA","pt":1794918618426,"q":0,"so":1,"t":"TA"}'
)


def an_ack(bits: str, start: int = 10) -> BatchAck:
    return BatchAck(
        bits=bits,
        group="G",
        invisible_ms=1,
        pop_ms=2,
        queue_id=3,
        kind="0",
        revive_queue=4,
        start=start,
        topic="T",
    )


@pytest.mark.parametrize(
    ("kind", "data"), [(CheckpointBody, CHECKPOINT), (AckBody, ACK), (AckBody, BATCH_ACK)]
)
def test_bytes_are_those_of_java(kind: type[CheckpointBody] | type[AckBody], data: bytes) -> None:
    assert encode_pop_body(decode_pop_body(kind, data)) == data


def test_members_of_a_checkpoint() -> None:
    body = decode_pop_body(CheckpointBody, CHECKPOINT)
    assert (body.topic, body.group, body.queue_id, body.start) == ("TA", "GA", 0, 0)
    assert (body.differences, body.count, body.put_times) == ([0], 1, None)
    assert (body.pop_ms, body.invisible_ms) == (1794918618355, 8000)
    body.put_times = "2"
    assert b'"ro":0,"rp":"2","so":0' in encode_pop_body(body)


def test_json_with_java_quirks_is_read() -> None:
    """Unquoted keys, and numbers as text: `decode_body` accepts these."""
    data = CHECKPOINT.replace(b'"bm":', b"bm:").replace(b'"n":1', b'"n":"1"')
    assert decode_pop_body(CheckpointBody, data).count == 1


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"[]", b"null", b"{}", CHECKPOINT[:-5], CHECKPOINT.replace(b"[0]", b"3")]
)
def test_malformed_body(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode_pop_body(CheckpointBody, data)


@pytest.mark.parametrize(
    ("offsets", "bits"),
    [([], ""), ([10], "AQ=="), ([10, 19], "AQI="), ([17], "gA=="), ([10, 10], "AQ==")],
)
def test_bit_sets(offsets: list[int], bits: str) -> None:
    assert bit_set(10, offsets) == bits
    assert list(an_ack(bits).offsets()) == sorted(set(offsets))


@given(st.sets(st.integers(0, SPAN_MAX - 1), max_size=POPPED_MAX), st.integers(0, 2**62))
def test_bit_sets_come_back(differences: set[int], start: int) -> None:
    offsets = [start + difference for difference in differences]
    assert list(an_ack(bit_set(start, offsets), start).offsets()) == sorted(offsets)


@pytest.mark.parametrize("bits", ["A", "?", "AQ==x", "é", bit_set(0, [SPAN_MAX])])
def test_malformed_bit_set(bits: str) -> None:
    with pytest.raises(MalformedBody, match="bit set"):
        an_ack(bits).offsets()


@pytest.mark.parametrize("step", [1, 7, 480])
def test_bit_set_of_more_messages_than_a_pop_has(step: int) -> None:
    numbers = range(0, (POPPED_MAX + 1) * step, step)
    assert list(an_ack(bit_set(0, numbers[:-1]), 0).offsets()) == list(numbers[:-1])
    with pytest.raises(MalformedBody, match="a pop has 32 messages at most, not 33"):
        an_ack(bit_set(0, numbers)).offsets()
    full = b64encode(b"\xff" * (SPAN_MAX // 8)).decode()
    with pytest.raises(MalformedBody, match="not 16384"):
        an_ack(full).offsets()


def test_batch() -> None:
    data = (
        b'{"acks":[{"b":"AQI=","c":"G","it":1,"pt":2,"q":3,"r":"1","rq":4,"so":10,"t":"T"}],'
        b'"brokerName":"b"}'
    )
    body = decode_pop_body(BatchAckBody, data)
    assert body.acks is not None
    assert [ack.offsets() for ack in body.acks] == [[10, 19]]
    assert body.encode() == data
    assert decode_pop_body(BatchAckBody, b"{}").acks is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"acks":' + b"[" * 100_000,
        b'{"unknown":' + b'{"a":' * 100_000,
        b'{"acks":[{"c":"\xff"}]}',
        b"\xff\xfe",
        b"",
        b"null",
        b'{"acks":3}',
    ],
)
def test_hostile_bodies_are_refused_by_name(data: bytes) -> None:
    for kind in (BatchAckBody, AckBody, CheckpointBody):
        with pytest.raises(MalformedBody):
            decode_pop_body(kind, data if kind is BatchAckBody else data.replace(b"acks", b"aol"))
