"""The queue of a message: round robin or chosen; and brokers that are avoided."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.routing.selectors import by_hash, by_random, by_room
from downrange.embedded import cut, refuse
from downrange.errors import BrokerNotFound, InvalidMessage, OptionError, SendFailed
from downrange.model import Message, QueueId
from downrange.options import FaultTolerance, ProducerOptions
from downrange.wire.codes import RequestCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import embedded_server, only_async

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2
#: Argument -> the queue that Java's hash selector picks among five: the remainder of the hash code
#: without its sign ("polygenelubricants" hashes to the smallest 32-bit number).
JAVA_CHOICES: dict[str | int, int] = {
    "a": 2,
    "ab": 0,
    "abc": 4,
    "polygenelubricants": 3,
    "": 0,
    "世界": 3,
    7: 2,
    -7: 2,
    2**31: 3,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[Embedded]:
    """Give our cluster with broker-a and broker-b."""
    with embedded_server(brokers=2) as ours:
        yield ours


# ---- round robin ---------------------------------------------------------------------------------


def test_queues_take_turns(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=4)
    sender = producer(server)
    numbers = [sender.send(Message(topic, b"1")).queue.number for _ in range(12)]
    start = numbers[0]
    assert numbers == [(start + turn) % 4 for turn in range(12)]


def test_producers_begin_at_a_random_queue(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=16)
    starts = {producer(embedded).send(Message(topic, b"1")).queue.number for _ in range(12)}
    assert len(starts) > 1


def test_every_thread_has_its_own_round_robin(
    embedded: Embedded, producer: MakeProducer, kind: Kind
) -> None:
    """Tasks of one event loop share a thread, and therefore its round robin."""
    topic = embedded.topic(queues=8)
    sender = producer(embedded)
    seen: list[list[int]] = []

    def work() -> None:
        seen.append([sender.send(Message(topic, b"1")).queue.number for _ in range(8)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_TIMEOUT)
    assert Counter(number for numbers in seen for number in numbers) == dict.fromkeys(range(8), 4)
    if kind == "sync":
        assert all(sorted(numbers) == list(range(8)) for numbers in seen)


# ---- by choice -----------------------------------------------------------------------------------


def test_a_hash_chooses_the_queue_that_java_chooses(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=5)
    sender = producer(server)
    chosen = {
        argument: sender.send(Message(topic, b"1"), queue=by_hash(argument)).queue.number
        for argument in JAVA_CHOICES
    }
    assert chosen == JAVA_CHOICES


def test_a_sharding_key_keeps_messages_together_and_in_order(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=5)
    sender = producer(server)
    for number in range(4):
        for key in ("a", "ab", "abc"):
            sender.send(Message(topic, f"{key} {number}", sharding_key=key))
    stored = server.read_all(topic, 12)
    for key in ("a", "ab", "abc"):
        own = [message for message in stored if message.properties["__SHARDINGKEY"] == key]
        assert {message.queue.number for message in own} == {JAVA_CHOICES[key]}
        assert [message.body for message in own] == [
            f"{key} {number}".encode() for number in range(4)
        ]


def test_a_given_queue_gets_the_message(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=4)
    sender = producer(server)
    queue = QueueId(topic, "broker-a", 2)
    assert [sender.send(Message(topic, b"1"), queue=queue).offset for _ in range(3)] == [0, 1, 2]
    assert sender.submit(Message(topic, b"1"), queue=queue).result(LONG_TIMEOUT).queue == queue
    sender.send_oneway(Message(topic, b"1"), queue=queue)
    assert {message.queue for message in server.read_all(topic, 5)} == {queue}


def test_a_function_of_the_user_chooses(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=4)
    sender = producer(server)

    def last(queues: Sequence[QueueId], message: Message) -> QueueId:
        assert message.topic == topic
        assert [queue.number for queue in queues] == [0, 1, 2, 3]
        return queues[-1]

    assert sender.send(Message(topic, b"1"), queue=last).queue.number == 3
    assert sender.submit(Message(topic, b"1"), queue=last).result(LONG_TIMEOUT).queue.number == 3
    sender.send_oneway(Message(topic, b"1"), queue=last)
    assert {message.queue.number for message in server.read_all(topic, 3)} == {3}


@only_async
def test_a_coroutine_function_may_choose_under_asyncio(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic(queues=4)

    async def second(queues: Sequence[QueueId], message: Message) -> QueueId:
        return queues[1]

    chooses: Any = second
    receipt = producer(embedded).send(Message(topic, b"1"), queue=chooses)
    assert receipt.queue.number == 1


def test_a_random_choice_reaches_every_queue(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=3)
    sender = producer(embedded)
    numbers = {sender.send(Message(topic, b"1"), queue=by_random()).queue.number for _ in range(60)}
    assert numbers == {0, 1, 2}


def test_a_room_chooses_the_brokers_in_it(pair: Embedded, producer: MakeProducer) -> None:
    topic = pair.topic(queues=2)
    sender = producer(pair)
    near = by_room("south", room_of={"broker-a": "north", "broker-b": "south"}.get)
    queues = {sender.send(Message(topic, b"1"), queue=near).queue for _ in range(30)}
    assert queues == {QueueId(topic, "broker-b", 0), QueueId(topic, "broker-b", 1)}
    with pytest.raises(OptionError, match="'west'"):
        sender.send(Message(topic, b"1"), queue=by_room("west"))


def test_an_invalid_choice_is_an_error_that_names_it(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)

    def fails(queues: Sequence[QueueId], message: Message) -> QueueId:
        raise KeyError("customer")

    def nothing(queues: Sequence[QueueId], message: Message) -> Any:
        return None

    with pytest.raises(OptionError, match=r"fails.*customer") as caught:
        sender.send(Message(topic, b"1"), queue=fails)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(OptionError, match="nothing"):
        sender.send(Message(topic, b"1"), queue=nothing)
    with pytest.raises(InvalidMessage, match="another topic"):
        sender.send(Message(topic, b"1"), queue=QueueId("other", "broker-a", 0))
    with pytest.raises(BrokerNotFound, match="broker-z") as unknown:
        sender.send(Message(topic, b"1"), queue=QueueId(topic, "broker-z", 0))
    assert unknown.value.code == 10003


def test_a_chosen_queue_is_not_left_for_another(pair: Embedded, producer: MakeProducer) -> None:
    topic = pair.topic()
    sender = producer(pair)
    pair.cluster.intercept(SEND, refuse(2, "busy"), broker=0)
    try:
        with pytest.raises(SendFailed) as caught:
            sender.send(Message(topic, b"1"), queue=QueueId(topic, "broker-a", 0))
        assert len(caught.value.attempts) == 1
        with pytest.raises(SendFailed) as caught:
            sender.send(Message(topic, b"1"), queue=lambda queues, _: queues[0])
        assert len(caught.value.attempts) == 1
    finally:
        pair.cluster.intercept(SEND, None)


# ---- failing brokers -----------------------------------------------------------------------------


def test_a_retry_goes_to_another_broker(pair: Embedded, producer: MakeProducer) -> None:
    topic = pair.topic()
    sender = producer(pair)
    pair.cluster.intercept(SEND, cut(), broker=0)
    try:
        receipts = [sender.send(Message(topic, b"1")) for _ in range(16)]
    finally:
        pair.cluster.intercept(SEND, None)
    assert {receipt.queue.broker for receipt in receipts} == {"broker-b"}
    retried = [receipt for receipt in receipts if receipt.failures]
    assert retried
    assert all(
        [failure.broker for failure in receipt.failures] == ["broker-a"] for receipt in retried
    )


@pytest.mark.parametrize("style", ["4.x", "5.x"])
def test_a_broker_that_failed_is_avoided_for_a_while_with_fault_tolerance(
    pair: Embedded, producer: MakeProducer, style: str
) -> None:
    topic = pair.topic()
    # Only a failure counts; a slow answer of the other broker does not.
    tolerance = FaultTolerance(
        style=style,  # type: ignore[arg-type]
        latency_ms=(10_000,),
        avoid_ms=(600_000,),
        detect=False,
    )
    sender = producer(pair, options=ProducerOptions(fault_tolerance=tolerance))
    pair.cluster.intercept(SEND, refuse(2, "busy"), broker=0)
    try:
        receipts = [sender.send(Message(topic, b"1")) for _ in range(16)]
    finally:
        pair.cluster.intercept(SEND, None)
    assert sum(len(receipt.failures) for receipt in receipts) <= 1
    # The broker works again but is still avoided, because detection is off.
    brokers = {sender.send(Message(topic, b"1")).queue.broker for _ in range(8)}
    assert brokers == {"broker-b"}
    states = {state.broker: state for state in sender.client.stats().brokers}
    assert not states["broker-a"].is_available
    assert states["broker-b"].is_available
