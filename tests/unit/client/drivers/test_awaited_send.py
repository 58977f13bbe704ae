"""Plain sends on both drivers: without a flow while all is well, by the flow when it is not."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.drivers.awaited_send import AwaitedBatch
from downrange.client.drivers.flow_task import FlowTask
from downrange.client.drivers.submission import CallbackFuture, SubmittedSend
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.producing.gathered_send import GatheredSend
from downrange.client.flows.producing.plain_send import PlainSend
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import (
    CallTimeout,
    ClientClosed,
    ConnectionLost,
    NoPermission,
    SendFailed,
    SendNotPermitted,
    SendTimedOut,
    WrongEventLoop,
)
from downrange.model import Message
from downrange.options import AutoBatch, ClientOptions, FaultTolerance, ProducerOptions
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.headers import SendReply
from downrange.wire.records import decode_batch
from tests.support.waiting import wait_until_async
from tests.unit.client.drivers.peers import (
    PATIENCE,
    FakeDialer,
    Peer,
    aio_driver,
    silence,
    thread_driver,
    with_driver,
)
from tests.unit.client.flows.flow_steps import TOPIC, refused, route

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.drivers.aio import AioDriver
    from downrange.client.drivers.threads import ThreadDriver
    from downrange.client.flows.effects import Flow
    from downrange.model import SendReceipt

SEND = RequestCode.SEND_MESSAGE_V2


def stored(_: Peer, request: Command) -> Command | None:
    """Store every message."""
    if request.code != SEND:
        return Command(0)
    number = int(request.fields["e"])
    return Command(0, SendReply(msg_id="ID", queue_id=number, queue_offset=7).to_fields())


def in_turn(*replies: Callable[[Peer, Command], Command | None]) -> FakeDialer:
    """Return a dialer whose peers reply to sends in these ways, then store messages."""
    left = list(replies)

    def serve(peer: Peer, request: Command) -> Command | None:
        if request.code == SEND and left:
            return left.pop(0)(peer, request)
        return stored(peer, request)

    return FakeDialer(serve)


def cut(peer: Peer, _: Command) -> None:
    peer.cut()


def refuse(_: Peer, __: Command) -> Command:
    return refused(16, "not allowed")


def busy(_: Peer, __: Command) -> Command:
    return refused(2, "busy")


def producer_of(
    driver: AioDriver | ThreadDriver, options: ProducerOptions | None = None
) -> ProducerCore:
    driver.core.routes.replace(route("a", "b"))
    driver.core.notices.clear()
    return ProducerCore(driver.core, "shop", options or ProducerOptions(), Hooks())


def plain(producer: ProducerCore, timeout: float = PATIENCE) -> PlainSend:
    message = Message(TOPIC, b"1")
    send = producer.direct_send(
        message, RoundRobin(), producer.async_rules, timeout, is_limited=True
    )
    assert isinstance(send, PlainSend)
    return send


def assert_idle(producer: ProducerCore) -> None:
    assert producer.permits.in_flight == producer.permits.in_flight_bytes == 0
    assert producer._active == 0


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[FlowTask]:
    """Return the flows that have taken a step."""
    seen: list[FlowTask] = []
    resume = FlowTask.resume

    def counted(task: FlowTask, *args: Any, **named: Any) -> None:
        seen.append(task)
        resume(task, *args, **named)

    monkeypatch.setattr(FlowTask, "resume", counted)
    return seen


# ---- an event loop -------------------------------------------------------------------------------


def test_a_stored_message_needs_no_flow(flows: list[FlowTask]) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        sends = [plain(producer) for _ in range(20)]
        receipts = await asyncio.gather(*(driver.run_send(send) for send in sends))
        assert {receipt.offset for receipt in receipts} == {7}
        assert len({receipt.message_id for receipt in receipts}) == 20
        assert producer.counts.sent == 20
        assert_idle(producer)

    with_driver(main, FakeDialer(stored))
    assert not flows


@pytest.mark.parametrize("trouble", [cut, busy])
def test_a_failed_attempt_is_followed_by_another(trouble: Any) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        receipt = await driver.run_send(plain(producer))
        assert receipt.attempts == 2
        assert (producer.counts.sent, producer.counts.retried) == (1, 1)
        assert_idle(producer)

    with_driver(main, in_turn(trouble))


def test_a_refused_message_fails() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver, ProducerOptions(retries=0))
        with pytest.raises(SendFailed) as caught:
            await driver.run_send(plain(producer))
        assert isinstance(caught.value.attempts[0].error, NoPermission)
        assert producer.counts.failed == 1
        assert_idle(producer)

    with_driver(main, in_turn(refuse))


def test_a_late_reply_is_a_timeout() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        with pytest.raises(SendTimedOut) as caught:
            await driver.run_send(plain(producer, 0.5))
        assert [type(attempt.error) for attempt in caught.value.attempts] == [CallTimeout]
        assert_idle(producer)

    with_driver(main, FakeDialer(silence))


def test_a_cancelled_send_gives_its_room_back_and_its_reply_is_late() -> None:
    held: list[tuple[Peer, Command]] = []

    def hold(peer: Peer, request: Command) -> None:
        held.append((peer, request))

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        task = asyncio.ensure_future(driver.run_send(plain(producer)))
        await wait_until_async(lambda: bool(held))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_idle(producer)
        (peer, request) = held[0]
        answer = stored(peer, request)
        assert answer is not None
        peer.reply(request, answer)
        await wait_until_async(lambda: driver.late_count() == 1)
        assert producer.counts.sent == 0

    with_driver(main, in_turn(hold))


def test_a_send_that_is_cancelled_while_its_flow_retries_ends() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver, ProducerOptions(retry_backoff=PATIENCE))
        driver.core.routes.replace(route("a"))
        task = asyncio.ensure_future(driver.run_send(plain(producer)))
        await wait_until_async(lambda: producer.counts.retried == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_idle(producer)

    with_driver(main, in_turn(busy))


def test_a_send_without_a_route_is_a_flow_from_the_start() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        message = Message("unknown", b"1")
        send = producer.direct_send(message, RoundRobin(), producer.async_rules, 0.05)
        assert send is not None
        with pytest.raises(Exception, match="unknown"):
            await driver.run_send(send)
        assert_idle(producer)

    with_driver(main, FakeDialer(lambda _, __: refused(17)))


def test_health_is_noted_by_the_flow() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver, ProducerOptions(fault_tolerance=FaultTolerance(style="5.x")))
        await driver.run_send(plain(producer))
        (state,) = producer.health.snapshot(driver.clock.now())
        assert state.is_available
        assert state.latency > 0
        assert_idle(producer)

    with_driver(main, FakeDialer(stored))


def test_a_link_without_room_fails_the_attempt() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver, ProducerOptions(retries=0))
        driver.core.routes.replace(route("a"))
        waiting = [asyncio.ensure_future(driver.run_send(plain(producer, 2.0))) for _ in range(11)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        refused_at_once = [one for one in outcomes if "in flight" in str(one)]
        assert len(refused_at_once) == 1
        assert_idle(producer)

    with_driver(main, FakeDialer(silence), ClientOptions(in_flight_max=10))


def test_a_closed_driver_fails_sends_in_flight_and_refuses_new_ones() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = producer_of(driver)
        task = asyncio.ensure_future(driver.run_send(plain(producer)))
        await wait_until_async(lambda: sum(driver.addresses().values()) == 1)
        await driver.close()
        with pytest.raises(SendFailed) as caught:
            await task
        assert isinstance(caught.value.attempts[0].error, ConnectionLost)
        assert isinstance(caught.value.attempts[-1].error, ClientClosed)
        with pytest.raises(ClientClosed):
            await driver.run_send(plain(producer))
        assert_idle(producer)

    with_driver(main, FakeDialer(silence))


def test_a_send_on_another_event_loop_is_refused() -> None:
    async def begin() -> tuple[Any, AioDriver]:
        context = aio_driver(FakeDialer(stored))
        return context, await context.__aenter__()

    first = asyncio.new_event_loop()
    context, driver = first.run_until_complete(begin())
    producer = producer_of(driver)

    async def send() -> SendReceipt:
        return await driver.run_send(plain(producer))

    with pytest.raises(WrongEventLoop):
        asyncio.run(send())  # the same thread, while the other loop rests
    outcomes: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(send())
        except WrongEventLoop as error:
            outcomes.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(PATIENCE)
    assert len(outcomes) == 1
    assert_idle(producer)
    first.run_until_complete(context.__aexit__(None, None, None))
    first.close()


# ---- batches of an event loop --------------------------------------------------------------------


def gathering(driver: AioDriver | ThreadDriver, **settings: int) -> ProducerCore:
    options = ProducerOptions(auto_batch=AutoBatch(**settings))
    return producer_of(driver, options)


def gathered(producer: ProducerCore, body: bytes = b"1") -> GatheredSend:
    send = producer.direct_send(
        Message(TOPIC, body), RoundRobin(), producer.async_rules, is_limited=True
    )
    assert isinstance(send, GatheredSend)
    return send


def batch_stored(_: Peer, request: Command) -> Command | None:
    """Store every message and batch."""
    if "e" not in request.fields:
        return Command(0)
    number = int(request.fields["e"])
    ids = ",".join(f"ID{index}" for index in range(len(decode_batch(request.body))))
    return Command(0, SendReply(msg_id=ids, queue_id=number, queue_offset=7).to_fields())


def test_messages_that_join_a_batch_need_no_flow(flows: list[FlowTask]) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=20)
        sends = [gathered(producer) for _ in range(10)]
        receipts = await asyncio.gather(*(driver.run_send(send) for send in sends))
        assert [receipt.offset for receipt in receipts] == list(range(7, 17))
        assert [receipt.offset_id for receipt in receipts] == [f"ID{n}" for n in range(10)]
        assert producer.counts.sent == 10
        assert producer.accumulator is not None
        assert producer.accumulator.held_bytes == 0
        assert not any(type(waiter) is AwaitedBatch for waiter in driver.deadlines._waiters)
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))
    assert len(set(flows)) == 1  # of the leader


def test_the_error_of_a_batch_goes_to_all() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=10)
        sends = [driver.run_send(gathered(producer)) for _ in range(3)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SendNotPermitted] * 3
        assert len({id(outcome) for outcome in outcomes}) == 3
        assert_idle(producer)

    with_driver(main, FakeDialer(refuse))


def test_a_message_of_a_batch_goes_on_when_its_leader_is_cancelled() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=50)
        leader, *others = (
            asyncio.ensure_future(driver.run_send(gathered(producer))) for _ in range(4)
        )
        await asyncio.sleep(0)
        leader.cancel()
        receipts = await asyncio.gather(*others)
        assert [receipt.offset for receipt in receipts] == [7, 8, 9]
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))


@pytest.mark.parametrize("is_leader_cancelled", [False, True])
def test_a_cancelled_message_leaves_its_batch(is_leader_cancelled: bool) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=300)
        tasks = [asyncio.ensure_future(driver.run_send(gathered(producer))) for _ in range(4)]
        await asyncio.sleep(0)
        if is_leader_cancelled:
            tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.sleep(0)
        tasks[3].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        stored_ones = [one for one in outcomes if not isinstance(one, BaseException)]
        assert len(stored_ones) == (1 if is_leader_cancelled else 2)
        assert producer.counts.sent == len(stored_ones)
        assert producer.accumulator is not None
        assert producer.accumulator.held_bytes == 0
        assert_idle(producer)

    with_driver(main, FakeDialer(lambda peer, request: stored_alone(peer, request)))


def stored_alone(peer: Peer, request: Command) -> Command | None:
    """Store messages and batches; a batch of one message is sent as a message."""
    return stored(peer, request) if request.code == SEND else batch_stored(peer, request)


def test_a_message_runs_out_of_time_in_its_batch() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=5)
        leader = asyncio.ensure_future(driver.run_send(gathered(producer)))
        await asyncio.sleep(0)
        send = gathered(producer)
        send.deadline = driver.clock.now() + 0.5  # the batch is sent before, also when that is slow
        with pytest.raises(SendTimedOut, match="may have been stored"):
            await driver.run_send(send)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert_idle(producer)

    with_driver(main, FakeDialer(silence))


def test_each_message_of_a_batch_has_its_own_deadline() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=5)
        leader = asyncio.ensure_future(driver.run_send(gathered(producer)))
        await asyncio.sleep(0)
        sends = [gathered(producer) for _ in range(3)]
        now = driver.clock.now()
        # So far from each other that a stall of this process does not make them late together.
        for send, seconds in zip(sends, (0.6, 0.2, 0.6), strict=True):
            send.deadline = now + seconds
        ended: list[int] = []

        async def run(number: int) -> None:
            with pytest.raises(SendTimedOut):
                await driver.run_send(sends[number])
            ended.append(number)

        await asyncio.gather(*(run(number) for number in range(3)))
        assert ended == [1, 0, 2]
        assert producer.permits.in_flight == 1
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert not any(type(waiter) is AwaitedBatch for waiter in driver.deadlines._waiters)
        assert_idle(producer)

    with_driver(main, FakeDialer(silence))


def cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()


def test_a_caller_may_be_cancelled_in_the_turn_in_which_its_batch_ends() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=5)
        tasks = [asyncio.ensure_future(driver.run_send(gathered(producer))) for _ in range(4)]
        await asyncio.sleep(0)
        assert producer.accumulator is not None
        (batch,) = producer.accumulator._open.values()
        # The first is cancelled before the futures are completed, the second after that.
        batch.changed._listeners.insert(0, partial(cancel, tasks[1]))
        batch.changed._listeners.append(partial(cancel, tasks[2]))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
        assert cancelled == [False, True, True, False]
        assert producer.accumulator.held_bytes == 0
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))


def test_a_batch_whose_callers_are_all_cancelled_is_dropped() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=1000)
        tasks = [asyncio.ensure_future(driver.run_send(gathered(producer))) for _ in range(4)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert not any(type(waiter) is AwaitedBatch for waiter in driver.deadlines._waiters)
        assert producer.accumulator is not None
        assert (producer.accumulator.held_bytes, producer.accumulator._open) == (0, {})
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))


def test_a_send_that_has_taken_over_can_be_cancelled_as_well() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=500)
        tasks = [asyncio.ensure_future(driver.run_send(gathered(producer))) for _ in range(4)]
        for task in tasks[:2]:
            await asyncio.sleep(0.005)
            task.cancel()
        receipts = await asyncio.gather(*tasks[2:])
        assert [receipt.offset for receipt in receipts] == [7, 8]
        assert producer.accumulator is not None
        assert producer.accumulator.held_bytes == 0
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))


def test_a_batch_that_has_ended_leaves_no_garbage() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        producer = gathering(driver, hold_ms=5)
        gc.disable()  # garbage would stay
        try:
            await asyncio.gather(*(driver.run_send(gathered(producer)) for _ in range(10)))
            things = gc.get_objects()
        finally:
            gc.enable()
        assert not [one for one in things if type(one) is GatheredSend and one.producer is producer]
        assert_idle(producer)

    with_driver(main, FakeDialer(batch_stored))


def test_a_thread_waits_for_its_batch_by_a_flow() -> None:
    with thread_driver(FakeDialer(stored_alone)) as driver:
        producer = gathering(driver, hold_ms=1)
        assert driver.run_send(gathered(producer)).offset == 7
        assert_idle(producer)


# ---- threads -------------------------------------------------------------------------------------


def test_a_thread_needs_no_flow_for_a_stored_message(flows: list[FlowTask]) -> None:
    with thread_driver(FakeDialer(stored)) as driver:
        producer = producer_of(driver)
        assert driver.run_send(plain(producer)).offset == 7
        assert producer.counts.sent == 1
        assert_idle(producer)
    assert not flows


@pytest.mark.parametrize("trouble", [cut, busy])
def test_a_thread_makes_another_attempt(trouble: Any) -> None:
    with thread_driver(in_turn(trouble)) as driver:
        producer = producer_of(driver)
        assert driver.run_send(plain(producer)).attempts == 2
        assert_idle(producer)


def test_a_thread_waits_until_the_deadline() -> None:
    with thread_driver(FakeDialer(silence)) as driver:
        producer = producer_of(driver)
        with pytest.raises(SendTimedOut):
            driver.run_send(plain(producer, 0.05))
        assert_idle(producer)


def test_a_thread_that_is_interrupted_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with thread_driver(FakeDialer(stored)) as driver:
        producer = producer_of(driver)
        monkeypatch.setattr(driver._connections, "call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            driver.run_send(plain(producer))
        assert_idle(producer)


def test_a_thread_without_a_route_runs_the_flow() -> None:
    with thread_driver(FakeDialer(lambda _, __: refused(17))) as driver:
        producer = producer_of(driver)
        send = producer.direct_send(Message("unknown", b"1"), RoundRobin(), producer.waiting_rules)
        assert send is not None
        with pytest.raises(Exception, match="unknown"):
            driver.run_send(send)
        assert_idle(producer)


def test_a_crowd_of_threads_sends_through_the_engine() -> None:
    options = ClientOptions(sync_connections_max=1)
    with thread_driver(FakeDialer(stored), options) as driver:
        producer = producer_of(driver)
        receipts: list[SendReceipt] = []

        def send() -> None:
            receipts.extend([driver.run_send(plain(producer)) for _ in range(20)])

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(receipts) == 160
        assert_idle(producer)


def test_a_closed_thread_driver_refuses_sends() -> None:
    with thread_driver(FakeDialer(stored)) as driver:
        producer = producer_of(driver)
        driver.close()
        with pytest.raises(ClientClosed):
            driver.run_send(plain(producer))
        assert_idle(producer)


# ---- futures -------------------------------------------------------------------------------------


def test_a_submitted_message_needs_no_flow(flows: list[FlowTask]) -> None:
    with thread_driver(FakeDialer(stored)) as driver:
        producer = producer_of(driver)
        futures = [driver.submit_send(plain(producer)) for _ in range(20)]
        assert {future.result(PATIENCE).offset for future in futures} == {7}
        assert producer.counts.sent == 20
        assert not driver.submissions
        assert driver.backlog == 0
        assert_idle(producer)
    assert not flows


@pytest.mark.parametrize("trouble", [cut, busy])
def test_a_submitted_message_is_sent_again(trouble: Any) -> None:
    with thread_driver(in_turn(trouble)) as driver:
        producer = producer_of(driver)
        assert driver.submit_send(plain(producer)).result(PATIENCE).attempts == 2
        assert_idle(producer)


def test_a_submitted_message_without_a_route_is_a_flow() -> None:
    with thread_driver(FakeDialer(lambda _, __: refused(17))) as driver:
        producer = producer_of(driver)
        send = producer.direct_send(Message("unknown", b"1"), RoundRobin(), producer.submit_rules)
        assert isinstance(send, PlainSend)
        with pytest.raises(Exception, match="unknown"):
            driver.submit_send(send).result(PATIENCE)
        assert_idle(producer)


def test_a_cancelled_future_ends_its_send() -> None:
    dialer = FakeDialer(silence)
    with thread_driver(dialer) as driver:
        producer = producer_of(driver)
        future = driver.submit_send(plain(producer))
        dialer.wait_for_request()
        assert future.cancel()
        driver.run_last(nothing())
        assert not driver.submissions
        assert_idle(producer)


def test_a_future_that_is_cancelled_at_once_sends_nothing() -> None:
    with thread_driver(FakeDialer(stored)) as driver:
        producer = producer_of(driver)
        is_blocked = threading.Event()
        driver.on_engine(lambda: assert_set(is_blocked))
        future = driver.submit_send(plain(producer))
        assert future.cancel()
        is_blocked.set()
        driver.run_last(nothing())
        assert producer.counts.sent == 0
        assert_idle(producer)


def test_closing_fails_submitted_messages_in_flight_and_those_that_wait() -> None:
    dialer = FakeDialer(silence)
    with thread_driver(dialer) as driver:
        producer = producer_of(driver)
        future = driver.submit_send(plain(producer))
        dialer.wait_for_request()
        driver.close()
        with pytest.raises((SendFailed, ClientClosed)):
            future.result(PATIENCE)
        with pytest.raises(ClientClosed):
            driver.submit_send(plain(producer))
        late = SubmittedSend(
            driver.engine.scheduler,
            plain(producer),
            CallbackFuture(driver),
            0.0,
            9.0,
            engine=driver,
        )
        driver.unstarted.append(None)
        late.begin()
        assert isinstance(late.future.exception(), ClientClosed)
        assert_idle(producer)


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


def nothing() -> Flow[None]:
    return
    yield
