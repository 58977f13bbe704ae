"""Key-value config: namespaces that stay, a limit, Apache's file."""

from __future__ import annotations

import pytest

from downrange.errors import MalformedBody
from downrange.server.nameserver.key_values import KeyValues


def test_values_are_kept_by_namespace() -> None:
    values = KeyValues(100)
    assert values.put("n", "k", "v")
    assert values.get("n", "k") == "v"
    assert values.get("n", "x") is None
    assert values.get("x", "k") is None
    assert values.namespace("n") == {"k": "v"}


def test_a_namespace_outlives_its_last_value() -> None:
    values = KeyValues(100)
    values.put("n", "k", "v")
    assert values.delete("n", "k")
    assert not values.delete("n", "k")
    assert not values.delete("x", "k")
    assert values.namespace("n") == {}
    assert values.namespace("x") is None


def test_the_file_has_apaches_format_and_round_trips() -> None:
    values = KeyValues(100)
    values.put("ORDER_TOPIC_CONFIG", "T", "a:4;b:4")
    data = values.dump()
    assert data == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"}}}'
    other = KeyValues(100)
    other.load(data)
    assert other.get("ORDER_TOPIC_CONFIG", "T") == "a:4;b:4"
    with pytest.raises(MalformedBody):
        other.load(b"[1]")


def test_a_value_beyond_the_limit_is_refused_and_a_replaced_one_not_counted() -> None:
    values = KeyValues(10)
    assert values.put("n", "k", "12345678")
    assert not values.put("n", "l", "")
    assert not values.put("n", "k", "123456789")
    assert values.put("n", "k", "1234567")  # replaces the old one
    assert values.delete("n", "k")
    assert values.put("n", "l", "12345678")
    loaded = KeyValues(10)
    loaded.load(values.dump())
    assert not loaded.put("n", "k", "")
