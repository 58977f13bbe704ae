"""Pull consumers: start offsets, messages and commits."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin, Client, Producer, PullConsumer
from downrange.embedded import Cluster, cut
from downrange.errors import (
    ClientClosed,
    NotStarted,
    OptionError,
    RocketMQError,
    RouteNotFound,
)
from downrange.model import CompressedMessage, Message, QueueId, ReceivedMessage
from downrange.options import ClientOptions, ProducerOptions, PullOptions
from downrange.wire.codes import RequestCode
from downrange.wire.records import decode_records
from tests.apache import probe
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server


@pytest.fixture
def consumer(make: Make) -> Callable[..., PullConsumer]:
    """Give the function that starts pull consumers of the front end."""

    def start(servers: Any, group: str = "audit", **settings: Any) -> PullConsumer:
        where = getattr(servers, "name_server", servers)
        settings.setdefault("client_options", ClientOptions(call_timeout=LONG_TIMEOUT))
        return make(PullConsumer, where, group=group, **settings).start()

    return start


def read(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until `count` messages have arrived."""
    messages: list[ReceivedMessage] = []
    deadline = time.monotonic() + LONG_TIMEOUT
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        # Long enough that a lost connection is replaced: a poll that ends before raises the error.
        messages += consumer.poll(LONG_TIMEOUT / 3)
    return messages


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def fill(producer: Producer, topic: str, *texts: str, queue: QueueId | None = None) -> list[Any]:
    return [producer.send(Message(topic, text, tags=text[0]), queue=queue) for text in texts]


# ---- reading -------------------------------------------------------------------------------------


def test_all_messages_of_a_topic_arrive_each_queue_in_order(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic()
    sending = producer(server)
    sent = [f"{number:03}" for number in range(100)]
    fill(sending, topic, *sent)
    reading = consumer(server)
    reading.assign(topic, start="earliest")
    messages = read(reading, 100)
    assert bodies(messages) == [text.encode() for text in sent]
    assert len(reading.queues()) == 4
    for queue in reading.queues():
        offsets = [message.offset for message in messages if message.queue == queue]
        assert offsets == list(range(len(offsets)))
    assert reading.failures() == {}


def test_a_message_wakes_a_reader_that_waits(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic()
    sending = producer(server)
    fill(sending, topic, "first")
    server.read_all(topic, 1)  # it may become readable a moment later
    reading = consumer(server)
    reading.assign(topic, start="latest")
    stored: list[float] = []

    def send() -> None:
        fill(sending, topic, "second")
        stored.append(time.monotonic())

    delays: list[float] = []
    # An Apache broker scans held pulls every 5 s, and a busy machine may be late, too: the best of
    # some rounds counts.
    while len(delays) < 4 and min(delays, default=5.0) > 1.0:
        timer = threading.Timer(0.3, send)
        timer.start()
        messages = reading.poll(LONG_TIMEOUT / 2)
        ended = time.monotonic()
        timer.join()
        assert bodies(messages) == [b"second"]
        delays.append(ended - stored[-1])
    assert min(delays) <= 1.0, delays


def test_poll_returns_when_its_time_is_over(
    server: Server, consumer: Callable[..., PullConsumer]
) -> None:
    reading = consumer(server)
    reading.assign(server.topic())
    started = time.monotonic()
    assert reading.poll(0.3) == []
    assert 0.3 <= time.monotonic() - started < 10.0  # the broker holds a pull for longer


def test_messages_are_yielded_one_by_one_until_none_arrives_in_time(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic()
    fill(producer(server), topic, "1", "2", "3")
    reading = consumer(server)
    reading.assign(topic, start="earliest")
    one, two, three = islice(reading.messages(idle_timeout=LONG_TIMEOUT), 3)
    assert bodies([one, two, three]) == [b"1", b"2", b"3"]
    reading.seek(three.queue, three.offset)
    seen: list[ReceivedMessage] = []
    # A busy server may take longer than a short time for the message.
    for idle_timeout in (1.0, 5.0, 15.0):
        seen += reading.messages(idle_timeout=idle_timeout)
        if seen:
            break
    assert bodies(seen) == [three.body]


def test_only_messages_with_a_subscribed_tag_arrive(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    fill(producer(server), topic, "a1", "b1", "c1", "a2")
    reading = consumer(server)
    reading.assign(topic, start="earliest", tags="a || c")
    assert [message.body for message in read(reading, 3)] == [b"a1", b"c1", b"a2"]
    (queue,) = reading.queues()
    wait_until(lambda: reading.position(queue) == 4)


def test_compressed_and_batched_messages_arrive_as_they_were_sent(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    sending = producer(server)
    sending.send(Message(topic, b"z" * 10_000))
    sending.send_batch([Message(topic, b"1", keys=["k"]), Message(topic, b"2")])
    reading = consumer(server)
    reading.assign(topic, start="earliest")
    messages = read(reading, 3)
    assert [message.body for message in messages] == [b"z" * 10_000, b"1", b"2"]
    assert messages[1].keys == ["k"]


def test_a_small_buffer_still_returns_every_message(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(2)
    sent = [f"{number:02}" for number in range(40)]
    fill(producer(server), topic, *sent)
    reading = consumer(server, options=PullOptions(batch_count=3, buffered_max=4))
    reading.assign(topic, start="earliest")
    assert bodies(read(reading, 40)) == [text.encode() for text in sent]


@only_sync
@pytest.mark.parametrize("tags", ["*", "a"])
def test_a_pull_that_asks_for_more_than_apache_gives_is_understood_everywhere(
    server: Server, producer: MakeProducer, tags: str
) -> None:
    """Apache's brokers return at most 32 messages, ours the requested number."""
    topic = server.topic(queues=1)
    queue = QueueId(topic, server.route_brokers(topic)[0], 0)
    batch = [Message(topic, f"{number:03}", tags="a") for number in range(100)]
    producer(server).send_batch(batch, queue=queue)
    where = {"topic": topic, "queueId": "0"}
    broker = server.brokers[0]
    wait_until(lambda: _max_offset(broker, where) == 100)
    fields = where | {
        "consumerGroup": "contract",
        "maxMsgNums": "1000",
        "maxMsgBytes": str(1 << 20),
        "sysFlag": "4",
        "subscription": tags,
        "expressionType": "TAG",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
    }
    counts: list[int] = []
    found: list[bytes] = []
    while len(found) < 100:
        offset = {"queueOffset": str(len(found))}
        answer = probe.call(broker, RequestCode.PULL_MESSAGE, fields | offset)
        assert answer.code == 0, answer
        records = decode_records(answer.body)
        assert answer.fields["nextBeginOffset"] == str(len(found) + len(records))
        counts.append(len(records))
        found += [record.body for record in records]
    assert found == [message.body for message in batch]
    assert counts == ([32, 32, 32, 4] if server.is_apache else [100])


def _max_offset(broker: str, where: dict[str, str]) -> int:
    return int(probe.call(broker, RequestCode.GET_MAX_OFFSET, where).fields["offset"])


# ---- where to begin ------------------------------------------------------------------------------


def test_a_reader_continues_at_the_offset_of_its_group(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    sending = producer(server)
    fill(sending, topic, "1", "2", "3")
    server.read_all(topic, 3)  # so that the first pull finds all of them
    first = consumer(server, group="group_of_two")
    first.assign(topic)  # a group without offsets begins at the first message
    wait_until(lambda: sum(first.lag().values()) == 3)
    handed_out = first.poll(LONG_TIMEOUT, max_count=2)
    queue = handed_out[0].queue
    assert [message.body for message in handed_out] == [b"1", b"2"]
    assert first.commit() == {queue: 2}
    assert first.commit() == {}
    second = consumer(server, group="group_of_two")
    second.assign(topic)
    assert bodies(read(second, 1)) == [b"3"]
    wait_until(lambda: second.committed(queue) == 2)
    assert second.position(queue) == 3


def test_a_reader_can_begin_and_seek_anywhere(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    sending = producer(server)
    fill(sending, topic, "0", "1", "2")
    server.read_all(topic, 3)  # or offset 1 might be beyond the end, and the reader begin at 0
    reading = consumer(server)
    reading.assign(topic, start=1)
    assert [message.body for message in read(reading, 2)] == [b"1", b"2"]
    (queue,) = reading.queues()
    reading.seek(queue, "earliest")
    assert reading.position(queue) == 0
    assert len(read(reading, 3)) == 3
    reading.seek(queue, "latest")
    fill(sending, topic, "3")
    assert bodies(read(reading, 1)) == [b"3"]
    with pytest.raises(OptionError, match="is not assigned"):
        reading.seek(QueueId(topic, "elsewhere", 0), 0)


def test_a_reader_can_begin_at_a_time(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    sending = producer(server)
    fill(sending, topic, "old")
    (old,) = server.read_all(topic, 1)
    time.sleep(0.2)
    fill(sending, topic, "new")
    new = server.read_all(topic, 2)[1]
    assert new.stored_at_ms - old.stored_at_ms >= 200
    at = datetime.fromtimestamp(new.stored_at_ms / 1000, UTC) - timedelta(milliseconds=10)
    reading = consumer(server)
    reading.assign(topic, start=at)
    assert bodies(read(reading, 1)) == [b"new"]


def test_a_reader_beyond_the_end_continues_at_the_end_of_the_queue(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic(1)
    sending = producer(server)
    fill(sending, topic, "0")
    server.read_all(topic, 1)
    reading = consumer(server)
    reading.assign(topic, start=1000)
    (queue,) = reading.queues()
    wait_until(lambda: reading.position(queue) == 1)
    fill(sending, topic, "1")
    assert bodies(read(reading, 1)) == [b"1"]


def test_single_queues_and_several_topics_can_be_assigned(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    one, other = server.topic(2), server.topic(1)
    sending = producer(server)
    (broker,) = server.route_brokers(one)
    fill(sending, one, "skipped", queue=QueueId(one, broker, 0))
    fill(sending, one, "1", queue=QueueId(one, broker, 1))
    fill(sending, other, "2")
    reading = consumer(server)
    reading.assign([QueueId(one, broker, 1), other], start="earliest")
    messages = read(reading, 2)
    assert {message.topic for message in messages} == {one, other}
    assert len(reading.queues()) == 2


def test_an_unknown_topic_is_an_error(
    server: Server, consumer: Callable[..., PullConsumer]
) -> None:
    reading = consumer(server)
    with pytest.raises(RouteNotFound, match="no_such_topic"):
        reading.assign("no_such_topic")
    with pytest.raises(OptionError, match="nothing is assigned"):
        reading.poll(0.1)


def test_names_are_without_the_namespace(
    server: Server, make: Make, consumer: Callable[..., PullConsumer]
) -> None:
    topic = server.topic()
    server.topic(name=f"prod%{topic}")
    options = ClientOptions(namespace="prod")
    with make(Client, server.name_server, options=options) as client:
        sending = make(Producer, client, group="shop").start()
        sending.send(Message(topic, b"1"))
        reading = make(PullConsumer, client, group="audit").start()
        reading.assign(topic, start="earliest")
        (message,) = read(reading, 1)
        assert message.topic == topic
        assert message.queue in reading.commit()
        reading.close()
        sending.close()
    (stored,) = server.read_all(f"prod%{topic}", 1)
    assert stored.body == b"1"


# ---- when something fails ------------------------------------------------------------------------


def test_a_stopped_broker_does_not_block_reading_from_the_others(
    make: Make, consumer: Callable[..., PullConsumer]
) -> None:
    with Cluster(brokers=2) as cluster:
        make(Admin, cluster.name_server).start().create_topic("orders", queues=1)
        sending = make(Producer, cluster.name_server, group="shop").start()
        a, b = (QueueId("orders", broker, 0) for broker in ("broker-a", "broker-b"))
        fill(sending, "orders", "a1", queue=a)
        fill(sending, "orders", "b1", queue=b)
        reading = consumer(cluster.name_server)
        reading.assign("orders", start="earliest")
        read(reading, 2)
        cluster.kill_broker(0)
        fill(sending, "orders", "b2", queue=b)
        assert bodies(read(reading, 1)) == [b"b2"]
        wait_until(lambda: a in reading.failures())
        cluster.restart_broker(0)
        wait_until(lambda: _sent(sending, a))
        assert bodies(read(reading, 1)) == [b"a2"]
        assert reading.failures() == {}


def _sent(sending: Producer, queue: QueueId) -> bool:
    try:
        return bool(fill(sending, "orders", "a2", queue=queue))
    except RocketMQError:
        return False


def test_poll_raises_the_reason_when_nothing_can_be_read(
    embedded: Embedded, consumer: Callable[..., PullConsumer]
) -> None:
    topic = embedded.topic(1)
    reading = consumer(embedded, options=PullOptions(suspend=0.2))
    reading.assign(topic)
    embedded.topic(1, perm=2, name=topic)
    with pytest.raises(RocketMQError, match=r"code 16|no route"):
        wait_until(lambda: reading.poll(0.2))


def test_lost_replies_lose_no_message(
    embedded: Embedded, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    topic = embedded.topic(1)
    sent = [f"{number:02}" for number in range(20)]
    fill(producer(embedded), topic, *sent)
    calls = iter(range(1000))
    embedded.cluster.intercept(
        RequestCode.PULL_MESSAGE, lambda *_: cut() if next(calls) % 2 else None
    )
    reading = consumer(embedded, options=PullOptions(batch_count=4))
    reading.assign(topic, start="earliest")
    assert [message.body.decode() for message in read(reading, 20)] == sent


# ---- start and close -----------------------------------------------------------------------------


def test_a_consumer_is_used_between_start_and_close_only(embedded: Embedded, make: Make) -> None:
    reading = make(PullConsumer, embedded.name_server, group="audit")
    with pytest.raises(NotStarted, match="audit"):
        reading.poll(0.1)
    reading.start()
    reading.start()
    assert reading.state == "running"
    reading.close()
    reading.close()
    for use in (lambda: reading.poll(0.1), reading.commit, reading.start):
        with pytest.raises(ClientClosed, match="audit"):
            use()


def test_a_waiting_reader_gets_an_error_when_its_consumer_is_closed(
    embedded: Embedded, consumer: Callable[..., PullConsumer]
) -> None:
    reading = consumer(embedded)
    reading.assign(embedded.topic())
    timer = threading.Timer(0.2, reading.close)
    timer.start()
    with pytest.raises(ClientClosed):
        next(iter(reading.messages()))
    timer.join()


def test_a_shared_client_outlives_its_consumers(embedded: Embedded, make: Make) -> None:
    topic = embedded.topic()
    with make(Client, embedded.name_server) as client:
        for group in ("one", "two"):
            reading = make(PullConsumer, client, group=group).start()
            reading.assign(topic)
            reading.close()
        assert client.state == "running"


def test_client_settings_are_refused_beside_a_shared_client(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server)
    with pytest.raises(OptionError, match="client_options"):
        make(PullConsumer, client, group="audit", client_options=ClientOptions())
    with pytest.raises(OptionError, match="'au dit'"):
        make(PullConsumer, embedded.name_server, group="au dit")


# ---- bodies that stay compressed -----------------------------------------------------------------


def test_bodies_can_stay_compressed_and_be_forwarded(
    server: Server, producer: MakeProducer, consumer: Callable[..., PullConsumer]
) -> None:
    text = b"the quick brown fox " * 500
    topic, copy = server.topic(queues=1), server.topic(queues=1)
    sender = producer(server, options=ProducerOptions(compression="zstd"))
    sender.send(Message(topic, text, tags="big"))
    sender.send(Message(topic, b"small"))
    reading = consumer(server, options=PullOptions(decode_body=False))
    reading.assign(topic, start="earliest")
    packed, plain = read(reading, 2)
    assert (packed.compression, plain.compression, plain.body) == ("zstd", None, b"small")
    assert len(packed.body) < len(text) / 10
    assert packed.compression is not None
    sender.send(
        CompressedMessage(copy, packed.body, compression=packed.compression, tags=packed.tags)
    )
    (forwarded,) = server.read_all(copy, 1)
    assert (forwarded.body, forwarded.tags) == (text, "big")
    (record,) = server.records(copy, 1)
    assert record.body == packed.body
