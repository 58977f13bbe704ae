from __future__ import annotations

import pytest

from downrange.wire import system_names
from downrange.wire.system_names import (
    BROKER_FORBIDDEN_TOPICS,
    BROKER_SYSTEM_TOPICS,
    CLIENT_FORBIDDEN_TOPICS,
    CLIENT_SYSTEM_TOPICS,
    HOLDING_TOPICS,
)


@pytest.mark.parametrize("topic", ["a", "A-b_c%d|9", "x" * 127, "%RETRY%" + "g" * 248])
def test_a_legal_topic_has_no_problem(topic: str) -> None:
    assert system_names.topic_problem(topic) is None


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal characters"),
        ("a/b", "illegal characters"),
        ("..", "illegal characters"),
        ("a\n", "illegal characters"),
        ("über", "illegal characters"),
        ("\x00", "illegal characters"),
        ("x" * 128, "longer than topic max length 127"),
        ("%DLQ%" + "g" * 251, "longer than topic max length 255"),
    ],
)
def test_an_illegal_topic_has_its_problem_named(topic: str, problem: str) -> None:
    assert problem in (system_names.topic_problem(topic) or "")


@pytest.mark.parametrize(
    ("group", "problem"),
    [("", "blank"), ("g" * 121, "longer than group max length 120"), ("a.b", "illegal")],
)
def test_an_illegal_group_has_its_problem_named(group: str, problem: str) -> None:
    assert problem in (system_names.group_problem(group) or "")
    assert system_names.group_problem("g" * 120) is None


@pytest.mark.parametrize("topic", [*BROKER_SYSTEM_TOPICS, "rmq_sys_wheel_timer", "rmq_sys_"])
def test_a_topic_of_the_broker_is_a_system_topic_for_both_sides(topic: str) -> None:
    assert system_names.is_broker_system_topic(topic)
    assert system_names.is_client_system_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "RMQ_SYS_", "%RETRY%TBW102", "tbw102", ""])
def test_a_topic_of_a_user_is_not_a_system_topic(topic: str) -> None:
    assert not system_names.is_broker_system_topic(topic)
    assert not system_names.is_client_system_topic(topic)


def test_the_names_of_topics_that_only_apache_has_are_reserved() -> None:
    reserved = {
        "CHECKPOINT_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
    assert reserved <= BROKER_SYSTEM_TOPICS
    assert reserved <= CLIENT_SYSTEM_TOPICS


def test_only_system_topics_without_records_of_the_servers_accept_sends() -> None:
    expected = ["BenchmarkTest", "CHECKPOINT_TOPIC", "RMQ_SYS_TRACE_TOPIC", "TBW102"]
    assert sorted(CLIENT_SYSTEM_TOPICS - CLIENT_FORBIDDEN_TOPICS) == expected
    assert sorted(BROKER_SYSTEM_TOPICS - BROKER_FORBIDDEN_TOPICS) == expected


def test_every_topic_that_holds_messages_of_others_is_closed_to_sends() -> None:
    assert HOLDING_TOPICS < BROKER_FORBIDDEN_TOPICS
    assert {"rmq_sys_wheel_timer"} == HOLDING_TOPICS - CLIENT_FORBIDDEN_TOPICS


def test_the_topics_of_a_group_begin_with_a_prefix() -> None:
    assert system_names.retry_topic("G") == "%RETRY%G"
    assert system_names.dead_letter_topic("G") == "%DLQ%G"
