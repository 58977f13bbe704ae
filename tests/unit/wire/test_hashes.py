"""Java's string hash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.wire.hashes import java_hash, key_hash, murmur3_low, tag_hash
from tests.unit.wire import vectors


@pytest.mark.parametrize(("text", "value"), vectors.JAVA_HASHES.items())
def test_a_text_hashes_as_in_java(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text())
def test_a_hash_is_the_sum_over_utf_16_units(text: str) -> None:
    data = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    assert java_hash(text) == (total + 2**31) % 2**32 - 2**31


def test_no_text_hashes_to_zero() -> None:
    assert java_hash("") == tag_hash("") == tag_hash(None) == 0


def test_a_tag_keeps_the_sign_of_its_hash() -> None:
    assert tag_hash("TagA") == 2598919
    assert tag_hash("polygenelubricants") == -2147483648


def test_a_key_is_hashed_with_its_topic() -> None:
    assert key_hash("T", "key") == vectors.JAVA_HASHES["T#key"]


#: Short and long keys, and keys like unique ids.
KEYS = st.text(max_size=5) | st.text("0123456789ABCDEF", min_size=30, max_size=70)


#: As long as unique ids with an IPv4 or an IPv6 address are.
ID_LONG = st.sampled_from([32, 56]).flatmap(lambda size: st.text(min_size=size, max_size=size))


@given(st.text(max_size=5), KEYS | ID_LONG)
def test_the_hash_of_a_key_is_that_of_topic_and_key(topic: str, key: str) -> None:
    value = abs(java_hash(f"{topic}#{key}"))
    assert key_hash(topic, key) == (0 if value == 2**31 else value)


@given(st.text(max_size=5), KEYS)
def test_the_hash_of_a_key_is_never_negative(topic: str, key: str) -> None:
    assert 0 <= key_hash(topic, key) < 2**31


def test_the_hash_of_a_key_is_zero_where_abs_overflows() -> None:
    """In Java the absolute value of the smallest number is itself, which is negative."""
    assert java_hash("T#DWIECHC") == -(2**31)
    assert key_hash("T", "DWIECHC") == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("hello", 0xCBD8A7B341BD9B02),
        ("hello, world", 0x342FAC623A5EBC8E),
        ("19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        ("The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_murmur_is_that_of_its_published_vectors(text: str, value: int) -> None:
    assert murmur3_low(text.encode()) == value
