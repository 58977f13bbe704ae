"""Records of a reply as columns, native and in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downrange.model import QueueId
from downrange.wire.codes import SysFlag
from downrange.wire.records import Record, encode_record
from downrange.wire.reply_messages import pure_usual_records
from tests.unit.native.pairs import assert_same, native
from tests.unit.wire import vectors
from tests.unit.wire.strategies import damaged, records
from tests.unit.wire.test_reply_messages import INNER, encoded

V6 = {"born_ip": bytes(16), "sys_flag": int(SysFlag.BORN_HOST_V6)}
BOTH_V6 = {
    "born_ip": bytes(16),
    "store_ip": bytes(range(16)),
    "sys_flag": int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
}
REPLIES = (
    b"".join(encoded(number) for number in range(5)),
    encoded(0) + encoded(1, queue_id=4) + encoded(2, topic_bytes=b"other") + encoded(3),
    encoded(0, **V6) + encoded(1) + encoded(2, **BOTH_V6) + encoded(3, body=b"x" * 300),
    encoded(0) + encoded(1, sys_flag=int(SysFlag.COMPRESSED)) + encoded(2),
    encoded(0) + encoded(1, sys_flag=INNER) + encoded(2) + vectors.RECORD_V2,
    encoded(0, topic_bytes=b"t" * 127) + encoded(1, property_bytes=b"") + encoded(2, body=b""),
)


def queue_of(topic: bytes, number: int) -> QueueId:
    return QueueId(topic.decode(errors="replace"), "b", number)


@given(st.sampled_from(REPLIES) | damaged(REPLIES), st.integers(0, 200))
def test_replies(data: bytes, at: int) -> None:
    for start in (0, at):
        assert_same(pure_usual_records, native.usual_records, data, start, queue_of)


@given(st.lists(records(), max_size=4))
def test_records(several: list[Record]) -> None:
    data = b"".join(encode_record(record) for record in several) + bytes(120)
    assert_same(pure_usual_records, native.usual_records, data, 0, queue_of)


def test_an_error_of_the_queue_is_raised() -> None:
    def refuse(_: bytes, number: int) -> QueueId:
        raise KeyError(number)

    assert_same(pure_usual_records, native.usual_records, REPLIES[0], 0, refuse)
