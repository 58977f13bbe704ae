"""What users of other clients complain about in group consumers, one test for each complaint.

The rest of them are in test_push_consumer.py (starting at the latest, closing under load,
broadcast, retries) and in tests/faults.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    Admin,
    ConsumerOptions,
    InvalidSql,
    Message,
    PullConsumer,
    PushConsumer,
    Retry,
    Sql,
)
from downrange.embedded import Cluster
from downrange.errors import ForkedClient, OptionError
from downrange.options import ClientOptions
from downrange.server.net.interception import refuse
from downrange.wire.codes import RequestCode, ResponseCode
from tests.contract.conftest import only_sync
from tests.embedded.brokers import route
from tests.support.options import SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange import ReceivedMessage
    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server

TIMEOUT = 40.0
QUICK: dict[str, Any] = {
    "start": "earliest",
    "commit_interval": 0.1,
    "rebalance_interval": 0.5,
    "suspend": 1.0,
}


class Handled:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.bodies: list[str] = []

    def __call__(self, message: ReceivedMessage) -> None:
        """Keep the body."""
        self.bodies.append(message.body.decode())


class Start:
    """Starts consumers of the front end."""

    def __init__(self, make: Make) -> None:
        """Take the factory."""
        self._make = make

    def __call__(
        self, server: Server, topics: Any, handler: Any, group: str, **options: Any
    ) -> PushConsumer:
        """Return a consumer that runs."""
        chosen = ConsumerOptions(**{**QUICK, **options})
        made = self._make(
            PushConsumer,
            server.name_server,
            group=group,
            subscribe=topics,
            handler=handler,
            options=chosen,
        )
        return made.start()


@pytest.fixture
def start(make: Make) -> Start:
    """Give the function that starts consumers."""
    return Start(make)


def send(producer: Any, topic: str, bodies: list[str]) -> None:
    for body in bodies:
        producer.send(Message(topic, body))


def logged(caplog: pytest.LogCaptureFixture, *texts: str) -> bool:
    return any(all(text in line for text in texts) for line in caplog.messages)


# ---- offsets -------------------------------------------------------------------------------------


def test_a_group_that_found_an_empty_topic_misses_nothing_while_it_is_away(
    server: Server, producer: MakeProducer, start: Start
) -> None:
    topic, group, handled = server.topic(queues=1), server.topic(), Handled()
    first = start(server, topic, handled, group, start="latest")
    wait_until(lambda: len(first.assignment()) == 2, TIMEOUT)
    first.close()
    send(producer(server), topic, ["while away"])
    start(server, topic, handled, group, start="latest")
    wait_until(lambda: handled.bodies == ["while away"], TIMEOUT)


def test_the_first_assignment_says_where_a_group_starts_and_why(
    embedded: Embedded,
    producer: MakeProducer,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = embedded.topic(queues=1), embedded.topic()
    send(producer(embedded), topic, ["old"])
    with caplog.at_level(logging.INFO, "downrange.client"):
        start(embedded, topic, Handled(), group, start="latest").close()
        assert logged(caplog, group, topic, "1", "latest")
        caplog.clear()
        start(embedded, topic, Handled(), group, start="earliest").close()
        assert logged(caplog, group, topic, "1", "committed")


def test_commits_that_fail_are_visible(
    embedded: Embedded, producer: MakeProducer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group, handled = embedded.topic(queues=1), embedded.topic(), Handled()
    consumer = start(embedded, topic, handled, group)
    embedded.cluster.intercept(
        RequestCode.UPDATE_CONSUMER_OFFSET, refuse(int(ResponseCode.SYSTEM_BUSY), "full")
    )
    send(producer(embedded), topic, ["1"])
    wait_until(lambda: consumer.stats().commits_failed >= 2, TIMEOUT)
    assert "cannot be committed" in "".join(consumer.health().problems)
    wait_until(lambda: logged(caplog, "cannot be committed"), TIMEOUT)
    lines = [line for line in caplog.messages if "cannot be committed" in line]
    assert len(lines) == 1, "once, not at every attempt"
    embedded.cluster.intercept(RequestCode.UPDATE_CONSUMER_OFFSET, None)
    wait_until(lambda: consumer.health().is_healthy, TIMEOUT)
    (queue,) = [each for each in consumer.health().queues if each.queue.topic == topic]
    wait_until(lambda: _committed(consumer, queue.queue) == 1, TIMEOUT)


def _committed(consumer: PushConsumer, queue: object) -> int | None:
    return next(each.committed for each in consumer.health().queues if each.queue == queue)


# ---- handlers ------------------------------------------------------------------------------------


def test_a_stuck_handler_is_reported_and_throttles_its_queue(
    embedded: Embedded, producer: MakeProducer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group, sender = embedded.topic(queues=1), embedded.topic(), producer(embedded)
    release, bodies = threading.Event(), list[str]()

    def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body.decode())
        if message.body == b"stuck":
            release.wait(TIMEOUT)

    consumer = start(embedded, topic, handle, group, handle_timeout=0.2, span=5, concurrency=3)
    stuck = sender.send(Message(topic, "stuck")).message_id
    send(sender, topic, list(map(str, range(20))))
    try:
        wait_until(lambda: logged(caplog, "has been running for", group, stuck), TIMEOUT)
        wait_until(lambda: len(bodies) >= 6, TIMEOUT)
        assert "has been handled for" in "".join(consumer.health().problems)
        time.sleep(0.2)  # the others would be handled by now
        assert len(bodies) <= 7
    finally:
        release.set()
    wait_until(lambda: len(bodies) == 21, TIMEOUT)
    # A busy machine may make handlers of other messages slow, too.
    lines = [line for line in caplog.messages if f"message {stuck}" in line]
    assert len([line for line in lines if "has been running for" in line]) == 1


def test_an_exception_is_logged_once_with_message_id_and_plan(
    embedded: Embedded, producer: MakeProducer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = embedded.topic(queues=1), embedded.topic()

    def handle(message: ReceivedMessage) -> None:
        if not message.delivery_attempts:
            raise ValueError("cannot bill")

    consumer = start(embedded, topic, handle, group)
    receipt = producer(embedded).send(Message(topic, "1"))
    wait_until(lambda: logged(caplog, receipt.message_id, "cannot bill"), TIMEOUT)
    lines = [line for line in caplog.messages if "cannot bill" in line]
    assert len(lines) == 1
    assert consumer.stats().failed == 1
    assert "attempt 2 of 17 follows in about 10 s" in lines[0]


def test_the_time_of_a_retry_can_be_chosen(
    embedded: Embedded, producer: MakeProducer, start: Start
) -> None:
    topic, group, times = embedded.topic(queues=1), embedded.topic(), list[float]()
    delays: list[tuple[str | None, str | None]] = []

    def handle(message: ReceivedMessage) -> None:
        found = message.properties
        delays.append((found.get("TIMER_DELAY_MS"), found.get("DELAY")))
        times.append(time.monotonic())
        if len(times) < 3:
            raise Retry(after=len(times))  # 1 s, then 2 s

    start(embedded, topic, handle, group)
    send(producer(embedded), topic, ["1"])
    wait_until(lambda: len(times) == 3, TIMEOUT)
    assert times[1] - times[0] >= 0.9
    assert times[2] - times[1] >= 1.9
    # By the timer: the first level of at least 2 s is 5 s.
    assert delays == [(None, None), ("1000", None), ("2000", None)]


def test_memory_is_bounded_in_bytes(
    embedded: Embedded, producer: MakeProducer, start: Start
) -> None:
    topic, group, sender = embedded.topic(), embedded.topic(), producer(embedded)
    size, count = 10_000, 60
    for _ in range(count):
        sender.send(Message(topic, b"x" * size))
    handled, highest = list[str](), 0
    is_seen = threading.Event()
    consumers: list[PushConsumer] = []

    def handle(message: ReceivedMessage) -> None:
        is_seen.wait(TIMEOUT)
        time.sleep(0.002)
        handled.append(message.message_id)

    limit = 5 * size
    consumers.append(
        start(embedded, topic, handle, group, buffer_bytes=limit, pull_batch=4, concurrency=2)
    )
    deadline = time.monotonic() + TIMEOUT
    while len(handled) < count and time.monotonic() < deadline:
        highest = max(highest, consumers[0].stats().buffered_bytes)
        if highest:
            is_seen.set()
    assert len(handled) == count
    assert 0 < highest <= limit


# ---- members -------------------------------------------------------------------------------------


def test_client_ids_never_clash(embedded: Embedded, start: Start) -> None:
    """Two containers may have the same address, and every process in them the number 1."""
    topic, group = embedded.topic(), embedded.topic()
    members = [start(embedded, topic, Handled(), group) for _ in range(3)]
    ids = {member.client.stats().client_id for member in members}
    assert len(ids) == 3
    assert all(len(one.rpartition("#")[2]) == 12 for one in ids)
    wait_until(lambda: sum(len(each.assignment()) for each in members) == 5, TIMEOUT)


def test_two_clients_with_one_id_are_told(
    server: Server, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Complaint: two containers, same client id, some queues never read."""
    topic, group = server.topic(), server.topic()
    instance = f"fixed-{group}"
    for _ in range(2):
        make(
            PushConsumer,
            server.name_server,
            group=group,
            subscribe=topic,
            handler=Handled(),
            options=ConsumerOptions(**QUICK),
            client_options=ClientOptions(instance=instance),
        ).start()
    wait_until(lambda: logged(caplog, "several clients have the id", group, instance), TIMEOUT)


def test_members_with_different_subscriptions_are_told(
    embedded: Embedded, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    orders, refunds, group = embedded.topic(), embedded.topic(), embedded.topic()
    first = start(embedded, orders, Handled(), group)
    second = start(embedded, {orders: "new", refunds: "*"}, Handled(), group)
    wait_until(lambda: logged(caplog, "subscribe to different things", group, refunds), TIMEOUT)
    members = (first, second)
    wait_until(lambda: any("different" in "".join(m.health().problems) for m in members), TIMEOUT)
    wait_until(lambda: all(each.health().is_healthy for each in members), TIMEOUT)


def test_without_any_broker_a_topic_is_not_said_to_be_missing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster() as cluster:
        cluster.kill_broker()
        wait_until(lambda: route(cluster.name_server, "TBW102") is None, TIMEOUT)
        consumer = make(
            PushConsumer, cluster.name_server, group="g", subscribe="t", handler=Handled()
        ).start()
        assert consumer.health().problems == ("topic t has no route: no broker is registered",)
        step = f"`downrange doctor {cluster.name_server}` shows more"
        wait_until(lambda: logged(caplog, "group g: topic t has no route", step), TIMEOUT)
        consumer.close()


def test_errors_right_after_start_are_waited_out(
    embedded: Embedded, producer: MakeProducer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group, handled = embedded.topic(queues=1), embedded.topic(), Handled()
    send(producer(embedded), topic, ["1"])
    left = {
        RequestCode.PULL_MESSAGE: [
            *(ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST),
            *(ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST),
        ],
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: [
            *(ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR),
        ],
    }
    for code, answers in left.items():

        def decide(*_: object, answers: list[ResponseCode] = answers) -> Any:
            return refuse(int(answers.pop(0)), "too early") if answers else None

        embedded.cluster.intercept(code, decide)
    consumer = start(embedded, topic, handled, group)
    wait_until(lambda: handled.bodies == ["1"], TIMEOUT)
    assert not any(left.values())
    # The retry queue may have got the last refusal, and pause.
    wait_until(lambda: consumer.health().is_healthy, TIMEOUT)
    assert not logged(caplog, "cannot be read")


def test_a_topic_that_does_not_exist_is_told_and_read_when_it_is_created(
    embedded: Embedded, producer: MakeProducer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    group, handled = embedded.topic(), Handled()
    name = f"{group}_later"
    consumer = start(embedded, name, handled, group)
    assert consumer.health().problems == (f"topic {name} does not exist",)
    line = f"group {group}: topic {name} does not exist, so nothing of it"
    wait_until(lambda: logged(caplog, line), TIMEOUT)
    embedded.topic(queues=2, name=name)
    send(producer(embedded), name, ["1"])
    wait_until(lambda: handled.bodies == ["1"], TIMEOUT)
    wait_until(lambda: consumer.health().is_healthy, TIMEOUT)  # the other queues may be read later


@pytest.mark.parametrize("mode", ["concurrent", "orderly", "pop", "polled"])
def test_a_missing_group_that_brokers_do_not_create_is_told_and_read_when_it_is_created(
    make: Make, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    """Complaint: a queue stops, and nothing is in the log."""
    caplog.set_level(logging.INFO, "downrange.client")
    options = dataclasses.replace(SHORT_TIMES, is_group_created=False)
    with Cluster(broker=options) as cluster, Admin(cluster.name_server) as admin:
        admin.create_topic("t", queues=2)
        if mode == "polled":
            consumer: Any = make(PullConsumer, cluster.name_server, group="g").start()
            consumer.subscribe("t")
        else:
            consumer = make(
                PushConsumer,
                cluster.name_server,
                group="g",
                subscribe="t",
                handler=Handled(),
                options=ConsumerOptions(**QUICK, mode=mode),
            ).start()
        told = f"{cluster.brokers[0]} does not have group 'g' (code 26)"
        (problem,) = consumer.health().problems
        assert told in problem
        assert "Create it with `downrange group create g`." in problem
        assert not consumer.health().is_healthy
        wait_until(lambda: logged(caplog, "group g: ", told), TIMEOUT)
        time.sleep(1.2)  # it looks again, at least once
        assert sum(told in line for line in caplog.messages) == 1
        admin.create_group("g")
        wait_until(lambda: consumer.health().is_healthy and consumer.assignment(), TIMEOUT)
        wait_until(lambda: logged(caplog, "group g: ", " again"), TIMEOUT)
        consumer.close()


# ---- life ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["rebalance", "commit", "lock renewal", "watch", "fetching"])
def test_background_work_that_dies_is_reported_and_starts_again(
    embedded: Embedded,
    producer: MakeProducer,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    from downrange.client.flows.consuming import fetch_loop, group_member, rebalance

    where: Any
    where, name = {
        "rebalance": (rebalance, "rebalance"),
        "commit": (group_member.GroupMember, "commit"),
        "lock renewal": (group_member.GroupMember, "_renew_locks"),
        "watch": (group_member.GroupMember, "_sleep"),
        "fetching": (fetch_loop, "pull"),
    }[broken]
    topic, group, handled = embedded.topic(queues=1), embedded.topic(), Handled()
    consumer = start(embedded, topic, handled, group, lock_interval=0.2, handle_timeout=1.0)
    whole, is_broken = getattr(where, name), threading.Event()

    def fail(*args: Any, **settings: Any) -> Any:
        if not is_broken.is_set():
            is_broken.set()
            raise ZeroDivisionError("a mistake of ours")
        return whole(*args, **settings)

    monkeypatch.setattr(where, name, fail)
    sender = producer(embedded)

    def is_found() -> bool:
        send(sender, topic, ["before"])
        return is_broken.is_set()

    wait_until(is_found, TIMEOUT)
    wait_until(lambda: logged(caplog, "a mistake of ours"), TIMEOUT)
    send(sender, topic, ["after"])
    wait_until(lambda: "after" in handled.bodies, TIMEOUT)
    assert consumer.assignment()


@only_sync
def test_a_forked_process_gets_a_clear_error(embedded: Embedded, start: Start) -> None:
    consumer = start(embedded, embedded.topic(), Handled(), embedded.topic())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            consumer.stats()
        except ForkedClient as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)  # also after another error: the child must not run the tests
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert "fork" in pipe.read()
    assert consumer.health().is_healthy


def test_sql_that_brokers_misread_is_refused(embedded: Embedded, start: Start) -> None:
    with pytest.raises((InvalidSql, OptionError), match="LIKE"):
        start(embedded, {"orders": Sql("name LIKE 'h%'")}, Handled(), "group")


def test_a_broadcast_group_without_a_store_says_where_it_starts(
    embedded: Embedded,
    producer: MakeProducer,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Java keeps the offsets in the home folder, under the client id: a new container has none."""
    caplog.set_level(logging.INFO, "downrange.client")
    topic, group, handled = embedded.topic(queues=1), embedded.topic(), Handled()
    send(producer(embedded), topic, ["1"])
    for count in (1, 2):
        consumer = start(embedded, topic, handled, group, model="broadcast")
        wait_until(lambda count=count: len(handled.bodies) == count, TIMEOUT)  # type: ignore[misc]
        consumer.close()
        assert caplog.text.count("is consumed from offset 0 on (earliest)") == count
