from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.effects import Flow, Gather, Pause, UserCall, Wait
from downrange.client.flows.hooks import EndTransactionContext, MessageType
from downrange.client.flows.producing.trace_buffer import (
    BODY_BYTES_MAX,
    TraceBuffer,
    close_dispatcher,
    dispatch_loop,
    flush_trace,
    trace_loop,
    trace_of_end_transaction,
    trace_of_recall,
    trace_of_send,
)
from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_trace,
    encode_contexts,
)
from downrange.errors import RocketMQError
from downrange.model import Message, QueueId, QueueOffset, SendReceipt, SendStatus
from downrange.options.clients import Trace
from downrange.wire.codes import TransactionFlag
from tests.support.clock import FakeClock


def buffer(**options: Any) -> TraceBuffer:
    return TraceBuffer(Trace(**options), FakeClock())


def pub(
    number: int, *, topic: str = "orders", region: str = "r", keys: str | None = None
) -> PubTrace:
    return PubTrace(
        time_ms=number,
        region=region,
        group="shop",
        topic=topic,
        message_id=f"M{number}",
        tags=None,
        keys=keys,
        address="127.0.0.1:10911",
        body_bytes=1,
        cost_ms=1,
        message_type=0,
        offset_id=f"O{number}",
        is_success=True,
    )


def records_of(messages: list[Message]) -> list[list[TraceRecord]]:
    return [decode_trace(message.body) for message in messages]


def receipt(status: SendStatus = SendStatus.STORED) -> SendReceipt:
    return SendReceipt(
        message_id="M1",
        queue=QueueId("orders", "broker-a", 2),
        offset=QueueOffset(7),
        offset_id="O1",
        status=status,
        region="HZ",
    )


# ---- the buffer ----------------------------------------------------------------------------------


def test_buffer_keeps_records_until_there_are_enough() -> None:
    traces = buffer(batch_count=3)
    traces.add(pub(1))
    traces.add(pub(2))
    assert not traces.ready.is_fired
    assert traces.take(100.0) == []
    traces.add(pub(3))
    assert traces.ready.is_fired
    [message] = traces.take(100.0)
    assert message.topic == "RMQ_SYS_TRACE_TOPIC"
    assert message.body == encode_contexts([pub(1), pub(2), pub(3)])
    assert len(traces) == 0


def test_buffer_gives_what_has_waited_long_enough() -> None:
    traces = buffer(flush_interval=5.0)
    traces.add(pub(1))
    assert traces.take(104.9) == []
    assert records_of(traces.take(105.0)) == [[pub(1)]]


def test_waiting_is_counted_from_the_oldest_record() -> None:
    traces = TraceBuffer(Trace(flush_interval=5.0), clock := FakeClock())
    traces.add(pub(1))
    clock.seconds = 103.0
    traces.add(pub(2))
    assert traces.due_in(103.0) == 2.0
    assert traces.due_in(109.0) == 0.0
    traces.take_all()
    traces.add(pub(3))
    assert traces.due_in(103.0) == 5.0


def test_empty_buffer_is_due_when_a_record_added_now_would_be() -> None:
    traces = buffer(flush_interval=5.0)
    assert traces.due_in(1000.0) == 5.0
    assert traces.take(1000.0) == []


def test_buffer_waits_for_the_next_ones_with_another_signal() -> None:
    traces = buffer(batch_count=1)
    quiet = traces.ready
    assert traces.take_all() == []
    assert traces.ready is quiet
    traces.add(pub(1))
    traces.take_all()
    assert quiet.is_fired
    assert not traces.ready.is_fired


def test_long_queue_is_taken_piece_by_piece_while_the_signal_stays_fired() -> None:
    traces = buffer(batch_count=20)
    for number in range(225):
        traces.add(pub(number))
    lengths: list[int] = []
    while messages := traces.take(100.0):
        lengths.append(sum(map(len, records_of(messages))))
        assert traces.ready.is_fired is (len(traces) >= 20)
    assert lengths == [100, 100, 25]


def test_closing_takes_a_long_queue_at_once() -> None:
    traces = buffer()
    for number in range(225):
        traces.add(pub(number))
    assert sum(map(len, records_of(traces.take_all()))) == 225
    assert not traces.ready.is_fired


def test_full_buffer_drops_records_and_counts_them() -> None:
    traces = buffer(queue_max=2)
    for number in range(5):
        traces.add(pub(number))
    assert (len(traces), traces.dropped_count) == (2, 3)
    assert records_of(traces.take_all()) == [[pub(0), pub(1)]]


def test_buffer_smaller_than_a_batch_is_ready_when_it_is_full() -> None:
    traces = buffer(queue_max=2, batch_count=10)
    traces.add(pub(1))
    traces.add(pub(2))
    assert traces.ready.is_fired
    assert len(traces.take(100.0)) == 1


def test_records_of_different_topics_or_regions_do_not_share_a_message() -> None:
    traces = buffer()
    apart = [pub(1), pub(2, topic="other"), pub(3, region="far"), pub(4)]
    before = SubBeforeTrace(
        time_ms=1, region="r", group="g", request_id="q", message_id="M", retry_count=0
    )
    after = SubAfterTrace(request_id="q", message_id="M", cost_ms=1, is_success=True)
    records: list[TraceRecord] = [*apart, before, after]
    for record in records:
        traces.add(record)
    assert records_of(traces.take_all()) == [
        [apart[0], apart[3]],
        [apart[1]],
        [apart[2]],
        [before],
        [after],
    ]


def test_message_holds_no_more_records_than_the_option_says() -> None:
    traces = buffer(batch_count=2)
    for number in range(5):
        traces.add(pub(number))
    assert [len(records) for records in records_of(traces.take_all())] == [2, 2, 1]


def test_message_stays_within_its_size() -> None:
    traces = buffer(batch_count=20)
    large = [pub(number, keys="k" * 14_000) for number in range(20)]
    for record in large:
        traces.add(record, keys=())
    messages = traces.take_all()
    assert [record for records in records_of(messages) for record in records] == large
    assert len(messages) == 3
    assert all(len(message.body) <= BODY_BYTES_MAX for message in messages)


def test_record_that_no_message_can_hold_is_dropped_and_counted() -> None:
    traces = buffer()
    traces.add(pub(1, keys="k" * BODY_BYTES_MAX))
    traces.add(pub(2))
    assert records_of(traces.take_all()) == [[pub(2)]]
    assert traces.dropped_count == 1


def test_message_is_found_by_the_ids_and_keys_of_all_its_records_once_each() -> None:
    traces = buffer()
    traces.add(pub(1, keys="a b"))
    traces.add(pub(2, keys="b c"))
    assert traces.take_all()[0].keys == ("M1", "a", "b", "M2", "c")


def test_keys_that_are_given_take_the_place_of_those_of_the_record() -> None:
    traces = buffer()
    traces.add(pub(1, keys="a"), keys=["x y", "z"])
    assert traces.take_all()[0].keys == ("x", "y", "z")


def test_keys_stay_within_what_the_properties_of_a_message_can_hold() -> None:
    traces = buffer(batch_count=20)
    for number in range(10):
        traces.add(pub(number), keys=[f"é{number}{'k' * 300}{index}" for index in range(30)])
    messages = traces.take_all()
    assert [len(records) for records in records_of(messages)] == [3, 3, 3, 1]
    assert all(len(message.keys) == 30 * len(decode_trace(message.body)) for message in messages)


def test_record_with_too_many_keys_keeps_the_first_ones() -> None:
    traces = buffer()
    keys = [f"{number:032}" for number in range(2000)]
    traces.add(pub(1), keys=keys)
    [message] = traces.take_all()
    assert message.keys == tuple(keys[:500])


@pytest.mark.parametrize(
    ("topic", "is_traced"),
    [("orders", True), ("RMQ_SYS_TRACE_TOPIC", False), ("RMQ_SYS_TRACE_TOPIC_2", False)],
)
def test_traces_are_not_traced(topic: str, is_traced: bool) -> None:
    assert buffer().traces_topic(topic) is is_traced


# ---- flows ---------------------------------------------------------------------------------------


def send(message: Message) -> Flow[SendReceipt]:
    """Replace a send; the test answers the `Gather`."""
    yield Gather([], 1)
    return receipt()


def test_loop_sends_when_there_is_enough_and_waits_again() -> None:
    traces = buffer(batch_count=1, flush_interval=5.0)
    loop = trace_loop(traces, send)
    assert next(loop) == Wait(traces.ready, 105.0)
    traces.add(pub(1, topic="a"))
    traces.add(pub(2, topic="b"))
    gather = loop.send(True)
    assert isinstance(gather, Gather)
    assert len(gather.flows) == 2
    assert loop.send([receipt(), RocketMQError("broker away")]) == Wait(traces.ready, 105.0)
    assert not traces.ready.is_fired
    assert (traces.sent_count, traces.failed_count, traces.dropped_count) == (1, 1, 0)


def test_loop_sends_what_has_waited_long_enough() -> None:
    traces = TraceBuffer(Trace(flush_interval=5.0), clock := FakeClock())
    loop = trace_loop(traces, send)
    next(loop)
    clock.seconds = 102.0
    traces.add(pub(1))
    clock.seconds = 105.0
    assert loop.send(False) == Wait(traces.ready, 107.0)
    clock.seconds = 107.0
    assert isinstance(loop.send(False), Gather)


def test_loop_hands_each_message_to_the_send_that_it_was_given() -> None:
    given: list[Message] = []

    def remember(message: Message) -> Flow[SendReceipt]:
        given.append(message)
        return send(message)

    traces = buffer(batch_count=1)
    loop = trace_loop(traces, remember)
    next(loop)
    traces.add(pub(1))
    loop.send(True)
    assert records_of(given) == [[pub(1)]]


def test_closing_sends_all_that_is_left() -> None:
    traces = buffer()
    traces.add(pub(1))
    flow = flush_trace(traces, send, 110.0)
    assert isinstance(next(flow), Gather)
    with pytest.raises(StopIteration):
        flow.send([receipt()])
    assert (len(traces), traces.sent_count) == (0, 1)
    assert list(flush_trace(traces, send, 110.0)) == []


def test_closing_waits_for_what_the_loop_is_sending() -> None:
    traces = buffer(batch_count=1)
    loop = trace_loop(traces, send)
    next(loop)
    traces.add(pub(1))
    assert isinstance(loop.send(True), Gather)
    traces.add(pub(2))
    flow = flush_trace(traces, send, 110.0)
    assert isinstance(next(flow), Gather)
    wait = flow.send([receipt()])
    assert isinstance(wait, Wait)
    assert (wait.deadline, wait.signal.is_fired) == (110.0, False)
    loop.send([receipt()])
    assert wait.signal.is_fired
    assert (traces.under_way, traces.sent_count) == (0, 2)


# ---- the trace topics of a cloud -----------------------------------------------------------------


def test_records_for_a_cloud_are_sent_to_the_topic_of_their_region() -> None:
    traces = TraceBuffer(Trace(topic="mine"), FakeClock(), "cloud")
    traces.add(pub(1, region="north"))
    traces.add(pub(2, region="south"))
    traces.add(pub(3, region="north"))
    traces.add(pub(4, region=""))
    traces.add(SubAfterTrace(request_id="R", message_id="M", cost_ms=1, is_success=True))
    assert [(message.topic, len(decode_trace(message.body))) for message in traces.take_all()] == [
        ("rmq_sys_TRACE_DATA_north", 2),
        ("rmq_sys_TRACE_DATA_south", 1),
        ("rmq_sys_TRACE_DATA_DefaultRegion", 1),
        ("rmq_sys_TRACE_DATA_DefaultRegion", 1),
    ]


def test_messages_of_a_cloud_trace_topic_are_not_traced() -> None:
    traces = TraceBuffer(Trace(topic="mine"), FakeClock(), "cloud")
    assert not traces.traces_topic("rmq_sys_TRACE_DATA_north")
    assert traces.traces_topic("mine")


# ---- a dispatcher of the user --------------------------------------------------------------------


class Dispatcher:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def append(self, record: TraceRecord) -> object:
        self.calls.append(record)
        return None

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class World:
    """A buffer with a dispatcher, its clock, and the reported errors."""

    def __init__(self, **options: Any) -> None:
        self.dispatcher = Dispatcher()
        self.clock = FakeClock()
        self.reports: list[str] = []
        options = {"flush_interval": 5.0, **options}
        self.traces = TraceBuffer(Trace(dispatcher=self.dispatcher, **options), self.clock)

    def loop(self) -> Flow[None]:
        return dispatch_loop(self.traces, self.dispatcher, self.report)

    def closing(self) -> Flow[None]:
        return close_dispatcher(self.traces, self.dispatcher, self.report, 110.0)

    def report(self, where: str, error: BaseException) -> Flow[None]:
        self.reports.append(f"{where}: {error}")
        yield from ()


def performed(flow: Flow[None], effect: object) -> object:
    """Perform user calls of a flow; return the first other effect, or None at its end."""
    try:
        while isinstance(effect, UserCall):
            effect = flow.send(effect.function(*effect.args))
    except StopIteration:
        return None
    return effect


def test_a_dispatcher_gets_each_record_at_once_and_flushes_in_time() -> None:
    world = World()
    loop = world.loop()
    wait = next(loop)
    assert wait == Wait(world.traces.ready, 105.0)
    world.clock.seconds = 101.0
    world.traces.add(pub(1))
    world.traces.add(pub(2))
    assert world.traces.ready.is_fired
    assert performed(loop, loop.send(True)) == Wait(world.traces.ready, 106.0)
    assert world.dispatcher.calls == [pub(1), pub(2)]
    world.clock.seconds = 103.0
    world.traces.add(pub(3))
    assert performed(loop, loop.send(True)) == Wait(world.traces.ready, 106.0)
    world.clock.seconds = 106.0
    flush = loop.send(False)
    assert isinstance(flush, UserCall)
    assert flush.may_block
    assert performed(loop, flush) == Wait(world.traces.ready, 111.0)
    assert world.dispatcher.calls == [pub(1), pub(2), pub(3), "flush"]
    world.clock.seconds = 111.0
    assert loop.send(False) == Wait(world.traces.ready, 116.0)
    assert (world.traces.sent_count, world.traces.dropped_count) == (3, 0)


def test_closing_gives_the_rest_to_the_dispatcher_and_closes_it() -> None:
    world = World()
    loop = world.loop()
    next(loop)
    world.traces.add(pub(1))
    flow = world.closing()
    assert performed(flow, next(flow)) is None
    assert world.dispatcher.calls == [pub(1), "flush", "close"]
    with pytest.raises(StopIteration):
        loop.send(False)


def test_closing_waits_for_the_call_of_the_dispatcher_that_is_running() -> None:
    world = World()
    loop = world.loop()
    next(loop)
    world.traces.add(pub(1))
    append = loop.send(True)
    closing = world.closing()
    wait = next(closing)
    assert isinstance(wait, Wait)
    assert (wait.deadline, wait.signal.is_fired) == (110.0, False)
    performed(loop, append)
    assert wait.signal.is_fired
    assert performed(closing, closing.send(True)) is None
    assert world.dispatcher.calls == [pub(1), "flush", "close"]


def test_closing_gives_each_call_the_deadline() -> None:
    world = World()
    world.traces.add(pub(1))
    closing = world.closing()
    calls = [next(closing), closing.send(None), closing.send(None)]
    assert [call.deadline for call in calls if isinstance(call, UserCall)] == [110.0] * 3


def test_dispatcher_that_does_not_end_a_call_is_not_called_again() -> None:
    world = World()

    def report(where: str, error: BaseException) -> Flow[None]:
        yield from world.report(where, error)
        yield Pause(0.0)

    closing = close_dispatcher(world.traces, world.dispatcher, report, 110.0)
    assert isinstance(next(closing), UserCall)
    world.clock.seconds = 110.0
    assert closing.throw(TimeoutError("late")) == Pause(0.0)
    with pytest.raises(StopIteration):
        closing.send(None)
    assert world.reports == ["flush() of the trace dispatcher: late"]
    assert world.traces.failed_count == 1


def test_closing_gives_up_if_the_running_call_does_not_end() -> None:
    world = World()
    loop = world.loop()
    next(loop)
    world.traces.add(pub(1))
    loop.send(True)
    closing = world.closing()
    assert isinstance(next(closing), Wait)
    with pytest.raises(StopIteration):
        closing.send(False)
    assert world.reports == [
        "close() of the trace dispatcher: a call before it did not end in time, so it was not "
        "called"
    ]
    assert world.traces.failed_count == 1


def test_errors_of_a_dispatcher_are_reported_and_counted() -> None:
    world = World()
    world.traces.add(pub(1))
    world.traces.add(pub(2))
    flow = world.closing()
    assert isinstance(next(flow), UserCall)
    assert isinstance(flow.throw(ValueError("a")), UserCall)
    assert isinstance(flow.send(False), UserCall)  # the second record was dropped
    assert isinstance(flow.throw(ValueError("b")), UserCall)
    with pytest.raises(StopIteration):
        flow.throw(ValueError("c"))
    assert world.reports == [
        "append() of the trace dispatcher: a",
        "flush() of the trace dispatcher: b",
        "close() of the trace dispatcher: c",
    ]
    assert (world.traces.failed_count, world.traces.dropped_count) == (3, 1)


# ---- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", SendStatus)
def test_send_that_was_answered_is_traced_with_what_the_broker_said(status: SendStatus) -> None:
    assert trace_of_send(
        receipt(status),
        group="shop",
        topic="orders",
        tags="new",
        keys=("k1", "k2"),
        address="127.0.0.1:10911",
        body_bytes=77,
        message_type=MessageType.DELAY,
        time_ms=1_700_000_000_000,
        cost_ms=3,
    ) == PubTrace(
        time_ms=1_700_000_000_000,
        region="HZ",
        group="shop",
        topic="orders",
        message_id="M1",
        tags="new",
        keys="k1 k2",
        address="127.0.0.1:10911",
        body_bytes=77,
        cost_ms=3,
        message_type=3,
        offset_id="O1",
        is_success=status is SendStatus.STORED,
    )


def test_send_without_keys_has_none_in_its_trace() -> None:
    record = trace_of_send(
        receipt(),
        group="g",
        topic="t",
        tags=None,
        keys=(),
        address="a:1",
        body_bytes=0,
        message_type=MessageType.NORMAL,
        time_ms=1,
        cost_ms=0,
    )
    assert record.keys is None


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (TransactionFlag.COMMIT, "COMMIT_MESSAGE"),
        (TransactionFlag.ROLLBACK, "ROLLBACK_MESSAGE"),
        (TransactionFlag.NONE, "UNKNOW"),
    ],
)
@pytest.mark.parametrize(
    ("properties", "region"), [({}, "DefaultRegion"), ({"MSG_REGION": "HZ"}, "HZ")]
)
def test_end_of_a_transaction_is_traced_with_java_s_name_of_it(
    outcome: TransactionFlag, state: str, properties: dict[str, str], region: str
) -> None:
    context = EndTransactionContext(
        group="ns%shop",
        message=Message("ns%orders", b"1", tags="new", keys=["k1"], properties=properties),
        address="127.0.0.1:10911",
        message_id="M1",
        transaction_id="T1",
        outcome=outcome,
        is_from_check=True,
    )
    assert trace_of_end_transaction(
        context, group="shop", topic="orders", time_ms=5
    ) == EndTransactionTrace(
        time_ms=5,
        region=region,
        group="shop",
        topic="orders",
        message_id="M1",
        tags="new",
        keys="k1",
        address="127.0.0.1:10911",
        message_type=2,
        transaction_id="T1",
        state=state,
        is_from_check=True,
    )


@pytest.mark.parametrize(("said", "region"), [(None, "DefaultRegion"), ("HZ", "HZ")])
def test_recall_is_traced_with_the_region_of_the_answer(said: str | None, region: str) -> None:
    assert trace_of_recall(
        group="shop", topic="orders", message_id="M1", is_success=True, region=said, time_ms=5
    ) == RecallTrace(
        time_ms=5,
        region=region,
        group="shop",
        topic="orders",
        message_id="M1",
        is_success=True,
    )
