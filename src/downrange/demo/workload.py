"""The shop's services; each sends in a different way.

    checkout    sync            waits for every receipt
    web         async           many sends at once, on an event loop
    warehouse   batch           a list in one request
    machines    auto-batch      one by one; the producer forms the batches
    bank        transaction     readable only after the local work has succeeded
    mailer      delay           readable later, or recalled before
    access-log  one-way         no reply
    marketing   sync            to an auto-created topic, which exists on one broker only

All services write traces and avoid brokers that failed. One rule: a service records the outcome of
each message in its send log at once, so that the demo can compare it with the stored messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from downrange import Admin, AsyncProducer, Producer, TransactionProducer
from downrange.errors import BatchFailed, RocketMQError, ServerError
from downrange.model import Message, Outcome
from downrange.options import AutoBatch, ClientOptions, FaultTolerance, ProducerOptions, Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from downrange.demo.schedule import SendSchedule
    from downrange.demo.send_log import SendLog
    from downrange.demo.shop_events import Shop, ShopEvent
    from downrange.model import ReceivedMessage, SendReceipt

#: Queues per broker of the topics that the demo creates.
QUEUES: Final = 4
#: Shorter intervals than usual for routes and heartbeats, because the demo is short.
CLIENT: Final = ClientOptions(route_refresh_interval=2.0, heartbeat_interval=1.0)
#: How long open transactions and delayed messages may take to become readable.
SETTLE_TIMEOUT: Final = 60.0
_STOCK_COUNTS: Final = 40
_DECLINED: Final = 0.10
_UNDECIDED: Final = 0.05
_RECALLED: Final = 0.12
_IN_FLIGHT: Final = 256


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The inputs of a service.

    Attributes:
        name_server: Address of the name server.
        schedule: When to send.
        shop: Generates the messages.
        send_log: Records the outcome of each message.
        settled: Set when every acknowledged message was read.
        has_sent: Set by a service that has sent all of its messages but must keep running.
    """

    name_server: str
    schedule: SendSchedule
    shop: Shop
    send_log: SendLog
    settled: threading.Event
    has_sent: threading.Event = field(default_factory=threading.Event)

    def wait_until_settled(self) -> None:
        """Set `has_sent`, then wait until every acknowledged message was read."""
        self.has_sent.set()
        self.settled.wait(SETTLE_TIMEOUT)


#: Runs a service, from opening its producer to closing it.
RunService: TypeAlias = "Callable[[ServiceContext], None]"


def producer_options(auto_batch: AutoBatch | None = None) -> ProducerOptions:
    """Return the options of all services: traces, retries, and avoidance of failed brokers."""
    return ProducerOptions(
        trace=Trace(batch_count=20, flush_interval=0.5, queue_max=20_000),
        # A failed broker is avoided for 3 s; the usual 10 s would be most of the demo.
        fault_tolerance=FaultTolerance(
            style="5.x", latency_ms=(550, 5000), avoid_ms=(500, 3000), detect_interval=0.5
        ),
        timeout=5.0,
        attempt_timeout=1.5,
        auto_batch=auto_batch,
    )


# ---- the services --------------------------------------------------------------------------------


def checkout(context: ServiceContext) -> None:
    """Send each order and wait for its receipt."""
    with Producer(
        context.name_server, group="checkout", options=producer_options(), client_options=CLIENT
    ) as producer:
        for _ in context.schedule.ticks():
            order = context.shop.order()
            message = Message(
                context.send_log.topic,
                order.body,
                tags=order.tags,
                keys=[order.key],
                properties={"customer": order.customer or ""},
            )
            try:
                context.send_log.add_receipt(producer.send(message))
            except RocketMQError as error:
                context.send_log.add_failure(error)


def web(context: ServiceContext) -> None:
    """Send clicks concurrently, from an event loop."""
    asyncio.run(_send_clicks(context))


async def _send_clicks(context: ServiceContext) -> None:
    async with (
        AsyncProducer(
            context.name_server, group="web", options=producer_options(), client_options=CLIENT
        ) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        room = asyncio.Semaphore(_IN_FLIGHT)

        async def send(click: ShopEvent) -> None:
            async with room:
                try:
                    context.send_log.add_receipt(await producer.send(_message(context, click)))
                except RocketMQError as error:
                    context.send_log.add_failure(error)

        async for _ in context.schedule.async_ticks():
            tasks.create_task(send(context.shop.click()))


def warehouse(context: ServiceContext) -> None:
    """Send stock counts in lists; the producer packs a list into as few requests as possible."""
    with Producer(
        context.name_server, group="warehouse", options=producer_options(), client_options=CLIENT
    ) as producer:
        counts: list[Message] = []
        for tick in context.schedule.ticks():
            counts.append(_message(context, context.shop.stock_count()))
            if len(counts) == _STOCK_COUNTS or tick == context.schedule.planned - 1:
                _send_list(context, producer, counts)
                counts = []


def _send_list(context: ServiceContext, producer: Producer, counts: list[Message]) -> None:
    try:
        context.send_log.add_batch(producer.send_batch(counts))
    except BatchFailed as error:  # a part of the list is stored
        context.send_log.add_batch(error.stored)
        context.send_log.add_failure(error, len(counts) - len(error.stored))
    except RocketMQError as error:
        context.send_log.add_failure(error, len(counts))


def machines(context: ServiceContext) -> None:
    """Send readings one by one; the producer puts those of 10 ms into one request."""
    auto_batch = AutoBatch(hold_ms=10)
    with Producer(
        context.name_server,
        group="machines",
        options=producer_options(auto_batch),
        client_options=CLIENT,
    ) as producer:
        in_flight: deque[Future[SendReceipt]] = deque()
        for _ in context.schedule.ticks():
            in_flight.append(producer.submit(_message(context, context.shop.reading())))
            while in_flight and (in_flight[0].done() or len(in_flight) > _IN_FLIGHT):
                _record_result(context, in_flight.popleft())
        for future in in_flight:
            _record_result(context, future)


def _record_result(context: ServiceContext, future: Future[SendReceipt]) -> None:
    try:
        context.send_log.add_receipt(future.result())
    except RocketMQError as error:
        context.send_log.add_failure(error)


class CardDeclined(Exception):
    """The bank declines the payment."""


def bank(context: ServiceContext) -> None:
    """Send payments in transactions; a declined payment is rolled back.

    A few transactions are left open, as if the service had crashed in between: the broker checks
    them, and `look_up` finds the outcome in a table that all processes of the service would share.
    """
    booked: dict[str, Outcome] = {}

    def look_up(message: ReceivedMessage) -> Outcome:
        return booked.get(message.keys[0], Outcome.UNKNOWN)  # the transaction may still be running

    def pay(message: Message) -> None:
        with producer.transaction(message) as transaction:
            key = message.keys[0]
            if context.shop.happens(_DECLINED):
                booked[key] = Outcome.ROLLBACK
                context.send_log.add_receipt(transaction.receipt)
                context.send_log.withdraw(transaction.message_id)
                raise CardDeclined(key)
            booked[key] = Outcome.COMMIT
            context.send_log.add_receipt(transaction.receipt)
            if context.shop.happens(_UNDECIDED):
                transaction.leave_open()

    with TransactionProducer(
        context.name_server,
        group="bank",
        check=look_up,
        options=producer_options(),
        client_options=CLIENT,
    ) as producer:
        for _ in context.schedule.ticks():
            try:
                pay(_message(context, context.shop.payment()))
            except CardDeclined:
                continue
            except RocketMQError as error:
                context.send_log.add_failure(error)
        context.wait_until_settled()  # the producer must answer the broker's checks


def mailer(context: ServiceContext) -> None:
    """Send reminders that are due a little later; some are recalled before that."""
    with Producer(
        context.name_server, group="mailer", options=producer_options(), client_options=CLIENT
    ) as producer:
        for _ in context.schedule.ticks():
            event = context.shop.reminder()
            message = Message(
                context.send_log.topic,
                event.body,
                tags=event.tags,
                keys=[event.key],
                deliver_in=context.shop.between(0.8, 2.5),
            )
            try:
                receipt = producer.send(message)
                context.send_log.add_receipt(receipt)
                if context.shop.happens(_RECALLED) and not receipt.may_be_stored_twice:
                    _recall(context, producer, receipt)
            except RocketMQError as error:
                context.send_log.add_failure(error)


def _recall(context: ServiceContext, producer: Producer, receipt: SendReceipt) -> None:
    try:
        producer.recall(receipt.recall_handle)
    except ServerError:
        return  # too late: the message will be delivered
    except RocketMQError:
        context.send_log.mark_unknown(receipt.message_id)
    else:
        context.send_log.withdraw(receipt.message_id)


def access_log(context: ServiceContext) -> None:
    """Send log lines one-way; losing some of them is acceptable."""
    with Producer(
        context.name_server, group="access-log", options=producer_options(), client_options=CLIENT
    ) as producer:
        for _ in context.schedule.ticks():
            try:
                producer.send_oneway(_message(context, context.shop.log_line()))
            except RocketMQError as error:
                context.send_log.add_failure(error)
            else:
                context.send_log.add_oneway()


def marketing(context: ServiceContext) -> None:
    """Send from several threads to an auto-created topic."""
    with (
        Producer(
            context.name_server,
            group="marketing",
            options=producer_options(),
            client_options=CLIENT,
        ) as producer,
        ThreadPoolExecutor(2, "marketing") as threads,
    ):

        def send(coupon: ShopEvent) -> None:
            try:
                context.send_log.add_receipt(producer.send(_message(context, coupon)))
            except RocketMQError as error:
                context.send_log.add_failure(error)

        for _ in context.schedule.ticks():
            threads.submit(send, context.shop.coupon())


def _message(context: ServiceContext, event: ShopEvent) -> Message:
    return Message(context.send_log.topic, event.body, tags=event.tags, keys=[event.key])


# ---- the list of services ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """One of the shop's services.

    Attributes:
        name: Name of the service.
        mode: How it sends.
        topic: Topic that it sends to.
        per_second: Mean number of messages per second.
        run: Runs it.
    """

    name: str
    mode: str
    topic: str
    per_second: float
    run: RunService


SERVICES: Final = (
    Service("checkout", "sync", "orders", 120, checkout),
    Service("web", "async", "clicks", 400, web),
    Service("warehouse", "batch", "stock", 240, warehouse),
    Service("machines", "auto-batch", "readings", 240, machines),
    Service("bank", "transaction", "payments", 50, bank),
    Service("mailer", "delay", "reminders", 40, mailer),
    Service("access-log", "one-way", "access-log", 100, access_log),
    Service("marketing", "sync, threads", "coupons", 60, marketing),
)
#: The topic that the demo does not create: its first message does.
AUTO_CREATED: Final = "coupons"


def create_topics(name_server: str, coupons: SendLog, shop: Shop) -> str:
    """Create all topics but one on every broker; return the broker of the auto-created one.

    The first message to a topic that does not exist makes one broker create it, on that broker
    only. Later lookups find this broker alone, so the cluster is out of balance.

    Args:
        name_server: Address of the name server.
        coupons: The send log of the auto-created topic; records its first message.
        shop: Generates that message.
    """
    with Admin(name_server) as admin:
        for service in SERVICES:
            if service.topic != AUTO_CREATED:
                admin.create_topic(service.topic, queues=QUEUES)
    with Producer(name_server, group="marketing-trial", options=producer_options()) as producer:
        coupon = shop.coupon()
        message = Message(AUTO_CREATED, coupon.body, tags=coupon.tags, keys=[coupon.key])
        receipt = producer.send(message)
    coupons.add_receipt(receipt)
    return receipt.queue.broker
