from __future__ import annotations

import pytest

from downrange.demo.audit import Found, Position, TopicCheck, check_topic
from downrange.demo.ledger import Account
from downrange.errors import ConnectFailed
from tests.unit.demo.receipts import receipt


def found(*ids: str, broker: str = "broker-a", first: int = 0) -> Found:
    messages = Found()
    for offset, message_id in enumerate(ids, first):
        messages.add(Position(broker, 0, offset), message_id)
    return messages


def account(*ids: str) -> Account:
    told = Account("orders", "sync")
    for message_id in ids:
        told.sent(receipt(message_id))
    return told


def check(told: Account, stored: Found, landed: Found | None = None) -> TopicCheck:
    return check_topic(told, stored, landed, stored)


def test_all_is_well_when_all_is_there() -> None:
    outcome = check(account("a", "b"), found("a", "b"), found("a", "b"))
    assert outcome.problems == ()
    assert (outcome.stored, outcome.copies, outcome.landed) == (2, 0, 2)
    assert outcome.brokers == {"broker-a": 2}


def test_second_copy_is_counted_and_no_problem() -> None:
    outcome = check(account("a", "b"), found("a", "b", "a"), found("a", "b", "a"))
    assert outcome.problems == ()
    assert outcome.copies == 1


def test_lost_message_is_not_hidden_by_a_copy_of_another() -> None:
    outcome = check(account("a", "b"), found("a", "a"))
    assert outcome.problems == ("1 acknowledged, but not stored: b",)


def test_message_that_was_taken_back_must_not_be_there() -> None:
    told = account("a", "b")
    told.withdrew("b")
    assert check(told, found("a")).problems == ()
    (problem,) = check(told, found("a", "b")).problems
    assert problem == "1 rolled back or recalled, but stored: b"


def test_more_than_was_handed_over_is_a_problem() -> None:
    told = account("a")
    assert check(told, found("a", "x")).problems == ("1 stored that nobody sent",)
    told.sent_oneway()
    assert check(told, found("a", "x")).problems == ()
    told.failed(ConnectFailed("127.0.0.1:1", "refused"))
    assert check(told, found("a", "x", "y")).problems == ()
    assert check(told, found("a", "x", "y", "z")).problems == ("3 stored that nobody sent",)


def test_row_that_did_not_land_is_named() -> None:
    (problem,) = check(account("a", "b"), found("a", "b"), found("a")).problems
    assert problem.startswith("1 stored, but not landed")
    assert "offset=1" in problem


def test_row_that_landed_twice_is_a_problem() -> None:
    landed = found("a", "b")
    landed.add(Position("broker-a", 0, 1), "b")
    outcome = check(account("a", "b"), found("a", "b"), landed)
    assert outcome.problems == ("1 rows landed twice",)
    assert outcome.landed == 3


def test_row_with_another_id_is_a_problem() -> None:
    (problem,) = check(account("a", "b"), found("a", "b"), found("a", "c")).problems
    assert problem.startswith("1 landed with another id")


def test_message_stored_while_landing_may_have_landed_or_not() -> None:
    told, before, after = account("a"), found("a"), found("a", "a")
    assert check_topic(told, before, found("a"), after).problems == ()
    assert check_topic(told, before, found("a", "a"), after).problems == ()
    (problem,) = check_topic(told, before, found("a", "a", "a"), after).problems
    assert problem.startswith("1 landed, but not stored")


def test_only_some_of_many_ids_are_named() -> None:
    ids = [f"id-{number}" for number in range(9)]
    (problem,) = check(account(*ids), found()).problems
    assert problem == "9 acknowledged, but not stored: id-0, id-1, id-2 and 6 more"


@pytest.mark.parametrize("landed", [None, found()])
def test_empty_topic_agrees(landed: Found | None) -> None:
    outcome = check(account(), found(), landed)
    assert outcome.problems == ()
    assert outcome.landed == (None if landed is None else 0)
