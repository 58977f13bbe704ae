"""Queues shared out among members: the vectors of Java's classes, and properties."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downrange as mq
from downrange.allocation import (
    STRATEGIES,
    Strategy,
    allocate_evenly,
    allocate_for_pop,
    allocate_in_circle,
    in_order,
    members_in_order,
    strategy_of,
)
from downrange.model import QueueId
from downrange.wire.hashes import java_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Written by `python -m tests.apache.test_allocation_vectors`.
VECTORS = Path(__file__).parent / "allocation_vectors.json"
STRATEGY_NAMES = tuple(STRATEGIES)


def room_before_the_at(text: str) -> str:
    return text.split("@")[0]


def room_of_queue(queue: QueueId) -> str:
    return room_before_the_at(queue.broker)


def nearby(inner: Any) -> mq.MachineRoomNearby:
    return mq.MachineRoomNearby(
        inner, room_of_queue=room_of_queue, room_of_client=room_before_the_at
    )


FIVE = [QueueId("t", "b", number) for number in range(5)]
LISTED = [QueueId("topic", "b", 0), QueueId("topic", "a@1", 1), QueueId("topic", "absent", 1)]
#: Name in the vectors -> our strategy.
OURS: dict[str, Strategy] = {
    "average": mq.Average(),
    "circle": mq.AverageByCircle(),
    "ring": mq.ConsistentHash(),
    "small ring": mq.ConsistentHash(virtual_nodes=1),
    "ring of java_hash": mq.ConsistentHash(virtual_nodes=3, hash_function=java_hash),
    "rooms": mq.MachineRoom(["a", "\uff21", ""]),
    "nearby average": nearby(mq.Average()),
    "nearby ring": nearby(mq.ConsistentHash()),
    "listed": mq.ByConfig(LISTED),
}

QUEUES = st.builds(
    lambda counts: [
        QueueId("topic", f"broker-{broker}", number)
        for broker, count in enumerate(counts)
        for number in range(count)
    ],
    st.lists(st.integers(0, 6), max_size=3),
)
MEMBERS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=9, unique=True)


def shares(case: dict[str, Any], strategy: Strategy) -> list[list[str] | str]:
    """Return the queues of each member, or "error", in the form of the vectors."""
    queues = in_order(
        [
            QueueId("topic", broker, number)
            for broker, count in case["brokers"].items()
            for number in range(count)
        ]
    )
    members = members_in_order(case["members"])
    parts: list[list[str] | str] = []
    for one in members:
        try:
            part = strategy.allocate("group", one, queues, members)
        except mq.OptionError:
            parts.append("error")
        else:
            parts.append([f"{queue.broker} {queue.number}" for queue in part])
    return parts


@pytest.mark.parametrize("name", OURS)
def test_shares_are_those_of_java(name: str) -> None:
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert len(cases) >= 25
    assert any(part for case in cases for part in case["shares"][name])
    for case in cases:
        assert shares(case, OURS[name]) == case["shares"][name], case


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


def test_a_client_that_is_not_a_member_pops_nothing_when_few_share() -> None:
    members = ["w", "x", "y", "z"]
    assert allocate_for_pop(FIVE, members, "missing", allocate_evenly, 1) == []


def test_names_are_sorted_by_their_utf_16_units() -> None:
    names = ["\uff21", "\U00010000", "b", "a"]
    assert members_in_order(names) == ["a", "b", "\U00010000", "\uff21"]
    queues = [QueueId("t", name, number) for name in names for number in (10, 9)]
    assert [queue.broker for queue in in_order(queues)][::2] == members_in_order(names)
    assert [queue.number for queue in in_order(queues)][:2] == [9, 10]


# ---- the public classes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (mq.Average(), "AVG"),
        (mq.AverageByCircle(), "AVG_BY_CIRCLE"),
        (mq.ConsistentHash(5, java_hash), "CONSISTENT_HASH"),
        (mq.MachineRoom({"a"}), "MACHINE_ROOM"),
        (nearby(mq.AverageByCircle()), "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"),
        (mq.ByConfig(FIVE), "CONFIG"),
    ],
)
def test_a_strategy_has_its_java_name_and_can_be_compared_and_pickled(
    strategy: Strategy, name: str
) -> None:
    assert strategy.name == name
    assert isinstance(strategy, Strategy)
    assert strategy_of(strategy) is strategy
    copy = pickle.loads(pickle.dumps(strategy))
    assert (copy, hash(copy)) == (strategy, hash(strategy))
    for field in fields(strategy):  # type: ignore[arg-type]  # every class is one of data
        with pytest.raises(FrozenInstanceError):
            setattr(strategy, field.name, 1)
    assert strategy.allocate("g", "missing", [], []) == []
    if not isinstance(strategy, mq.ByConfig):
        assert strategy.allocate("g", "missing", FIVE, ["c@1"]) == []


@given(QUEUES, MEMBERS, st.sampled_from([mq.ConsistentHash(), nearby(mq.ConsistentHash())]))
def test_a_ring_gives_every_queue_to_one_member(
    queues: list[QueueId], members: list[str], strategy: Strategy
) -> None:
    members = members_in_order([f"x{member}@" for member in members])
    parts = [strategy.allocate("g", member, queues, members) for member in members]
    assert sorted(queue for part in parts for queue in part) == queues


def test_the_queues_that_are_left_over_in_machine_rooms_are_the_last_ones() -> None:
    queues = [QueueId("t", "a@b", number) for number in range(5)]
    rooms = mq.MachineRoom(["a"])
    assert rooms.allocate("g", "x", queues, ["x", "y"]) == [queues[0], queues[1], queues[4]]
    assert rooms.allocate("g", "y", queues, ["x", "y"]) == [queues[2], queues[3]]


def test_a_listed_queue_is_read_if_it_exists_in_the_topic_that_is_shared_out() -> None:
    listed = mq.ByConfig([QueueId("t", "b", 3), QueueId("other", "b", 1), QueueId("t", "gone", 0)])
    assert listed.allocate("g", "x", FIVE, []) == [QueueId("t", "b", 3)]


class Reversed:
    """A strategy by its form alone, as one of a user."""

    name = "REVERSED"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
    ) -> list[QueueId]:
        return allocate_evenly(queues, [*reversed(members)], client_id)


def first_member_only(
    group: str, client_id: str, queues: Sequence[QueueId], members: Sequence[str]
) -> tuple[QueueId, ...]:
    return tuple(queues) if client_id == members[0] else ()


class Nobody:
    def __call__(self, *arguments: object) -> list[QueueId]:
        return []


def test_functions_and_classes_of_a_user_are_strategies() -> None:
    own = Reversed()
    assert strategy_of(own) is own
    assert own.allocate("g", "x", FIVE, ["x", "y"]) == FIVE[3:]
    function = strategy_of(first_member_only)
    assert function.name == "first_member_only"
    assert function.allocate("g", "x", FIVE, ["x", "y"]) == FIVE
    assert function.allocate("g", "y", FIVE, ["x", "y"]) == []
    assert pickle.loads(pickle.dumps(function)) == function
    assert strategy_of(Nobody()).name == "Nobody"
    rooms = mq.MachineRoomNearby(
        first_member_only, room_of_queue=room_of_queue, room_of_client=lambda client: "b"
    )
    assert rooms.name == "MACHINE_ROOM_NEARBY-first_member_only"
    assert rooms.allocate("g", "x", FIVE, ["x", "y"]) == FIVE


#: The public names, for arguments that a type checker refuses.
unchecked: Any = mq


async def _coroutine(*arguments: object) -> list[QueueId]:
    return []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: unchecked.ConsistentHash(0), "virtual_nodes=0 is less than 1"),
        (lambda: unchecked.ConsistentHash("10"), "virtual_nodes must be an int"),
        (lambda: unchecked.ConsistentHash(hash_function="md5"), "hash_function must be a function"),
        (lambda: unchecked.MachineRoom("a"), r"rooms must be a list of str.*write \['a'\]"),
        (lambda: unchecked.MachineRoom([]), "rooms is empty"),
        (lambda: unchecked.MachineRoom([1]), "each of rooms must be a str"),
        (lambda: unchecked.ByConfig(None), "queues must be a list of QueueId, not None"),
        (lambda: unchecked.ByConfig(["q"]), "each of queues must be a QueueId"),
        (lambda: nearby("AVG"), "inner must be a strategy"),
        (lambda: nearby(mq.Average), r"inner must be a strategy.*write Average\(\)"),
        (
            lambda: unchecked.MachineRoomNearby(mq.Average(), room_of_queue=1, room_of_client=str),
            "room_of_queue must be a function",
        ),
        (
            lambda: unchecked.MachineRoomNearby(
                mq.Average(), room_of_queue=str, room_of_client=None
            ),
            "room_of_client must be a function",
        ),
        (lambda: strategy_of("AVG"), "strategy must be a strategy"),
        (lambda: strategy_of(_coroutine), "strategy is a coroutine function"),
    ],
)
def test_a_wrong_argument_of_a_strategy_is_named(make: Any, text: str) -> None:
    with pytest.raises(mq.OptionError, match=text):
        make()


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (lambda *_: None, "the result of .*lambda.* must be a list of QueueId, not None"),
        (lambda *_: [QueueId("t", "b", 9)], "number=9.* is not one of the 5 queues"),
        (lambda *_: ["b"], "returned 'b'"),
        (
            unchecked.ConsistentHash(hash_function=lambda text: text),
            "the result of hash_function must be an int",
        ),
        (
            unchecked.MachineRoomNearby(
                mq.Average(), room_of_queue=lambda queue: "", room_of_client=lambda client: "r"
            ),
            r"room_of_queue\(QueueId.* returned ''; it must return a room",
        ),
        (
            unchecked.MachineRoomNearby(
                mq.Average(),
                room_of_queue=lambda queue: "r",
                room_of_client=lambda client: None,
            ),
            r"room_of_client\('x'\) returned None",
        ),
    ],
)
def test_a_wrong_result_of_a_users_function_is_named(strategy: Any, text: str) -> None:
    with pytest.raises(mq.OptionError, match=text):
        strategy_of(strategy).allocate("g", "x", FIVE, ["x", "y"])
