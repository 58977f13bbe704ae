"""The same traffic for Apache's broker and ours, so that their metrics can be compared."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import downrange as mq
from downrange.options.clients import SimpleOptions
from downrange.options.consumers import ConsumerOptions
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS, EVENTS, LATE, DEALS = "metric_orders", "metric_events", "metric_late", "metric_deals"
#: Messages of each topic, and their bodies.
ORDER_COUNT, SMALL_BODY = 20, b"x" * 100
#: Above a bound of the sizes; clients do not compress what stays as large.
LARGE_BODY = random.Random(1).randbytes(6000)
EVENT_COUNT, POPPED, ACKNOWLEDGED = 10, 6, 4
COMMITTED, ROLLED_BACK, OPEN = 3, 2, 1
LEVELS, TIMERS, FAR_TIMERS = 2, 2, 1
PUSH_GROUP, POP_GROUP, SLOW_GROUP = "metric_push", "metric_pop", "metric_slow"
SLOW_DONE = 5
#: A broker that just started may be slow. What is asked again after a time-out may be done twice.
PATIENT = mq.ClientOptions(connect_timeout=30.0, call_timeout=30.0)

_TOPICS = {ORDERS: "NORMAL", EVENTS: "NORMAL", LATE: "DELAY", DEALS: "TRANSACTION"}


@dataclass(slots=True)
class Traffic:
    """Clients that stay connected until `close`, so that connections are counted too."""

    push: mq.PushConsumer
    pop: mq.SimpleConsumer | None
    producer: mq.Producer
    deals: mq.TransactionProducer

    def close(self) -> None:
        """Close all clients."""
        for client in (self.push, self.pop, self.producer, self.deals):
            if client is not None:
                client.close()


def make_traffic(name_server: str, *, is_old: bool = False) -> Traffic:
    """Send, pull, push, pop, commit and roll back; return when everything is done.

    Args:
        name_server: Of the cluster.
        is_old: Leave out what brokers of 4.9 do not have: pops and timers.
    """
    with mq.Admin(name_server, client_options=PATIENT) as admin:
        for topic, kind in _TOPICS.items():
            attributes = {} if is_old else {"message.type": kind}
            admin.create_topic(topic, queues=1, attributes=attributes)
    # A second attempt could store a message twice.
    options = mq.ProducerOptions(timeout=WAIT_TIMEOUT, retries=0)
    producer = mq.Producer(
        name_server, group="metric_producers", options=options, client_options=PATIENT
    ).start()
    _send(producer, timers=0 if is_old else TIMERS, far_timers=0 if is_old else FAR_TIMERS)
    deals = mq.TransactionProducer(
        name_server,
        group="metric_deals_producers",
        check=_unknown,
        options=options,
        client_options=PATIENT,
    )
    deals.start()
    _trade(deals)
    push = _push(name_server, is_old=is_old)
    _read_slowly(name_server)
    pop = None if is_old else _pop(name_server)
    _wait_for_end(name_server, LATE, LEVELS if is_old else LEVELS + TIMERS)
    _wait_for_end(name_server, DEALS, COMMITTED)
    return Traffic(push, pop, producer, deals)


def _send(producer: mq.Producer, *, timers: int, far_timers: int) -> None:
    for number in range(ORDER_COUNT):
        body = LARGE_BODY if number < 4 else SMALL_BODY
        producer.send(mq.Message(ORDERS, body, keys=[f"o-{number}"]))
    for number in range(EVENT_COUNT):
        producer.send(mq.Message(EVENTS, b"e%d" % number))
    for _ in range(LEVELS):
        producer.send(mq.Message(LATE, b"level", delay_level=1))
    for _ in range(timers):
        producer.send(mq.Message(LATE, b"timer", deliver_in=2.0))
    for _ in range(far_timers):
        producer.send(mq.Message(LATE, b"far", deliver_in=3600.0))


def _unknown(message: mq.ReceivedMessage) -> None:
    return None


def _trade(deals: mq.TransactionProducer) -> None:
    for outcome, count in (
        (mq.Outcome.COMMIT, COMMITTED),
        (mq.Outcome.ROLLBACK, ROLLED_BACK),
        (None, OPEN),
    ):
        for _ in range(count):
            deals.send_in_transaction(mq.Message(DEALS, b"deal"), lambda *_, end=outcome: end)


def _push(name_server: str, *, is_old: bool) -> mq.PushConsumer:
    """Read all orders; the first becomes a dead letter, and the second is delivered again."""
    done: list[str] = []
    lock = threading.Lock()

    def handle(message: mq.ReceivedMessage) -> None:
        if message.keys == ["o-0"]:
            raise mq.DeadLetter("refused")
        if message.keys == ["o-1"] and message.delivery_attempts == 0:
            raise mq.Retry(after=None if is_old else 1.0)
        with lock:
            done.append(message.keys[0])

    options = ConsumerOptions(start="earliest", commit_interval=0.5)
    consumer = mq.PushConsumer(
        name_server,
        group=PUSH_GROUP,
        subscribe=ORDERS,
        handler=handle,
        options=options,
        client_options=PATIENT,
    ).start()
    wait_until(lambda: len(done) == ORDER_COUNT - 1)
    # Both brokers show the lag behind what is committed.
    wait_until(
        lambda: all(each.position in (0, each.committed) for each in consumer.health().queues)
    )
    return consumer


def _read_slowly(name_server: str) -> None:
    """Read and commit only a part of the orders: the group has a lag."""
    with (
        mq.Admin(name_server, client_options=PATIENT) as admin,
        mq.PullConsumer(name_server, group=SLOW_GROUP, client_options=PATIENT) as consumer,
    ):
        (queue,) = admin.publish_queues(ORDERS)
        consumer.assign([queue], start="earliest")
        messages = _take(consumer.messages(idle_timeout=WAIT_TIMEOUT), SLOW_DONE)
        assert len(messages) == SLOW_DONE
        admin.set_group_offset(SLOW_GROUP, queue, SLOW_DONE)


def _take(messages: Iterator[mq.ReceivedMessage], count: int) -> list[mq.ReceivedMessage]:
    return [message for message, _ in zip(messages, range(count), strict=False)]


def _pop(name_server: str) -> mq.SimpleConsumer:
    options = SimpleOptions(start="earliest")
    consumer = mq.SimpleConsumer(
        name_server, group=POP_GROUP, subscribe=EVENTS, options=options, client_options=PATIENT
    )
    consumer.start()
    got: list[mq.PoppedMessage] = []
    deadline = time.monotonic() + WAIT_TIMEOUT
    while len(got) < POPPED and time.monotonic() < deadline:
        got += consumer.receive(POPPED - len(got), invisible=600.0, timeout=1.0)
    assert len(got) == POPPED
    for message in got[:ACKNOWLEDGED]:
        message.ack()
    return consumer


def _wait_for_end(name_server: str, topic: str, count: int) -> None:
    with mq.Admin(name_server, client_options=PATIENT) as admin:
        (queue,) = admin.publish_queues(topic)
        wait_until(lambda: admin.max_offset(queue) == count)
