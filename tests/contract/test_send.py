"""Sending one message: what arrives, the receipt, and retries."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import cut, deliver, drop, handle_then_cut, refuse
from downrange.errors import (
    CallTimeout,
    ConnectionLost,
    InvalidMessage,
    MessageRefused,
    RocketMQError,
    SendFailed,
    SendNotPermitted,
    SendTimedOut,
    ServerError,
    SystemBusy,
)
from downrange.model import Message, SendStatus
from downrange.options import ClientOptions, ProducerOptions
from downrange.wire.codes import RequestCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.embedded import Interception
    from downrange.model import Attempt
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2
#: Response codes after which Java's producer retries.
RETRIED = (1, 2, 14, 16, 17, 204, 205, 1500)


def first(count: int, rule: Interception) -> Callable[[Command, Peer], Interception | None]:
    """Return an interception of the first `count` requests."""
    left = [rule] * count
    return lambda request, peer: left.pop() if left else None


# ---- what arrives --------------------------------------------------------------------------------


def test_a_send_to_a_retry_topic_carries_its_retry_counts(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    group = unique_name("group")
    retries = server.topic(queues=1, name=f"%RETRY%{group}")
    sender = producer(server)
    counts = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "5"}
    sender.send(Message(retries, b"again", properties=counts | {"RETRY_TOPIC": "orders"}))
    (again,) = server.read_all(retries, 1)
    assert (again.body, again.delivery_attempts) == (b"again", 3)
    assert again.properties["RETRY_TOPIC"] == "orders"
    assert not counts.keys() & again.properties.keys()

    sender.send(Message(retries, b"dead", properties=counts | {"RECONSUME_TIME": "6"}))
    (dead,) = server.read_all(f"%DLQ%{group}", 1)
    assert (dead.body, dead.delivery_attempts) == (b"dead", 6)


def test_a_message_arrives_as_it_was_sent(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    message = Message(
        topic, b"1", tags="new", keys=["k-1", "k-2"], properties={"colour": "red"}, flag=7
    )
    receipt = producer(server).send(message)
    (stored,) = server.read_all(topic, 1)
    assert (stored.body, stored.tags, stored.keys) == (b"1", "new", ["k-1", "k-2"])
    assert stored.properties["colour"] == "red"
    assert stored.flag == 7
    assert (receipt.message_id, receipt.queue, receipt.offset, receipt.offset_id) == (
        stored.message_id,
        stored.queue,
        stored.offset,
        stored.offset_id,
    )
    assert receipt.status is SendStatus.STORED
    assert receipt.failures == ()


def test_the_times_of_a_message_are_datetimes(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    began = datetime.now(UTC) - timedelta(milliseconds=1)
    producer(server).send(Message(topic, b"1"))
    (stored,) = server.read_all(topic, 1)
    assert began <= stored.born_at <= stored.stored_at + timedelta(milliseconds=1)
    assert stored.stored_at < began + timedelta(seconds=60)


def test_properties_that_are_too_long_are_refused_before_anything_is_sent(
    server: Server, producer: MakeProducer
) -> None:
    """Issue 14: the broker refused them, after all retries."""
    topic = server.topic(queues=1)
    sender = producer(server)
    long = Message(topic, b"2", properties={"note": "中" * 11_000})
    for send in (sender.send, sender.send_oneway, sender.request):
        with pytest.raises(InvalidMessage, match=r"together: 33... bytes, 32767 are"):
            send(long)
    with pytest.raises(InvalidMessage, match=r"together: 33... bytes, 32767 are"):
        sender.submit(long).result(LONG_TIMEOUT)
    with pytest.raises(InvalidMessage, match=r"together: 33... bytes, 32767 are"):
        sender.send_batch([Message(topic, b"1"), long])
    sender.send(Message(topic, b"3", properties={"note": "中" * 10_800}))
    assert [message.body for message in server.read_all(topic, 1)] == [b"3"]


def test_bodies_of_any_content_arrive_unchanged(server: Server, producer: MakeProducer) -> None:
    bodies = [b"\x00", b"a\x00b\x00", bytes(range(256)), os.urandom(5000), b"\x01\x02\xff\xfe"]
    topic = server.topic(queues=1)
    sender = producer(server)
    for body in bodies:
        sender.send(Message(topic, body))
    sender.send(Message(topic, "Grüße, 世界"))
    stored = [message.body for message in server.read_all(topic, 6)]
    assert stored == [*bodies, "Grüße, 世界".encode()]


def test_texts_beyond_ascii_arrive_in_properties_tags_and_keys(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=1)
    message = Message(topic, b"1", tags="städte", keys=["köln"], properties={"名": "値 mit Blank"})
    producer(server).send(message)
    (stored,) = server.read_all(topic, 1)
    assert (stored.tags, stored.keys) == ("städte", ["köln"])
    assert stored.properties["名"] == "値 mit Blank"


@pytest.mark.parametrize("codec", ["json", "binary"])
@pytest.mark.parametrize("version", [1, 2])
def test_every_way_to_write_a_header_is_understood(
    server: Server, producer: MakeProducer, version: int, codec: str
) -> None:
    topic = server.topic(queues=1)
    sender = producer(
        server,
        options=ProducerOptions(header_version=version),  # type: ignore[arg-type]
        client_options=ClientOptions(header_codec=codec),  # type: ignore[arg-type]
    )
    sender.send(Message(topic, b"1", tags="new", flag=3))
    (stored,) = server.read_all(topic, 1)
    assert (stored.body, stored.tags, stored.flag) == (b"1", "new", 3)


def test_every_message_has_an_id_of_its_own(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server)
    ids = [sender.send(Message(topic, b"1")).message_id for _ in range(20)]
    assert len(set(ids)) == 20
    assert [message.message_id for message in server.read_all(topic, 20)] == ids
    assert all(len(one) == 32 and int(one, 16) for one in ids)


def test_a_oneway_message_arrives(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server)
    for number in range(3):
        assert sender.send_oneway(Message(topic, f"{number}")) is None  # type: ignore[func-returns-value]
    # One-way sends do not wait for each other, and brokers use several threads: any order is valid.
    assert {message.body for message in server.read_all(topic, 3)} == {b"0", b"1", b"2"}
    assert sender.client.stats().producers[sender.group].oneway == 3


def test_submitted_messages_all_arrive(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server)
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(100)]
    receipts = [future.result(LONG_TIMEOUT) for future in futures]
    stored = {message.message_id: message.body for message in server.read_all(topic, 100)}
    assert stored == {
        receipt.message_id: f"{number}".encode() for number, receipt in enumerate(receipts)
    }


def test_a_message_larger_than_the_broker_takes_is_refused_at_once(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    sender = producer(
        server, options=ProducerOptions(body_bytes_max=5 << 20, compress_over_bytes=6 << 20)
    )
    with pytest.raises(SendFailed) as caught:
        sender.send(Message(topic, b"x" * ((4 << 20) + 1)), timeout=LONG_TIMEOUT)
    assert caught.value.code == 13
    assert len(caught.value.attempts) == 1
    assert isinstance(caught.value.attempts[0].error, MessageRefused)


@pytest.mark.parametrize(
    ("message", "error_text"),
    [
        (Message("orders", b""), "body is empty"),
        (Message("orders", b"x" * (4 * 1024 * 1024 + 1)), "body_bytes_max=4194304"),
        (Message("", b"1"), "blank"),
        (Message("a" * 128, b"1"), "127 are allowed"),
        (Message("or ders", b"1"), "contains ' '"),
        (Message("SCHEDULE_TOPIC_XXXX", b"1"), "is reserved for brokers"),
        (Message("orders", b"1", properties={"KEYS": "k"}), "'KEYS' is reserved by the protocol"),
        (Message("orders", b"1", properties={"colour": ""}), "blank"),
        (Message("orders", b"1", flag=1 << 31), "flag=2147483648"),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_before_it_is_sent(
    embedded: Embedded, producer: MakeProducer, message: Message, error_text: str
) -> None:
    sender = producer(embedded)
    for send in (sender.send, sender.send_oneway):
        with pytest.raises(InvalidMessage, match=error_text):
            send(message)
    with pytest.raises(InvalidMessage, match=error_text):
        sender.submit(message).result(LONG_TIMEOUT)


# ---- retries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", RETRIED)
def test_a_refusal_with_a_code_of_the_list_is_tried_again(
    embedded: Embedded, producer: MakeProducer, code: int
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, first(2, refuse(code, "not now")))
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.attempts == 3
    for failure in receipt.failures:
        assert isinstance(failure.error, ServerError)
        assert (failure.error.code, failure.error.remark) == (code, "not now")
    assert sender.client.stats().producers[sender.group].retried == 2


def test_any_other_refusal_ends_the_send_at_once(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, refuse(13, "no such message"))
    with pytest.raises(SendFailed, match="no such message") as caught:
        sender.send(Message(topic, b"1"))
    assert len(caught.value.attempts) == 1
    assert not caught.value.retryable


def test_the_codes_that_are_tried_again_can_be_chosen(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded, options=ProducerOptions(retry_codes=frozenset({13})))
    embedded.cluster.intercept(SEND, first(1, refuse(13, "")))
    assert sender.send(Message(topic, b"1")).attempts == 2
    embedded.cluster.intercept(SEND, refuse(1, ""))
    with pytest.raises(SendFailed) as caught:
        sender.send(Message(topic, b"1"))
    assert len(caught.value.attempts) == 1


def test_the_final_error_lists_every_attempt(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded, options=ProducerOptions(retries=1))
    embedded.cluster.intercept(SEND, refuse(2, "too busy"))
    with pytest.raises(SendFailed) as caught:
        sender.send(Message(topic, b"1"))
    error = caught.value
    (address,) = embedded.brokers
    assert [(one.broker, one.address) for one in error.attempts] == [("broker-a", address)] * 2
    assert all(isinstance(one.error, SystemBusy) and one.elapsed >= 0 for one in error.attempts)
    assert (error.code, error.topic, error.address, error.retryable) == (2, topic, address, True)
    assert "2 attempts" in str(error)
    assert str(error).count(address) >= 2
    assert str(error).count("too busy") == 2
    assert sender.client.stats().producers[sender.group].failed == 1


def test_no_permission_is_an_error_of_its_own(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, refuse(16, "not yours"))
    with pytest.raises(SendNotPermitted, match="not yours") as caught:
        sender.send(Message(topic, b"1"))
    assert isinstance(caught.value, PermissionError)


def test_only_a_synchronous_send_repeats_after_a_refusal(
    embedded: Embedded, producer: MakeProducer, kind: Kind
) -> None:
    """An asyncio send counts as synchronous; a submitted one is Java's asynchronous send."""
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, first(1, refuse(2, "busy")))
    future = sender.submit(Message(topic, b"1"))
    if kind == "async":
        assert future.result(LONG_TIMEOUT).attempts == 2
    else:
        with pytest.raises(SendFailed) as caught:
            future.result(LONG_TIMEOUT)
        assert len(caught.value.attempts) == 1


def test_a_submitted_message_is_tried_again_when_no_answer_came(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, first(2, cut()))
    receipt = sender.submit(Message(topic, b"1")).result(LONG_TIMEOUT)
    assert [type(one.error) for one in receipt.failures] == [ConnectionLost] * 2
    assert len(embedded.read_all(topic, 1)) == 1


def test_a_message_whose_reply_was_lost_is_sent_again_and_marked_as_possibly_stored_twice(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic(queues=1)
    sender = producer(embedded)
    embedded.cluster.intercept(SEND, first(1, handle_then_cut()))
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.may_be_stored_twice
    stored = embedded.read_all(topic, 2)
    assert {message.message_id for message in stored} == {receipt.message_id}


def test_one_deadline_holds_for_all_attempts_together(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded, options=ProducerOptions(retries=100))
    sender.send(Message(topic, b"first"))  # it takes the time to connect
    embedded.cluster.intercept(SEND, refuse(2, "busy", after=0.4))
    attempts: Sequence[Attempt] = ()
    for timeout in (3.0, 6.0, 12.0):  # a busy machine may need a short time for one attempt
        started = time.monotonic()
        with pytest.raises(SendFailed) as caught:
            sender.send(Message(topic, b"1"), timeout=timeout)
        assert timeout - 0.5 < time.monotonic() - started < timeout + LONG_TIMEOUT / 2
        attempts = caught.value.attempts
        assert len(attempts) <= timeout / 0.4
        if len(attempts) >= 2:
            break
    assert len(attempts) >= 2


def test_a_broker_that_does_not_answer_ends_in_a_timeout(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    sends: list[Callable[[float], object]] = [
        lambda timeout: sender.send(Message(topic, b"1"), timeout=timeout),
        lambda timeout: sender.submit(Message(topic, b"1"), timeout=timeout).result(LONG_TIMEOUT),
    ]
    for send in sends:
        send(LONG_TIMEOUT)  # it takes the time to connect
    embedded.cluster.intercept(SEND, drop())
    for send in sends:
        attempts: Sequence[Attempt] = ()
        for timeout in (0.2, 2.0, 10.0):  # a short time may be over before the first attempt
            with pytest.raises(SendTimedOut) as caught:
                send(timeout)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.elapsed < timeout + LONG_TIMEOUT / 2
            attempts = caught.value.attempts
            if attempts:
                break
        (attempt,) = attempts
        assert isinstance(attempt.error, CallTimeout)


def test_an_attempt_can_have_less_time_than_the_whole_send(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    # The last attempt has all the time that is left.
    sender = producer(embedded, options=ProducerOptions(attempt_timeout=1.0, retries=1))
    sender.send(Message(topic, b"first"), timeout=LONG_TIMEOUT)  # it takes the time to connect
    embedded.cluster.intercept(SEND, first(1, drop()))
    receipt = sender.send(Message(topic, b"1"), timeout=LONG_TIMEOUT)
    (failure,) = receipt.failures
    assert isinstance(failure.error, CallTimeout)


def test_a_cancelled_send_leaves_the_producer_usable(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    sender.send(Message(topic, b"1"))
    embedded.cluster.intercept(SEND, deliver(after=LONG_TIMEOUT))
    futures = [sender.submit(Message(topic, b"1")) for _ in range(20)]
    assert all(future.cancel() for future in futures)
    embedded.cluster.intercept(SEND, None)
    assert sender.send(Message(topic, b"2")).status is SendStatus.STORED

    def is_idle() -> bool:
        stats = sender.client.stats().producers[sender.group]
        return (stats.in_flight, stats.in_flight_bytes, stats.waiting) == (0, 0, 0)

    wait_until(is_idle)  # the background thread ends cancelled sends


def test_callbacks_see_the_outcome(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    outcomes: list[object] = []
    future = producer(server).submit(Message(topic, b"1"))
    future.add_done_callback(lambda done: outcomes.append(done.result()))
    receipt = future.result(LONG_TIMEOUT)
    deadline = time.monotonic() + LONG_TIMEOUT
    while not outcomes and time.monotonic() < deadline:
        time.sleep(0.001)
    assert outcomes == [receipt]


def test_errors_carry_topic_and_address(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded, options=ProducerOptions(retries=0))
    embedded.cluster.intercept(SEND, cut())
    with pytest.raises(RocketMQError) as caught:
        sender.send(Message(topic, b"1"))
    assert (caught.value.topic, caught.value.address) == (topic, embedded.brokers[0])
    assert caught.value.retryable
