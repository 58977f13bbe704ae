"""Receipts, and the texts in the reply to a pop, byte by byte as Java writes them."""

from __future__ import annotations

import pytest

from downrange.errors import InvalidField
from downrange.wire.pop_receipts import (
    Receipt,
    offsets_texts,
    order_counts_text,
    parse_receipt,
    parse_start_offsets,
)

TEXT = "3 1794918618607 12000 1 0 broker-a 0 5"
RECEIPT = Receipt(3, 1794918618607, 12000, 1, "0", "broker-a", 0, 5)


def test_receipt_is_written_and_parsed() -> None:
    assert str(RECEIPT) == TEXT
    assert parse_receipt(TEXT) == RECEIPT
    for text in (TEXT, TEXT.removesuffix(" 5"), TEXT.removesuffix(" 0 5")):
        assert parse_receipt(text, 4, 9) == RECEIPT._replace(queue_id=4, offset=9)
    assert parse_receipt(f"{TEXT} more words") == RECEIPT


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", None),
        ("", 1),
        ("1 2", 1),
        ("1 2 3 4 0", 1),
        ("1 2 3 4 0 b 0", None),
        ("x 2 3 4 0 b 0 0", None),
        ("1 x 3 4 0 b 0 0", None),
        ("1 2 x 4 0 b 0 0", None),
        ("1 2 3 x 0 b 0 0", None),
        ("1 2 3 4 0 b x 0", None),
        ("1 2 3 4 0 b 0 x", None),
        ("9223372036854775808 2 3 4 0 b 0 0", None),
        ("1 2 3 2147483648 0 b 0 0", None),
        ("1  2 3 4 0 b 0 0", None),
    ],
)
def test_malformed_receipt(text: str, offset: int | None) -> None:
    with pytest.raises(InvalidField, match="extraInfo"):
        parse_receipt(text, None if offset is None else 0, offset)


def test_error_shows_only_the_begin_of_a_long_text() -> None:
    with pytest.raises(InvalidField) as raised:
        parse_receipt("x" * 10_000)
    assert len(str(raised.value)) < 300


def test_order() -> None:
    assert not RECEIPT.is_in_order
    assert RECEIPT._replace(revive_queue=999).is_in_order


@pytest.mark.parametrize(
    ("kind", "topic", "expected"),
    [
        ("0", "T", "T"),
        ("1", "T", "%RETRY%G_T"),
        ("2", "T", "%RETRY%G+T"),
        ("9", "T", "T"),
        ("1", "%RETRY%G_T", "%RETRY%G_T"),
        ("2", "%RETRY%G+T", "%RETRY%G+T"),
        ("0", "%RETRY%G", "%RETRY%G"),
    ],
)
def test_topic_that_has_the_message(kind: str, topic: str, expected: str) -> None:
    assert RECEIPT._replace(kind=kind).topic(topic, "G") == expected


def test_texts_of_a_reply() -> None:
    popped = [("0", 3, 0, [0, 1, 2]), ("1", 0, 7, [9])]
    assert offsets_texts(popped) == ("0 3 0;1 0 7", "0 3 0,1,2;1 0 9")
    assert offsets_texts([]) == ("", "")
    assert order_counts_text([]) == ""
    counts = [("0", 0, 3, 1), ("0", 0, None, 1), ("0", 1, None, 0)]
    assert order_counts_text(counts) == "0 qo0%3 1;0 0 1;0 1 0"


def test_start_offsets_are_parsed_as_they_are_written() -> None:
    popped = [("0", 3, 17, [17]), ("1", 0, 5, [5, 6])]
    assert parse_start_offsets(offsets_texts(popped)[0]) == {("0", 3): 17, ("1", 0): 5}


@pytest.mark.parametrize("text", ["", "0 1", "0 1 2 3", "0 x 2", "0 1 x", "0 1 2;", "0 1 2;0"])
def test_malformed_start_offsets(text: str) -> None:
    with pytest.raises(InvalidField, match="startOffsetInfo"):
        parse_start_offsets(text)
