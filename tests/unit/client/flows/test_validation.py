"""Which topics, groups and messages are valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.validation import (
    RESERVED_PROPERTIES,
    check_group,
    check_message,
    check_messages,
    check_producer_group,
    check_topic,
)
from downrange.errors import InvalidMessage, OptionError
from downrange.model import Message
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import CLIENT_FORBIDDEN_TOPICS

#: `MessageConst.STRING_HASH_SET` of 5.5.0.
_JAVA_NAMES = """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG
    CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO
    INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG
    MSG_REGION MSG_TYPE ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET PUSH_REPLY_TIME
    REAL_QID REAL_TOPIC RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL
    TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS
    TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES TRACE_ON TRANSFER_FLAG TRAN_MSG
    TRAN_PREPARED_QUEUE_OFFSET TTL UNIQ_KEY WAIT _SYS_MSG_PRIORITY_ __BORNHOST __CRC32# __LITE_TOPIC
"""
RESERVED_IN_JAVA = _JAVA_NAMES.split()
LIMIT = 8


def check(message: Message, namespace: str | None = None) -> None:
    check_message(message, LIMIT, namespace)


def refusal(message: Message, namespace: str | None = None) -> str:
    with pytest.raises(InvalidMessage) as caught:
        check(message, namespace)
    assert caught.value.code == 13
    assert caught.value.topic == message.topic
    return str(caught.value)


@pytest.mark.parametrize("name", ["orders", "%x|-_09AZ", "a" * 120])
def test_a_legal_name_passes_as_topic_and_group(name: str) -> None:
    check_topic(name)
    check_producer_group(name)
    check(Message(name, b"1"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "'' is blank"),
        (" \t", r"' \t' is blank"),
        ("a b.c", "'a b.c' contains ' .'; letters, digits"),
        ("grün", "'grün' contains 'ü'"),
        ("a\n", r"'a\n' contains '\n'"),
        ("a" * 128, "has 128 characters"),
    ],
)
def test_an_illegal_name_is_refused_with_what_is_wrong(name: str, problem: str) -> None:
    with pytest.raises(OptionError) as as_topic:
        check_topic(name)
    with pytest.raises(OptionError) as as_group:
        check_group(name)
    assert problem in str(as_topic.value)
    assert problem in str(as_group.value)
    assert problem in refusal(Message(name, b"1"))


def test_a_topic_is_longer_than_a_group_may_be() -> None:
    check_topic("a" * 127)
    check_group("a" * 120)
    with pytest.raises(OptionError, match="121 characters, 120 are allowed"):
        check_group("a" * 121)


def test_the_group_that_means_none_is_refused_for_producers() -> None:
    check_group("DEFAULT_PRODUCER")
    with pytest.raises(OptionError, match="give your own name"):
        check_producer_group("DEFAULT_PRODUCER")


@pytest.mark.parametrize("topic", sorted(CLIENT_FORBIDDEN_TOPICS))
@pytest.mark.parametrize("namespace", [None, "ns"])
def test_a_topic_of_the_brokers_is_refused(topic: str, namespace: str | None) -> None:
    assert f"{topic!r} is reserved for brokers" in refusal(Message(topic, b"1"), namespace)


def test_a_refused_topic_is_refused_again() -> None:
    message = Message("no topic", b"1")
    assert refusal(message) == refusal(message)


def test_the_limit_holds_for_namespace_and_topic_together() -> None:
    topic = "a" * 124
    check(Message(topic, b"1"), "ns")
    assert "128 characters" in refusal(Message(topic + "a", b"1"), "ns")
    check(Message(topic + "a", b"1"))


def test_a_body_has_at_least_one_byte_and_at_most_the_limit() -> None:
    check(Message("orders", b"\0"))
    check(Message("orders", b"x" * LIMIT))
    assert "body is empty" in refusal(Message("orders", b""))
    assert "9 bytes, body_bytes_max=8" in refusal(Message("orders", b"x" * (LIMIT + 1)))


def test_an_error_does_not_contain_the_body() -> None:
    assert "secret" not in refusal(Message("orders", b"secret body"))


def test_reserved_names_are_those_of_java() -> None:
    assert sorted(RESERVED_PROPERTIES) == sorted(RESERVED_IN_JAVA)
    assert all(type(name) is str for name in RESERVED_PROPERTIES)


def test_no_name_of_the_protocol_begins_with_a_small_letter() -> None:
    """`usual_own_text` relies on it: it takes such names without another look."""
    assert not [name for name in {*RESERVED_PROPERTIES, *PropertyKey} if name[0].islower()]


@pytest.mark.parametrize("name", RESERVED_IN_JAVA)
def test_a_property_of_the_protocol_is_refused(name: str) -> None:
    assert f"{name!r} is reserved by the protocol" in refusal(
        Message("orders", b"1", properties={"color": "red", name: "x"})
    )


def test_a_message_for_a_retry_topic_may_have_the_properties_of_a_retry() -> None:
    counts = {"RECONSUME_TIME": "0", "MAX_RECONSUME_TIMES": "2147483647"}
    origin = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "ID"}
    check(Message("%RETRY%shop", b"1", properties=counts | origin))
    assert "'KEYS' is reserved" in refusal(Message("%RETRY%shop", b"1", properties={"KEYS": "k"}))


@pytest.mark.parametrize("count", ["-1", "2147483648", "x", "", "1.5", "99999999999", "\u0663"])
def test_a_retry_count_must_be_a_number(count: str) -> None:
    properties = {"RECONSUME_TIME": count}
    assert f"'RECONSUME_TIME' = {count!r} is not a number from 0 to 2147483647" in refusal(
        Message("%RETRY%shop", b"1", properties=properties)
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"color": "red", "size of it": " L "},
        {"__SHARDINGKEY": "7"},
        {"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"},
        {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"},
    ],
)
def test_other_properties_pass(properties: dict[str, str]) -> None:
    check(Message("orders", b"1", properties=properties))


@pytest.mark.parametrize(("name", "value"), [("", "x"), (" ", "x"), ("a", ""), ("a", "\t")])
def test_a_blank_property_is_refused(name: str, value: str) -> None:
    problem = refusal(Message("orders", b"1", properties={name: value}))
    assert f"{name!r} = {value!r}: neither may be blank" in problem


@pytest.mark.parametrize(("name", "value"), [("amount", 5), (5, "amount"), ("amount", None)])
def test_a_property_that_is_no_text_is_refused(name: Any, value: Any) -> None:
    message = Message("orders", b"1", properties={"color": "red"})
    message.properties[name] = value  # the constructor would refuse it
    assert f"{name!r} = {value!r} is not text" in refusal(message)


@pytest.mark.parametrize("queues", ["a/b", "/", "a,b/c"])
def test_a_light_queue_with_a_path_is_refused(queues: str) -> None:
    message = Message("orders", b"1", properties={"INNER_MULTI_DISPATCH": queues})
    assert f"{queues!r} contains a '/'" in refusal(message)


@pytest.mark.parametrize("level", [None, 1, 18, 99])
def test_a_delay_level_that_may_exist_passes(level: int | None) -> None:
    check(Message("orders", b"1", delay_level=level))


def test_a_negative_delay_level_is_refused() -> None:
    message = Message("orders", b"1")
    message.delay_level = -1  # the constructor would refuse it
    assert "delay_level=-1" in refusal(message)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_delay_that_is_no_time_is_refused(seconds: float) -> None:
    message = Message("orders", b"1")
    message.deliver_in = seconds  # the constructor would refuse it
    assert f"deliver_in={seconds}" in refusal(message)


def test_a_delay_in_seconds_passes() -> None:
    check(Message("orders", b"1", deliver_in=0.5))


def test_a_flag_fits_its_field() -> None:
    check(Message("orders", b"1", flag=-(2**31)))
    check(Message("orders", b"1", flag=2**31 - 1))
    assert "flag=2147483648 does not fit" in refusal(Message("orders", b"1", flag=2**31))


@given(
    st.lists(
        st.builds(
            Message,
            topic=st.sampled_from(["orders", "bills", "no topic", ""]),
            body=st.binary(max_size=LIMIT + 1),
            properties=st.sampled_from([{}, {}, {"colour": "red"}, {"TAGS": "x"}]),
            delay_level=st.sampled_from([None, None, 3]),
            flag=st.sampled_from([0, 0, 7, 2**31]),
        )
        | st.builds(
            Message, st.just("orders"), st.just(b"1"), deliver_in=st.sampled_from([1.0, 0.0])
        ),
        max_size=4,
    ),
    st.sampled_from([None, "prod"]),
)
def test_a_list_of_messages_is_checked_as_each_of_them(
    messages: list[Message], namespace: str | None
) -> None:
    expected = None
    for message in messages:
        try:
            check_message(message, LIMIT, namespace)
        except InvalidMessage as error:
            expected = str(error)
            break
    try:
        check_messages(messages, LIMIT, namespace)
        found = None
    except InvalidMessage as error:
        found = str(error)
    assert found == expected
