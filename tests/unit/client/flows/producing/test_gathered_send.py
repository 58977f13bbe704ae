"""Sends that join a batch without a flow of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import Call, Flow, UserCall, Wait
from downrange.client.flows.producing.gathered_send import GatheredSend, leave_together
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import ClientClosed, InvalidMessage, OptionError
from downrange.model import Message
from downrange.options import AutoBatch, ProducerOptions
from tests.unit.client.flows.flow_steps import TOPIC, clock_of, producer_with, route, stored

if TYPE_CHECKING:
    from downrange.client.flows.producing.producer_core import ProducerCore

OPTIONS = ProducerOptions(auto_batch=AutoBatch(hold_ms=10), in_flight_max=10)


def gathering(options: ProducerOptions = OPTIONS) -> ProducerCore:
    return producer_with(route("a"), options=options)


def gathered(producer: ProducerCore, message: Message | None = None) -> GatheredSend:
    send = producer.direct_send(
        message or Message(TOPIC, b"1"), RoundRobin(), producer.async_rules, is_limited=True
    )
    assert isinstance(send, GatheredSend)
    return send


def led(producer: ProducerCore) -> tuple[Flow[Any], Wait]:
    """Return the flow that leads a new batch, and what it waits for."""
    first = gathered(producer)
    assert not first.begin()
    flow = first.flow()
    wait = next(flow)
    assert isinstance(wait, Wait)
    return flow, wait


def sent(flow: Flow[Any]) -> Call:
    """Let the leader of a full batch go on until it sends."""
    effect = flow.send(True)
    while isinstance(effect, UserCall):
        effect = flow.send(effect.function(*effect.args))
    assert isinstance(effect, Call)
    return effect


def ended(flow: Flow[Any], answer: object) -> Any:
    with pytest.raises(StopIteration) as finished:
        flow.send(answer)
    return finished.value.value


def test_a_message_joins_a_batch_and_gets_its_receipt() -> None:
    producer = gathering()
    flow, _ = led(producer)
    send = gathered(producer)
    assert send.begin()
    batch = send.batch
    assert batch is not None
    assert producer.permits.in_flight == 2
    fired: list[bool] = []
    batch.changed.listen(lambda: fired.append(True))
    ids = "A,B"
    answer = stored(sent(flow), offset=5)
    answer.fields["msgId"] = ids
    assert ended(flow, answer).offset == 5
    assert fired
    assert isinstance(batch.outcome, dict)
    receipt = batch.outcome[send]
    leave_together(batch, [send])
    assert (receipt.offset, receipt.offset_id) == (6, "B")
    assert producer.counts.sent == 2
    assert producer.permits.in_flight == 0
    assert producer.accumulator is not None
    assert producer.accumulator.held_bytes == 0


def test_a_batch_that_becomes_full_is_sent() -> None:
    producer = gathering(ProducerOptions(auto_batch=AutoBatch(hold_ms=10, hold_bytes=1024)))
    _leader, wait = led(producer)
    assert gathered(producer, Message(TOPIC, b"1" * 600)).begin()
    assert not wait.signal.is_fired
    assert gathered(producer, Message(TOPIC, b"1" * 600)).begin()
    assert wait.signal.is_fired
    assert not gathered(producer).begin()  # the next batch has no leader yet


def test_a_message_that_does_not_fit_begins_a_batch_by_a_flow() -> None:
    options = ProducerOptions(auto_batch=AutoBatch(hold_ms=10), body_bytes_max=1000)
    producer = gathering(options)
    _leader = led(producer)
    assert not gathered(producer, Message(TOPIC, b"1" * 950)).begin()
    assert producer.permits.in_flight == 1


def test_a_message_without_a_leader_goes_on_by_a_flow() -> None:
    producer = gathering()
    flow, _ = led(producer)
    send = gathered(producer)
    assert send.begin()
    flow.close()
    assert send.batch is not None
    assert send.batch.outcome is None
    following = send.flow_after()
    assert isinstance(next(following), Wait)  # as the leader
    call = sent(following)
    assert ended(following, stored(call)).offset == 9
    assert producer.permits.in_flight == 0


def test_a_message_that_leaves_early_is_not_sent() -> None:
    producer = gathering()
    flow, _ = led(producer)
    send = gathered(producer)
    assert send.begin()
    send.leave()
    assert producer.permits.in_flight == 1
    assert sent(flow).command.body == b"1"  # alone, so it is not a batch


def test_sends_that_no_limit_applies_to_take_no_room() -> None:
    producer = gathering()
    flow, _ = led(producer)
    sends = [
        producer.direct_send(
            Message(TOPIC, b"1"), RoundRobin(), producer.async_rules, is_limited=is_limited
        )
        for is_limited in (True, False)
    ]
    for send in sends:
        assert isinstance(send, GatheredSend)
        assert send.begin()
    assert producer.permits.in_flight == 2
    flow.close()
    batch = sends[0].batch  # type: ignore[union-attr]
    assert batch is not None
    leave_together(batch, sends)  # type: ignore[arg-type]
    assert (producer.permits.in_flight, producer._active) == (0, 0)
    leave_together(batch, [])
    flow, _ = led(producer)
    send = producer.direct_send(Message(TOPIC, b"1"), RoundRobin(), producer.async_rules)
    assert isinstance(send, GatheredSend)
    assert send.begin()
    assert send.batch is not None
    leave_together(send.batch, [send])
    assert (producer.permits.in_flight, producer._active) == (1, 1)  # the leader


def test_closing_waits_for_the_last_send_without_a_flow() -> None:
    producer = gathering()
    flow, _ = led(producer)
    send = gathered(producer)
    assert send.begin()
    closing = producer.exit(clock_of(producer).now() + 9)
    wait = next(closing)
    assert isinstance(wait, Wait)
    assert ended(flow, stored(sent(flow))).offset == 9
    assert not wait.signal.is_fired
    assert send.batch is not None
    leave_together(send.batch, [send])
    assert wait.signal.is_fired


@pytest.mark.parametrize(
    ("message", "timeout"),
    [
        (Message(TOPIC, b"1", sharding_key="k"), None),
        (Message(TOPIC, b"1", delay_level=3), None),
        (Message(TOPIC, b"1"), 3.0),
    ],
)
def test_a_message_that_cannot_be_held_needs_the_flow(message: Message, timeout: Any) -> None:
    producer = gathering()
    assert producer.direct_send(message, RoundRobin(), producer.async_rules, timeout) is None


def test_a_usual_message_needs_the_flow_while_the_accumulator_has_no_room() -> None:
    producer = gathering()
    assert producer.accumulator is not None
    producer.accumulator.close()
    message = Message(TOPIC, b"1")
    assert producer.direct_send(message, RoundRobin(), producer.async_rules) is None


def test_bad_messages_are_refused_as_by_send() -> None:
    producer = gathering()
    text: Any = "text"
    with pytest.raises(OptionError, match="a Message"):
        producer.direct_send(text, RoundRobin(), producer.async_rules)
    with pytest.raises(InvalidMessage, match="empty"):
        producer.direct_send(Message(TOPIC, b""), RoundRobin(), producer.async_rules)


def test_a_message_that_cannot_be_encoded_takes_no_room() -> None:
    producer = gathering()
    _leader = led(producer)
    with pytest.raises(InvalidMessage, match="half"):
        gathered(producer, Message(TOPIC, b"1", properties={"half": "\ud800"}))
    assert producer.permits.in_flight == 1


def test_a_closing_producer_refuses_messages_and_finishes_batches() -> None:
    producer = gathering()
    _leader, wait = led(producer)
    send = gathered(producer)
    closing = producer.exit(clock_of(producer).now() + 9)
    next(closing)
    assert wait.signal.is_fired
    assert not send.begin()
    with pytest.raises(ClientClosed):
        next(send.flow())
