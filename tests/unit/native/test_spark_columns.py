"""Columns of Spark from records, native and by numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from downrange.spark.read.property_columns import PropertyTable, property_values
from downrange.spark.read.record_table import RecordTable, pure_record_starts
from downrange.wire.properties import decode_properties
from downrange.wire.records import Record, encode_record
from tests.unit.native.pairs import assert_same, native
from tests.unit.wire.strategies import damaged, records

REPLIES = (
    b"".join(encode_record(Record(body=b"1" * number)) for number in range(4)),
    encode_record(Record(topic_bytes=b"orders", property_bytes=b"A\x01b\x02")),
)
NAMES = ["KEYS", "TAGS", "UNIQ_KEY"]
ITEMS = st.one_of(
    st.builds(
        lambda name, value: f"{name}\x01{value}\x02",
        st.sampled_from([*NAMES, "mine", "", "KEY", "TAGSX"]),
        st.sampled_from(["", "a", "a\x01b", "é", "\x00", "long " * 20]),
    ),
    st.sampled_from(["\x02", "\x01", "TAGS", "TAGS\x01"]),
)


@given(st.sampled_from(REPLIES) | damaged(REPLIES), st.lists(st.integers(0, 800), max_size=3))
def test_starts(data: bytes, cuts: list[int]) -> None:
    for ends in ([len(data)], sorted({min(cut, len(data)) for cut in cuts}), [len(data) + 100]):
        if ends != [len(data) + 100]:  # Python reads beyond the end only for a wrong caller
            assert_same(pure_record_starts, native.record_starts, data, ends)


@given(st.lists(records(), max_size=4))
def test_starts_of_records(several: list[Record]) -> None:
    parts = [encode_record(record) for record in several]
    ends = [int(end) for end in np.cumsum([len(part) for part in parts])]
    assert_same(pure_record_starts, native.record_starts, b"".join(parts), ends)


@given(st.lists(st.lists(ITEMS, max_size=6).map("".join), min_size=1, max_size=6))
def test_property_values(strings: list[str]) -> None:
    parts = [encode_record(Record(property_bytes=text.encode())) for text in strings]
    data = b"".join(parts)
    starts = np.frombuffer(pure_record_starts(data, [len(data)]), np.int64)
    table = RecordTable(data, starts)
    found = property_values(table, NAMES)
    by_numpy = PropertyTable(table)
    for name in NAMES:
        found[name].validate(full=True)
        expected = [decode_properties(text).get(name) for text in strings]
        assert found[name].to_pylist() == by_numpy.values(name).to_pylist() == expected


def test_other_characters_than_ascii_are_left_to_numpy() -> None:
    data = "KEYS\x01é\x02".encode()
    bounds = np.array([0, len(data)])
    assert native.property_values(data, bounds[:1], bounds[1:], [b"KEYS"]) is None
    assert native.property_values(b"x", bounds[:1], bounds[1:], [b"KEYS"]) is None
