"""Lists of messages in few requests, and automatic batches of small messages."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.routing.selectors import by_hash
from downrange.embedded import Interception, drop, refuse
from downrange.errors import BatchFailed, InvalidMessage, SendFailed, SendTimedOut
from downrange.model import Message, QueueId
from downrange.options import AutoBatch, ProducerOptions
from downrange.wire.codes import RequestCode
from downrange.wire.limits import BATCH_MESSAGES_MAX
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from downrange.client.flows.routing.selectors import Selector
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

BATCH = RequestCode.SEND_BATCH_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
#: Enough for a busy machine to submit many messages before their batch is due.
LONG_HOLD_MS = 400


def messages_for(topic: str, count: int, size: int = 1) -> list[Message]:
    """Return messages with different keys."""
    return [Message(topic, b"x" * size, keys=[f"k{number}"]) for number in range(count)]


class RequestCounter:
    """An interception that counts requests and does not change them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        self.count += 1
        return None


# ---- lists ---------------------------------------------------------------------------------------


def test_a_list_is_stored_as_single_messages_in_order(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=1)
    batch = [
        Message(
            topic, f"{number}", tags="t", keys=[f"k{number}"], properties={"n": f"{number}"}, flag=3
        )
        for number in range(10)
    ]
    receipt = producer(server).send_batch(batch)
    assert (receipt.request_count, len(receipt)) == (1, 10)
    stored = server.read_all(topic, 10)
    assert [message.body for message in stored] == [f"{number}".encode() for number in range(10)]
    assert [message.keys for message in stored] == [[f"k{number}"] for number in range(10)]
    assert [message.properties["n"] for message in stored] == [f"{n}" for n in range(10)]
    assert {(message.tags, message.flag) for message in stored} == {("t", 3)}
    assert [message.message_id for message in stored] == receipt.message_ids
    (single,) = receipt
    assert (single.queue, single.offset) == (stored[0].queue, 0)


def test_any_iterable_is_taken(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server)

    def stream() -> Iterator[Message]:
        yield from messages_for(topic, 5)

    assert len(sender.send_batch(stream())) == 5
    assert len(sender.submit_batch(tuple(messages_for(topic, 5))).result(LONG_TIMEOUT)) == 5
    assert len(server.read_all(topic, 10)) == 10


def test_a_list_of_one_is_a_batch_of_one(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    receipt = producer(server).send_batch(messages_for(topic, 1))
    (stored,) = server.read_all(topic, 1)
    assert receipt.message_ids == [stored.message_id]


def test_an_empty_list_sends_nothing(embedded: Embedded, producer: MakeProducer) -> None:
    receipt = producer(embedded).send_batch([])
    assert (receipt.request_count, len(receipt)) == (0, 0)


def test_a_list_that_is_too_long_is_split_to_fit(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server, options=ProducerOptions(body_bytes_max=20_000))
    receipt = sender.send_batch(messages_for(topic, 100, size=1000))
    assert len(receipt) == sum(receipt.counts) == 100
    # A message has about 1,100 bytes with keys and id: 18 fit into a request.
    assert receipt.request_count in (6, 7)
    assert all(count > 10 for count in receipt.counts[:-1])
    stored = server.read_all(topic, 100)
    assert [message.message_id for message in stored] == receipt.message_ids
    assert [message.keys for message in stored] == [[f"k{number}"] for number in range(100)]


def test_a_list_of_more_messages_than_a_request_may_have_is_split(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=1)
    batch = [Message(topic, b"x")] * (BATCH_MESSAGES_MAX + 3)
    receipt = producer(server).send_batch(batch)
    assert list(receipt.counts) == [BATCH_MESSAGES_MAX, 3]
    assert [single.offset for single in receipt] == [0, BATCH_MESSAGES_MAX]
    assert len(server.read_all(topic, len(batch))) == len(batch)


def test_a_long_list_goes_on_to_the_next_queue_with_each_request(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic(queues=4)
    sender = producer(embedded, options=ProducerOptions(body_bytes_max=5_000))
    receipt = sender.send_batch(messages_for(topic, 16, size=1000))
    assert {single.queue.number for single in receipt} == {0, 1, 2, 3}


def test_a_list_goes_where_it_is_sent(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=5)
    sender = producer(server)
    queue = QueueId(topic, "broker-a", 3)
    sender.send_batch(messages_for(topic, 2), queue=queue)
    sender.send_batch(messages_for(topic, 2), queue=by_hash("abc"))
    assert [message.queue.number for message in server.read_all(topic, 4)] == [3, 3, 4, 4]


@pytest.mark.parametrize(
    ("bad", "error_text"),
    [
        (Message("another", b"1"), "'another'"),
        (Message("orders", b"1", delay_level=1), "delivered later"),
        (Message("orders", b"1", deliver_in=5.0), "delivered later"),
        (Message("orders", b"1", wait_stored=False), "wait_stored=False"),
        (Message("orders", b""), "empty"),
    ],
)
def test_a_message_that_cannot_be_in_the_list_stops_all_of_it(
    embedded: Embedded, producer: MakeProducer, bad: Message, error_text: str
) -> None:
    sender = producer(embedded)
    counted = RequestCounter()
    embedded.cluster.intercept(BATCH, counted)
    with pytest.raises(InvalidMessage, match=error_text):
        sender.send_batch([Message("orders", b"1"), bad])
    assert counted.count == 0


def test_retry_topics_take_no_lists(embedded: Embedded, producer: MakeProducer) -> None:
    with pytest.raises(InvalidMessage, match="%RETRY%shop"):
        producer(embedded).send_batch([Message("%RETRY%shop", b"1")])


def test_a_message_too_large_for_any_request_is_refused(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded, options=ProducerOptions(body_bytes_max=1000))
    with pytest.raises(InvalidMessage, match="body_bytes_max=1000 are allowed"):
        sender.send_batch([Message(topic, b"x" * 1001)])


def test_a_list_that_fails_half_way_reports_what_was_stored(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic(queues=1)
    sender = producer(embedded, options=ProducerOptions(body_bytes_max=5_000))
    batch = messages_for(topic, 12, size=1000)
    seen = RequestCounter()

    def third_fails(request: Command, peer: Peer) -> Interception | None:
        seen(request, peer)
        return refuse(13, "enough") if seen.count == 3 else None

    embedded.cluster.intercept(BATCH, third_fails)
    with pytest.raises(BatchFailed, match="messages of a list were stored") as caught:
        sender.send_batch(batch)
    error = caught.value
    stored = embedded.read_all(topic, 8)
    ids = [one for receipt in error.stored for one in receipt.message_id.split(",")]
    assert [message.message_id for message in stored] == ids
    assert (error.stored.request_count, len(error.stored)) == (2, len(stored))
    assert list(error.unsent) == batch[len(stored) : len(stored) + len(error.unsent)]
    assert error.code == 13


def test_the_first_request_of_a_list_fails_as_any_send_does(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    embedded.cluster.intercept(BATCH, refuse(13, "no"))
    with pytest.raises(SendFailed) as caught:
        sender.send_batch(messages_for(topic, 3))
    assert not isinstance(caught.value, BatchFailed)


# ---- gathering -----------------------------------------------------------------------------------


def test_messages_of_many_callers_are_sent_together(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    sender = producer(server, options=ProducerOptions(auto_batch=AutoBatch(hold_ms=LONG_HOLD_MS)))
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(60)]
    receipts = [future.result(LONG_TIMEOUT) for future in futures]
    stored = {
        message.message_id: (message.body, message.offset) for message in server.read_all(topic, 60)
    }
    assert stored == {
        receipt.message_id: (f"{number}".encode(), receipt.offset)
        for number, receipt in enumerate(receipts)
    }
    gathering = sender.core.accumulator
    assert gathering is not None
    assert gathering.messages == 60
    assert gathering.batches < 30


def third_queue(queues: Sequence[QueueId], message: Message) -> QueueId:
    return queues[2]


@pytest.mark.parametrize("how", ["by_hash", "function", "sharding key"])
def test_messages_for_a_chosen_queue_are_sent_together_in_order(
    server: Server, producer: MakeProducer, how: str
) -> None:
    topic = server.topic(queues=4)
    sender = producer(server, options=ProducerOptions(auto_batch=AutoBatch(hold_ms=LONG_HOLD_MS)))
    selectors: dict[str, Selector] = {"by_hash": by_hash(2), "function": third_queue}
    queue = selectors.get(how)
    sharding_key = "customer-7" if how == "sharding key" else None
    futures = [
        sender.submit(Message(topic, f"{number}", sharding_key=sharding_key), queue=queue)
        for number in range(50)
    ]
    receipts = [future.result(LONG_TIMEOUT) for future in futures]
    assert {receipt.queue for receipt in receipts} == {receipts[0].queue}
    assert [receipt.offset for receipt in receipts] == list(range(50))
    stored = server.read_all(topic, 50)
    assert [message.body for message in stored] == [b"%d" % number for number in range(50)]
    assert [message.message_id for message in stored] == [one.message_id for one in receipts]
    gathering = sender.core.accumulator
    assert gathering is not None
    assert gathering.messages == 50
    assert gathering.batches <= 10
    if sharding_key is None:
        assert receipts[0].queue.number == 2


def test_messages_of_several_keys_share_the_batches_of_their_queues(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=2)
    sender = producer(server, options=ProducerOptions(auto_batch=AutoBatch(hold_ms=LONG_HOLD_MS)))
    futures = [
        sender.submit(Message(topic, f"{number}", sharding_key=f"{number % 8}"))
        for number in range(80)
    ]
    for future in futures:
        future.result(LONG_TIMEOUT)
    by_key: dict[str, list[int]] = {}
    for message in server.read_all(topic, 80):
        by_key.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))
    assert by_key == {f"{key}": list(range(key, 80, 8)) for key in range(8)}
    gathering = sender.core.accumulator
    assert gathering is not None
    assert gathering.batches <= 20


def test_threads_that_wait_are_gathered_as_well(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=1)
    options = ProducerOptions(auto_batch=AutoBatch(hold_ms=LONG_HOLD_MS))
    sender = producer(embedded, options=options)
    counted = RequestCounter()
    embedded.cluster.intercept(BATCH, counted)
    offsets: list[int] = []
    all_run = threading.Barrier(16)

    def work() -> None:
        all_run.wait(LONG_TIMEOUT)
        offsets.append(sender.send(Message(topic, b"1")).offset)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_TIMEOUT)
    assert sorted(offsets) == list(range(16))
    assert counted.count < 8


def test_only_messages_with_equal_targets_are_gathered(
    embedded: Embedded, producer: MakeProducer
) -> None:
    one, two = embedded.topic(queues=1), embedded.topic(queues=1)
    sender = producer(embedded, options=ProducerOptions(auto_batch=AutoBatch(hold_ms=30)))
    futures = [
        sender.submit(Message(topic, b"1", tags=tags))
        for _ in range(10)
        for topic in (one, two)
        for tags in ("red", "blue")
    ]
    for future in futures:
        future.result(LONG_TIMEOUT)
    for topic in (one, two):
        tags = [message.tags for message in embedded.read_all(topic, 20)]
        assert sorted(filter(None, tags)) == ["blue"] * 10 + ["red"] * 10


def test_a_full_batch_does_not_wait(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=1)
    long_hold = AutoBatch(hold_ms=30_000, hold_bytes=10_000)
    sender = producer(embedded, options=ProducerOptions(auto_batch=long_hold, timeout=60.0))
    started = time.monotonic()
    futures = [sender.submit(Message(topic, b"x" * 1001)) for _ in range(10)]
    for future in futures:
        future.result(LONG_TIMEOUT)
    assert time.monotonic() - started < 10


def test_messages_that_cannot_be_gathered_are_sent_alone(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic(queues=1)
    long_hold = AutoBatch(hold_ms=30_000)
    sender = producer(embedded, options=ProducerOptions(auto_batch=long_hold, timeout=60.0))
    started = time.monotonic()
    sender.send(Message(topic, b"1", delay_level=1))
    sender.send(Message(topic, b"1"), timeout=LONG_TIMEOUT)
    sender.send(Message(topic, b"1"), queue=by_hash("a"), timeout=LONG_TIMEOUT)
    sender.send_oneway(Message(topic, b"1"))
    sender.send_batch([Message(topic, b"1")])
    assert time.monotonic() - started < 10


def test_gathered_messages_are_sent_on_close(server: Server, producer: MakeProducer) -> None:
    topic = server.topic(queues=1)
    long_hold = AutoBatch(hold_ms=30_000)
    sender = producer(server, options=ProducerOptions(auto_batch=long_hold, timeout=60.0))
    futures = [sender.submit(Message(topic, f"{number}")) for number in range(20)]
    sender.close(timeout=PATIENCE)
    assert len({future.result(LONG_TIMEOUT).message_id for future in futures}) == 20
    assert len(server.read_all(topic, 20)) == 20


def test_a_failed_batch_raises_for_every_caller(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=1)
    sender = producer(embedded, options=ProducerOptions(auto_batch=AutoBatch(hold_ms=LONG_HOLD_MS)))
    for code in (BATCH, SEND):  # a message that a slow machine leaves alone is not sent as a batch
        embedded.cluster.intercept(code, refuse(13, "no"))
    futures = [sender.submit(Message(topic, b"1")) for _ in range(10)]
    for future in futures:
        with pytest.raises(SendFailed, match="no"):
            future.result(LONG_TIMEOUT)


def test_gathering_counts_towards_the_deadline(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic(queues=1)
    options = ProducerOptions(auto_batch=AutoBatch(hold_ms=25_000), timeout=0.4)
    sender = producer(embedded, options=options)
    sender.send(Message(topic, b"first"), timeout=LONG_TIMEOUT)  # finds the route
    for code in (BATCH, SEND):
        embedded.cluster.intercept(code, drop())
    started = time.monotonic()
    futures = [sender.submit(Message(topic, b"1")) for _ in range(3)]
    for future in futures:
        with pytest.raises(SendTimedOut):
            future.result(LONG_TIMEOUT)
    assert time.monotonic() - started < 20
