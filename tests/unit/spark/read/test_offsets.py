"""Positions, and their JSON, which Spark stores and compares as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.spark.read.offsets import Positions, begins_of, read_table

QUEUES = st.builds(
    QueueId,
    topic=st.sampled_from(["orders", "returns", "Größe", "v", "q"]),
    broker=st.sampled_from(["broker-a", "broker-b", "10", "2"]),
    number=st.integers(0, 12),
)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=12)


@st.composite
def positions(draw: st.DrawFn) -> Positions:
    initial = draw(st.none() | OFFSETS)
    return Positions(
        draw(OFFSETS),
        is_first=draw(st.booleans()),
        initial=None if initial is None else Positions(initial),
    )


def _is_sorted(found: Any) -> bool:
    if not isinstance(found, dict):
        return True
    return [*found] == sorted(found) and all(map(_is_sorted, found.values()))


@given(positions())
def test_positions_come_back_from_json(one: Positions) -> None:
    again = Positions.from_json(json.loads(json.dumps(one.to_json())))
    assert dict(again) == dict(one)
    assert (again.is_first, again.initial) == (one.is_first, one.initial)


@given(positions())
def test_the_text_has_sorted_keys_and_whole_numbers(one: Positions) -> None:
    assert _is_sorted(one.to_json())
    assert json.dumps(one.to_json()) == json.dumps(one.to_json(), sort_keys=True)


@given(st.dictionaries(QUEUES, st.integers(0, 99)), st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order_of_queues(
    offsets: dict[QueueId, int], chance: Any
) -> None:
    items = [*offsets.items()]
    chance.shuffle(items)
    assert json.dumps(Positions(dict(items)).to_json()) == json.dumps(Positions(offsets).to_json())


def test_the_text_is_this_one() -> None:
    """Old checkpoints must stay readable and comparable."""
    queue = QueueId("orders", "broker-a", 0)
    other = QueueId("orders", "broker-a", 10)
    end = Positions({other: 5, queue: 12}, initial=Positions({queue: 3}))
    assert json.dumps(end.to_json()) == (
        '{"init": {"orders": {"broker-a": {"0": 3}}}, '
        '"q": {"orders": {"broker-a": {"0": 12, "10": 5}}}, "v": 1}'
    )
    first = Positions({queue: 3}, is_first=True)
    assert json.dumps(first.to_json()) == (
        '{"first": true, "q": {"orders": {"broker-a": {"0": 3}}}, "v": 1}'
    )
    assert "orders" in repr(first)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(OptionError, match=r"version 2, and this release reads 1: .* later release"):
        Positions.from_json({"v": 2, "q": {}})


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": "1", "q": {}},
        {"v": 0, "q": {}},
        {"q": {"orders": {"broker-a": {"0": 1}}}},
        {"orders": {"0": 23}},
    ],
)
def test_offsets_of_another_source_are_refused(found: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="not offsets of the rocketmq source"):
        Positions.from_json(found)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (None, "expected topics"),
        ([], "expected topics"),
        ({"orders": 5}, "must hold brokers"),
        ({"orders": {"0": 5}}, "its name comes first"),
        ({"orders": {"broker-a": {"zero": 5}}}, "not a queue id"),
        ({"orders": {"broker-a": {"-1": 5}}}, "not a queue id"),
        ({"orders": {"broker-a": {"0": -1}}}, "not an offset"),
        ({"orders": {"broker-a": {"0": 1.5}}}, "not an offset"),
        ({"orders": {"broker-a": {"0": "7"}}}, "not an offset"),
        ({"orders": {"broker-a": {"0": True}}}, "not an offset"),
        ({"orders": {"broker-a": {"0": 2**63}}}, "not an offset"),
    ],
)
def test_a_table_of_another_form_is_refused(table: Any, problem: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets") as caught:
        read_table("startingOffsets", table)
    assert problem in str(caught.value)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_a_batch_begins_where_its_end_says_and_else_where_its_start_does(
    start: dict[QueueId, int], initial: dict[QueueId, int], end: dict[QueueId, int]
) -> None:
    known = {queue: offset for queue, offset in end.items() if queue in {**start, **initial}}
    last = Positions(known, initial=Positions(initial))
    begins = begins_of(Positions(start), last)
    for queue in known:
        assert begins[queue] == initial.get(queue, start.get(queue))


def test_an_end_without_a_start_is_refused() -> None:
    queue = QueueId("orders", "broker-a", 0)
    with pytest.raises(OptionError, match=r"orders.*no start"):
        begins_of(Positions({}), Positions({queue: 5}))
