"""The shop's services, each of which sends in another way.

    checkout    sync            waits for every receipt
    web         async           many on their way at once, on an event loop
    warehouse   batch           a list in one request
    machines    auto-batch      one by one, gathered behind the scenes
    bank        transaction     seen only when the local work has succeeded
    mailer      delay           seen later, or taken back before
    access-log  one-way         nobody answers
    marketing   sync            to a topic that nobody made: Apache's way, on one broker

All of them leave traces and avoid brokers that failed. One rule: what becomes of a message is told
to the service's account at once, so that the demo can see in the end whether the brokers kept word.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.client.admin import Admin
from downrange.client.producer import AsyncProducer, Producer
from downrange.client.transaction import TransactionProducer
from downrange.errors import BatchFailed, RocketMQError, ServerError
from downrange.model import Message, Outcome
from downrange.options import AutoBatch, ClientOptions, FaultTolerance, ProducerOptions, Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from downrange.demo.ledger import Account
    from downrange.demo.orders import Note, Shop
    from downrange.demo.pace import Pace
    from downrange.model import ReceivedMessage, SendReceipt

#: Queues per broker of the topics that are made before anybody sends.
QUEUES: Final = 4
#: Routes and heartbeats are brought up to date sooner than usual: the demo is short.
CLIENT: Final = ClientOptions(route_refresh_interval=2.0, heartbeat_interval=1.0)
#: How long open transactions and delayed messages may take to be seen after the last send.
SETTLE_TIMEOUT: Final = 60.0
_STOCK_COUNTS: Final = 40
_DECLINED: Final = 0.10
_UNDECIDED: Final = 0.05
_CHANGED_MIND: Final = 0.12
_IN_FLIGHT: Final = 256


@dataclass(frozen=True, slots=True)
class Shift:
    """What a service is given for its day's work.

    Attributes:
        name_server: Where to connect.
        pace: When to send.
        shop: What there is to say.
        account: Whom to tell what became of it.
        settled: Set when everything that was acknowledged has been seen.
        has_sent: Set by a service that has sent everything, and stays.
    """

    name_server: str
    pace: Pace
    shop: Shop
    account: Account
    settled: threading.Event
    has_sent: threading.Event = field(default_factory=threading.Event)

    def stay(self) -> None:
        """Say that everything is sent, and stay until it has been seen."""
        self.has_sent.set()
        self.settled.wait(SETTLE_TIMEOUT)


#: A service's work, from opening its producer to closing it.
Work: TypeAlias = "Callable[[Shift], None]"


def options(auto_batch: AutoBatch | None = None) -> ProducerOptions:
    """Return how all services send: with traces, retries, and a memory for brokers that failed."""
    return ProducerOptions(
        trace=Trace(batch_count=20, flush_interval=0.5, queue_max=20_000),
        # A broker that failed is avoided for 3 s; the usual 10 s are most of a short day.
        fault_tolerance=FaultTolerance(
            style="5.x", latency_ms=(550, 5000), avoid_ms=(500, 3000), detect_interval=0.5
        ),
        timeout=5.0,
        attempt_timeout=1.5,
        auto_batch=auto_batch,
    )


# ---- the services --------------------------------------------------------------------------------


def checkout(shift: Shift) -> None:
    """Send each order and wait until a broker has it."""
    with Producer(
        shift.name_server, group="checkout", options=options(), client_options=CLIENT
    ) as producer:
        for _ in shift.pace.beats():
            order = shift.shop.order()
            message = Message(
                shift.account.topic,
                order.body,
                tags=order.tags,
                keys=[order.key],
                properties={"customer": order.customer or ""},
            )
            try:
                shift.account.sent(producer.send(message))
            except RocketMQError as error:
                shift.account.failed(error)


def web(shift: Shift) -> None:
    """Send clicks from an event loop, without waiting for one before the next."""
    asyncio.run(_send_clicks(shift))


async def _send_clicks(shift: Shift) -> None:
    async with (
        AsyncProducer(
            shift.name_server, group="web", options=options(), client_options=CLIENT
        ) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        room = asyncio.Semaphore(_IN_FLIGHT)

        async def send(click: Note) -> None:
            async with room:
                try:
                    shift.account.sent(await producer.send(_message(shift, click)))
                except RocketMQError as error:
                    shift.account.failed(error)

        async for _ in shift.pace.async_beats():
            tasks.create_task(send(shift.shop.click()))


def warehouse(shift: Shift) -> None:
    """Send stock counts by the list; a list takes as few requests as it fits in."""
    with Producer(
        shift.name_server, group="warehouse", options=options(), client_options=CLIENT
    ) as producer:
        counts: list[Message] = []
        for beat in shift.pace.beats():
            counts.append(_message(shift, shift.shop.stock_count()))
            if len(counts) == _STOCK_COUNTS or beat == shift.pace.planned - 1:
                _send_list(shift, producer, counts)
                counts = []


def _send_list(shift: Shift, producer: Producer, counts: list[Message]) -> None:
    try:
        shift.account.sent_batch(producer.send_batch(counts))
    except BatchFailed as error:  # a part of it is stored
        shift.account.sent_batch(error.stored)
        shift.account.failed(error, len(counts) - len(error.stored))
    except RocketMQError as error:
        shift.account.failed(error, len(counts))


def machines(shift: Shift) -> None:
    """Send readings one by one; the producer gathers those of 10 ms into one request."""
    gather = AutoBatch(hold_ms=10)
    with Producer(
        shift.name_server, group="machines", options=options(gather), client_options=CLIENT
    ) as producer:
        under_way: deque[Future[SendReceipt]] = deque()
        for _ in shift.pace.beats():
            under_way.append(producer.submit(_message(shift, shift.shop.reading())))
            while under_way and (under_way[0].done() or len(under_way) > _IN_FLIGHT):
                _settle(shift, under_way.popleft())
        for future in under_way:
            _settle(shift, future)


def _settle(shift: Shift, future: Future[SendReceipt]) -> None:
    try:
        shift.account.sent(future.result())
    except RocketMQError as error:
        shift.account.failed(error)


class CardDeclined(Exception):
    """The bank says no."""


def bank(shift: Shift) -> None:
    """Announce payments that succeed; those that are declined were never there.

    A few are left open, as if the service had died in between: the broker asks what became of
    them, and `look_up` finds it where all processes of the service would look.
    """
    booked: dict[str, Outcome] = {}

    def look_up(message: ReceivedMessage) -> Outcome:
        return booked.get(message.keys[0], Outcome.UNKNOWN)  # may be under way just now

    def pay(message: Message) -> None:
        with producer.transaction(message) as transaction:
            key = message.keys[0]
            if shift.shop.happens(_DECLINED):
                booked[key] = Outcome.ROLLBACK
                shift.account.sent(transaction.receipt)
                shift.account.withdrew(transaction.message_id)
                raise CardDeclined(key)
            booked[key] = Outcome.COMMIT
            shift.account.sent(transaction.receipt)
            if shift.shop.happens(_UNDECIDED):
                transaction.leave_open()

    with TransactionProducer(
        shift.name_server, group="bank", check=look_up, options=options(), client_options=CLIENT
    ) as producer:
        for _ in shift.pace.beats():
            try:
                pay(_message(shift, shift.shop.payment()))
            except CardDeclined:
                continue
            except RocketMQError as error:
                shift.account.failed(error)
        shift.stay()  # somebody has to answer the broker's questions


def mailer(shift: Shift) -> None:
    """Send reminders that are due a little later; some are taken back before that."""
    with Producer(
        shift.name_server, group="mailer", options=options(), client_options=CLIENT
    ) as producer:
        for _ in shift.pace.beats():
            note = shift.shop.reminder()
            message = Message(
                shift.account.topic,
                note.body,
                tags=note.tags,
                keys=[note.key],
                deliver_in=shift.shop.between(0.8, 2.5),
            )
            try:
                receipt = producer.send(message)
                shift.account.sent(receipt)
                if shift.shop.happens(_CHANGED_MIND) and not receipt.may_be_stored_twice:
                    _recall(shift, producer, receipt)
            except RocketMQError as error:
                shift.account.failed(error)


def _recall(shift: Shift, producer: Producer, receipt: SendReceipt) -> None:
    try:
        producer.recall(receipt.recall_handle)
    except ServerError:
        return  # too late: it will be seen
    except RocketMQError:
        shift.account.lost_sight_of(receipt.message_id)
    else:
        shift.account.withdrew(receipt.message_id)


def access_log(shift: Shift) -> None:
    """Hand over log lines without waiting for an answer; some may be lost, and nobody minds."""
    with Producer(
        shift.name_server, group="access-log", options=options(), client_options=CLIENT
    ) as producer:
        for _ in shift.pace.beats():
            try:
                producer.send_oneway(_message(shift, shift.shop.log_line()))
            except RocketMQError as error:
                shift.account.failed(error)
            else:
                shift.account.sent_oneway()


def marketing(shift: Shift) -> None:
    """Send from several threads to a topic that nobody made, with what Apache makes of it."""
    with (
        Producer(
            shift.name_server, group="marketing", options=options(), client_options=CLIENT
        ) as producer,
        ThreadPoolExecutor(2, "marketing") as threads,
    ):

        def send(coupon: Note) -> None:
            try:
                shift.account.sent(producer.send(_message(shift, coupon)))
            except RocketMQError as error:
                shift.account.failed(error)

        for _ in shift.pace.beats():
            threads.submit(send, shift.shop.coupon())


def _message(shift: Shift, note: Note) -> Message:
    return Message(shift.account.topic, note.body, tags=note.tags, keys=[note.key])


# ---- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """One of the shop's services.

    Attributes:
        name: What it is called.
        mode: How it sends.
        topic: Where to.
        per_second: How many messages, on average.
        run: Does its work.
    """

    name: str
    mode: str
    topic: str
    per_second: float
    run: Work


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
#: The topic that nobody makes.
AUTO_CREATED: Final = "coupons"


def open_shop(name_server: str, coupons: Account, shop: Shop) -> str:
    """Make the topics, all but one on every broker; return the broker that has that one.

    The first message to a topic that does not exist makes a broker create it, on itself alone. Who
    looks it up from then on finds that broker only; this is how a cluster gets out of balance.

    Args:
        name_server: Where to connect.
        coupons: The account of that topic, told of its first message.
        shop: Says what is in it.
    """
    with Admin(name_server) as admin:
        for service in SERVICES:
            if service.topic != AUTO_CREATED:
                admin.create_topic(service.topic, queues=QUEUES)
    with Producer(name_server, group="marketing-trial", options=options()) as producer:
        coupon = shop.coupon()
        message = Message(AUTO_CREATED, coupon.body, tags=coupon.tags, keys=[coupon.key])
        receipt = producer.send(message)
    coupons.sent(receipt)
    return receipt.queue.broker
