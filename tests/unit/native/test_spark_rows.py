"""Property strings of Spark's rows, native and by Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.spark.write import row_properties
from tests.unit.native.pairs import assert_same, native

ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9), st.binary(max_size=9)
    ),
    min_size=1,
    max_size=6,
)


@given(ROWS, st.integers(0, 3))
def test_joined_rows(rows: list[tuple[Any, Any, bytes]], skipped: int) -> None:
    columns: list[tuple[bytes, Any]] = []
    for front, values in zip(
        [b"", b"KEYS\x01", b"UNIQ_KEY\x01"], zip(*rows, strict=True), strict=True
    ):
        # A slice of a column has an offset of its own.
        whole = pa.array([b"x"] * skipped + list(values), pa.binary())
        columns.append((front, whole.slice(skipped)))
    expected = row_properties.pure_joined_rows(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            row_properties, "_native_rows", native.joined_rows
        )  # also if Python is forced
        found = row_properties._native_joined_rows(columns)
    found.validate(full=True)
    assert found.equals(expected)


def test_bounds_outside_of_the_data_are_refused() -> None:
    data = np.zeros(4, np.uint8)
    for bounds, is_valid in (
        ([0, 5], None),
        ([-1, 2], None),
        ([3, 2], None),
        ([0], None),
        ([0, 1], np.zeros(0, np.uint8)),
    ):
        column = (np.array(bounds, np.int32), data, is_valid)
        with pytest.raises(ValueError, match=r"bound|short"):
            native.joined_rows(1, [(b"", column, b"")], b"")
    with pytest.raises(OverflowError):
        native.joined_rows(-1, [(b"", (np.zeros(1, np.int32), data, None), b"")], b"")
    wide: Any = (np.zeros(4, np.int64), data, None)
    with pytest.raises(BufferError):
        native.joined_rows(1, [(b"", wide, b"")], b"")


@pytest.mark.parametrize("count", [0, 1, 2**30, 2**62 - 1, 2**63 - 1, 2**64 - 1])
def test_rows_without_a_column_are_refused_whatever_their_number(count: int) -> None:
    with pytest.raises(ValueError, match="rows need a column"):
        native.joined_rows(count, [], b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_properties, "_native_rows", native.joined_rows)
        assert_same(row_properties.pure_joined_rows, row_properties._native_joined_rows, [])


def test_more_rows_than_a_column_has_are_refused() -> None:
    column = (np.zeros(3, np.int32), np.zeros(0, np.uint8), None)
    for count in (3, 2**62 - 1, 2**64 - 1):
        with pytest.raises(ValueError, match="short"):
            native.joined_rows(count, [(b"", column, b"")], b"")
