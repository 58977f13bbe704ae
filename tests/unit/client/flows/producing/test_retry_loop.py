"""The loop of attempts: what follows each outcome, and when it ends."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import Call, Flow, Once, UserCall
from downrange.client.flows.hooks import Hooks, SendContext
from downrange.client.flows.notices import AttemptFailed, AttemptRepeated
from downrange.client.flows.producing.attempt import FORMS_MAX, send_command
from downrange.client.flows.producing.failures import backoff
from downrange.client.flows.producing.prepare import prepare, prepare_batch
from downrange.client.flows.producing.retry_loop import (
    send_oneway,
    send_with_retries,
    vip_address,
)
from downrange.client.flows.routing.health import HealthSnapshot
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.client.flows.routing.selectors import by_hash, by_random, by_room
from downrange.errors import (
    BrokerNotFound,
    CallTimeout,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    MissingField,
    NoPermission,
    OptionError,
    RocketMQError,
    RouteNotFound,
    SendFailed,
    SendForbidden,
    SendNotPermitted,
    SendTimedOut,
    SendUnreachable,
    TooManyInFlight,
    Unencodable,
)
from downrange.model import Attempt, Message, QueueId, SendReceipt, SendStatus
from downrange.options import ClientOptions, Credentials, FaultTolerance, ProducerOptions, Trace
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.headers import SendRequestV2
from downrange.wire.properties import decode_properties
from tests.unit.client.flows.flow_steps import (
    answer_user_call,
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
from tests.unit.client.flows.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.client.flows.producing.producer_state import SendRules

MESSAGE = Message("orders", b"1")
LOST = ConnectionLost("x:1", "cut")


def sending(
    producer: ProducerCore,
    message: Message = MESSAGE,
    *,
    target: Any = None,
    rules: SendRules | None = None,
    deadline: float = 103.0,
    round_robin: RoundRobin | None = None,
) -> Flow[SendReceipt]:
    outgoing = prepare(producer, message)
    return send_with_retries(
        producer,
        outgoing,
        round_robin or RoundRobin(),
        deadline,
        rules or producer.waiting_rules,
        target,
    )


def failing(flow: Flow[Any], answer: Command | RocketMQError) -> SendFailed:
    """Give the last answer; return the error that the flow ends with."""
    with pytest.raises(SendFailed) as caught:
        flow.throw(answer) if isinstance(answer, RocketMQError) else flow.send(answer)
    return caught.value


# ---- one attempt ---------------------------------------------------------------------------------


def test_a_message_that_is_stored_at_once_costs_one_call() -> None:
    producer = producer_with(route("a"))
    flow = sending(producer)
    call = expect_call(next(flow))
    assert (call.address, call.deadline, call.is_oneway) == ("a:10911", 103.0, False)
    receipt = finish(flow, stored(call, offset=42))
    assert receipt.queue == QueueId("orders", "a", 0)
    assert (receipt.offset, receipt.offset_id) == (42, "OFFSET-ID")
    assert (receipt.status, receipt.failures, receipt.attempts) == (SendStatus.STORED, (), 1)
    assert len(receipt.message_id) == 32
    assert (producer.counts.sent, producer.counts.failed, producer.counts.retried) == (1, 0, 0)


def test_a_request_has_group_topic_queue_and_message() -> None:
    options = ProducerOptions(default_topic="MINE", default_topic_queues=3)
    client = core_with(route("a"), options=ClientOptions(is_unit_mode=True))
    producer = producer_with(client=client, options=options)
    command = expect_call(next(sending(producer, Message("orders", b"1", flag=5)))).command
    assert command.code == RequestCode.SEND_MESSAGE_V2
    assert command.body == b"1"
    fields = command.fields
    assert [fields[letter] for letter in "abcdefghjkmn"] == [
        *("shop", "orders", "MINE", "3", "0", "0", "100000", "5", "0", "true", "false", "a")
    ]
    assert "UNIQ_KEY" in fields["i"]


def test_version_1_headers_have_long_names() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(header_version=1))
    command = expect_call(next(sending(producer))).command
    assert command.code == RequestCode.SEND_MESSAGE
    assert (command.fields["topic"], command.fields["producerGroup"]) == ("orders", "shop")


RETRIED_ORDER = {
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "ID",
    "RECONSUME_TIME": "4",
    "MAX_RECONSUME_TIMES": "9",
}


@pytest.mark.parametrize(
    ("version", "times", "times_max", "properties"),
    [(2, "j", "l", "i"), (1, "reconsumeTimes", "maxReconsumeTimes", "properties")],
)
def test_each_attempt_to_a_retry_topic_has_the_retry_counts_in_its_header(
    version: Any, times: str, times_max: str, properties: str
) -> None:
    topic = "%RETRY%shop"
    options = ProducerOptions(header_version=version)
    producer = producer_with(route("a", "b", topic=topic), options=options)
    message = Message(topic, b"1", properties=RETRIED_ORDER)
    flow = sending(producer, message)
    for call in (expect_call(next(flow)), expect_call(flow.throw(ConnectionLost("a:1", "cut")))):
        fields = call.command.fields
        assert (fields[times], fields[times_max]) == ("4", "9")
        sent = decode_properties(fields[properties])
        assert (sent["RETRY_TOPIC"], sent["ORIGIN_MESSAGE_ID"]) == ("orders", "ID")
        assert not {"RECONSUME_TIME", "MAX_RECONSUME_TIMES"} & sent.keys()
    finish(flow, stored(call))
    assert message.properties == RETRIED_ORDER


def test_a_message_to_a_retry_topic_need_not_have_retry_counts() -> None:
    topic = "%RETRY%shop"
    producer = producer_with(route("a", topic=topic))
    fields = expect_call(next(sending(producer, Message(topic, b"1")))).command.fields
    assert fields["j"] == "0"
    assert "l" not in fields


def test_a_batch_has_a_version_2_header_in_any_case() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(header_version=1))
    outgoing = prepare_batch(producer, [MESSAGE, MESSAGE])
    flow = send_with_retries(producer, outgoing, RoundRobin(), 103.0, producer.waiting_rules)
    call = expect_call(next(flow))
    assert call.command.code == RequestCode.SEND_BATCH_MESSAGE
    assert (call.command.fields["b"], call.command.fields["m"]) == ("orders", "true")
    receipt = finish(flow, stored(call))
    assert receipt.message_id.count(",") == 1
    assert producer.counts.sent == 2


def test_a_receipt_has_the_fields_of_the_reply() -> None:
    flow = sending(producer_with(route("a")))
    call = expect_call(next(flow))
    receipt = finish(
        flow,
        stored(call, transaction_id="T", recall_handle="R", region="north", trace_on=False),
    )
    assert (receipt.transaction_id, receipt.recall_handle) == ("T", "R")
    assert (receipt.region, receipt.is_traced) == ("north", False)


def test_a_receipt_of_a_broker_that_says_little_has_javas_defaults() -> None:
    flow = sending(producer_with(route("a")))
    receipt = finish(flow, stored(expect_call(next(flow))))
    assert (receipt.region, receipt.is_traced) == ("DefaultRegion", False)


@pytest.mark.parametrize(
    ("options", "said", "is_traced"),
    [
        (ProducerOptions(), True, False),
        (ProducerOptions(trace=True), None, True),
        (ProducerOptions(trace=True), True, True),
        (ProducerOptions(trace=True), False, False),
        (ProducerOptions(trace=Trace(topic="orders")), True, False),
    ],
)
def test_a_receipt_tells_whether_the_send_is_traced(
    options: ProducerOptions, said: bool | None, is_traced: bool
) -> None:
    """Issue 14: `is_traced` was true for producers without a trace."""
    producer = producer_with(route("a"), options=options)
    flow = sending(producer)
    receipt = finish(flow, stored(expect_call(next(flow)), trace_on=said))
    assert receipt.is_traced is is_traced
    assert (producer.trace is not None and len(producer.trace) == 1) is is_traced


def test_a_receipt_names_the_queue_that_the_broker_chose() -> None:
    flow = sending(producer_with(route("a")))
    answer = stored(expect_call(next(flow)))
    answer.fields["queueId"] = "3"
    assert finish(flow, answer).queue == QueueId("orders", "a", 3)


def test_a_receipt_names_the_topic_without_the_namespace() -> None:
    client = core_with(route("a", topic="prod%orders"), options=ClientOptions(namespace="prod"))
    flow = sending(producer_with(client=client))
    call = expect_call(next(flow))
    assert (call.command.fields["a"], call.command.fields["b"]) == ("prod%shop", "prod%orders")
    assert finish(flow, stored(call)).queue == QueueId("orders", "a", 0)


def test_queues_take_turns() -> None:
    producer, round_robin = producer_with(route("a", "b", queues=2)), RoundRobin()
    seen: list[QueueId] = []
    for _ in range(5):
        flow = sending(producer, round_robin=round_robin)
        seen.append(finish(flow, stored(expect_call(next(flow)))).queue)
    assert [f"{queue.broker}{queue.number}" for queue in seen] == ["a0", "a1", "b0", "b1", "a0"]


@pytest.mark.parametrize("sent", [send_with_retries, send_oneway])
def test_the_vip_channel_is_two_ports_below(sent: Any) -> None:
    client = core_with(route("a"), options=ClientOptions(vip_channel=True))
    producer = producer_with(client=client)
    rules = (producer.waiting_rules,) if sent is send_with_retries else ()
    flow = sent(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0, *rules)
    assert expect_call(next(flow)).address == "a:10909"


def test_a_vip_address_may_be_one_of_ipv6() -> None:
    assert vip_address("[::1]:10911") == "[::1]:10909"


# ---- the table of outcomes, row by row -----------------------------------------------------------

NO_ANSWER = [ConnectFailed("a:10911", "refused"), LOST, CallTimeout("a:10911", 1.0)]


@pytest.mark.parametrize("error", NO_ANSWER, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("rules", ["waiting_rules", "async_rules", "submit_rules"])
def test_an_attempt_without_an_answer_is_followed_by_the_next(rules: str, error: Any) -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer, rules=getattr(producer, rules))
    first = expect_call(next(flow))
    clock_of(producer).seconds += 0.5
    second = expect_call(flow.throw(error))
    assert (first.address, second.address) == ("a:10911", "b:10911")
    receipt = finish(flow, stored(second))
    (attempt,) = receipt.failures
    assert (attempt.broker, attempt.address, attempt.queue_number) == ("a", "a:10911", 0)
    assert (attempt.error, attempt.elapsed) == (error, 0.5)
    assert receipt.attempts == 2
    assert producer.counts.retried == 1


@pytest.mark.parametrize("code", sorted(ProducerOptions().retry_codes))
@pytest.mark.parametrize(
    ("rules", "is_retried"),
    [("waiting_rules", True), ("async_rules", True), ("submit_rules", False)],
)
def test_a_refusal_with_a_retry_code_is_followed_by_the_next_unless_submitted(
    rules: str, is_retried: bool, code: int
) -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer, rules=getattr(producer, rules))
    next(flow)
    if is_retried:
        assert expect_call(flow.send(refused(code))).address == "b:10911"
    else:
        failed = failing(flow, refused(code))
        assert (failed.code, len(failed.attempts)) == (code, 1)


@pytest.mark.parametrize("code", [13, 3, 999])
@pytest.mark.parametrize("rules", ["waiting_rules", "async_rules", "submit_rules"])
def test_a_refusal_with_another_code_is_the_end(rules: str, code: int) -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer, rules=getattr(producer, rules))
    next(flow)
    failed = failing(flow, refused(code, "never"))
    assert (failed.code, failed.address, failed.topic) == (code, "a:10911", "orders")
    assert "a a:10911 queue 0" in str(failed)
    assert "never" in str(failed)
    assert failed.__cause__ is failed.attempts[0].error
    assert (producer.counts.failed, producer.counts.retried) == (1, 0)


def test_which_codes_are_followed_by_the_next_is_an_option() -> None:
    options = ProducerOptions(retry_codes=frozenset({999}), retry_backoff=0)
    producer = producer_with(route("a"), options=options)
    flow = sending(producer)
    next(flow)
    expect_call(flow.send(refused(999)))
    assert len(failing(flow, refused(1)).attempts) == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
@pytest.mark.parametrize("rules", ["waiting_rules", "submit_rules"])
def test_disk_or_slave_that_was_late_is_the_end_and_seen_in_the_receipt(
    rules: str, code: int, status: SendStatus
) -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer, rules=getattr(producer, rules))
    receipt = finish(flow, stored(expect_call(next(flow)), code=code))
    assert (receipt.status, receipt.failures) == (status, ())
    assert (producer.counts.sent, producer.counts.failed) == (1, 0)


@pytest.mark.parametrize("rules", ["waiting_rules", "submit_rules"])
def test_disk_or_slave_that_was_late_is_followed_by_the_next_with_retry_when_not_stored(
    rules: str,
) -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retry_when_not_stored=True))
    flow = sending(producer, rules=getattr(producer, rules))
    second = expect_call(flow.send(stored(expect_call(next(flow)), code=10)))
    assert second.address == "b:10911"
    receipt = finish(flow, stored(second))
    assert receipt.status is SendStatus.STORED
    assert [attempt.error.code for attempt in receipt.failures] == [10]
    assert receipt.may_be_stored_twice
    assert (producer.counts.sent, producer.counts.retried) == (1, 1)


def test_a_late_disk_everywhere_returns_the_last_receipt() -> None:
    producer = producer_with(
        route("a", "b"), options=ProducerOptions(retry_when_not_stored=True, retries=1)
    )
    flow = sending(producer)
    second = expect_call(flow.send(stored(expect_call(next(flow)), code=10)))
    receipt = finish(flow, stored(second, code=12))
    assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert receipt.queue.broker == "b"
    assert producer.counts.sent == 1


def test_a_message_that_one_broker_stored_late_is_not_lost_when_the_next_refuses() -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retry_when_not_stored=True))
    flow = sending(producer)
    flow.send(stored(expect_call(next(flow)), code=10))
    receipt = finish(flow, refused(13))
    assert (receipt.queue.broker, receipt.status) == ("a", SendStatus.FLUSH_DISK_TIMEOUT)
    assert (producer.counts.sent, producer.counts.failed) == (1, 0)


@pytest.mark.parametrize("rules", ["waiting_rules", "submit_rules"])
def test_an_answer_that_cannot_be_read_is_the_end(rules: str) -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer, rules=getattr(producer, rules))
    next(flow)
    failed = failing(flow, Command(0))
    assert isinstance(failed.attempts[0].error, MissingField)


@pytest.mark.parametrize("error", [Unencodable("property", "odd"), ClientClosed("the client")])
def test_what_no_other_broker_can_cure_is_the_end(error: RocketMQError) -> None:
    flow = sending(producer_with(route("a", "b")))
    next(flow)
    assert failing(flow, error).attempts[0].error is error


def test_a_connection_that_can_take_no_more_is_followed_by_the_next() -> None:
    flow = sending(producer_with(route("a", "b")))
    next(flow)
    assert expect_call(flow.throw(TooManyInFlight(1))).address == "b:10911"


# ---- number of attempts --------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_there_are_as_many_attempts_as_the_options_say(retries: int) -> None:
    options = ProducerOptions(retries=retries, retry_backoff=0)
    producer = producer_with(route("a"), options=options)
    flow = sending(producer)
    next(flow)
    for _ in range(retries):
        flow.throw(ConnectionLost("a:10911", "cut"))
    failed = failing(flow, ConnectionLost("a:10911", "cut"))
    assert len(failed.attempts) == retries + 1
    assert producer.counts.retried == retries
    assert f"after {retries + 1} attempt" in str(failed)


def test_a_submit_has_a_number_of_attempts_of_its_own() -> None:
    options = ProducerOptions(retries=5, submit_retries=1, retry_backoff=0)
    producer = producer_with(route("a"), options=options)
    flow = sending(producer, rules=producer.submit_rules)
    next(flow)
    flow.throw(LOST)
    assert len(failing(flow, LOST).attempts) == 2


def test_a_retry_sends_the_same_bytes_again() -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer)
    first = expect_call(next(flow)).command
    second = expect_call(flow.throw(LOST)).command
    assert (second.fields["i"], second.body) == (first.fields["i"], first.body)
    assert second is not first  # each attempt has its own request id


def test_a_broker_that_just_failed_is_avoided() -> None:
    producer = producer_with(route("a", "b"))
    for _ in range(8):
        flow = sending(producer)
        first = expect_call(next(flow))
        assert expect_call(flow.throw(LOST)).address != first.address


# ---- time ----------------------------------------------------------------------------------------


def test_one_deadline_holds_for_all_attempts() -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer)
    assert expect_call(next(flow)).deadline == 103.0
    clock_of(producer).seconds = 102.0
    assert expect_call(flow.throw(LOST)).deadline == 103.0
    clock_of(producer).seconds = 103.0
    failed = failing(flow, CallTimeout("b:10911", 1.0))
    assert isinstance(failed, SendTimedOut)
    assert isinstance(failed, TimeoutError)
    assert (len(failed.attempts), failed.elapsed, failed.code) == (2, 3.0, 10002)
    assert producer.counts.retried == 1


def test_no_attempt_begins_after_the_deadline() -> None:
    producer = producer_with(route("a"))
    with pytest.raises(SendTimedOut, match="0 attempts") as caught:
        next(sending(producer, deadline=100.0))
    assert caught.value.attempts == ()
    assert caught.value.__cause__ is None
    assert producer.counts.failed == 1


def test_one_attempt_has_less_time_when_another_is_possible() -> None:
    options = ProducerOptions(attempt_timeout=0.5, retries=1)
    producer = producer_with(route("a", "b"), options=options)
    flow = sending(producer)
    assert expect_call(next(flow)).deadline == 100.5
    clock_of(producer).seconds = 100.5
    assert expect_call(flow.throw(CallTimeout("a:10911", 0.5))).deadline == 103.0


def test_one_attempt_never_has_more_time_than_the_whole() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(attempt_timeout=9.0))
    assert expect_call(next(sending(producer))).deadline == 103.0


def pauses_of(producer: ProducerCore, flow: Flow[Any], deadline: float = 103.0) -> list[float]:
    """Refuse all connections; return the pauses between the attempts."""
    interpreter = Interpreter(lambda call: ConnectFailed(call.address, "no"), clock_of(producer))
    with pytest.raises(SendUnreachable):
        interpreter.run(flow)
    assert clock_of(producer).seconds < deadline
    return interpreter.pauses


@pytest.mark.parametrize(
    ("brokers", "options", "pauses"),
    [
        ("ab", ProducerOptions(), [0.1]),
        ("ab", ProducerOptions(retries=4), [0.1, 0.2, 0.4]),
        ("a", ProducerOptions(), [0.1, 0.2]),
        ("ab", ProducerOptions(retries=3, retry_backoff=0.25), [0.25, 0.5]),
        ("a", ProducerOptions(retry_backoff=0), []),
        ("a", ProducerOptions(retries=0), []),
    ],
)
def test_retries_are_spaced_except_the_first_on_another_broker(
    brokers: str, options: ProducerOptions, pauses: list[float]
) -> None:
    for is_oneway in (False, True):
        producer = producer_with(route(*brokers), options=options)
        flow: Flow[Any] = sending(producer)
        if is_oneway:
            flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
        assert pauses_of(producer, flow) == pytest.approx(pauses)


def test_a_pause_leaves_half_of_the_time_to_the_attempt_after_it() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(retries=4, retry_backoff=1.0))
    pauses = pauses_of(producer, sending(producer, deadline=103.0))
    assert pauses == pytest.approx([1.0, 1.0, 0.5, 0.25])


def test_a_pause_does_not_overflow_after_very_many_retries() -> None:
    assert backoff(0.1, [Attempt("a", "a:1", 0, LOST, 0.0)] * 5000, "a") > 1e6


# ---- outcomes of the loop ------------------------------------------------------------------------


def test_when_no_broker_can_be_reached_the_error_says_so() -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retries=1))
    flow = sending(producer)
    next(flow)
    flow.throw(ConnectFailed("a:10911", "refused"))
    failed = failing(flow, ConnectFailed("b:10911", "refused"))
    assert isinstance(failed, SendUnreachable)
    assert isinstance(failed, ConnectionError)
    assert (failed.code, failed.address, failed.retryable) == (10001, "b:10911", True)
    assert "downrange doctor" in str(failed)
    assert "1. a a:10911" in str(failed)
    assert "2. b b:10911" in str(failed)


def test_a_failure_has_one_cause_without_the_frames_of_the_connection() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(retries=0))
    flow = sending(producer)
    next(flow)
    refusal = ConnectFailed("a:10911", "refused")
    refusal.__cause__ = ConnectionRefusedError()
    failed = failing(flow, refusal)
    lines = "".join(traceback.format_exception(failed))
    assert failed.__cause__ is refusal
    assert lines.count("direct cause") == 1
    assert lines.count("Traceback") == 1
    assert "ConnectionRefusedError" not in lines


@pytest.mark.parametrize(
    ("first", "last", "may_be_stored"),
    [
        (CallTimeout("a:10911", 1.0), refused(16), True),
        (LOST, ConnectFailed("b:10911", "refused"), True),
        (refused(1), Command(0), True),  # a success without an offset
        (ConnectFailed("a:10911", "refused"), refused(16), False),
    ],
)
def test_a_failure_says_whether_the_message_may_be_stored(
    first: Any, last: Any, may_be_stored: bool
) -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retries=1))
    outgoing = prepare(producer, MESSAGE)
    flow = send_with_retries(producer, outgoing, RoundRobin(), 103.0, producer.waiting_rules)
    next(flow)
    flow.throw(first) if isinstance(first, RocketMQError) else flow.send(first)
    failed = failing(flow, last)
    assert (failed.may_be_stored, failed.message_id) == (may_be_stored, outgoing.message_id)
    assert outgoing.message_id in str(failed)
    assert ("may have been stored" in str(failed)) is may_be_stored
    assert ("was not stored" in str(failed)) is not may_be_stored


# ---- notices -------------------------------------------------------------------------------------


def test_failed_attempts_and_retries_are_published_in_order() -> None:
    client = core_with(route("a", "b"))
    published: list[Any] = []
    client.observe = published.append
    producer = producer_with(client=client, options=ProducerOptions(fault_tolerance="5.x"))
    outgoing = prepare(producer, MESSAGE)
    flow = send_with_retries(producer, outgoing, RoundRobin(), 103.0, producer.waiting_rules)
    answers: Iterator[Any] = iter([ConnectFailed("a:10911", "refused"), refused(2)])
    receipt = play(flow, lambda call: next(answers, None) or stored(call))
    failed = [notice for notice in published if isinstance(notice, AttemptFailed)]
    assert [notice.attempt for notice in failed] == list(receipt.failures)
    assert {(notice.topic, notice.message_id) for notice in failed} == {
        ("orders", outgoing.message_id)
    }
    assert [notice.number for notice in failed] == [1, 2]
    assert [type(notice) for notice in published] == [
        *(HealthSnapshot, AttemptFailed, AttemptRepeated),
        *(HealthSnapshot, AttemptFailed, AttemptRepeated),
    ]
    repeated = [notice for notice in published if isinstance(notice, AttemptRepeated)]
    assert [(one.number, one.broker, one.address) for one in repeated] == [
        *((2, "b", "b:10911"), (3, receipt.queue.broker, f"{receipt.queue.broker}:10911"))
    ]
    assert [one.pause for one in repeated] == [0.0, 0.1]


def test_a_message_that_one_broker_stored_late_is_published_when_the_next_is_tried() -> None:
    client = core_with(route("a", "b"))
    published: list[Any] = []
    client.observe = published.append
    producer = producer_with(client=client, options=ProducerOptions(retry_when_not_stored=True))
    play(sending(producer), lambda call: stored(call, code=10 * (call.address == "a:10911")))
    (failed,) = [notice for notice in published if isinstance(notice, AttemptFailed)]
    assert failed.attempt.error.code == 10


def test_a_slow_reply_is_published_before_the_send_ends() -> None:
    client = core_with(route("a"))
    published: list[Any] = []
    client.observe = published.append
    producer = producer_with(client=client, options=ProducerOptions(fault_tolerance="5.x"))

    def serve(call: Call) -> Command:
        clock_of(producer).seconds += 1.0
        return stored(call)

    play(sending(producer), serve)
    assert published == [HealthSnapshot("a", False, True, 1.0, 2.0)]


def test_when_no_broker_permits_it_the_error_says_so() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(retries=1, retry_backoff=0))
    flow = sending(producer)
    next(flow)
    flow.send(refused(16))
    failed = failing(flow, refused(16))
    assert isinstance(failed, SendNotPermitted)
    assert isinstance(failed, PermissionError)
    assert isinstance(failed.__cause__, NoPermission)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (CallTimeout("a:10911", 1.0), NoPermission(16, "no", "a:10911")),
        (ConnectFailed("a:10911", "refused"), ConnectionLost("a:10911", "cut")),
        (ConnectionLost("a:10911", "cut"), ConnectFailed("a:10911", "refused")),
    ],
)
def test_attempts_that_failed_in_different_ways_are_just_a_failure(
    first: RocketMQError, last: RocketMQError
) -> None:
    producer = producer_with(route("a"), options=ProducerOptions(retries=1, retry_backoff=0))
    flow = sending(producer)
    next(flow)
    flow.throw(first)
    assert type(failing(flow, last)) is SendFailed


def test_a_message_names_its_topic_without_the_namespace_when_it_fails() -> None:
    client = core_with(route("a", topic="prod%orders"), options=ClientOptions(namespace="prod"))
    flow = sending(producer_with(client=client))
    next(flow)
    assert failing(flow, refused(13)).topic == "orders"


# ---- routes --------------------------------------------------------------------------------------


def test_a_missing_route_is_looked_for_before_the_deadline() -> None:
    producer = producer_with()
    flow = sending(producer)
    lookup = expect(Once, next(flow)).flow()
    assert expect_call(next(lookup)).deadline == 103.0
    found = finish(lookup, routed(body("a")))
    assert expect_call(flow.send(found)).address == "a:10911"


def test_a_route_without_a_writable_queue_is_looked_for_again() -> None:
    producer = producer_with(route("a", masterless=["a"]))
    for flow in (
        sending(producer),
        send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0),
    ):
        expect(Once, next(flow))


def test_a_missing_topic_borrows_the_default_topics_route() -> None:
    asked: list[str] = []
    producer = producer_with(options=ProducerOptions(default_topic_queues=2))

    def serve(call: Any) -> Command:
        if call.command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return stored(call)
        asked.append(call.command.fields["topic"])
        return routed(body("a", queues=8) if asked[-1] == "TBW102" else None)

    play(sending(producer), serve)
    assert asked == ["orders", "TBW102"]
    found = producer.client.routes.get("orders")
    assert found is not None
    assert (len(found.writable), found.is_borrowed) == (2, True)


def test_a_missing_topic_is_an_error_where_topics_are_not_created() -> None:
    producer = producer_with(options=ProducerOptions(auto_create="off"))
    asked: list[str | None] = []

    def serve(call: Any) -> Command:
        asked.append(call.command.fields.get("topic"))
        return routed(body("a") if asked[-1] == "TBW102" else None)

    with pytest.raises(RouteNotFound, match="downrange topic create"):
        play(sending(producer), serve)
    assert asked == ["orders", None]  # then it asks for the brokers


def test_a_missing_topic_is_created_on_every_master_with_auto_create_balanced() -> None:
    options = ProducerOptions(auto_create="balanced", default_topic_queues=3)
    producer = producer_with(options=options)
    created: list[tuple[str, dict[str, str]]] = []

    def serve(call: Any) -> Command:
        command = call.command
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            created.append((call.address, command.fields))
            return Command(0)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            is_there = command.fields["topic"] == "TBW102" or len(created) == 2
            return routed(body("a", "b", queues=3) if is_there else None)
        return stored(call)

    assert play(sending(producer), serve).status is SendStatus.STORED
    assert {address for address, _ in created} == {"a:10911", "b:10911"}
    assert {fields["writeQueueNums"] for _, fields in created} == {"3"}
    found = producer.client.routes.get("orders")
    assert found is not None
    assert not found.is_borrowed
    play(sending(producer), serve)
    assert len(created) == 2


def test_senders_that_miss_a_topic_together_create_it_once() -> None:
    options = ProducerOptions(auto_create="balanced")
    producer = producer_with(options=options)
    keys = {expect(Once, next(sending(producer))).key for _ in range(3)}
    assert len(keys) == 1


def test_a_topic_that_is_there_is_not_created_again() -> None:
    producer = producer_with(options=ProducerOptions(auto_create="balanced"))
    codes: list[int] = []

    def serve(call: Any) -> Command:
        codes.append(call.command.code)
        is_lookup = codes[-1] == RequestCode.GET_ROUTEINFO_BY_TOPIC
        return routed(body("a")) if is_lookup else stored(call)

    play(sending(producer), serve)
    assert RequestCode.UPDATE_AND_CREATE_TOPIC not in codes


# ---- chosen queues -------------------------------------------------------------------------------

CHOSEN = QueueId("orders", "b", 2)


def test_a_message_goes_to_the_queue_that_was_named() -> None:
    flow = sending(producer_with(route("a", "b")), target=CHOSEN)
    call = expect_call(next(flow))
    assert (call.address, call.command.fields["e"]) == ("b:10911", "2")
    assert finish(flow, stored(call)).queue == CHOSEN


def test_a_chosen_queue_gets_one_attempt_of_a_send() -> None:
    flow = sending(producer_with(route("a", "b")), target=CHOSEN)
    next(flow)
    assert len(failing(flow, LOST).attempts) == 1


def test_a_chosen_queue_is_tried_again_by_a_submit_but_no_other_queue() -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retry_backoff=0))
    flow = sending(producer, target=CHOSEN, rules=producer.submit_rules)
    next(flow)
    for _ in range(2):
        call = expect_call(flow.throw(LOST))
        assert (call.address, call.command.fields["e"]) == ("b:10911", "2")
    assert len(failing(flow, LOST).attempts) == 3


def test_a_queue_may_be_named_with_or_without_the_namespace() -> None:
    client = core_with(
        route("a", "b", topic="prod%orders"), options=ClientOptions(namespace="prod")
    )
    for topic in ("orders", "prod%orders"):
        flow = sending(producer_with(client=client), target=QueueId(topic, "b", 1))
        call = expect_call(next(flow))
        assert (call.address, call.command.fields["b"]) == ("b:10911", "prod%orders")


def test_a_queue_of_another_topic_is_refused() -> None:
    flow = sending(producer_with(route("a")), target=QueueId("bills", "a", 0))
    with pytest.raises(InvalidMessage, match="belongs to another topic"):
        next(flow)


def test_messages_with_one_hash_go_to_one_queue() -> None:
    producer = producer_with(route("a", "b"))
    seen = {
        expect_call(next(sending(producer, target=by_hash("o-17")))).command.fields["e"]
        for _ in range(5)
    }
    assert len(seen) == 1


def test_a_random_queue_is_chosen_by_chance() -> None:
    flow = sending(producer_with(route("a", "b")), target=by_random())
    assert expect_call(next(flow)).command.fields["e"] == "0"


def test_a_sharding_key_chooses_the_queue_as_its_hash_does() -> None:
    producer = producer_with(route("a", "b"))
    sharded = Message("orders", b"1", sharding_key="o-17")
    by_key = expect_call(next(sending(producer, sharded)))
    hashed = expect_call(next(sending(producer, target=by_hash("o-17"))))
    assert (by_key.address, by_key.command.fields["e"]) == (
        hashed.address,
        hashed.command.fields["e"],
    )
    flow = send_oneway(producer, prepare(producer, sharded), RoundRobin(), 103.0)
    assert expect_call(next(flow)).address == by_key.address


def test_a_queue_that_was_named_outweighs_the_sharding_key() -> None:
    sharded = Message("orders", b"1", sharding_key="o-17")
    flow = sending(producer_with(route("a", "b")), sharded, target=CHOSEN)
    assert expect_call(next(flow)).command.fields["e"] == "2"


def test_a_function_of_the_users_chooses_among_the_queues() -> None:
    def last(queues: Any, message: Message) -> QueueId:
        assert message is MESSAGE
        return queues[-1]  # type: ignore[no-any-return]

    flow = sending(producer_with(route("a", "b")), target=last)
    asked = expect(UserCall, next(flow))
    call = expect_call(flow.send(asked.function(*asked.args)))
    assert (call.address, call.command.fields["e"]) == ("b:10911", "3")


@pytest.mark.parametrize("is_room", [False, True])
def test_a_function_of_the_users_that_fails_is_named_and_reported(is_room: bool) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("x")

    reports: list[tuple[str, str]] = []
    producer = producer_with(
        route("a"), report=lambda where, error: reports.append((where, repr(error)))
    )
    target = by_room("near", room_of=broken) if is_room else broken
    with pytest.raises(OptionError, match=r"selector .*broken.* raised KeyError") as caught:
        play(sending(producer, target=target), stored)
    assert isinstance(caught.value.__cause__, KeyError)
    ((where, error),) = reports
    assert where.startswith("selector ")
    assert "broken" in where
    assert error == "KeyError('x')"
    assert (producer.counts.user_errors, producer.client.user_errors) == (1, 1)


def test_a_room_without_a_broker_is_not_an_error_of_the_users_code() -> None:
    producer = producer_with(route("a"))
    with pytest.raises(OptionError, match="no queue of 'orders' is in 'near'"):
        play(sending(producer, target=by_room("near")), stored)
    assert producer.counts.user_errors == 0


def test_a_function_of_the_users_must_return_a_queue_of_the_topic() -> None:
    flow = sending(producer_with(route("a")), target=lambda queues, message: queues[0])
    next(flow)
    with pytest.raises(OptionError, match="must return"):
        flow.send(7)


def test_a_broker_that_the_route_does_not_name_is_looked_for_in_other_routes() -> None:
    producer = producer_with(route("a"), route("b", topic="bills"))
    assert expect_call(next(sending(producer, target=CHOSEN))).address == "b:10911"


@pytest.mark.parametrize("sent", [send_with_retries, send_oneway])
def test_a_broker_that_no_route_names_is_asked_for_again(sent: Any) -> None:
    producer = producer_with(route("a"))
    rules = (producer.waiting_rules,) if sent is send_with_retries else ()
    flow = sent(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0, *rules, CHOSEN)
    calls: list[Call] = []

    def serve(call: Call) -> Command:
        calls.append(call)
        return routed(body("a", "b")) if len(calls) == 1 else stored(call)

    play(flow, serve)
    assert calls[0].command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert calls[1].address == "b:10911"


@pytest.mark.parametrize(
    "said", [None, body("a"), body("a", "b", masterless=["b"])], ids=["none", "other", "masterless"]
)
def test_a_broker_without_a_known_master_is_an_error(said: Any) -> None:
    flow = sending(producer_with(route("a")), target=CHOSEN)
    with pytest.raises(BrokerNotFound, match="broker 'b' is not registered") as caught:
        play(flow, lambda _: routed(said))
    assert (caught.value.code, caught.value.topic, caught.value.retryable) == (
        10003,
        "orders",
        True,
    )


# ---- health --------------------------------------------------------------------------------------


def test_brokers_that_fail_or_are_slow_are_avoided_with_fault_tolerance() -> None:
    producer = producer_with(
        route("a", "b"), options=ProducerOptions(fault_tolerance=FaultTolerance(style="5.x"))
    )
    flow = sending(producer)
    next(flow)
    second = expect_call(flow.throw(ConnectFailed("a:10911", "refused")))
    clock_of(producer).seconds += 0.6
    finish(flow, stored(second))
    states = {state.broker: state for state in producer.health.snapshot(100.6)}
    assert (states["a"].is_available, states["a"].is_reachable) == (False, False)
    assert states["b"].latency == pytest.approx(0.6)
    assert states["b"].avoided_for == pytest.approx(2.0)


def test_no_health_is_recorded_without_fault_tolerance() -> None:
    producer = producer_with(route("a", "b"))
    flow = sending(producer)
    next(flow)
    finish(flow, stored(expect_call(flow.throw(LOST))))
    assert producer.health.snapshot(100.0) == ()


# ---- hooks ---------------------------------------------------------------------------------------


def noting(seen: list[Any], name: str) -> Any:
    def hook(context: SendContext) -> None:
        seen.append((name, context.receipt is not None, context.error))

    return hook


def hooks_noting(seen: list[Any]) -> Hooks:
    return Hooks(
        forbid_send=(noting(seen, "forbid"),),
        before_send=(noting(seen, "before"),),
        after_send=(noting(seen, "after"),),
    )


def test_hooks_come_in_order_around_each_attempt() -> None:
    seen: list[Any] = []
    calls = Hooks(
        before_call=(lambda *_: seen.append("before call"),),
        after_call=(lambda *_: seen.append("after call"),),
    )
    client = core_with(route("a", "b"), hooks=calls)
    producer = producer_with(client=client, hooks=hooks_noting(seen))
    lost = ConnectionLost("a:10911", "cut")

    def serve(call: Any) -> Any:
        seen.append(call.address)
        return lost if call.address == "a:10911" else stored(call)

    assert play(sending(producer), serve).attempts == 2
    assert seen == [
        ("forbid", False, None),
        ("before", False, None),
        "before call",
        "a:10911",
        ("after", False, lost),
        ("forbid", False, None),
        ("before", False, None),
        "before call",
        "b:10911",
        "after call",
        ("after", True, None),
    ]


def test_hooks_get_message_queue_address_and_mode() -> None:
    contexts: list[SendContext] = []
    producer = producer_with(route("a"), hooks=Hooks(before_send=(contexts.append,)))
    later = Message("orders", b"1", delay_level=3)
    for rules in (producer.waiting_rules, producer.submit_rules):
        play(sending(producer, later, rules=rules), stored)
    outgoing = prepare_batch(producer, [MESSAGE, MESSAGE])
    play(send_with_retries(producer, outgoing, RoundRobin(), 103.0, producer.async_rules), stored)
    play(send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0), lambda _: None)
    assert [context.mode for context in contexts] == ["sync", "async", "async", "oneway"]
    assert [len(context.messages) for context in contexts] == [1, 1, 2, 1]
    assert [context.message_type.name for context in contexts] == ["DELAY"] * 2 + ["NORMAL"] * 2
    first = contexts[0]
    assert (first.group, first.address, first.message) == ("shop", "a:10911", later)
    assert first.queue == QueueId("orders", "a", 0)


def test_a_hook_that_forbids_ends_the_send_at_once_and_blames_no_broker() -> None:
    def forbid(_: SendContext) -> None:
        raise KeyError("not today")

    producer = producer_with(
        route("a", "b"),
        hooks=Hooks(forbid_send=(forbid,)),
        options=ProducerOptions(fault_tolerance="5.x"),
    )
    flow = sending(producer)
    expect(UserCall, next(flow))
    with pytest.raises(SendForbidden, match="forbids to send to 'orders': KeyError") as caught:
        flow.throw(KeyError("not today"))
    assert caught.value.topic == "orders"
    assert producer.health.snapshot(100.0) == ()
    assert (producer.counts.failed, producer.counts.sent) == (1, 0)


def test_an_error_in_an_observing_hook_is_reported_and_the_send_goes_on() -> None:
    def broken(_: SendContext) -> None:
        raise KeyError("oops")

    reports: list[str] = []
    producer = producer_with(
        route("a"),
        hooks=Hooks(before_send=(broken,), after_send=(broken,)),
        report=lambda where, error: reports.append(repr(error)),
    )
    assert play(sending(producer), stored).queue.broker == "a"
    assert reports == ["KeyError('oops')"] * 2
    assert producer.counts.user_errors == 2


def test_requests_are_signed_anew_for_each_attempt() -> None:
    client = core_with(route("a", "b"), credentials=Credentials("me", "secret"))
    flow = sending(producer_with(client=client))
    first = expect_call(next(flow)).command.fields
    second = expect_call(flow.throw(LOST)).command.fields
    assert first["AccessKey"] == second["AccessKey"] == "me"
    assert first["Signature"] != second["Signature"]  # they go to different brokers


# ---- trace ---------------------------------------------------------------------------------------


def traced(**settings: Any) -> ProducerCore:
    return producer_with(route("a"), options=ProducerOptions(trace=True, **settings))


def test_an_answered_send_leaves_a_trace() -> None:
    producer = traced()
    flow = sending(producer, Message("orders", b"12", tags="new", keys=["k1", "k2"]))
    call = expect_call(next(flow))
    clock_of(producer).seconds += 0.25
    receipt = finish(flow, stored(call, region="north"))
    assert producer.trace is not None
    (message,) = producer.trace.take_all()
    kind, time_ms, region, group, topic, *rest = message.body.decode().rstrip("\2").split("\1")
    assert (kind, time_ms, region, group, topic) == ("Pub", "100000", "north", "shop", "orders")
    assert rest == [
        *(receipt.message_id, "new", "k1 k2", "a:10911", "2", "250", "0", "OFFSET-ID", "true")
    ]


def test_a_batch_leaves_one_trace_without_tags_and_keys() -> None:
    producer = traced()
    outgoing = prepare_batch(producer, [Message("orders", b"1", tags="new", keys=["k"])] * 2)
    play(send_with_retries(producer, outgoing, RoundRobin(), 103.0, producer.waiting_rules), stored)
    assert producer.trace is not None
    (message,) = producer.trace.take_all()
    assert message.body.decode().split("\1")[6:8] == ["null", "null"]


def test_a_message_that_was_stored_late_leaves_a_trace_of_no_success() -> None:
    producer = traced()
    play(sending(producer), lambda call: stored(call, code=10))
    assert producer.trace is not None
    (message,) = producer.trace.take_all()
    assert message.body.decode().rstrip("\2").split("\1")[13] == "false"


def test_a_broker_that_disables_traces_gets_none() -> None:
    producer = traced()
    play(sending(producer), lambda call: stored(call, trace_on=False))
    assert producer.trace is not None
    assert len(producer.trace) == 0


def test_messages_to_the_trace_topic_leave_no_trace() -> None:
    producer = producer_with(
        route("a", topic="traces"), options=ProducerOptions(trace=Trace(topic="traces"))
    )
    play(sending(producer, Message("traces", b"1")), stored)
    assert producer.trace is not None
    assert len(producer.trace) == 0


def test_attempts_without_an_answer_leave_no_trace() -> None:
    producer = traced()
    with pytest.raises(SendFailed):
        play(sending(producer), lambda call: ConnectionLost(call.address, "cut"))
    assert producer.trace is not None
    assert len(producer.trace) == 0


# ---- one way -------------------------------------------------------------------------------------


def test_a_one_way_message_is_handed_over_once_without_an_answer() -> None:
    producer = producer_with(route("a"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    call = expect_call(next(flow))
    assert (call.address, call.is_oneway, call.deadline) == ("a:10911", True, 103.0)
    finish(flow)
    assert (producer.counts.oneway, producer.counts.sent) == (1, 0)


@pytest.mark.parametrize("error", NO_ANSWER, ids=lambda error: type(error).__name__)
def test_a_one_way_message_that_cannot_be_written_goes_to_another_broker(error: Any) -> None:
    producer = producer_with(route("a", "b"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    first = expect_call(next(flow))
    second = expect_call(flow.throw(error))
    assert [first.address, second.address] == ["a:10911", "b:10911"]
    assert second.is_oneway
    finish(flow)
    assert (producer.counts.oneway, producer.counts.retried, producer.counts.failed) == (1, 1, 0)


def test_a_one_way_message_that_no_broker_takes_fails_with_all_attempts() -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(retries=1))
    outgoing = prepare(producer, MESSAGE)
    flow = send_oneway(producer, outgoing, RoundRobin(), 103.0)
    next(flow)
    flow.throw(ConnectFailed("a:10911", "refused"))
    failed = failing(flow, ConnectFailed("b:10911", "refused"))
    assert isinstance(failed, SendUnreachable)
    assert [attempt.broker for attempt in failed.attempts] == ["a", "b"]
    assert (failed.message_id, failed.may_be_stored) == (outgoing.message_id, False)
    assert (producer.counts.oneway, producer.counts.failed) == (0, 1)


def test_a_one_way_message_to_a_chosen_queue_goes_to_no_other() -> None:
    producer = producer_with(route("a", "b"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0, CHOSEN)
    next(flow)
    assert len(failing(flow, LOST).attempts) == 1


def test_a_one_way_message_that_cannot_be_encoded_is_not_sent_elsewhere() -> None:
    producer = producer_with(route("a", "b"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    next(flow)
    assert len(failing(flow, Unencodable("property", "odd")).attempts) == 1


def test_no_one_way_attempt_begins_after_the_deadline() -> None:
    producer = producer_with(route("a"))
    with pytest.raises(SendTimedOut, match="0 attempts"):
        next(send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 100.0))


def test_one_way_attempts_share_the_deadline_as_other_attempts_do() -> None:
    options = ProducerOptions(attempt_timeout=0.5, retries=1)
    producer = producer_with(route("a", "b"), options=options)
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    assert expect_call(next(flow)).deadline == 100.5
    assert expect_call(flow.throw(CallTimeout("a:10911", 0.5))).deadline == 103.0


@pytest.mark.parametrize("style", ["4.x", "5.x"])
def test_one_way_messages_avoid_the_broker_that_failed(style: Any) -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(fault_tolerance=style))
    round_robin = RoundRobin()
    flow = send_oneway(producer, prepare(producer, MESSAGE), round_robin, 103.0)
    next(flow)
    flow.throw(LOST)
    finish(flow)
    seen: set[str] = set()
    for _ in range(6):
        flow = send_oneway(producer, prepare(producer, MESSAGE), round_robin, 103.0)
        seen.add(expect_call(next(flow)).address)
        finish(flow)
    assert seen == {"b:10911"}
    states = {state.broker: state for state in producer.health.snapshot(100.0)}
    assert (states["a"].is_available, states["b"].is_available) == (False, True)


def test_a_slow_write_of_a_one_way_message_is_seen_in_the_health() -> None:
    client = core_with(route("a"))
    published: list[Any] = []
    client.observe = published.append
    producer = producer_with(client=client, options=ProducerOptions(fault_tolerance="5.x"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    next(flow)
    clock_of(producer).seconds += 1.0
    answer_user_call(flow.send(None))
    finish(flow)
    assert published == [HealthSnapshot("a", False, True, 1.0, 2.0)]


def test_a_forbidden_one_way_message_is_not_sent_elsewhere() -> None:
    def forbid(_: SendContext) -> None:
        raise KeyError

    producer = producer_with(route("a", "b"), hooks=Hooks(forbid_send=(forbid,)))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    with pytest.raises(SendForbidden):
        play(flow, stored)
    assert [state.broker for state in producer.health.snapshot(100.0)] == []


def test_a_one_way_message_goes_to_the_queue_that_was_named() -> None:
    producer = producer_with(route("a", "b"))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0, CHOSEN)
    call = expect_call(next(flow))
    assert (call.address, call.command.fields["e"]) == ("b:10911", "2")


def test_hooks_come_in_order_around_a_one_way_message_too() -> None:
    seen: list[Any] = []
    calls = Hooks(before_call=(lambda *_: seen.append("before call"),))
    client = core_with(route("a"), hooks=calls)
    producer = producer_with(client=client, hooks=hooks_noting(seen))
    flow = send_oneway(producer, prepare(producer, MESSAGE), RoundRobin(), 103.0)
    play(flow, lambda call: seen.append(call.address))
    assert seen == [
        ("forbid", False, None),
        ("before", False, None),
        "before call",
        "a:10911",
        ("after", False, None),
    ]


@pytest.mark.parametrize("is_unit_mode", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_send_fields_written_out_are_those_of_the_header_class(
    is_unit_mode: bool, is_batch: bool
) -> None:
    client = core_with(options=ClientOptions(is_unit_mode=is_unit_mode))
    producer = producer_with(client=client)
    message = Message("orders", b"1", flag=7)
    outgoing = prepare_batch(producer, [message]) if is_batch else prepare(producer, message)
    header = SendRequestV2(
        producer_group=producer.group,
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=outgoing.born_ms,
        flag=7,
        properties=outgoing.properties,
        reconsume_times=0,
        unit_mode=is_unit_mode,
        batch=is_batch,
        broker_name="a",
    )
    assert send_command(producer, outgoing, QueueId("orders", "a", 3)).fields == header.to_fields()


def test_hooks_get_the_error_of_a_one_way_message() -> None:
    seen: list[SendContext] = []
    hooks = Hooks(after_send=(seen.append,))
    producer = producer_with(route("a"), hooks=hooks)
    outgoing = prepare(producer, Message("orders", b"1"))
    flow = send_oneway(producer, outgoing, RoundRobin(), 103.0)
    with pytest.raises(SendUnreachable):
        play(flow, lambda _: ConnectFailed("a:10911", "refused"))
    assert [type(context.error) for context in seen] == [ConnectFailed] * 3


def test_forms_of_requests_are_kept_up_to_a_limit() -> None:
    producer = producer_with()
    outgoing = prepare(producer, Message("orders", b"1"))
    for number in range(FORMS_MAX + 1):
        send_command(producer, outgoing, QueueId("orders", "a", number))
    assert list(producer.forms) == [(QueueId("orders", "a", FORMS_MAX), outgoing.code)]


def test_a_broker_whose_name_cannot_be_written_fails_the_send() -> None:
    flow = sending(producer_with(route("\ud800")))
    with pytest.raises(SendFailed) as failed:
        next(flow)
    assert isinstance(failed.value.attempts[0].error, Unencodable)
