"""Group consumers: push, concurrent and orderly, broadcast, retries, dead letters, rebalance."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange import (
    Admin,
    ConsumerOptions,
    DeadLetter,
    FolderOffsets,
    Hooks,
    Message,
    OptionError,
    Producer,
    PushConsumer,
    Retry,
    RetrySome,
    Sql,
    Trace,
)
from downrange.options import ClientOptions
from tests.contract.conftest import PATIENCE, only_async, only_sync
from tests.contract.filter_rounds import ROUNDS, send_round
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from downrange import HandleContext, ReceivedMessage
    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server

#: For what a broker does by its own timers, on a busy machine.
TIMEOUT = 40.0
EARLIEST = ConsumerOptions(start="earliest")


class Handled:
    """A handler that keeps what it was given."""

    def __init__(self, then: Callable[[ReceivedMessage, int], None] | None = None) -> None:
        """`then` is called with the message and how often it has been handled."""
        self.bodies: list[str] = []
        self.messages: list[ReceivedMessage] = []
        self._then = then
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> None:
        """Keep the message."""
        with self._lock:
            self.bodies.append(message.body.decode())
            self.messages.append(message)
            count = self.bodies.count(message.body.decode())
        if self._then is not None:
            self._then(message, count)

    def has_more_than(self, count: int) -> bool:
        """Return whether more were handled."""
        return len(self.bodies) > count

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

    def __call__(self, server: Server, topics: Any, handler: Any, **settings: Any) -> PushConsumer:
        """Return a consumer that runs."""
        settings.setdefault("options", EARLIEST)
        made = self._make(
            PushConsumer, server.name_server, subscribe=topics, handler=handler, **settings
        )
        return made.start()


@pytest.fixture
def push(make: Make) -> StartConsumer:
    """Give the function that starts push consumers."""
    return StartConsumer(make)


def send(producer: Producer, topic: str, count: int, prefix: str = "") -> list[str]:
    bodies = [f"{prefix}{number}" for number in range(count)]
    producer.send_batch([Message(topic, body) for body in bodies])
    return bodies


def test_a_group_divides_the_queues_and_handles_each_message_once(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    first, second = Handled(), Handled()
    one = push(server, topic, first, group=group)
    wait_until(lambda: len(one.assignment()) == 5, TIMEOUT)
    bodies = send(sender, topic, 40, "a")
    two = push(server, topic, second, group=group)
    wait_until(lambda: len(_own(one, topic)) == len(_own(two, topic)) == 2, TIMEOUT)
    for _ in range(8):
        bodies += send(sender, topic, 5, f"b{_}-")
    wait_until(lambda: len(first.bodies) + len(second.bodies) >= len(bodies), TIMEOUT)
    two.close()
    bodies += send(sender, topic, 20, "c")
    wait_until(lambda: len(first.bodies) + len(second.bodies) >= len(bodies), TIMEOUT)
    one.close()
    assert first.counts + second.counts == Counter(bodies)


def test_a_reset_reaches_the_member_that_has_just_taken_a_queue(
    embedded: Embedded, producer: MakeProducer, push: StartConsumer, make: Make
) -> None:
    """Its last owner's pull still waits at the broker, which tells of a reset once."""
    topic, group = embedded.topic(), embedded.topic()
    handled = Handled()
    one = push(embedded, topic, handled, group=group)
    bodies = send(producer(embedded), topic, 40)
    wait_until(lambda: handled.counts == Counter(bodies), TIMEOUT)
    two = push(embedded, topic, handled, group=group)
    wait_until(lambda: len(_own(one, topic)) == len(_own(two, topic)) == 2, TIMEOUT)
    administering = make(Admin, embedded.name_server).start()
    assert administering.reset_offsets(group, topic, "earliest").is_done
    wait_until(lambda: handled.counts == Counter(bodies * 2), TIMEOUT)


def _own(consumer: PushConsumer, topic: str) -> list[object]:
    return [queue for queue in consumer.assignment() if queue.topic == topic]


def test_nothing_is_handled_again_after_a_close_under_load(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    bodies: list[str] = []
    handled = Handled(lambda message, count: time.sleep(0.001))
    seen = 0
    for round_number in range(4):
        bodies += send(sender, topic, 100, f"{round_number}-")
        consumer = push(server, topic, handled, group=group)
        wait_until(partial(handled.has_more_than, seen), TIMEOUT)
        consumer.close()
        seen = len(handled.bodies)
    push(server, topic, handled, group=group)
    wait_until(lambda: len(handled.bodies) >= len(bodies), TIMEOUT)
    assert handled.counts == Counter(bodies)


def test_retries_and_dead_letters(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)

    def decide(message: ReceivedMessage, count: int) -> None:
        if message.body == b"retry" and count == 1:
            raise Retry(after=1)
        if message.body == b"dead":
            raise DeadLetter("unreadable")
        if message.body == b"exhausted":
            raise Retry(after=1)

    handled = Handled(decide)
    options = ConsumerOptions(start="earliest", retries=1)
    push(server, topic, handled, group=group, options=options)
    for body in ("retry", "dead", "exhausted", "fine"):
        sender.send(Message(topic, body, keys=[body], tags="x"))
    expected = {"retry": 2, "dead": 1, "exhausted": 2, "fine": 1}
    wait_until(lambda: handled.counts == expected, TIMEOUT)
    again = next(message for message in handled.messages if message.delivery_attempts)
    assert (again.topic, again.tags, again.delivery_attempts) == (topic, "x", 1)
    dead = server.read_all(f"%DLQ%{group}", 2)
    assert {message.body for message in dead} == {b"dead", b"exhausted"}


def test_orderly_messages_are_handled_in_order_and_one_at_a_time(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    running: Counter[int] = Counter()
    overlaps: list[int] = []

    def decide(message: ReceivedMessage, count: int) -> None:
        number = message.queue.number
        running[number] += 1
        if running[number] > 1:
            overlaps.append(number)
        time.sleep(0.001)
        running[number] -= 1
        if message.body.endswith(b"-3") and count <= 2:
            raise ValueError("not yet")

    handled = Handled(decide)
    options = ConsumerOptions(mode="orderly", start="earliest", suspend_queue=0.05)
    bodies = [f"{queue}-{number}" for number in range(10) for queue in range(4)]
    for body in bodies:
        sender.send(Message(topic, body, sharding_key=body.partition("-")[0]))
    push(server, topic, handled, group=group, options=options)
    wait_until(lambda: len(set(handled.bodies)) == len(bodies), TIMEOUT)
    assert not overlaps
    by_queue: dict[int, list[int]] = defaultdict(list)
    for message in handled.messages:
        by_queue[message.queue.number].append(message.offset)
    for offsets in by_queue.values():
        assert offsets == sorted(offsets)
    assert max(handled.counts.values()) == 3
    repeated = [message for message in handled.messages if message.body == b"0-3"]
    assert [message.delivery_attempts for message in repeated] == [0, 1, 2]


def test_every_member_of_a_broadcast_gets_all_messages(
    server: Server, producer: MakeProducer, push: StartConsumer, tmp_path: Path
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)

    def options(name: str) -> ConsumerOptions:
        store = FolderOffsets(tmp_path / name)
        return ConsumerOptions(model="broadcast", offset_store=store, commit_interval=0.1)

    def fail_once(message: ReceivedMessage, count: int) -> None:
        if message.body == b"a1" and count == 1:
            raise ValueError("once more")

    first, second = Handled(fail_once), Handled()
    one = push(server, topic, first, group=group, options=options("one"))
    two = push(server, topic, second, group=group, options=options("two"))
    # They begin at the end of the queues, as soon as they have them.
    wait_until(lambda: len(one.assignment()) == len(two.assignment()) == 4, TIMEOUT)
    bodies = send(sender, topic, 10, "a")
    wait_until(lambda: len(first.bodies) == 11 and len(second.bodies) == 10, TIMEOUT)
    assert first.counts == Counter([*bodies, "a1"])
    repeated = [message for message in first.messages if message.body == b"a1"]
    assert [message.delivery_attempts for message in repeated] == [0, 1]
    one.close()
    more = send(sender, topic, 5, "b")
    push(server, topic, first, group=group, options=options("one"))
    wait_until(lambda: len(first.bodies) == 16 and len(second.bodies) == 15, TIMEOUT)
    assert first.counts == Counter([*bodies, "a1", *more])


def test_a_new_group_that_starts_at_the_latest_reads_no_history(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(), server.topic(), producer(server)
    send(sender, topic, 20, "old")
    server.read_all(topic, 20)
    handled = Handled()
    consumer = push(server, topic, handled, group=group, options=ConsumerOptions(start="latest"))
    wait_until(lambda: len(_own(consumer, topic)) == 4, TIMEOUT)
    new = send(sender, topic, 8, "new")
    wait_until(lambda: len(handled.bodies) >= len(new), TIMEOUT)
    assert handled.counts == Counter(new)


def test_filters_subscribing_pausing_and_stats(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, other, group = server.topic(), server.topic(), server.topic()
    sender, handled = producer(server), Handled()
    consumer = push(server, {topic: "new || paid"}, handled, group=group)
    for tag in ("new", "old", "paid"):
        sender.send(Message(topic, tag, tags=tag, properties={"amount": "5"}))
    wait_until(lambda: handled.counts == {"new": 1, "paid": 1}, TIMEOUT)
    consumer.subscribe(other, tags=Sql("amount > 3"))
    assert len(_own(consumer, other)) == 4
    for amount in ("1", "5"):
        sender.send(Message(other, f"amount {amount}", properties={"amount": amount}))
    wait_until(lambda: handled.counts["amount 5"] == 1, TIMEOUT)
    assert "amount 1" not in handled.counts
    consumer.unsubscribe(topic)
    wait_until(lambda: not _own(consumer, topic), TIMEOUT)
    with pytest.raises(OptionError, match=f"'{other}' is the only topic"):
        consumer.unsubscribe(other)
    consumer.pause()
    sender.send(Message(other, "paused", properties={"amount": "9"}))
    wait_until(lambda: consumer.stats().waiting == 1, TIMEOUT)
    assert "paused" not in handled.counts
    consumer.resume()
    wait_until(lambda: handled.counts["paused"] == 1, TIMEOUT)
    assert consumer.subscriptions() == {other: "amount > 3"}
    wait_until(lambda: consumer.stats().handled == 4)  # it is counted after the handler
    wait_until(lambda: consumer.health().is_healthy)


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_another_filter_counts_for_all_that_is_sent_after_it(
    mode: str, server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    """The pull that is held with the filter before skipped some, and delivered others."""
    topic, sender, handled = server.topic(queues=1), producer(server), Handled()
    options = ConsumerOptions(start="earliest", mode=mode)  # type: ignore[arg-type]
    consumer = push(server, {topic: "A"}, handled, options=options, group=server.topic())
    expected: list[str] = []
    for number, (expression, _, _) in enumerate(ROUNDS):
        consumer.subscribe(topic, expression)
        expected += send_round(sender, topic, number)
        wait_until(partial(handled.has_more_than, len(expected) - 1), TIMEOUT)
        time.sleep(0.3)  # until a pull is held
    assert handled.counts == Counter(expected)
    if mode == "orderly":
        assert handled.bodies == expected
    wait_until(lambda: _all_committed(consumer, topic, 15), TIMEOUT)


def _all_committed(consumer: PushConsumer, topic: str, offset: int) -> bool:
    queues = [each for each in consumer.health().queues if each.queue.topic == topic]
    return [each.committed for each in queues] == [offset]


def test_a_topic_at_run_time_is_read_from_the_moment_of_the_call(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    """With start="latest" the first messages were missed: its place was found later."""
    sender, handled = producer(server), Handled()
    topics = [server.topic() for _ in range(4)]
    consumer = push(
        server, topics[0], handled, group=server.topic(), options=ConsumerOptions(start="latest")
    )
    expected: list[str] = []
    for topic in topics[1:]:
        consumer.subscribe(topic)
        expected += send(sender, topic, 4, topic)
    wait_until(lambda: handled.counts == Counter(expected), TIMEOUT)


@only_sync
def test_a_handler_may_subscribe(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, other, sender = server.topic(), server.topic(), producer(server)
    seconds: list[float] = []

    def subscribe(message: ReceivedMessage, _: int) -> None:
        if message.topic == topic:
            started = time.monotonic()
            consumer.subscribe(other, "new")
            consumer.subscribe(topic, "new")  # the queue of the message that is being handled
            seconds.append(time.monotonic() - started)

    handled = Handled(subscribe)
    consumer = push(server, topic, handled, group=server.topic())
    sender.send(Message(topic, "first"))
    wait_until(lambda: bool(seconds), TIMEOUT)
    for each in (topic, other):
        for tags in ("old", "new"):
            sender.send(Message(each, f"{each} {tags}", tags=tags))
    expected = Counter(["first", f"{topic} new", f"{other} new"])
    wait_until(lambda: handled.counts == expected, TIMEOUT)
    assert max(seconds) < PATIENCE  # the rebalance does not wait for the handler


def test_batches_of_which_some_are_retried(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    sizes: list[int] = []
    bodies: Counter[bytes] = Counter()

    def handle(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))
        bodies.update(message.body for message in messages)
        again = [each for each in messages if each.body == b"3" and not each.delivery_attempts]
        if again:
            raise RetrySome(again, after=1)

    send(sender, topic, 10)
    server.read_all(topic, 10)  # so that the first pull finds all of them
    options = ConsumerOptions(start="earliest", batch=8)
    push(server, topic, handle, group=group, options=options)
    wait_until(lambda: sum(bodies.values()) == 11, TIMEOUT)
    assert bodies == Counter([str(number).encode() for number in range(10)] + [b"3"])
    assert max(sizes) > 1


def test_a_handler_replies_to_a_request(
    server: Server, producer: MakeProducer, push: StartConsumer, make: Make
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    if make.kind == "sync":

        def answer(message: Any) -> None:
            message.reply(message.body + b"!", timeout=TIMEOUT)

        push(server, topic, answer, group=group)
    else:

        async def answer_async(message: Any) -> None:
            await message.reply(message.body + b"!", timeout=TIMEOUT)

        push(server, topic, answer_async, group=group)
    assert sender.request(Message(topic, b"hello"), timeout=TIMEOUT).body == b"hello!"


def test_iteration_is_done_when_the_next_one_is_asked_for(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    bodies = send(sender, topic, 6)
    seen: list[str] = []
    consumer = push(server, topic, None, group=group)
    for message in consumer:
        seen.append(message.body.decode())
        if len(seen) == 3:
            break
    consumer.close()
    consumer = push(server, topic, None, group=group)
    for message in consumer:
        seen.append(message.body.decode())
        if len(seen) == 7:
            consumer.stop()
    assert seen == [*bodies[:3], *bodies[2:]]


def test_hooks_and_traces_of_consumption(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    calls: list[tuple[str, str]] = []

    def before(context: HandleContext) -> None:
        calls.append(("before", context.messages[0].body.decode()))

    def after(context: HandleContext) -> None:
        calls.append(("after", str(context.error)))

    records: list[Any] = []

    class Keep:
        def append(self, record: Any, /) -> None:
            records.append(record)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    hooks = Hooks(
        before_handle=(before,),
        after_handle=(after,),
        filter_message=(lambda message: message.body != b"1",),
    )
    handled = Handled()
    options = ConsumerOptions(start="earliest", trace=Trace(dispatcher=Keep()))
    send(sender, topic, 3)
    push(server, topic, handled, group=group, options=options, hooks=hooks)
    wait_until(lambda: handled.counts == {"0": 1, "2": 1}, TIMEOUT)
    wait_until(lambda: len(records) == 4 and len(calls) == 4, TIMEOUT)
    assert sorted(calls) == [("after", "None"), ("after", "None"), ("before", "0"), ("before", "2")]
    assert Counter(type(record).__name__ for record in records) == {
        "SubBeforeTrace": 2,
        "SubAfterTrace": 2,
    }


def test_a_group_of_a_namespace(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    group = server.topic()
    topic = server.topic(queues=1)
    space = f"ns{topic[-6:]}"
    server.topic(queues=1, name=f"{space}%{topic}")
    options = ClientOptions(namespace=space)

    def once_more(message: ReceivedMessage, count: int) -> None:
        if count == 1:
            raise Retry(after=1)

    handled = Handled(once_more)
    push(server, topic, handled, group=group, client_options=options)
    sender = producer(server, client_options=options)
    sender.send(Message(topic, "1"))
    wait_until(lambda: handled.counts == {"1": 2}, TIMEOUT)
    assert {message.topic for message in handled.messages} == {topic}


@only_sync
def test_a_coroutine_function_is_refused_by_threads(server: Server, push: StartConsumer) -> None:
    async def handle(message: object) -> None: ...

    with pytest.raises(OptionError, match="AsyncPushConsumer"):
        push(server, "t", handle, group="g")


@only_async
def test_coroutine_handlers_run_side_by_side(
    server: Server, producer: MakeProducer, push: StartConsumer
) -> None:
    import asyncio

    topic, group, sender = server.topic(queues=1), server.topic(), producer(server)
    running = high = done = 0

    async def handle(message: object) -> None:
        nonlocal running, high, done
        running += 1
        high = max(high, running)
        await asyncio.sleep(0.05)
        running -= 1
        done += 1

    send(sender, topic, 30)
    options = ConsumerOptions(start="earliest", concurrency=5)
    push(server, topic, handle, group=group, options=options)
    wait_until(lambda: done == 30, TIMEOUT)
    assert high == 5
