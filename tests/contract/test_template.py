"""Message templates: a value arrives as it was sent."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import pydantic
import pytest

from downrange import (
    AsyncMessageTemplate,
    Envelope,
    MessageTemplate,
    Producer,
    TransactionProducer,
)
from downrange.client.flows.routing.selectors import by_hash
from downrange.errors import BatchFailed, OptionError, RocketMQError
from downrange.model import Message, Outcome, QueueId
from downrange.options import ClientOptions, ProducerOptions
from tests.contract.blocking import LONG_TIMEOUT, Blocking, LoopThread, unwrapped

if TYPE_CHECKING:
    from tests.contract.conftest import Kind, Make, MakeProducer
    from tests.contract.servers import Server

#: A long timeout: these tests check values, not times.
OPTIONS = ProducerOptions(timeout=LONG_TIMEOUT)


@dataclass
class Order:
    id: int
    amount: float


class Customer(pydantic.BaseModel):
    name: str


class MakeTemplate(Protocol):
    """Makes a template for a producer of the same front end."""

    def __call__(self, producer: Producer, **settings: Any) -> MessageTemplate:
        """See the class."""
        ...


@pytest.fixture
def template(kind: Kind, loop_thread: LoopThread) -> MakeTemplate:
    """Give the function that makes templates of the front end."""

    def make(producer: Producer, **settings: Any) -> MessageTemplate:
        if kind == "sync":
            return MessageTemplate(producer, **settings)
        inner = AsyncMessageTemplate(unwrapped(producer), **settings)
        return cast("MessageTemplate", Blocking(inner, loop_thread))

    return make


def patient_producer(server: Server, group: str) -> Producer:
    """Return a sync producer for a `with` block."""
    patient = ClientOptions(call_timeout=LONG_TIMEOUT)
    return Producer(server.name_server, group=group, options=OPTIONS, client_options=patient)


@pytest.mark.parametrize(
    ("payload", "content_type", "as_type"),
    [
        (b"\x00\xff", "application/octet-stream", bytes),
        ("grün", "text/plain;charset=UTF-8", str),
        ({"id": 7, "tags": ["a", None]}, "application/json", dict),
        (Order(7, 12.5), "application/json", Order),
        (Customer(name="Ann"), "application/json", Customer),
    ],
    ids=["bytes", "text", "json", "dataclass", "pydantic"],
)
def test_value_arrives_as_it_was_sent(
    server: Server,
    producer: MakeProducer,
    template: MakeTemplate,
    payload: object,
    content_type: str,
    as_type: Any,
) -> None:
    topic = server.topic()
    sender = template(producer(server, options=OPTIONS))
    receipt = sender.convert_and_send(
        f"{topic}:paid", payload, keys=["o-7"], properties={"colour": "red"}
    )
    (stored,) = server.read_all(topic, 1)
    assert stored.message_id == receipt.message_id
    assert (stored.tags, stored.keys) == ("paid", ["o-7"])
    assert stored.properties["colour"] == "red"
    assert stored.properties["contentType"] == content_type
    assert sender.receive(stored, as_type) == payload


def test_value_goes_to_the_default_topic_without_waiting(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic()
    sender = template(producer(server, options=OPTIONS), default_topic=topic)
    sender.convert_and_send_oneway(":seen", {"page": 1})
    (stored,) = server.read_all(topic, 1)
    assert (stored.tags, sender.receive(stored)) == ("seen", {"page": 1})


def test_submitted_value_arrives(server: Server, kind: Kind) -> None:
    """Only the sync template returns a future; asyncio uses a task."""
    topic = server.topic()
    with patient_producer(server, f"template_{kind}") as producer:
        future = MessageTemplate(producer).convert_and_submit(topic, [1, 2], keys="k")
        receipt = future.result(LONG_TIMEOUT)
    (stored,) = server.read_all(topic, 1)
    assert (stored.message_id, stored.body, stored.keys) == (receipt.message_id, b"[1,2]", ["k"])


def test_callbacks_of_a_submitted_value_get_its_outcome(server: Server, kind: Kind) -> None:
    """Only the sync template has callbacks; asyncio uses a task."""
    topic = server.topic()
    outcomes: queue.Queue[object] = queue.Queue()
    with patient_producer(server, f"callback_{kind}") as producer:
        submit = partial(MessageTemplate(producer).convert_and_submit, on_failure=outcomes.put)
        receipt = submit(topic, [1, 2], on_success=outcomes.put).result(LONG_TIMEOUT)
        assert outcomes.get(timeout=LONG_TIMEOUT) == receipt
        submit("SCHEDULE-NOT-THERE", b"1", timeout=1e-9)
        assert isinstance(outcomes.get(timeout=LONG_TIMEOUT), RocketMQError)
        submit(topic, b"1").result(LONG_TIMEOUT)
    assert outcomes.empty()


def test_envelope_arrives_with_its_headers(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic()
    sender = template(producer(server, options=OPTIONS))
    envelope = Envelope({"id": 7}, {"KEYS": "o-7 o-8", "shop": 12, "FLAG": 3})
    sender.convert_and_send(f"{topic}:paid", envelope)
    (stored,) = server.read_all(topic, 1)
    assert (stored.tags, stored.keys, stored.flag) == ("paid", ["o-7", "o-8"], 3)
    assert (stored.properties["shop"], sender.receive(stored)) == ("12", {"id": 7})


def test_values_of_one_key_keep_their_order_in_the_queue_that_java_chooses(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic(queues=4)
    sender = template(producer(server, options=OPTIONS))
    for number in range(5):
        sender.convert_and_send_ordered(f"{topic}:step", number, "customer-9")
    stored = server.read_all(topic, 5)
    assert [sender.receive(message, int) for message in stored] == [0, 1, 2, 3, 4]
    queues = [QueueId(topic, stored[0].queue.broker, number) for number in range(4)]
    chosen = by_hash("customer-9")(queues, Message(topic, b"1"))
    assert {message.queue for message in stored} == {chosen}


def test_values_are_sent_as_one_batch(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic()
    sender = template(producer(server, options=OPTIONS))
    orders = [Order(number, 1.5) for number in range(10)]
    receipt = sender.convert_and_send_batch(
        f"{topic}:new", iter(orders), properties={"colour": "red"}
    )
    assert (len(receipt), receipt.request_count) == (10, 1)
    stored = server.read_all(topic, 10)
    assert [sender.receive(message, Order) for message in stored] == orders
    assert {message.tags for message in stored} == {"new"}
    assert {message.properties["colour"] for message in stored} == {"red"}


def test_batch_with_a_bad_value_reports_what_was_sent(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic()
    sender = template(producer(server, options=OPTIONS))
    with pytest.raises(OptionError, match="type complex cannot be converted"):
        sender.convert_and_send_batch(topic, [b"1", 1j])
    big = b"x" * 3_000_000  # two of them are two requests
    with pytest.raises(BatchFailed, match="type complex cannot be converted") as caught:
        sender.convert_and_send_batch(topic, [big, big, 1j])
    assert caught.value.stored.request_count == 1
    assert [len(message.body) for message in server.read_all(topic, 1)] == [len(big)]


def test_value_is_delayed(server: Server, producer: MakeProducer, template: MakeTemplate) -> None:
    topic = server.topic()
    template(producer(server, options=OPTIONS)).convert_and_send(topic, "later", delay_level=1)
    (stored,) = server.read_all(topic, 1)
    assert stored.properties["DELAY"] == "1"
    assert stored.stored_at_ms - stored.born_at_ms >= 900  # level 1 is one second


def test_value_is_committed_or_rolled_back_with_local_work(
    server: Server, make: Make, template: MakeTemplate
) -> None:
    topic = server.topic()
    group = f"group_{topic}"
    producer = make(
        TransactionProducer,
        server.name_server,
        group=group,
        check=lambda _: Outcome.UNKNOWN,
        options=OPTIONS,
    ).start()
    sender = template(producer)
    seen: list[bytes] = []

    def work(message: Message, receipt: object) -> Outcome:
        seen.append(message.body)
        return Outcome.COMMIT if message.body == b'{"id":1}' else Outcome.ROLLBACK

    for number in (1, 2):
        done = sender.convert_and_send_in_transaction(f"{topic}:pay", {"id": number}, work)
        assert done.outcome is (Outcome.COMMIT if number == 1 else Outcome.ROLLBACK)
    with sender.transaction(topic, {"id": 3}, keys="k-3") as transaction:
        assert transaction.message.keys == ("k-3",)
    with pytest.raises(ZeroDivisionError), sender.transaction(topic, {"id": 4}):
        raise ZeroDivisionError
    assert seen == [b'{"id":1}', b'{"id":2}']
    stored = server.read_all(topic, 2)
    assert sorted(sender.receive(message)["id"] for message in stored) == [1, 3]


def test_request_is_answered_with_a_value(
    server: Server, producer: MakeProducer, template: MakeTemplate
) -> None:
    topic = server.topic()
    asking, answering = (
        template(producer(server, options=OPTIONS)),
        template(producer(server, options=OPTIONS)),
    )
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            asking.send_and_receive, topic, Customer(name="Ann"), Order, timeout=LONG_TIMEOUT
        )
        (request,) = server.read_all(topic, 1)
        assert answering.receive(request, Customer).name == "Ann"
        answering.convert_and_reply(request, Order(7, 12.5), timeout=LONG_TIMEOUT)
        assert answer.result(LONG_TIMEOUT) == Order(7, 12.5)
