"""The property string of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import Unencodable
from downrange.wire.properties import PropertyKey, decode_properties, encode_properties

plain_text = st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(st.dictionaries(plain_text, plain_text, max_size=5))
def test_properties_survive_writing_and_reading(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text.removesuffix("\x02")) == properties


def test_a_property_string_ends_with_its_mark() -> None:
    text = encode_properties({PropertyKey.KEYS: "k1", "WAIT": "true", "TAGS": "TagA"})
    assert text == "KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    assert encode_properties({}) == ""


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        ("a\x01b\x02\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
        ("a\x01\x02c\x01d", {"c": "d"}),
        ("\x01b\x02c\x01d", {"c": "d"}),
        ("a\x02c\x01d", {"c": "d"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("WAIT\x01true\x02WAIT\x01false\x02", {"WAIT": "false"}),
        ("\x01\x02\x01\x02", {}),
    ],
)
def test_a_property_string_is_read_as_java_reads_it(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "v"),
        ("n", ""),
        ("n\x01", "v"),
        ("n\x02", "v"),
        ("n", "v\x01"),
        ("n", "\x02v"),
        ("", ""),
    ],
)
def test_a_property_that_would_read_as_another_is_refused(name: str, value: str) -> None:
    with pytest.raises(Unencodable) as caught:
        encode_properties({"good": "1", name: value, "fine": "2"})
    assert str(caught.value).startswith(f"property {name!r}: name or value is empty or contains")


def test_marks_that_balance_out_are_refused_too() -> None:
    """A property without separators and one with too many have the right count together."""
    with pytest.raises(Unencodable):
        encode_properties({"a": "b\x02c\x01d"})
    with pytest.raises(Unencodable):
        encode_properties({"a": "\x01", "": "b"})
