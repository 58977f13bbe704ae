"""Push consumers in the mode "pop": members share all queues, and brokers deliver again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    Admin,
    ConsumerOptions,
    DeadLetter,
    Hooks,
    Message,
    PopNotSupported,
    Producer,
    PushConsumer,
    Retry,
    RetrySome,
)
from downrange.wire.codes import RequestCode
from tests.contract.conftest import only_sync
from tests.contract.test_simple_consumer import with_pops, without_pops
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange import ReceivedMessage
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server

#: For what a broker does by its own timers, on a busy machine.
TIMEOUT = 40.0


def popping(**settings: Any) -> ConsumerOptions:
    """Return options of the mode "pop"."""
    return ConsumerOptions(mode="pop", start="earliest", **settings)


class Kept:
    """A handler that keeps the bodies, or lists of bodies, that it was given."""

    def __init__(self, then: Callable[[Any], object] | None = None) -> None:
        """`then` is called with each message, or batch, after it is kept."""
        self.bodies: list[str] = []
        self.calls: list[Any] = []
        self._then = then
        self._lock = threading.Lock()

    def __call__(self, given: ReceivedMessage | list[ReceivedMessage]) -> None:
        """Keep what was given."""
        messages = given if isinstance(given, list) else [given]
        with self._lock:
            self.calls.append(given)
            self.bodies += [message.body.decode() for message in messages]
        if self._then is not None:
            self._then(given)

    @property
    def counts(self) -> Counter[str]:
        """How often each body was handled."""
        with self._lock:
            return Counter(self.bodies)


class StartConsumer:
    """Starts push consumers of the front end; they are closed at the end of the test."""

    def __init__(self, make: Make) -> None:
        """Take the factory."""
        self._make = make

    def __call__(
        self,
        server: Server,
        topic: str,
        group: str,
        handler: Any,
        options: ConsumerOptions,
        hooks: Hooks | None = None,
    ) -> PushConsumer:
        """Return a consumer that runs."""
        made = self._make(
            PushConsumer,
            server.name_server,
            group=group,
            subscribe=topic,
            handler=handler,
            options=options,
            hooks=hooks,
        )
        return made.start()


@pytest.fixture
def member(make: Make) -> StartConsumer:
    """Give the function that starts members of groups."""
    return StartConsumer(make)


def send(producer: Producer, topic: str, count: int) -> list[str]:
    bodies = [str(number) for number in range(count)]
    producer.send_batch([Message(topic, body) for body in bodies])
    return bodies


@with_pops
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_a_group_that_pops_is_reset(
    server: Server,
    producer: MakeProducer,
    member: StartConsumer,
    make: Make,
    unique_name: UniqueName,
    is_running: bool,
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    bodies = send(producer(server), topic, 5)
    first, again = Kept(), Kept()
    running = member(server, topic, group, first, popping())
    wait_until(lambda: first.counts == Counter(bodies), TIMEOUT)
    administering = make(Admin, server.name_server).start()
    if is_running:
        again = first
    else:
        running.close()
    assert administering.reset_offsets(group, topic, "earliest").is_done
    if not is_running:
        member(server, topic, group, again, popping())
    expected = Counter(dict.fromkeys(bodies, 2 if is_running else 1))
    wait_until(lambda: again.counts == expected, TIMEOUT)


@with_pops
def test_members_share_the_messages(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    options = popping(concurrency=1, pull_batch=2, buffer_messages=2)

    def wait_for_both(_: object) -> None:
        """Leave messages for the other member until it has one."""
        wait_until(lambda: all(each.bodies for each in handlers), TIMEOUT)

    handlers = [Kept(wait_for_both) for _ in range(2)]
    members = [member(server, topic, group, each, options) for each in handlers]
    for each in members:
        assert {(queue.topic, queue.number) for queue in each.assignment()} == {(topic, -1)}
    bodies = send(producer(server), topic, 60)
    wait_until(lambda: sum(len(each.bodies) for each in handlers) >= 60, TIMEOUT)
    for each in members:
        each.close()
    assert all(each.bodies for each in handlers)
    assert handlers[0].counts + handlers[1].counts == Counter(bodies)


@with_pops
def test_retries_and_dead_letters(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group, sender = server.topic(queues=1), unique_name("jobs"), producer(server)

    def decide(message: ReceivedMessage) -> None:
        if message.body == b"dead":
            raise DeadLetter("unreadable")
        if message.body == b"exhausted" or (message.body == b"retry" and kept.counts["retry"] == 1):
            raise Retry(after=1)

    kept = Kept(decide)
    consumer = member(server, topic, group, kept, popping(retries=1))
    for body in ("retry", "dead", "exhausted", "fine"):
        sender.send(Message(topic, body, keys=[body], tags="x"))
    expected = {"retry": 2, "dead": 1, "exhausted": 2, "fine": 1}
    wait_until(lambda: kept.counts == expected, TIMEOUT)
    again = next(message for message in kept.calls if message.delivery_attempts)
    assert (again.topic, again.tags, again.delivery_attempts) == (topic, "x", 1)
    dead = server.read_all(f"%DLQ%{group}", 2)
    assert {message.body for message in dead} == {b"dead", b"exhausted"}
    wait_until(lambda: consumer.stats().dead == 2 and consumer.stats().sent_back == 2)


@with_pops
def test_a_long_handler_keeps_its_message(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("jobs")
    # A renewal, after half of the time, may be three seconds late on a busy machine.
    may_end, options, renewals = threading.Event(), popping(invisible=6.0), Counter[int]()
    hooks = Hooks(after_call=(lambda address, request, reply: renewals.update([request.code]),))
    handlers = [Kept(lambda _: may_end.wait(3 * TIMEOUT)) for _ in range(2)]
    members = [member(server, topic, group, each, options, hooks) for each in handlers]
    send(producer(server), topic, 1)
    # Apache delivers a message again up to three seconds after its time.
    code, enough = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, 4 if server.is_apache else 2
    wait_until(lambda: renewals[code] >= enough, TIMEOUT)
    closing = [threading.Thread(target=each.close) for each in members]
    for thread in closing:
        thread.start()
    wait_until(lambda: renewals[code] >= 2 * enough, TIMEOUT)
    may_end.set()
    for thread in closing:
        thread.join(TIMEOUT)
    assert handlers[0].counts + handlers[1].counts == {"0": 1}


@with_pops
def test_close_gives_back_what_was_not_begun(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("jobs")
    may_end = threading.Event()
    first, second = Kept(lambda _: may_end.wait(TIMEOUT)), Kept()
    bodies = send(producer(server), topic, 10)
    one = member(server, topic, group, first, popping(concurrency=1, invisible=300.0))
    wait_until(lambda: one.stats().fetched == 10 and bool(first.bodies), TIMEOUT)
    closing = threading.Thread(target=one.close)
    closing.start()
    wait_until(lambda: one.state == "closed")
    may_end.set()
    closing.join(TIMEOUT)
    two = member(server, topic, group, second, popping())
    wait_until(lambda: len(second.bodies) >= 9, TIMEOUT)
    two.close()
    assert first.counts + second.counts == Counter(bodies)


@only_sync
@with_pops
def test_messages_of_a_killed_member_are_delivered_to_another(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("jobs")
    bodies = send(producer(server), topic, 6)
    program = (
        "import sys, time, downrange as mq\n"
        "def handle(message):\n"
        "    print(message.body.decode(), flush=True)\n"
        "    time.sleep(600)\n"
        "options = mq.ConsumerOptions(mode='pop', start='earliest', concurrency=2, invisible=2.0)\n"
        f"mq.PushConsumer({server.name_server!r}, group={group!r}, subscribe={topic!r},\n"
        "                handler=handle, options=options,\n"
        "                client_options=mq.ClientOptions(call_timeout=30.0)).start().wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        for _ in range(2):
            assert killed.stdout.readline()
        killed.kill()
    kept = Kept()
    member(server, topic, group, kept, popping())
    # A renewal that was too late for a slow machine may bring a message twice.
    wait_until(lambda: kept.counts.keys() == set(bodies), TIMEOUT)


@with_pops
def test_batches(
    server: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("jobs")

    def decide(messages: list[ReceivedMessage]) -> None:
        fresh = [message for message in messages if not message.delivery_attempts]
        failed = [message for message in fresh if message.body in {b"3", b"7"}]
        if failed:
            raise RetrySome(failed, after=1)

    bodies = send(producer(server), topic, 12)
    server.read_all(topic, 12)  # so that the first pop finds all of them
    kept = Kept(decide)
    consumer = member(server, topic, group, kept, popping(batch=5))
    wait_until(lambda: kept.counts == Counter([*bodies, "3", "7"]), TIMEOUT)
    assert max(len(batch) for batch in kept.calls) == 5
    wait_until(lambda: consumer.stats().sent_back == 2)


def test_hooks_leave_out_messages(
    embedded: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic = embedded.topic(queues=1)
    kept, seen = Kept(), Counter[str]()
    hooks = Hooks(
        before_handle=(lambda context: seen.update(["before"]),),
        after_handle=(lambda context: seen.update(["after"]),),
        filter_message=(lambda message: message.body != b"1",),
    )
    consumer = member(embedded, topic, unique_name("jobs"), kept, popping(), hooks)
    send(producer(embedded), topic, 3)
    wait_until(lambda: seen["after"] == 2)
    assert (kept.counts, seen["before"]) == ({"0": 1, "2": 1}, 2)
    assert consumer.stats().fetched == 3


def test_a_topic_that_is_given_up_is_left_to_others(
    embedded: Server, producer: MakeProducer, member: StartConsumer, unique_name: UniqueName
) -> None:
    topic, other, group = embedded.topic(queues=1), embedded.topic(queues=1), unique_name("jobs")
    may_end = threading.Event()
    first, second = Kept(lambda _: may_end.wait(TIMEOUT)), Kept()
    bodies = send(producer(embedded), topic, 4)
    options = popping(concurrency=1, invisible=300.0)
    one = member(embedded, topic, group, first, options)
    wait_until(lambda: one.stats().fetched == 4 and bool(first.bodies))
    one.subscribe(other)
    one.unsubscribe(topic)
    wait_until(lambda: [queue.topic for queue in one.assignment()] == [other])
    member(embedded, topic, group, second, popping())
    wait_until(lambda: len(second.bodies) >= 3)
    may_end.set()
    assert first.counts + second.counts == Counter(bodies)


@without_pops
def test_a_broker_before_5_is_named(server: Server, make: Make, unique_name: UniqueName) -> None:
    consumer = make(
        PushConsumer,
        server.name_server,
        group=unique_name("jobs"),
        subscribe=server.topic(),
        handler=Kept(),
        options=popping(),
    )
    with pytest.raises(PopNotSupported, match="needs RocketMQ 5"):
        consumer.start()
    assert consumer.state != "running"
