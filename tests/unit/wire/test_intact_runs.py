"""`intact_run` and `index_properties` against `decode_record` and `decode_properties`."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from downrange.errors import MalformedRecord
from downrange.wire.codes import SysFlag
from downrange.wire.properties import decode_properties, index_properties
from downrange.wire.records import (
    MAGIC_V1,
    MAGIC_V2,
    IndexFields,
    Record,
    decode_record,
    encode_record,
    index_fields,
    intact_run,
)

#: Bytes behind the records: `intact_run` leaves records close to the end to `decode_record`.
_REST = bytes(200)
_BEGIN = 4096
#: The fixed part of a record with two IPv6 hosts.
_FIXED_BYTES_MAX = 112


@st.composite
def _records(draw: st.DrawFn) -> Record:
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = (SysFlag.BORN_HOST_V6 if born_v6 else 0) | (SysFlag.STORE_HOST_V6 if store_v6 else 0)
    is_long = draw(st.integers(0, 9)) == 0
    return Record(
        magic=MAGIC_V2 if is_long else MAGIC_V1,
        queue_id=draw(st.integers(0, 9)),
        queue_offset=draw(st.integers(0, 2**62)),
        sys_flag=int(flags) | draw(st.sampled_from([0, 4, 8, 12])),
        born_ip=bytes(16 if born_v6 else 4),
        store_ip=bytes(16 if store_v6 else 4),
        store_ms=draw(st.integers(0, 2**40)),
        body=draw(st.binary(max_size=40)),
        topic_bytes=draw(st.binary(max_size=300 if is_long else 127)),
        property_bytes=draw(st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"v"))),
    )


def _encoded(records: list[Record]) -> bytearray:
    data, offset = bytearray(), _BEGIN
    for record in records:
        record.log_offset = offset
        data += encode_record(record)
        offset += record.size
    return data + _REST


def _one_by_one(data: bytes) -> list[IndexFields]:
    """Return the fields of all records before the first one that is damaged."""
    found: list[IndexFields] = []
    at = 0
    while True:
        try:
            record = decode_record(data, at)
        except MalformedRecord:
            return found
        if not record.is_intact or record.log_offset != _BEGIN + at:
            return found
        found.append(index_fields(record))
        at += record.size


@given(st.lists(_records(), max_size=6))
def test_a_run_has_all_records_of_the_usual_form(records: list[Record]) -> None:
    data = bytes(_encoded(records))
    usual: list[IndexFields] = []
    for record in records:
        if record.magic != MAGIC_V1:
            break
        usual.append(index_fields(record))
    assert intact_run(data, 0, _BEGIN) == usual


@given(
    st.lists(_records(), min_size=1, max_size=4),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    st.floats(0, 1),
)
def test_a_run_of_damaged_bytes_has_only_records_that_are_read_one_by_one(
    records: list[Record], changes: list[tuple[float, int]], cut: float
) -> None:
    data = _encoded(records)
    written = len(data) - len(_REST)
    for where, value in changes:
        data[int(where * written)] = value
    damaged = bytes(data[: len(data) - int(cut * len(_REST))])
    run = intact_run(damaged, 0, _BEGIN)
    expected = _one_by_one(damaged)
    assert run == expected[: len(run)]
    if len(run) < len(expected):  # the run ends before a record that is whole, but not usual
        record = decode_record(damaged, expected[len(run)][0] - _BEGIN)
        is_near_the_end = _BEGIN + len(damaged) - record.log_offset < _FIXED_BYTES_MAX
        assert record.magic == MAGIC_V2 or 0 in record.property_bytes or is_near_the_end


def test_a_run_ends_before_each_kind_of_damage() -> None:
    good, last = Record(topic_bytes=b"T", body=b"body"), Record(topic_bytes=b"T", body=b"last")
    data = bytes(_encoded([good, last]))
    at = good.size
    assert len(intact_run(data, 0, _BEGIN)) == 2
    topic_at = at + 84 + 4 + 4
    for position, value in (
        (at, b"\x7f"),  # size
        (at, b"\xff"),
        (at + 3, b"\x01"),
        (at + 4, b"\x00"),  # magic
        (at + 11, b"\x00"),  # CRC
        (at + 35, b"\x00"),  # log offset
        (at + 84, b"\xff"),  # length of the body
        (at + 84, b"\x7f"),
        (at + 88, b"B"),  # body
        (topic_at, b"\xff"),  # length of the topic
        (topic_at, b"\x7f"),
        (topic_at + 2, b"\x80"),  # length of the properties
        (topic_at + 3, b"\x01"),
    ):
        damaged = data[:position] + value + data[position + 1 :]
        assert len(intact_run(damaged, 0, _BEGIN)) == 1, position


_PIECES = st.sampled_from(
    [b"UNIQ_KEY", b"KEYS", b"TAGS", b"K", b"\x01", b"\x02", b"v", b"a b", b"\xe2\x82", "ä".encode()]
)


@given(st.lists(_PIECES, max_size=14).map(b"".join))
@example(b"KEYS\x01first\x02KEYS\x01\x02")
@example(b"TAGS\x01t\x02UNIQ_KEY\x01")
@example(b"xKEYS\x01v\x02TAGS\x01a\x01b\x02")
def test_properties_for_the_indexes_are_those_of_the_whole_string(data: bytes) -> None:
    known = decode_properties(data.decode(errors="replace"))
    expected = known.get("UNIQ_KEY"), known.get("KEYS"), known.get("TAGS")
    assert index_properties(data) == expected
