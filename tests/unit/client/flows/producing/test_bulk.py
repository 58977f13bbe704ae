"""Encoded messages, sent until they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import Call, Effect, Once, Pause
from downrange.client.flows.notices import AttemptFailed
from downrange.client.flows.producing.bulk import (
    EncodedMessages,
    encoded_batch,
    encoded_message,
    send_until,
)
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import (
    BrokerNotFound,
    ConnectFailed,
    ConnectionLost,
    MessageRefused,
    RocketMQError,
    SendFailed,
    SendTimedOut,
)
from downrange.model import QueueId, SendReceipt
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.properties import decode_properties
from downrange.wire.records import BatchItem, encode_batch
from tests.unit.client.flows.flow_steps import (
    body,
    clock_of,
    core_with,
    expect,
    expect_call,
    finish,
    play,
    producer_with,
    refused,
    route,
    routed,
    stored,
)

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.prepare import Outgoing
    from downrange.client.flows.producing.producer_core import ProducerCore

ITEMS = encode_batch(
    [BatchItem(0, b"one", b"UNIQ_KEY\x01A\x02"), BatchItem(3, b"two", b"UNIQ_KEY\x01B\x02")]
)
LOST = ConnectionLost("a:10911", "cut")
DEADLINE = 110.0


def batch(producer: ProducerCore) -> Outgoing:
    return encoded_batch(producer, "orders", ITEMS, 2, "A")


def sending(producer: ProducerCore, *, target: QueueId | None = None) -> Flow[SendReceipt]:
    return send_until(
        producer, batch(producer), RoundRobin(), DEADLINE, target=target, attempt_timeout=4.0
    )


def pass_over(flow: Flow[Any], producer: ProducerCore, effect: Effect) -> Effect:
    """Answer the pause, fail the lookup of the route, and return the next effect."""
    pause = expect(Pause, effect)
    clock_of(producer).seconds += pause.seconds
    expect(Once, flow.send(None))
    return flow.send(None)


# ---- preparing -----------------------------------------------------------------------------------


def test_a_batch_says_nothing_of_its_messages_ids() -> None:
    """Brokers of 4.9 would give a batch's own id to every message in it."""
    outgoing = batch(producer_with())
    assert decode_properties(outgoing.properties) == {"WAIT": "true"}
    assert (outgoing.code, outgoing.body, outgoing.count, outgoing.message_id) == (
        RequestCode.SEND_BATCH_MESSAGE,
        ITEMS,
        2,
        "A",
    )


def test_a_message_keeps_its_properties_and_its_flag() -> None:
    outgoing = encoded_message(
        producer_with(), "orders", b"1", properties="a\x01b\x02", message_id="X", sys_flag=1
    )
    assert (outgoing.code, outgoing.topic, outgoing.body) == (
        RequestCode.SEND_MESSAGE_V2,
        "orders",
        b"1",
    )
    assert (outgoing.properties, outgoing.message_id, outgoing.sys_flag) == ("a\x01b\x02", "X", 1)
    assert outgoing.count == 1


def test_the_namespace_is_put_on_the_topic_and_into_the_properties() -> None:
    producer = producer_with(client=core_with(options=ClientOptions(namespace="prod")))
    one = encoded_message(producer, "orders", b"1", properties="", message_id="X")
    for outgoing in (one, batch(producer)):
        assert outgoing.topic == "prod%orders"
        assert decode_properties(outgoing.properties)["INSTANCE_ID"] == "prod"
        assert outgoing.message.topic == "orders"


def test_hooks_can_look_at_encoded_messages() -> None:
    messages = EncodedMessages("orders", ITEMS, 2)
    assert len(messages) == 2
    assert [(one.topic, one.body, one.flag, one.properties) for one in messages] == [
        ("orders", b"one", 0, {"UNIQ_KEY": "A"}),
        ("orders", b"two", 3, {"UNIQ_KEY": "B"}),
    ]
    assert [one.body for one in messages[1:]] == [b"two"]


# ---- sending -------------------------------------------------------------------------------------


def test_what_is_stored_at_once_costs_one_call() -> None:
    flow = sending(producer_with(route("a")))
    call = expect_call(next(flow))
    assert (call.deadline, call.command.body) == (104.0, ITEMS)
    assert finish(flow, stored(call)).failures == ()


def test_a_lost_request_is_sent_again_after_pauses_that_grow() -> None:
    producer = producer_with(route("a"))
    flow = sending(producer)
    effect: Effect = next(flow)
    pauses: list[float] = []
    for _ in range(6):
        expect_call(effect)
        pause = expect(Pause, flow.throw(LOST))
        pauses.append(pause.seconds)
        effect = pass_over(flow, producer, pause)
    receipt = finish(flow, stored(expect_call(effect)))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert receipt.attempts == 7
    assert receipt.may_be_stored_twice
    assert producer.counts.retried == 6


def test_the_last_attempt_ends_with_the_deadline_and_the_error_lists_all() -> None:
    producer = producer_with(route("a"))
    flow = sending(producer)
    expect_call(next(flow))
    effect = pass_over(flow, producer, flow.throw(LOST))
    clock_of(producer).seconds += 9.8
    assert expect_call(effect).deadline == pytest.approx(104.1)
    with pytest.raises(SendFailed) as caught:
        flow.throw(LOST)
    assert [attempt.error for attempt in caught.value.attempts] == [LOST, LOST]


def test_time_that_is_up_before_an_attempt_is_an_error_of_its_own() -> None:
    producer = producer_with(route("a"))
    flow = send_until(producer, batch(producer), RoundRobin(), 100.0, attempt_timeout=4.0)
    with pytest.raises(SendTimedOut):
        next(flow)


def test_a_refusal_that_will_stay_is_not_tried_again() -> None:
    flow = sending(producer_with(route("a")))
    next(flow)
    with pytest.raises(SendFailed) as caught:
        flow.send(refused(ResponseCode.MESSAGE_ILLEGAL, "too large"))
    assert isinstance(caught.value.attempts[0].error, MessageRefused)


def test_a_busy_broker_is_asked_again() -> None:
    producer = producer_with(route("a"))
    flow = sending(producer)
    next(flow)
    effect = pass_over(flow, producer, flow.send(refused(ResponseCode.SYSTEM_BUSY, "later")))
    receipt = finish(flow, stored(expect_call(effect)))
    assert (receipt.attempts, receipt.may_be_stored_twice) == (2, False)


def test_a_chosen_queue_is_tried_at_the_address_that_its_broker_has_now() -> None:
    producer = producer_with(route("a", "b"))
    moved = body("a", "b")
    moved.broker_datas[1].broker_addrs[0] = "b:20911"
    addresses: list[str] = []

    def serve(call: Call) -> Any:
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return routed(moved)
        addresses.append(call.address)
        return stored(call) if call.address == "b:20911" else ConnectFailed(call.address, "gone")

    receipt = play_with_pauses(producer, sending(producer, target=QueueId("orders", "b", 2)), serve)
    assert addresses == ["b:10911", "b:20911"]
    assert receipt.queue == QueueId("orders", "b", 2)


def test_a_broker_without_a_route_is_waited_for() -> None:
    producer = producer_with(route("a"))
    asked = 0

    def serve(call: Call) -> Any:
        nonlocal asked
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked += 1
            return routed(body("a") if asked < 4 else body("a", "b"))
        return stored(call)

    receipt = play_with_pauses(producer, sending(producer, target=QueueId("orders", "b", 0)), serve)
    assert receipt.queue.broker == "b"
    with pytest.raises(BrokerNotFound, match="'c' is not registered"):
        play_with_pauses(producer, sending(producer, target=QueueId("orders", "c", 0)), serve)


def test_attempts_are_numbered_through_in_notices() -> None:
    producer = producer_with(route("a"))
    published: list[Any] = []
    producer.client.observe = published.append
    answers: list[Any] = [LOST, LOST]

    def serve(call: Call) -> Any:
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return routed(body("a"))
        return answers.pop() if answers else stored(call)

    play_with_pauses(producer, sending(producer), serve)
    assert [one.number for one in published if isinstance(one, AttemptFailed)] == [1, 2]


def test_attempts_before_a_broker_was_missing_stay_in_the_error() -> None:
    producer = producer_with(route("a"))
    target = QueueId("orders", "a", 0)

    def serve(call: Call) -> Any:
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            producer.client.routes.replace(route("b"))
            return routed(body("b"))
        return ConnectionLost(call.address, "cut")

    with pytest.raises(SendFailed) as caught:
        play_with_pauses(producer, sending(producer, target=target), serve)
    assert len(caught.value.attempts) == 1
    assert caught.value.may_be_stored


def test_a_name_server_that_does_not_answer_leaves_the_route_as_it_is() -> None:
    producer = producer_with(route("a"))
    is_up = iter([False, True])

    def serve(call: Call) -> Any:
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return ConnectFailed(call.address, "down")
        return stored(call) if next(is_up) else LOST

    assert play_with_pauses(producer, sending(producer), serve).attempts == 2


def play_with_pauses(producer: ProducerCore, flow: Flow[SendReceipt], serve: Any) -> SendReceipt:
    """Run a flow; pauses move the clock."""
    answer: Any = None
    error: RocketMQError | None = None
    try:
        while True:
            effect = flow.send(answer) if error is None else flow.throw(error)
            answer, error = None, None
            if isinstance(effect, Pause):
                clock_of(producer).seconds += effect.seconds
                continue
            try:
                answer = play(one(effect), serve)
            except RocketMQError as failure:
                error = failure
    except StopIteration as finished:
        receipt: SendReceipt = finished.value
        return receipt


def one(effect: Effect) -> Flow[Any]:
    return (yield effect)
