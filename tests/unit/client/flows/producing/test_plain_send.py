"""Sends without a flow: they end as the flow of the same send does, whatever the broker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.effects import Call, Flow, Once, Pause, UserCall, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.producing.plain_send import PlainSend
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import (
    CallTimeout,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    LinkClosed,
    OptionError,
    RocketMQError,
    TooManySends,
    Unencodable,
)
from downrange.model import Message, QueueId
from downrange.options import AutoBatch, ClientOptions, FaultTolerance, ProducerOptions
from downrange.wire.command import Command
from downrange.wire.headers import SendReply
from downrange.wire.send_answers import StoredAnswer
from tests.unit.client.flows.flow_steps import (
    TOPIC,
    clock_of,
    core_with,
    expect_call,
    finish,
    producer_with,
    route,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.producing.producer_core import ProducerCore
    from tests.support.clock import FakeClock

MESSAGE = Message(TOPIC, b"1", tags="t")
ANSWER = StoredAnswer(1, 2, 9, "OFFSET-ID", "TX", "DefaultRegion", "true")


def begun(producer: ProducerCore, message: Message = MESSAGE, **details: Any) -> PlainSend:
    """Return a send that has begun without a flow."""
    send = plain(producer, message, **details)
    assert send.begin()
    return send


def plain(
    producer: ProducerCore,
    message: Message = MESSAGE,
    round_robin: RoundRobin | None = None,
    **details: Any,
) -> PlainSend:
    send = producer.direct_send(
        message, round_robin or RoundRobin(), producer.async_rules, is_limited=True, **details
    )
    assert isinstance(send, PlainSend)
    return send


# ---- which producers and messages ----------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ProducerOptions(trace=True),
        ProducerOptions(attempt_timeout=1.0),
        ProducerOptions(auto_batch=AutoBatch()),
    ],
)
def test_a_producer_whose_sends_are_more_than_a_call_is_not_direct(
    options: ProducerOptions,
) -> None:
    assert producer_with(route("a")).is_direct
    producer = producer_with(route("a"), options=options)
    assert not producer.is_direct
    send = producer.direct_send(MESSAGE, RoundRobin(), producer.async_rules)
    assert not isinstance(send, PlainSend)


def test_hooks_and_the_vip_channel_need_the_flow() -> None:
    assert not producer_with(hooks=Hooks(before_send=(lambda _: None,))).is_direct
    vip = core_with(options=ClientOptions(vip_channel=True))
    assert not producer_with(client=vip).is_direct


def needs_flow(producer: ProducerCore, message: Message = MESSAGE) -> Flow[Any]:
    """Return the flow of a send that cannot begin without one."""
    send = plain(producer, message)
    in_flight = producer.permits.in_flight
    assert not send.begin()
    assert producer.permits.in_flight == in_flight
    return send.flow()


def test_a_message_without_a_route_needs_the_flow() -> None:
    assert isinstance(next(needs_flow(producer_with())), Once)  # asks a name server


def test_a_route_without_a_queue_to_send_to_needs_the_flow() -> None:
    flow = needs_flow(producer_with(route("a", masterless=["a"])))
    assert isinstance(next(flow), Once)


def test_a_sharding_key_needs_the_flow() -> None:
    producer = producer_with(route("a"))
    flow = needs_flow(producer, Message(TOPIC, b"1", sharding_key="k"))
    call = expect_call(next(flow))
    assert finish(flow, stored(call)).attempts == 1


def test_a_message_without_room_needs_the_flow() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(in_flight_max=10))
    first, *_ = (begun(producer) for _ in range(10))
    flow = needs_flow(producer)
    wait = next(flow)
    assert isinstance(wait, Wait)
    assert not wait.signal.is_fired
    assert first.receipt_for(ANSWER) is not None
    assert wait.signal.is_fired
    flow.close()
    raising = producer_with(
        route("a"), options=ProducerOptions(in_flight_max=10, when_full="raise")
    )
    for _ in range(10):
        begun(raising)
    with pytest.raises(TooManySends):
        next(needs_flow(raising))


def test_a_closing_producer_refuses_and_waits_for_sends_that_have_begun() -> None:
    producer = producer_with(route("a"))
    send, other = begun(producer), begun(producer)
    closing = producer.exit(clock_of(producer).now() + 9)
    wait = next(closing)
    assert isinstance(wait, Wait)
    with pytest.raises(ClientClosed):
        next(needs_flow(producer))
    assert send.receipt_for(ANSWER) is not None
    assert not wait.signal.is_fired
    other.leave()
    assert wait.signal.is_fired


def test_bad_arguments_are_refused_as_by_send() -> None:
    producer = producer_with(route("a"))

    def send(message: Any, timeout: Any = None) -> object:
        return producer.direct_send(message, RoundRobin(), producer.async_rules, timeout)

    with pytest.raises(OptionError, match="a Message"):
        send("text")
    with pytest.raises(InvalidMessage, match="empty"):
        send(Message(TOPIC, b""))
    with pytest.raises(OptionError, match="timeout"):
        send(MESSAGE, 0)


# ---- one send ------------------------------------------------------------------------------------


def test_a_stored_message_ends_with_its_receipt() -> None:
    producer = producer_with(route("a"))
    send = begun(producer)
    assert (send.address, send.queue) == ("a:10911", QueueId(TOPIC, "a", 0))
    assert send.command().body == b"1"
    assert (producer.permits.in_flight, producer.permits.in_flight_bytes) == (1, 1)
    receipt = send.receipt_for(ANSWER)
    assert receipt is not None
    assert (receipt.queue, receipt.offset) == (QueueId(TOPIC, "a", 2), 9)
    assert (receipt.offset_id, receipt.transaction_id) == ("OFFSET-ID", "TX")
    assert (producer.counts.sent, producer.permits.in_flight) == (1, 0)


def test_a_size_counts_as_it_was_when_the_send_began() -> None:
    producer = producer_with(route("a"))
    message = Message(TOPIC, b"1")
    send = begun(producer, message)
    message.body = b"changed"
    assert send.receipt_for(ANSWER) is not None
    assert producer.permits.in_flight_bytes == 0


def test_without_limits_no_room_is_taken() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(in_flight_max=10))
    for _ in range(11):
        send = producer.direct_send(MESSAGE, RoundRobin(), producer.waiting_rules)
        assert isinstance(send, PlainSend)
        assert send.begin()
        assert producer.permits.in_flight == 0
        send.leave()
    assert producer._active == 0


def test_a_cancelled_flow_gives_its_room_back() -> None:
    producer = producer_with(route("a", "b"))
    flow = begun(producer).flow_after(ConnectionLost("a:10911", "cut"))
    assert isinstance(next(flow), Call)
    assert producer.permits.in_flight == 1
    flow.close()
    assert producer.permits.in_flight == 0


# ---- both ways -----------------------------------------------------------------------------------


class Event(NamedTuple):
    """What a broker does with a request, and how long that takes."""

    outcome: StoredAnswer | Command | RocketMQError
    seconds: float


def stored_late(code: int) -> Command:
    fields = SendReply(msg_id="OFFSET-ID", queue_id=1, queue_offset=5).to_fields()
    return Command(code, fields)


EVENTS = st.builds(
    Event,
    st.sampled_from(
        [
            ANSWER,
            ANSWER,
            stored_late(0),
            stored_late(10),
            Command(0, {"queueId": "1"}),
            Command(2, remark="busy"),
            Command(14, remark="busy"),
            Command(16, remark="no"),
            Command(17, remark="no topic"),
            ConnectionLost("x:1", "cut"),
            ConnectFailed("x:1", "refused"),
            CallTimeout("x:1", 1.0),
            LinkClosed("closed"),
            ClientClosed("the client"),
            Unencodable("command header", "half a pair"),
        ]
    ),
    st.sampled_from([0.0, 0.06, 0.6, 2.5]),
)


def play(producer: ProducerCore, flow: Flow[Any], events: list[Event]) -> list[str]:
    """Run a flow against a script; return what it did."""
    log: list[str] = []
    clock = clock_of(producer)
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as finished:
            return [*log, repr(finished.value)]
        except RocketMQError as failure:
            return [*log, repr(failure), str(failure)]
        answer = error = None
        if isinstance(effect, Call):
            log.append(f"call {effect.address} {effect.command.fields} until {effect.deadline}")
            outcome = take(events, clock)
            answer, error = (
                (None, outcome) if isinstance(outcome, RocketMQError) else (outcome, None)
            )
        elif isinstance(effect, Pause):
            clock.seconds += effect.seconds
        else:
            assert isinstance(effect, UserCall)
            log.append(f"notice {effect.args}")


def take(events: list[Event], clock: FakeClock) -> Any:
    event = events.pop(0) if events else Event(ConnectionLost("x:1", "cut"), 0.1)
    clock.seconds += event.seconds
    return event.outcome


def by_flow(producer: ProducerCore, round_robin: RoundRobin, events: list[Event]) -> list[str]:
    flow = producer.send(MESSAGE, round_robin, producer.async_rules, is_limited=True)
    return play(producer, flow, events)


def without_flow(producer: ProducerCore, round_robin: RoundRobin, events: list[Event]) -> list[str]:
    send = plain(producer, MESSAGE, round_robin)
    assert send.begin()
    command = send.command()
    log = [f"call {send.address} {command.fields} until {send.deadline}"]
    outcome = take(events, clock_of(producer))
    if not isinstance(outcome, RocketMQError):
        receipt = send.receipt_for(outcome)
        if receipt is not None:
            return [*log, repr(receipt)]
    return log + play(producer, send.flow_after(outcome), events)


@given(
    st.lists(st.lists(EVENTS, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["off", "4.x", "5.x"]),
    st.booleans(),
    st.integers(0, 2),
)
def test_a_send_without_a_flow_ends_as_its_flow_does(
    scripts: list[list[Event]], style: Any, retry_when_not_stored: bool, retries: int
) -> None:
    options = ProducerOptions(
        fault_tolerance=FaultTolerance(style=style),
        retry_when_not_stored=retry_when_not_stored,
        retries=retries,
    )
    histories: list[Any] = []
    ways: list[Callable[..., list[str]]] = [by_flow, without_flow]
    for way in ways:
        producer = producer_with(
            client=core_with(route("a", "b")), options=options, report=lambda *_: None
        )
        round_robin = RoundRobin()
        log = [line for script in scripts for line in way(producer, round_robin, list(script))]
        permits, now = producer.permits, clock_of(producer).now()
        histories.append(
            (
                log,
                producer.counts,
                producer.health.snapshot(now),
                round_robin.indexes,
                (permits.in_flight, permits.in_flight_high, permits.in_flight_bytes, now),
                list(producer.client.notices),
            )
        )
    assert histories[0] == histories[1]
