"""Simple consumers: receive, settle one by one or many at once, renew, share, lose a consumer."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    AcksFailed,
    AlreadySettled,
    Client,
    ClientClosed,
    ClosedUnsettled,
    DeadLetter,
    GroupTaken,
    Message,
    NotFound,
    OptionError,
    PopNotSupported,
    ReceiptExpired,
    ReceiptMissing,
    ReceivedMessage,
    Retry,
    RouteNotFound,
    SimpleConsumer,
    Sql,
)
from downrange.options import ClientOptions, Credentials, SimpleOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.fixtures import ACCOUNTS
from tests.contract.blocking import LONG_TIMEOUT, Blocking, unwrapped
from tests.contract.conftest import embedded_server, only_async, only_sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server

#: The servers that have pops.
with_pops = pytest.mark.parametrize(
    "server",
    ["embedded", pytest.param("5.5.0", marks=pytest.mark.apache, id="apache-5.5.0")],
    indirect=True,
    scope="session",
)
without_pops = pytest.mark.parametrize(
    "server",
    [pytest.param("4.9.4", marks=pytest.mark.apache, id="apache-4.9.4")],
    indirect=True,
    scope="session",
)
only_embedded = pytest.mark.parametrize("guarded", ["embedded"], indirect=True, scope="module")
PATIENT = ClientOptions(call_timeout=LONG_TIMEOUT)
USER = ACCOUNTS.others[0]


class Worker:
    """A simple consumer of either front end, whose messages are used as sync ones."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer

    def receive(
        self, count: int = 32, invisible: float = 60.0, timeout: float = LONG_TIMEOUT / 2
    ) -> list[Any]:
        found = self.consumer.receive(max_count=count, invisible=invisible, timeout=timeout)
        if isinstance(self.consumer, Blocking):
            return [Blocking(message, self.consumer._loop) for message in found]
        return list(found)

    def receive_one(self, invisible: float = 60.0) -> Any:
        (message,) = self.receive(1, invisible)
        return message

    def receive_all(self, count: int, invisible: float = 60.0) -> list[Any]:
        """Receive until there are so many messages."""
        found: list[Any] = []
        while len(found) < count:
            more = self.receive(32, invisible)
            assert more, f"{len(found)} of {count} messages arrived"
            found += more
        return found

    def ack(self, messages: Iterable[Any]) -> None:
        self.consumer.ack([unwrapped(message) for message in messages])


@pytest.fixture
def worker(make: Make) -> Callable[..., Worker]:
    """Give the function that starts simple consumers of the front end."""

    def start(servers: Server | str, group: str, subscribe: Any, **settings: Any) -> Worker:
        where = servers if isinstance(servers, str) else servers.name_server
        settings.setdefault("client_options", PATIENT)
        made = make(SimpleConsumer, where, group=group, subscribe=subscribe, **settings)
        return Worker(made.start())

    return start


def send(producer: MakeProducer, server: Server, topic: str, count: int = 1, **more: Any) -> None:
    """Send messages with the bodies 0, 1, …."""
    sender = producer(server)
    for number in range(count):
        sender.send(Message(topic, str(number).encode(), **more))


def bodies(messages: Iterable[Any]) -> list[bytes]:
    return sorted(message.body for message in messages)


def members(server: Server, group: str) -> list[dict[str, Any]]:
    """Return the members of a consumer group, as a broker lists them."""
    answer = probe.call(
        server.brokers[0], RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
    )
    return list(json.loads(answer.body)["connectionSet"]) if answer.code == 0 else []


# ---- receiving ---------------------------------------------------------------------------------


@with_pops
def test_what_is_not_acknowledged_is_delivered_again(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    send(producer, server, topic, 40)
    jobs = worker(server, group, [topic])
    found: list[Any] = []
    while len(found) < 39:  # these have time enough
        found += jobs.receive(min(32, 39 - len(found)))
    found.append(jobs.receive_one(invisible=2.0))
    assert bodies(found) == sorted(str(number).encode() for number in range(40))
    assert {message.attempt for message in found} == {1}
    jobs.ack(found[:30])
    for message in found[30:39]:
        message.ack()
    again = jobs.receive_one()
    assert (again.body, again.attempt, again.topic) == (found[39].body, 2, topic)
    again.ack()
    assert jobs.receive(timeout=0.0) == []
    stats = jobs.consumer.stats()
    assert (stats.received, stats.acknowledged) == (41, 40)


@with_pops
def test_a_message_is_received_while_the_call_waits(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    first, second = server.topic(), server.topic()
    jobs = worker(server, unique_name("jobs"), [first, second])
    sender = producer(server)
    for topic in (first, second, first):
        timer = threading.Timer(0.2, sender.send, [Message(topic, b"1")])
        timer.start()
        message = jobs.receive_one()
        timer.join()
        assert message.topic == topic
        message.ack()


@with_pops
def test_members_share_the_messages(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    workers = [worker(server, group, [topic]) for _ in range(2)]
    wait_until(lambda: len(members(server, group)) == 2)
    send(producer, server, topic, 40)
    found: list[list[Any]] = [[], []]
    while sum(map(len, found)) < 40:
        for own, jobs in zip(found, workers, strict=True):
            own += jobs.receive(4, timeout=1.0)
    assert all(found)
    assert bodies(found[0] + found[1]) == sorted(str(number).encode() for number in range(40))
    for own, jobs in zip(found, workers, strict=True):
        jobs.ack(own)
        jobs.consumer.close()
    wait_until(lambda: members(server, group) == [])


@with_pops
def test_filters_by_tags_and_by_properties(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    tagged, priced = server.topic(), server.topic()
    sender = producer(server)
    for tag in ("new", "old", "paid"):
        sender.send(Message(tagged, tag.encode(), tags=tag))
    for amount in (50, 150):
        sender.send(Message(priced, str(amount).encode(), properties={"amount": str(amount)}))
    subscribe = {tagged: "new || paid", priced: Sql("amount > 100")}
    jobs = worker(server, unique_name("jobs"), subscribe)
    found = jobs.receive_all(3)
    assert bodies(found) == [b"150", b"new", b"paid"]
    jobs.ack(found)
    assert jobs.receive(timeout=0.0) == []


@with_pops
def test_topics_come_and_go_while_it_runs(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    first, second = server.topic(), server.topic()
    jobs = worker(server, unique_name("jobs"), [first])
    jobs.consumer.subscribe(second, "new")
    jobs.consumer.unsubscribe(first)
    assert jobs.consumer.topics() == [second]
    send(producer, server, first)
    send(producer, server, second, tags="new")
    message = jobs.receive_one()
    assert message.topic == second
    message.ack()
    assert jobs.receive(timeout=0.0) == []
    health = jobs.consumer.health()
    assert health.is_healthy
    assert [source.topic for source in health.sources] == [second]


@with_pops
def test_a_new_group_may_start_at_the_end(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    """A pop that asks for it reads history, while the first message is in the broker's memory."""
    topic = server.topic()
    send(producer, server, topic, 4)
    server.read_all(topic, 4)  # they may become readable a moment later
    options = SimpleOptions(start="latest")
    jobs = worker(server, unique_name("jobs"), [topic], options=options)
    assert jobs.receive(timeout=0.0) == []
    producer(server).send(Message(topic, b"now"))
    assert jobs.receive_one().body == b"now"


@only_async
def test_a_cancelled_call_leaves_nothing_behind(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
) -> None:
    topic = embedded.topic()
    jobs = worker(embedded, unique_name("jobs"), [topic])
    waiting = unwrapped(jobs.consumer).receive(timeout=25.0)
    with pytest.raises(TimeoutError):
        jobs.consumer._loop.run(asyncio.wait_for(waiting, 0.1))
    send(producer, embedded, topic)
    jobs.receive_one().ack()
    waiting = unwrapped(jobs.consumer).receive(timeout=25.0)
    with pytest.raises(TimeoutError):
        jobs.consumer._loop.run(asyncio.wait_for(waiting, 0.1))
    began = time.monotonic()
    jobs.consumer.close(20.0)  # waits for calls that still run
    assert time.monotonic() - began < 10.0


# ---- settling ----------------------------------------------------------------------------------


@with_pops
def test_a_message_that_is_given_back_comes_again_until_it_is_a_dead_letter(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    send(producer, server, topic)
    jobs = worker(server, group, [topic], options=SimpleOptions(retries=2))
    first = jobs.receive_one()
    first.retry(0)
    second = jobs.receive_one()
    with second.processing():
        raise Retry(0)
    third = jobs.receive_one()
    assert [message.attempt for message in (first, second, third)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError), third.processing():
        raise ZeroDivisionError
    (dead,) = server.read_all(f"%DLQ%{group}", 1)
    assert dead.message_id == first.message_id
    assert jobs.receive(timeout=0.0) == []
    stats = jobs.consumer.stats()
    assert (stats.given_back, stats.dead_letters) == (2, 1)


@with_pops
def test_a_dead_letter_by_decision(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    send(producer, server, topic, 2)
    jobs = worker(server, group, [topic])
    first, second = jobs.receive_all(2)
    first.dead_letter("unreadable")
    with second.processing():
        raise DeadLetter("no such customer")
    assert bodies(server.read_all(f"%DLQ%{group}", 2)) == [b"0", b"1"]


@with_pops
def test_a_long_job_keeps_its_message(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    send(producer, server, topic)
    jobs, other = (worker(server, group, [topic]) for _ in range(2))
    # A renewal, after half of the time, may be three seconds late on a busy machine. Apache
    # delivers a message again up to three seconds after its time.
    message = jobs.receive_one(invisible=6.0)
    renewals, silence = (4, 9.5) if server.is_apache else (3, 6.5)
    with message.processing():
        wait_until(lambda: jobs.consumer.stats().renewed >= renewals)
        assert other.receive(timeout=0.0) == []
        assert list(jobs.consumer.health().processing) == [message.message_id]
    assert message.is_settled
    assert other.receive(timeout=silence) == []


@with_pops
def test_a_message_is_settled_once_and_in_time(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    send(producer, server, topic, 3)
    jobs = worker(server, group, [topic])
    first, second, third = jobs.receive_all(3)
    first.ack()
    with pytest.raises(AlreadySettled, match="was acknowledged already"):
        first.retry()
    second.extend(0.05)
    time.sleep(0.06)
    with pytest.raises(ReceiptExpired, match="is delivered again"):
        second.ack()
    with pytest.raises(AcksFailed) as failed:
        jobs.ack([first, second, third])
    assert [type(error) for _, error in failed.value.failures] == [AlreadySettled, ReceiptExpired]
    assert third.is_settled
    again = jobs.receive_one()
    assert (again.body, again.attempt) == (second.body, 2)
    jobs.consumer.close()
    with pytest.raises(ClosedUnsettled, match="it is delivered again at 20"):
        again.ack()
    with pytest.raises(ClosedUnsettled):
        again.processing()


def test_a_popped_message_is_a_received_message(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
) -> None:
    topic = embedded.topic()
    send(producer, embedded, topic, tags="new", keys=["k"])
    jobs = worker(embedded, unique_name("jobs"), [topic])
    message = unwrapped(jobs.receive_one())
    assert isinstance(message, ReceivedMessage)
    assert (message.topic, message.tags, message.keys) == (topic, "new", ["k"])
    (plain,) = embedded.read_all(topic, 1)
    assert message == plain
    assert plain == message
    assert hash(message) == hash(plain)
    assert message.__eq__(plain.body) is NotImplemented
    assert repr(message) == repr(plain).replace("ReceivedMessage", type(message).__name__)
    copied: list[Any] = [pickle.loads(pickle.dumps(message)), copy.copy(message)]
    for one in copied:
        assert one == message
        assert not one.is_settled
        with pytest.raises(ReceiptMissing, match="settle the object that receive"):
            one.processing()
        with pytest.raises(ReceiptMissing):
            jobs.ack([one])


# ---- closing -----------------------------------------------------------------------------------


def test_close_ends_a_receive_and_waits_for_blocks(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
) -> None:
    topic, group = embedded.topic(), unique_name("jobs")
    send(producer, embedded, topic)
    jobs = worker(embedded, group, [topic])
    message = jobs.receive_one()
    errors: list[Exception] = []

    def receive() -> None:
        try:
            jobs.receive(timeout=60.0)
        except ClientClosed as error:
            errors.append(error)

    with message.processing():
        waiting = threading.Thread(target=receive)
        closing = threading.Thread(target=jobs.consumer.close)
        waiting.start()
        closing.start()
        waiting.join(LONG_TIMEOUT)
        assert len(errors) == 1
        assert closing.is_alive()
    closing.join(LONG_TIMEOUT)
    assert message.is_settled
    assert members(embedded, group) == []
    with pytest.raises(ClientClosed):
        jobs.receive()
    jobs.consumer.close()


def test_close_gives_up_blocks_at_its_timeout(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = embedded.topic()
    send(producer, embedded, topic, 2)
    jobs = worker(embedded, unique_name("jobs"), [topic])
    first, second = jobs.receive_all(2)
    with pytest.raises(ClosedUnsettled), first.processing():
        jobs.consumer.close(0.0)
    assert "was closed while 1 blocks handle a message" in caplog.text
    with pytest.raises(ClosedUnsettled):
        second.ack()


@only_sync
@with_pops
def test_messages_of_a_killed_consumer_are_delivered_to_another(
    server: Server, producer: MakeProducer, worker: Callable[..., Worker], unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("jobs")
    send(producer, server, topic, 3)
    server.read_all(topic, 3)  # so that one call returns the last two
    program = (
        "import sys, time, downrange as mq\n"
        "patient = mq.ClientOptions(call_timeout=30.0)\n"
        f"jobs = mq.SimpleConsumer({server.name_server!r}, group={group!r},\n"
        "                         client_options=patient)\n"
        "jobs.start()\n"
        f"jobs.subscribe({topic!r})\n"
        "first = jobs.receive(max_count=1)\n"
        "first[0].ack()\n"
        "others = jobs.receive(max_count=2, invisible=4.0)\n"
        "assert len(others) == 2, others\n"
        "print(first[0].body.decode(), flush=True)\n"
        "with others[0].processing():\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        done = killed.stdout.readline().strip()
        killed.kill()
    assert done
    found = worker(server, group, [topic]).receive_all(2)
    assert bodies(found) == sorted({b"0", b"1", b"2"} - {done})
    assert {message.attempt for message in found} == {2}


@pytest.fixture
def two_brokers() -> Iterator[Embedded]:
    """Give a cluster of two brokers, which can be killed."""
    with embedded_server(brokers=2) as server:
        yield server


def test_a_broker_that_restarts_while_a_call_waits(
    two_brokers: Embedded, producer: MakeProducer, worker: Callable[..., Worker]
) -> None:
    server = two_brokers
    topic = server.topic()
    send(producer, server, topic, 4)
    often = dataclasses.replace(PATIENT, route_refresh_interval=0.1)
    jobs = worker(server, "jobs", [topic], client_options=often)

    def well_count() -> int:
        # A broker that is away fails, or is not in the route any more.
        return sum(source.failure is None for source in jobs.consumer.health().sources)

    held = jobs.receive_all(4, invisible=60.0)
    found: list[Any] = []
    receiving = threading.Thread(target=lambda: found.extend(jobs.receive(timeout=25.0)))
    receiving.start()
    server.cluster.kill_broker(0)
    wait_until(lambda: well_count() == 1)
    server.cluster.restart_broker(0)
    wait_until(lambda: well_count() == 2)
    jobs.ack(held)
    send(producer, server, topic, 1)
    receiving.join(LONG_TIMEOUT)
    assert bodies(found) == [b"0"]
    jobs.ack(found)
    assert jobs.receive(timeout=0.0) == []


# ---- errors ------------------------------------------------------------------------------------


@without_pops
def test_a_broker_before_5_is_named(server: Server, make: Make, unique_name: UniqueName) -> None:
    topic = server.topic()
    consumer = make(SimpleConsumer, server.name_server, group="jobs", subscribe=[topic])
    with pytest.raises(PopNotSupported, match=r"needs RocketMQ 5.*use PullConsumer"):
        consumer.start()
    assert consumer.state == "closed"


def test_a_topic_that_does_not_exist(embedded: Embedded, make: Make) -> None:
    consumer = make(SimpleConsumer, embedded.name_server, group="jobs", subscribe=["missing_topic"])
    with pytest.raises(RouteNotFound, match="missing_topic"):
        consumer.start()
    with pytest.raises(ClientClosed):
        consumer.start()


def test_nothing_is_subscribed(embedded: Embedded, worker: Callable[..., Worker]) -> None:
    jobs = worker(embedded, "jobs", ())
    with pytest.raises(OptionError, match="nothing is subscribed"):
        jobs.receive()
    with pytest.raises(OptionError, match="is not subscribed; these are: none"):
        jobs.consumer.unsubscribe("orders")


def test_a_late_change_is_refused_by_our_broker(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
) -> None:
    topic = embedded.topic()
    send(producer, embedded, topic)
    jobs = worker(embedded, unique_name("jobs"), [topic])
    message = jobs.receive_one(invisible=0.1)
    unwrapped(message).delivery.expires_at += 60  # as if this client's clock were slow
    again = jobs.receive_one()
    assert again.attempt == 2
    with pytest.raises(ReceiptExpired) as raised:
        message.extend(5)
    assert isinstance(raised.value.__cause__, NotFound)


def test_namespaces_are_part_of_the_names_on_servers(
    embedded: Embedded,
    producer: MakeProducer,
    worker: Callable[..., Worker],
    unique_name: UniqueName,
) -> None:
    topic, group = unique_name("orders"), unique_name("jobs")
    embedded.topic(name=f"prod%{topic}")
    spaced = ClientOptions(namespace="prod", call_timeout=LONG_TIMEOUT)
    producer(embedded, client_options=spaced).send(Message(topic, b"1"))
    jobs = worker(embedded, group, [topic], client_options=spaced)
    assert len(members(embedded, f"prod%{group}")) == 1
    first = jobs.receive_one()
    assert first.topic == topic
    first.retry(0)
    second = jobs.receive_one()
    assert (second.topic, second.attempt) == (topic, 2)
    second.dead_letter("test")
    (dead,) = embedded.read_all(f"%DLQ%prod%{group}", 1)
    assert dead.message_id == first.message_id


@only_embedded
def test_requests_are_signed(
    guarded: str, producer: MakeProducer, worker: Callable[..., Worker]
) -> None:
    keys = Credentials(USER.access_key, USER.secret_key)
    producer(guarded, credentials=keys).send(Message("OpenTopic", b"1"))
    jobs = worker(guarded, "OpenGroup", ["OpenTopic"], credentials=keys)
    message = jobs.receive_one()
    message.extend(30)
    message.ack()


def test_a_client_has_one_consumer_of_a_group(embedded: Embedded, make: Make) -> None:
    client = make(Client, embedded.name_server).start()
    make(SimpleConsumer, client, group="jobs").start()
    with pytest.raises(GroupTaken):
        make(SimpleConsumer, client, group="jobs").start()
