"""Messages as one batch, native and in Python."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.producing.batches import bare_bytes, pure_usual_batch_bytes
from downrange.model import CompressedMessage, Message
from downrange.wire.messages import property_text, pure_batch_of, pure_usual_properties
from downrange.wire.records import decode_batch
from tests.unit.native.pairs import assert_same, native

WORDS = st.text("abc:-_é\x00", min_size=1, max_size=8)
#: Names and values: some empty, some with separators or lone surrogates.
PARTS = (
    st.text(st.characters(max_codepoint=0x1FF), max_size=6)
    | st.text("a\x01\x02\ud800")
    | st.text("azAZ_09 `{!~\x7f", min_size=1, max_size=4)
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw a message; some are unusual, some cannot be sent."""
    details: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "tags": WORDS,
                "keys": st.lists(WORDS, max_size=3),
                "properties": st.dictionaries(PARTS, PARTS, max_size=3),
                "sharding_key": WORDS,
                "delay_level": st.just(3),
                "deliver_in": st.just(5.0),
                "deliver_at": st.just(datetime(2030, 1, 1, tzinfo=UTC)),
                "flag": st.sampled_from([0, 7, -1, 2**31 - 1, 2**31, 2**70]),
                "wait_stored": st.booleans(),
            },
        )
    )
    for name in ("sharding_key", "delay_level", "deliver_in", "deliver_at", "flag", "properties"):
        if draw(st.integers(0, 3)):  # usually not
            details.pop(name, None)
    if "delay_level" in details or "deliver_at" in details:
        details.pop("deliver_in", None)
    if "deliver_at" in details:
        details.pop("delay_level", None)
    topic = draw(st.sampled_from(["orders", "orders", "orders", "others"]))
    return Message(topic, draw(st.binary(max_size=40)), **details)


LISTS = st.lists(messages(), max_size=5)


@given(LISTS, st.text("0123456789ABCDEF", min_size=1, max_size=56))
def test_bodies(batch: list[Message], unique_id: str) -> None:
    ids = [f"{unique_id}{number}" for number in range(len(batch))]
    assert_same(pure_batch_of, native.batch_of, batch, ids)


@given(messages(), st.sampled_from([4, 100]))
def test_the_size_of_a_bare_message(message: Message, body_bytes_max: int) -> None:
    usual = pure_usual_batch_bytes([message], body_bytes_max)
    assert bare_bytes(message, body_bytes_max) in (None, usual)
    bare = Message("orders", message.body)
    assert bare_bytes(bare, body_bytes_max) == pure_usual_batch_bytes([bare], body_bytes_max)


@given(LISTS, st.sampled_from([4, 100]), st.sampled_from([32, 56]))
def test_sizes(batch: list[Message], body_bytes_max: int, id_bytes: int) -> None:
    assert_same(pure_usual_batch_bytes, native.usual_batch_bytes, batch, body_bytes_max, id_bytes)


@given(messages(), st.sampled_from([4, 100]), st.text("0123456789ABCDEF", min_size=1))
def test_properties(message: Message, body_bytes_max: int, unique_id: str) -> None:
    assert_same(pure_usual_properties, native.usual_properties, message, body_bytes_max, unique_id)
    found = native.usual_properties(message, body_bytes_max, unique_id)
    if found is not None:
        assert found == property_text(message, unique_id)


@given(LISTS)
def test_a_size_is_that_of_the_body(batch: list[Message]) -> None:
    size = native.usual_batch_bytes(batch, 100)
    if size is not None:
        body = native.batch_of(batch, ["A" * 32] * len(batch))
        assert len(body) == size
        assert [item.body for item in decode_batch(body)] == [one.body for one in batch]


def changed(**fields: Any) -> Message:
    message = Message("orders", b"1")
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    "message",
    [
        changed(body="text"),
        changed(body=bytearray(b"1")),
        changed(topic=None),
        changed(flag="1"),
        changed(flag=True),
        changed(wait_stored=None),
        changed(wait_stored=1),
        changed(properties=None),
        changed(properties={"a": 1}),
        changed(properties={1: "a"}),
        changed(keys=None),
        changed(keys=("a", 1)),
        changed(keys=(1,)),
        changed(keys=["a"]),
        changed(tags=5),
        changed(tags=""),
        CompressedMessage("orders", b"1", compression="zlib"),
        Message("orders", b"1", tags="t" * 32_800),
        Message("orders", b"1", keys=["k" * 32_700]),
        None,
        "text",
    ],
)
def test_values_that_are_not_those_of_a_message(message: Any) -> None:
    for batch in ([message], [Message("orders", b"1"), message]):
        assert_same(pure_batch_of, native.batch_of, batch, ["A"] * len(batch))
        # A field of another type may need a closer look that Python does not take.
        assert native.usual_batch_bytes(batch, 100) in (None, pure_size(batch))
    if isinstance(message, Message):
        found = native.usual_properties(message, 100, "A")
        assert found is None or found == property_text(message, "A")


def pure_size(batch: list[Any]) -> int | None:
    """Return what Python says; what it fails on needs a closer look, too."""
    try:
        return pure_usual_batch_bytes(batch, 100)
    except (TypeError, AttributeError):
        return None


def test_different_numbers_of_messages_and_ids() -> None:
    batch = [Message("orders", b"1"), Message("orders", b"2")]
    for ids in ([], ["A"], ["A", "B", "C"]):
        assert_same(pure_batch_of, native.batch_of, batch, ids)
