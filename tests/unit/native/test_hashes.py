"""Java's string hash, native and in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downrange.wire.hashes import pure_java_hash, pure_key_hash_behind
from tests.unit.native.pairs import assert_same, native

#: Also lone surrogates, which have no UTF-8 form, and texts as long as ids and longer than 256.
TEXTS = (
    st.text(st.characters())
    | st.text(st.characters(categories=["Cs", "Nd"]))
    | st.text("0123456789ABCDEF", min_size=30, max_size=300)
)


@given(TEXTS)
def test_texts(text: str) -> None:
    assert_same(pure_java_hash, native.java_hash, text)


@given(st.integers(0, 2**32 - 1), TEXTS)
def test_keys_behind_a_front(front: int, key: str) -> None:
    assert_same(pure_key_hash_behind, native.key_hash_behind, front, key)
