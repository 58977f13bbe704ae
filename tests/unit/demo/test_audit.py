from __future__ import annotations

import pytest

from downrange.demo.audit import (
    FoundMessages,
    Position,
    TopicCheck,
    check_group,
    check_topic,
)
from downrange.demo.consumers import ConsumerPlan, ConsumerProgress
from downrange.demo.send_log import SendLog
from downrange.errors import ConnectFailed
from tests.unit.demo.receipts import receipt


def found(*ids: str, broker: str = "broker-a", first: int = 0) -> FoundMessages:
    messages = FoundMessages()
    for offset, message_id in enumerate(ids, first):
        messages.add(Position(broker, 0, offset), message_id)
    return messages


def send_log(*ids: str) -> SendLog:
    log = SendLog("orders", "sync")
    for message_id in ids:
        log.add_receipt(receipt(message_id))
    return log


def check(log: SendLog, stored: FoundMessages, landed: FoundMessages | None = None) -> TopicCheck:
    return check_topic(log, stored, landed, stored)


def test_no_problem_when_every_message_is_stored() -> None:
    outcome = check(send_log("a", "b"), found("a", "b"), found("a", "b"))
    assert outcome.problems == ()
    assert (outcome.stored, outcome.copies, outcome.landed) == (2, 0, 2)
    assert outcome.brokers == {"broker-a": 2}


def test_second_copy_is_counted_and_is_not_a_problem() -> None:
    outcome = check(send_log("a", "b"), found("a", "b", "a"), found("a", "b", "a"))
    assert outcome.problems == ()
    assert outcome.copies == 1


def test_lost_message_is_not_hidden_by_a_copy_of_another() -> None:
    outcome = check(send_log("a", "b"), found("a", "a"))
    assert outcome.problems == ("1 acknowledged, but not stored: b",)


def test_withdrawn_message_must_not_be_stored() -> None:
    log = send_log("a", "b")
    log.withdraw("b")
    assert check(log, found("a")).problems == ()
    (problem,) = check(log, found("a", "b")).problems
    assert problem == "1 rolled back or recalled, but stored: b"


def test_message_whose_recall_got_no_reply_may_be_stored_or_not() -> None:
    log = send_log("a", "b")
    log.mark_unknown("b")
    assert check(log, found("a")).problems == ()
    assert check(log, found("a", "b")).problems == ()


def test_more_messages_than_were_sent_is_a_problem() -> None:
    log = send_log("a")
    assert check(log, found("a", "x")).problems == ("1 stored, but not sent",)
    log.add_oneway()
    assert check(log, found("a", "x")).problems == ()
    log.add_failure(ConnectFailed("127.0.0.1:1", "refused"))
    assert check(log, found("a", "x", "y")).problems == ()
    assert check(log, found("a", "x", "y", "z")).problems == ("3 stored, but not sent",)


def test_row_that_did_not_land_is_named() -> None:
    (problem,) = check(send_log("a", "b"), found("a", "b"), found("a")).problems
    assert problem.startswith("1 stored, but not landed")
    assert "offset=1" in problem


def test_row_that_landed_twice_is_a_problem() -> None:
    landed = found("a", "b")
    landed.add(Position("broker-a", 0, 1), "b")
    outcome = check(send_log("a", "b"), found("a", "b"), landed)
    assert outcome.problems == ("1 rows landed twice",)
    assert outcome.landed == 3


def test_row_with_another_id_is_a_problem() -> None:
    (problem,) = check(send_log("a", "b"), found("a", "b"), found("a", "c")).problems
    assert problem.startswith("1 landed with another id")


def test_message_stored_while_landing_may_have_landed_or_not() -> None:
    log, before, after = send_log("a"), found("a"), found("a", "a")
    assert check_topic(log, before, found("a"), after).problems == ()
    assert check_topic(log, before, found("a", "a"), after).problems == ()
    (problem,) = check_topic(log, before, found("a", "a", "a"), after).problems
    assert problem.startswith("1 landed, but not stored")


def test_only_some_of_many_ids_are_named() -> None:
    ids = [f"id-{number}" for number in range(9)]
    (problem,) = check(send_log(*ids), found()).problems
    assert problem == "9 acknowledged, but not stored: id-0, id-1, id-2 and 6 more"


@pytest.mark.parametrize("landed", [None, found()])
def test_empty_topic_agrees(landed: FoundMessages | None) -> None:
    outcome = check(send_log(), found(), landed)
    assert outcome.problems == ()
    assert outcome.landed == (None if landed is None else 0)


# ---- groups --------------------------------------------------------------------------------------


def progress(*handled: str, share: float = 1.0) -> ConsumerProgress:
    plan = ConsumerPlan("packing", "orders", tags="new || paid", share=share)
    return ConsumerProgress(plan, handled=set(handled))


def tagged(**tags: str) -> FoundMessages:
    messages = found(*tags)
    messages.tags.update(tags)
    return messages


STORED = tagged(a="new", b="paid", c="gift", d="new")


def test_group_needs_its_tags_only_and_dead_letters_count() -> None:
    assert check_group(progress("a", "b"), send_log(*"abcd"), STORED, {"d"}) == ()


def test_message_that_a_group_missed_is_named() -> None:
    (problem,) = check_group(progress("a"), send_log(*"abc"), STORED, set())
    assert problem == "1 not handled by packing: b"


def test_group_that_stops_early_may_leave_messages() -> None:
    assert check_group(progress(share=0.5), send_log(*"abc"), STORED, set()) == ()


def test_dead_letter_that_is_not_stored_is_a_problem() -> None:
    group = progress("a", "b", "d")
    group.dead.add("d")
    assert check_group(group, send_log(*"abcd"), STORED, set()) == (
        "1 dead letters of packing are lost: d",
    )


def test_error_of_a_group_is_a_problem() -> None:
    group = progress(share=0.5)
    group.problem = ConnectFailed("127.0.0.1:1", "refused")
    (problem,) = check_group(group, send_log(), STORED, set())
    assert problem.startswith("group packing ended early: 127.0.0.1:1")
