"""Messages to properties and batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import Unencodable
from downrange.model import Message
from downrange.wire.messages import (
    batch_of,
    properties_of,
    property_text,
    pure_usual_properties,
    usual_own_text,
    usual_properties,
)
from downrange.wire.properties import encode_properties
from downrange.wire.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_plain_message_travels_with_its_id_and_whether_to_wait() -> None:
    assert properties_of(Message("T", b""), "ID") == {"UNIQ_KEY": "ID", "WAIT": "true"}


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ({"tags": "TagA"}, {"TAGS": "TagA"}),
        ({"keys": ["k1", "k2"]}, {"KEYS": "k1 k2"}),
        ({"properties": {"mine": "1"}}, {"mine": "1"}),
        ({"sharding_key": "s"}, {"__SHARDINGKEY": "s"}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"deliver_in": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        (
            {"deliver_at": datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)},
            {"TIMER_DELIVER_MS": "1700000000500"},
        ),
        (
            {"deliver_at": datetime(2023, 11, 15, 6, 13, 20, tzinfo=timezone(timedelta(hours=8)))},
            {"TIMER_DELIVER_MS": "1700000000000"},
        ),
        ({"wait_stored": False}, {"WAIT": "false"}),
        ({"properties": {"UNIQ_KEY": "x", "WAIT": "x"}}, {}),
    ],
)
def test_what_a_message_asks_for_travels_as_properties(
    options: dict[str, Any], properties: dict[str, str]
) -> None:
    expected = {"UNIQ_KEY": "ID", "WAIT": "true", **properties}
    assert properties_of(Message("T", b"", **options), "ID") == expected


def test_properties_of_a_message_leave_the_message_alone() -> None:
    message = Message("T", b"", properties={"a": "b"})
    properties_of(message, "ID")
    assert message.properties == {"a": "b"}


def test_a_batch_holds_each_message_with_its_id() -> None:
    data = batch_of([Message("T", b"a", flag=9), Message("T", b"b", tags="t")], ["ID1", "ID2"])
    first, second = decode_batch(data)
    assert (first.flag, first.body, second.body) == (9, b"a", b"b")
    assert first.property_bytes == b"UNIQ_KEY\x01ID1\x02WAIT\x01true\x02"
    assert second.property_bytes == b"UNIQ_KEY\x01ID2\x02WAIT\x01true\x02TAGS\x01t\x02"


@pytest.mark.parametrize("value", ["a\x01b", "a\x02b", "", "\ud800"])
def test_a_property_that_cannot_be_carried_is_refused(value: str) -> None:
    with pytest.raises(Unencodable, match="propert"):
        batch_of([Message("T", b"", properties={"mine": value})], ["ID"])


@given(
    properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    keys=st.lists(st.text("abc\x01", min_size=1, max_size=3), max_size=2),
    tags=st.none() | st.text("ab\x01", min_size=1, max_size=3),
    sharding_key=st.none() | st.text(min_size=1, max_size=3),
    wait_stored=st.booleans(),
    delay_level=st.none() | st.integers(1, 3),
)
def test_the_fast_way_to_write_properties_equals_the_plain_one(**parts: Any) -> None:
    message = Message("T", b"1", **parts)

    def plain(message: Message, unique_id: str) -> str:
        return encode_properties(properties_of(message, unique_id))

    assert _outcome(property_text, message) == _outcome(plain, message)


def _outcome(write: Callable[[Message, str], str], message: Message) -> str:
    try:
        return write(message, "ID")
    except Unencodable as refusal:
        return f"refused: {refusal}"


# ---- the usual form ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "is_usual"),
    [
        ({}, True),
        ({"traceparent": "00-1-2-01", "region": "eu west"}, True),
        ({"zZ9_ .": "~"}, True),
        ({"a": "!"}, True),
        ({"KEYS": "k"}, False),
        ({"Region": "eu"}, False),
        ({"_a": "1"}, False),
        ({"1a": "1"}, False),
        ({"": "1"}, False),
        ({"é": "1"}, False),
        ({"aé": "1"}, False),
        ({"a\x01": "1"}, False),
        ({"a": ""}, False),
        ({"a": " "}, False),
        ({"a": " 1"}, False),
        ({"a": "é"}, False),
        ({"a": "1é"}, False),
        ({"a": "1\x02"}, False),
        ({"a": 1}, False),
        ({1: "a"}, False),
        ({"a": "1", "B": "2"}, False),
    ],
    ids=str,
)
def test_usual_properties_need_no_closer_look(own: dict[Any, Any], is_usual: bool) -> None:
    message = Message("orders", b"1", keys=["k"], tags="t")
    message.properties = own
    assert (usual_own_text(own) is not None) is is_usual
    for function in (usual_properties, pure_usual_properties):
        found = function(message, 100, "A")
        assert found == (property_text(message, "A") if is_usual else None)
    message = Message("orders", b"1")
    message.properties = own
    assert (pure_usual_properties(message, 100, "A") is not None) is is_usual


def test_usual_properties_have_the_limit_of_all_properties() -> None:
    for size, is_usual in ((32_700, True), (32_750, False)):
        message = Message("orders", b"1", properties={"long": "x" * size})
        for function in (usual_properties, pure_usual_properties):
            assert (function(message, 100, "A" * 32) is not None) is is_usual
