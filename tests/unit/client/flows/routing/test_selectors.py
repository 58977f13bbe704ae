"""Selectors: how callers choose a queue."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.routing.selectors import (
    Selector,
    by_hash,
    by_random,
    by_room,
    by_sharding_key,
    select,
    selector_failed,
)
from downrange.errors import OptionError
from downrange.model import Message, QueueId
from tests.unit.client.flows.randomness import FakeRandomness

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUES = [QueueId("orders", broker, number) for broker in ("hz@a", "sh@b") for number in range(4)]
MESSAGE = Message("orders", b"1")


def chosen(selector: Selector, *numbers: int, message: Message = MESSAGE) -> QueueId:
    return select(selector, QUEUES, message, FakeRandomness(*numbers))


# ---- by hash -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "hash_code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("polygenelubricants", -(2**31)),
        (7, 7),
        (-7, -7),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
        (2**31, -(2**31)),
        (2**32, 1),
        (2**63 - 1, -(2**31)),
        (-(2**63), -(2**31)),
        (-(2**31) - 1, -(2**31)),
    ],
)
def test_a_hash_is_that_of_java(argument: str | int, hash_code: int) -> None:
    assert by_hash(argument).hash_code == hash_code


@pytest.mark.parametrize(("argument", "index"), [(0, 0), (9, 1), (-9, 1), (-(2**31), 0), (-3, 3)])
def test_a_hash_picks_the_remainder_without_its_sign(argument: int, index: int) -> None:
    assert chosen(by_hash(argument)) == QUEUES[index]


def test_the_smallest_hash_picks_a_queue_where_its_absolute_value_would_overflow() -> None:
    assert by_hash("polygenelubricants")(QUEUES[:3], MESSAGE) == QUEUES[2**31 % 3]


@pytest.mark.parametrize("argument", [b"bytes", 1.5, True, None])
def test_what_has_no_hash_that_java_shares_is_refused(argument: Any) -> None:
    with pytest.raises(OptionError, match="str or an int"):
        by_hash(argument)


@pytest.mark.parametrize("argument", [2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_refused(argument: int) -> None:
    with pytest.raises(OptionError, match=f"{argument}.*64 bits"):
        by_hash(argument)


def test_a_sharding_key_picks_as_a_hash_does() -> None:
    message = Message("orders", b"1", sharding_key="customer-7")
    assert by_sharding_key(message) == by_hash("customer-7")


def test_a_message_without_a_sharding_key_cannot_be_sharded() -> None:
    with pytest.raises(OptionError, match="no sharding_key"):
        by_sharding_key(MESSAGE)


# ---- at random -----------------------------------------------------------------------------------


def test_a_random_queue_is_any_of_them() -> None:
    randomness = FakeRandomness(5)
    assert select(by_random(), QUEUES, MESSAGE, randomness) == QUEUES[5]
    assert randomness.limits == [len(QUEUES)]


# ---- by room -------------------------------------------------------------------------------------


def test_a_room_narrows_the_queues_and_chance_picks() -> None:
    randomness = FakeRandomness(1)
    assert select(by_room("sh", "bj"), QUEUES, MESSAGE, randomness) == QUEUES[5]
    assert randomness.limits == [4]


def test_several_rooms_are_one_choice() -> None:
    assert chosen(by_room("sh", "hz"), 6) == QUEUES[6]


def test_a_sharding_key_picks_within_the_room() -> None:
    message = Message("orders", b"1", sharding_key="customer-7")
    expected = by_hash("customer-7")(QUEUES[4:], message)
    assert chosen(by_room("sh"), 1, message=message) == expected


def test_another_selector_picks_within_the_room() -> None:
    assert chosen(by_room("sh", then=by_hash(2))) == QUEUES[6]
    assert chosen(by_room("sh", then=lambda queues, message: queues[-1])) == QUEUES[7]


def test_the_room_of_a_broker_can_come_from_a_function() -> None:
    assert chosen(by_room("b", room_of=lambda broker: broker[-1])) == QUEUES[4]


def test_a_room_without_queues_is_an_error_that_names_rooms_and_brokers() -> None:
    with pytest.raises(
        OptionError, match=r"'orders' is in 'bj' or 'gz'; its brokers are hz@a, sh@"
    ):
        chosen(by_room("bj", "gz"))


def test_a_broker_whose_name_contains_no_room_is_in_none() -> None:
    with pytest.raises(OptionError, match="brokers are hz"):
        select(by_room("hz"), [QueueId("orders", "hz", 0)], MESSAGE, FakeRandomness())


def test_a_choice_by_room_names_a_room() -> None:
    with pytest.raises(OptionError, match="at least one room"):
        by_room()


# ---- user functions ------------------------------------------------------------------------------


def test_a_function_picks_from_queues_and_message() -> None:
    def by_size(queues: Sequence[QueueId], message: Message) -> QueueId:
        return queues[len(message.body)]

    assert chosen(by_size) == QUEUES[1]


def test_a_function_may_return_a_queue_that_it_was_not_shown() -> None:
    queue = QueueId("orders", "new", 9)
    assert chosen(lambda queues, message: queue) == queue


def wrong(queues: Sequence[QueueId], message: Message) -> Any:
    return None if message.body == b"1" else QueueId("bills", "a", 0)


@pytest.mark.parametrize("body", [b"1", b"2"])
def test_a_function_that_returns_no_queue_of_the_topic_is_named(body: bytes) -> None:
    with pytest.raises(OptionError, match=r"select message queue returned .*wrong.*'orders'"):
        chosen(wrong, message=Message("orders", body))


class Broken:
    def __repr__(self) -> str:
        return "Broken()"

    def __call__(self, queues: Sequence[QueueId], message: Message) -> QueueId:
        raise LookupError("no such customer")


def test_the_error_of_a_function_names_it() -> None:
    with pytest.raises(LookupError, match="no such customer") as caught:
        chosen(Broken())
    failed = selector_failed(Broken(), caught.value)
    assert str(failed) == "selector Broken() raised LookupError: no such customer"


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "selector", [by_hash("x"), by_hash(2**40), by_random(), by_room("hz", then=by_hash("x"))]
)
def test_selectors_pickle_and_compare(selector: Selector) -> None:
    assert pickle.loads(pickle.dumps(selector)) == selector
