"""A cluster with something on every page: for the tests of the console, and for its screenshots."""

from __future__ import annotations

import json
import logging
import random
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

import downrange as mq
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

ATTACK: Final = "<script>document.title='attacked'</script><img src=x onerror=alert(1)>"
#: For a busy machine.
PATIENT: Final = mq.ClientOptions(connect_timeout=60.0, call_timeout=60.0)
_TOPICS: Final = ("orders", "payments", "clicks", "shipments", "stock-changes", "mail-out")
_ITEMS: Final = ("lamp", "chair", "desk", "shelf", "rug", "clock")


class Shop:
    """A cluster of two brokers, filled; a context manager.

    Args:
        orders: How many orders are sent before it is ready.
        is_busy: Whether orders go on being sent and read.
    """

    def __init__(self, *, orders: int = 120, is_busy: bool = False) -> None:
        self._orders = orders
        self._is_busy = is_busy
        self._stack = ExitStack()
        self._stopped = threading.Event()
        self._random = random.Random(18)
        self.cluster = mq.Cluster(
            brokers=2,
            broker=mq.BrokerOptions(is_trace_topic_created=True, transaction_timeout=3600.0),
        )

    @property
    def name_server(self) -> str:
        """The address of the name server."""
        return self.cluster.name_server

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self._fill(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._stack.close()

    def order(self, number: int) -> mq.Message:
        """Return an order."""
        body = {
            "order": f"o-{number}",
            "customer": f"c-{self._random.randint(100, 999)}",
            "lines": [{"item": self._random.choice(_ITEMS), "count": self._random.randint(1, 4)}],
            "total": round(self._random.uniform(9, 480), 2),
        }
        return mq.Message(
            "orders",
            json.dumps(body),
            tags=self._random.choice(("new", "paid", "express")),
            keys=[f"o-{number}"],
            properties={"region": self._random.choice(("eu", "us", "asia"))},
        )

    def _fill(self, stack: ExitStack) -> None:
        with mq.Admin(self.name_server, client_options=PATIENT) as admin:
            for topic in _TOPICS:
                admin.create_topic(topic, queues=4)
        # A message that is sent again after a time-out would be stored twice.
        options = mq.ProducerOptions(trace=mq.Trace(flush_interval=0.2), timeout=60.0)
        self.producer = stack.enter_context(
            mq.Producer(self.name_server, group="shop", options=options, client_options=PATIENT)
        )
        for number in range(self._orders):
            self.producer.send(self.order(number))
        for number in range(40):
            self.producer.send(mq.Message("payments", f"payment {number}", tags="card"))
        self.producer.send_batch(mq.Message("clicks", f"click {each}") for each in range(400))
        self.producer.send(
            mq.Message("mail-out", ATTACK, keys=["<b>key</b>"], properties={"note": ATTACK})
        )
        self.producer.send(mq.Message("shipments", bytes(range(256)), keys=["binary"]))
        self.producer.send(mq.Message("mail-out", "hello, " * 2000, keys=["long"]))
        for level in (14, 16):
            self.producer.send(mq.Message("mail-out", "remind the customer", delay_level=level))
        self.producer.send(mq.Message("mail-out", "survey", deliver_in=3600.0))
        self._add_half(stack)
        self._add_groups(stack)
        if self._is_busy:
            thread = threading.Thread(target=self._send_on, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._stopped.set)

    def _add_half(self, stack: ExitStack) -> None:
        def unknown(_message: mq.ReceivedMessage) -> mq.Outcome:
            return mq.Outcome.UNKNOWN

        producer = stack.enter_context(
            mq.TransactionProducer(
                self.name_server,
                group="checkout",
                check=unknown,
                options=mq.ProducerOptions(timeout=60.0),
                client_options=PATIENT,
            )
        )
        producer.send_in_transaction(
            mq.Message("orders", "half an order", keys=["o-half"]), lambda _message, _receipt: None
        )

    def _add_groups(self, stack: ExitStack) -> None:
        logging.getLogger("downrange").setLevel(logging.CRITICAL)  # dead letters are wanted here
        stack.callback(logging.getLogger("downrange").setLevel, logging.NOTSET)
        seen = threading.Semaphore(0)

        def bill(_message: mq.ReceivedMessage) -> None:
            self._stopped.wait(0.02 if self._is_busy else 0)
            seen.release()

        def refuse(message: mq.ReceivedMessage) -> None:
            seen.release()
            if message.queue.number % 2:
                raise mq.DeadLetter("the card is not valid")

        trace = mq.Trace(flush_interval=0.2)
        options = mq.ConsumerOptions(start="earliest", concurrency=4, trace=trace)
        for _ in range(2):
            self._consumer(stack, "billing", "orders", bill, options)
        self._consumer(stack, "booking", "payments", refuse, options)
        for _ in range(self._orders + 40):
            assert seen.acquire(timeout=60)
        wait_until(self._has_dead_letters)
        with mq.PullConsumer(self.name_server, group="reporting", client_options=PATIENT) as reader:
            reader.assign("clicks", start="earliest")
            reader.poll(max_count=30)
            reader.commit()

    def _has_dead_letters(self) -> bool:
        """Whether all payments of queues with odd numbers, which are half of them, are there."""
        with mq.Admin(self.name_server, client_options=PATIENT) as admin:
            try:
                ranges = admin.queue_ranges("%DLQ%booking")
            except mq.RouteNotFound:
                return False
        return sum(each.end - each.first for each in ranges) >= 20

    def _consumer(
        self,
        stack: ExitStack,
        group: str,
        topic: str,
        handler: Callable[[mq.ReceivedMessage], object],
        options: mq.ConsumerOptions,
    ) -> None:
        client = stack.enter_context(mq.Client(self.name_server, options=PATIENT))
        stack.enter_context(
            mq.PushConsumer(
                client,
                group=group,
                subscribe=topic,
                handler=handler,
                options=options,
            )
        )

    def _send_on(self) -> None:
        number = self._orders
        while not self._stopped.wait(0.02):
            for _ in range(self._random.randint(1, 8)):
                number += 1
                self.producer.submit(self.order(number))
            self.producer.submit(mq.Message("clicks", f"click {number}"))
