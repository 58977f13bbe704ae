"""Queues shared out among members: the vectors of Java's classes, and properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.allocation import (
    STRATEGIES,
    allocate_evenly,
    allocate_for_pop,
    allocate_in_circle,
    in_order,
    members_in_order,
)
from downrange.model import QueueId

#: Written by `python -m tests.apache.test_allocation_vectors`.
VECTORS = Path(__file__).parent / "allocation_vectors.json"
STRATEGY_NAMES = tuple(STRATEGIES)

QUEUES = st.builds(
    lambda counts: [
        QueueId("topic", f"broker-{broker}", number)
        for broker, count in enumerate(counts)
        for number in range(count)
    ],
    st.lists(st.integers(0, 6), max_size=3),
)
MEMBERS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=9, unique=True)


def shares(case: dict[str, Any], strategy: str) -> list[list[str]]:
    """Return the queues of each member, in the form of the vectors."""
    queues = in_order(
        [
            QueueId("topic", broker, number)
            for broker, count in case["brokers"].items()
            for number in range(count)
        ]
    )
    members = members_in_order(case["members"])
    return [
        [f"{queue.broker} {queue.number}" for queue in STRATEGIES[strategy](queues, members, one)]
        for one in members
    ]


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_shares_are_those_of_java(strategy: str) -> None:
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert len(cases) >= 30
    for case in cases:
        assert shares(case, strategy) == case["shares"][strategy], case


@given(QUEUES, MEMBERS, st.sampled_from(STRATEGY_NAMES))
def test_every_queue_goes_to_exactly_one_member_and_the_shares_differ_by_one_at_most(
    queues: list[QueueId], members: list[str], strategy: str
) -> None:
    members = members_in_order(members)
    parts = [STRATEGIES[strategy](queues, members, member) for member in members]
    assert sorted(queue for part in parts for queue in part) == queues
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_one_strategy_gives_blocks_and_the_other_deals_out() -> None:
    queues, members = [QueueId("t", "b", number) for number in range(5)], ["x", "y"]
    assert allocate_evenly(queues, members, "y") == queues[3:]
    assert allocate_in_circle(queues, members, "y") == queues[1::2]


@given(QUEUES, MEMBERS, st.sampled_from(STRATEGY_NAMES))
def test_a_client_that_is_not_a_member_gets_nothing(
    queues: list[QueueId], members: list[str], strategy: str
) -> None:
    assert STRATEGIES[strategy](queues, members, "longer than any member") == []


@given(QUEUES, MEMBERS, st.integers(-2, 10), st.sampled_from(STRATEGY_NAMES))
def test_every_queue_is_popped_by_someone(
    queues: list[QueueId], members: list[str], share_count: int, strategy: str
) -> None:
    members = members_in_order(members)
    allocate = STRATEGIES[strategy]
    parts = [allocate_for_pop(queues, members, member, allocate, share_count) for member in members]
    popped = {queue for part in parts for queue in part}
    brokers = {queue.broker for queue in popped if queue.number == -1}
    assert all(queue in popped or queue.broker in brokers for queue in queues)
    if not brokers:
        assert popped == set(queues)
        assert len(queues) == 0 or all(parts)  # no member is idle


def test_names_are_sorted_by_their_utf_16_units() -> None:
    names = ["\uff21", "\U00010000", "b", "a"]
    assert members_in_order(names) == ["a", "b", "\U00010000", "\uff21"]
    queues = [QueueId("t", name, number) for name in names for number in (10, 9)]
    assert [queue.broker for queue in in_order(queues)][::2] == members_in_order(names)
    assert [queue.number for queue in in_order(queues)][:2] == [9, 10]
