"""Batches: which messages may share one, its size, and where a list is split."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.producing.batches import (
    check_batch,
    checked,
    pure_usual_batch_bytes,
    size_in_batch,
    split,
    usual_batch_bytes,
)
from downrange.errors import InvalidMessage
from downrange.model import Message
from downrange.wire.limits import BATCH_MESSAGES_MAX
from downrange.wire.messages import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---- splitting -----------------------------------------------------------------------------------


def test_split_fills_each_batch_to_the_last_byte_and_no_further() -> None:
    assert list(split(["aa", "bb", "c", "dddd", "e"], 4, len)) == [
        ["aa", "bb"],
        ["c"],
        ["dddd"],
        ["e"],
    ]


def test_split_stops_at_the_number_of_messages_that_apache_can_count() -> None:
    batches = list(split(range(2 * BATCH_MESSAGES_MAX + 1), 2**20, lambda _: 1))
    assert [len(batch) for batch in batches] == [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 1]


def test_split_of_nothing_is_nothing() -> None:
    assert list(split([], 4, len)) == []


def test_split_names_a_message_that_is_larger_than_a_batch() -> None:
    batches = split(iter(["aaaa", "b", "ccccc"]), 4, len)
    assert next(batches) == ["aaaa"]
    with pytest.raises(InvalidMessage, match=r"message 2 takes 5 bytes .* limit of 4"):
        next(batches)


def test_split_reads_one_message_more_than_the_batch_it_gives() -> None:
    read: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            read.append(len(read))
            yield b"xx"

    assert next(split(endless(), 5, len)) == [b"xx", b"xx"]
    assert len(read) == 3


@given(st.lists(st.binary(max_size=19)), st.integers(20, 60))
def test_split_loses_nothing_and_cuts_only_where_it_must(
    bodies: list[bytes], bytes_max: int
) -> None:
    batches = list(split(bodies, bytes_max, lambda body: len(body) + 1 if body else 0))
    sizes = [sum(len(body) + 1 for body in batch if body) for batch in batches]
    assert [body for batch in batches for body in batch] == bodies
    assert all(batches)
    assert all(size <= bytes_max for size in sizes)
    for size, after in zip(sizes, batches[1:], strict=False):
        assert size + len(after[0]) + 1 > bytes_max


# ---- sizes ---------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
KEYS = st.lists(st.text("abcäß漢-7", min_size=1, max_size=9), max_size=3)


@given(
    st.binary(max_size=50),
    st.none() | st.text("abcäß漢-7", min_size=1, max_size=9),
    KEYS,
    st.dictionaries(WORDS, WORDS, max_size=3),
    st.none() | WORDS,
    st.booleans(),
    st.sampled_from([32, 56]),
)
def test_size_in_batch_is_that_of_the_bytes(
    body: bytes,
    tags: str | None,
    keys: list[str],
    properties: dict[str, str],
    sharding_key: str | None,
    wait_stored: bool,
    unique_id_bytes: int,
) -> None:
    message = Message(
        "orders",
        body,
        tags=tags,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        wait_stored=wait_stored,
    )
    written = batch_of([message], ["A" * unique_id_bytes])
    assert size_in_batch(message, unique_id_bytes) == len(written)


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"1", keys=["a\x01b"]),
        Message("orders", b"1", sharding_key="a\x02"),
        Message("orders", b"1", properties={"half": "\ud800"}),
        Message("orders", b"1", properties={"long": "x" * 32_730}),
    ],
)
def test_size_in_batch_refuses_what_would_spoil_the_batch_for_others(message: Message) -> None:
    with pytest.raises(InvalidMessage, match=r"^message for 'orders': "):
        size_in_batch(message)


def test_size_in_batch_counts_properties_up_to_their_limit() -> None:
    message = Message("orders", b"1", properties={"long": "x" * 32_700})
    assert size_in_batch(message) == len(batch_of([message], ["A" * 32]))


@pytest.mark.parametrize(
    "unusual",
    [
        Message("others", b"1"),
        Message("orders", b"1", wait_stored=False),
        Message("orders", b"1", properties={"A": "b"}),
        Message("orders", b"1", flag=5),
        Message("orders", b"1", sharding_key="k"),
        Message("orders", b"1", delay_level=1),
        Message("orders", b"1", keys=["é"]),
        Message("orders", b"1", tags="a\x01"),
        Message("orders", b"1", tags="t" * 32_750),
        Message("orders", b""),
        Message("orders", b"1" * 101),
    ],
)
def test_a_batch_with_an_unusual_message_needs_a_closer_look(unusual: Message) -> None:
    usual = [
        Message("orders", b"1", tags="a", keys=["b", "c"]),
        Message("orders", b"22"),
        Message("orders", b"3", properties={"a": "b", "cd": "e f"}, keys=["k"]),
    ]
    size = sum(size_in_batch(message) for message in usual)
    for function in (pure_usual_batch_bytes, usual_batch_bytes):
        assert function(usual, 100) == size
        assert function([*usual, unusual], 100) is None
        assert function([], 100) == 0


# ---- what may share a batch ----------------------------------------------------------------------


def test_check_batch_takes_messages_of_one_topic() -> None:
    check_batch([Message("orders", b"1", tags="new"), Message("orders", b"2", keys=["k"])])
    check_batch([])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("bills", b"1"), r"message 1 is for topic 'bills', .* first one for 'orders'"),
        (Message("orders", b"1", wait_stored=False), "message 1 has wait_stored=False"),
        (Message("orders", b"1", delay_level=3), "message 1 is to be delivered later"),
        (Message("orders", b"1", deliver_in=1.5), "message 1 is to be delivered later"),
        (
            Message("orders", b"1", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
            "message 1 is to be delivered later",
        ),
    ],
)
def test_check_batch_names_the_message_that_does_not_belong(message: Message, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        check_batch([Message("orders", b"0"), message])


def test_check_batch_refuses_retry_topics() -> None:
    with pytest.raises(InvalidMessage, match="message 0 is for retry topic '%RETRY%billing'"):
        check_batch([Message("%RETRY%billing", b"1")])


def test_checked_hands_on_what_came_before_the_bad_one() -> None:
    good = Message("orders", b"1")
    stream = checked(iter([good, Message("bills", b"2")]))
    assert next(stream) is good
    with pytest.raises(InvalidMessage, match="message 1"):
        next(stream)
