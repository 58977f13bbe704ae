"""One producer: opening and closing, flows in progress, and each way to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import Call, Flow, Gather, Once, Signal, Wait
from downrange.client.flows.producing.request_reply import request
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.client.flows.routing.selectors import by_hash, by_room
from downrange.errors import (
    BatchFailed,
    ClientClosed,
    ConnectionLost,
    GroupTaken,
    InvalidMessage,
    OptionError,
    RouteNotFound,
    SendFailed,
    SendTimedOut,
    TooManySends,
)
from downrange.model import CompressedMessage, Message, QueueId
from downrange.options import AutoBatch, ClientOptions, ProducerOptions, Trace
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.records import decode_batch
from tests.unit.client.flows.flow_steps import (
    answer_user_call,
    body,
    clock_of,
    core_with,
    expect,
    expect_call,
    finish,
    play,
    play_together,
    producer_with,
    refused,
    route,
    routed,
    stored,
)

if TYPE_CHECKING:
    from downrange.client.flows.producing.producer_core import ProducerCore

MESSAGE = Message("orders", b"1")


def submitted(producer: ProducerCore, message: Message = MESSAGE, **settings: Any) -> Flow[Any]:
    return producer.send(message, RoundRobin(), producer.submit_rules, is_limited=True, **settings)


def sent(producer: ProducerCore, message: Message = MESSAGE, **settings: Any) -> Flow[Any]:
    return producer.send(message, RoundRobin(), producer.waiting_rules, **settings)


# ---- opening and closing -------------------------------------------------------------------------


def test_a_group_whose_name_breaks_a_rule_is_refused() -> None:
    with pytest.raises(OptionError):
        producer_with(group="no blanks")


def test_brokers_know_a_group_with_its_namespace() -> None:
    client = core_with(options=ClientOptions(namespace="prod"))
    producer = producer_with(client=client)
    assert (producer.group, producer.plain_group) == ("prod%shop", "shop")


def test_a_producer_makes_itself_known_to_the_brokers_that_are_known() -> None:
    producer = producer_with(route("a"))
    heartbeats: list[str] = []

    def serve(call: Any) -> Command:
        heartbeats.append(call.address)
        return Command(0)

    play(producer.enter(), serve)
    assert heartbeats == ["a:10911"]
    assert producer.client.producers == {"shop": producer}


def test_a_second_producer_of_a_group_cannot_enter() -> None:
    client = core_with()
    finish(producer_with(client=client).enter())
    with pytest.raises(GroupTaken):
        next(producer_with(client=client).enter())


def test_a_producer_unregisters_and_frees_its_group() -> None:
    producer = producer_with(route("a"))
    codes: list[int] = []

    def serve(call: Any) -> Command:
        codes.append(call.command.code)
        return Command(0)

    play(producer.enter(), serve)
    play(producer.exit(105.0), serve)
    assert codes == [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT]
    assert producer.client.producers == {}


def test_a_producer_that_never_entered_does_not_unregister() -> None:
    client = core_with(route("a"))
    play(producer_with(client=client).enter(), lambda _: Command(0))
    finish(producer_with(client=client).exit(105.0))  # of the same group
    assert list(client.producers) == ["shop"]


def test_closing_waits_for_what_was_accepted() -> None:
    producer = producer_with(route("a"))
    flows = [sent(producer), submitted(producer)]
    calls = [expect_call(next(flow)) for flow in flows]
    closing = producer.exit(105.0)
    wait = expect(Wait, next(closing))
    assert wait.deadline == 105.0
    finish(flows[0], stored(calls[0]))
    assert not wait.signal.is_fired
    finish(flows[1], stored(calls[1]))
    assert wait.signal.is_fired
    finish(closing, True)


def test_closing_goes_on_when_what_was_accepted_takes_too_long() -> None:
    producer = producer_with(route("a"))
    next(sending := sent(producer))
    closing = producer.exit(105.0)
    expect(Wait, next(closing))
    finish(closing, False)
    sending.close()


@pytest.mark.parametrize("how", ["error", "given up"])
def test_closing_does_not_wait_for_what_has_failed(how: str) -> None:
    producer = producer_with(route("a"))
    flow = submitted(producer)
    next(flow)
    wait = expect(Wait, next(producer.exit(105.0)))
    if how == "error":
        with pytest.raises(SendFailed):
            flow.send(refused(13))
    else:
        flow.close()
    assert wait.signal.is_fired
    assert producer.permits.in_flight == 0


def test_nothing_is_accepted_after_closing_has_begun() -> None:
    producer = producer_with(route("a"))
    finish(producer.exit(105.0))
    for flow in (
        sent(producer),
        submitted(producer),
        producer.send_oneway(MESSAGE, RoundRobin()),
        producer.send_batch([MESSAGE], RoundRobin(), producer.waiting_rules),
    ):
        with pytest.raises(ClientClosed, match="the producer of group 'shop' is closed"):
            next(flow)


def test_messages_that_wait_to_be_gathered_are_sent_when_closing() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(auto_batch=AutoBatch()))
    flow = sent(producer)
    holding = expect(Wait, next(flow))
    closing = producer.exit(105.0)
    expect(Wait, next(closing))
    assert holding.signal.is_fired
    outgoing = answer_user_call(flow.send(True))
    finish(flow, stored(expect_call(flow.send(outgoing))))
    finish(closing, True)


# ---- time and one-way ----------------------------------------------------------------------------


def test_a_call_has_the_time_of_the_options_or_its_own() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(timeout=2.0))
    assert expect_call(next(sent(producer))).deadline == 102.0
    assert expect_call(next(sent(producer, timeout=0.5))).deadline == 100.5
    oneway = producer.send_oneway(MESSAGE, RoundRobin(), None, 0.25)
    assert expect_call(next(oneway)).deadline == 100.25


def test_time_begins_to_run_when_the_call_is_made() -> None:
    producer = producer_with(route("a"))
    flow = sent(producer)
    clock_of(producer).seconds = 104.0
    with pytest.raises(SendTimedOut):
        next(flow)


def test_a_one_way_message_is_accepted_like_any_other() -> None:
    producer = producer_with(route("a", "b"))
    flow = producer.send_oneway(MESSAGE, RoundRobin(), QueueId("orders", "b", 1))
    call = expect_call(next(flow))
    assert (call.is_oneway, call.address) == (True, "b:10911")
    expect(Wait, next(producer.exit(105.0)))
    finish(flow)
    assert producer.counts.oneway == 1


def test_a_message_that_breaks_a_rule_is_refused_before_anything_happens() -> None:
    producer = producer_with(route("a"))
    wrong = Message("no blanks", b"1")
    with pytest.raises(InvalidMessage):
        sent(producer, wrong)
    with pytest.raises(InvalidMessage):
        producer.send_oneway(wrong, RoundRobin())


# ---- back-pressure -------------------------------------------------------------------------------


def full(**settings: Any) -> tuple[ProducerCore, list[Flow[Any]]]:
    """Return a producer whose limits of back-pressure are reached."""
    producer = producer_with(route("a"), options=ProducerOptions(**settings))
    flows = [submitted(producer) for _ in range(10)]
    for flow in flows:
        expect_call(next(flow))
    return producer, flows


def test_a_submit_waits_when_as_many_as_allowed_are_on_their_way() -> None:
    producer, flows = full(in_flight_max=10)
    late = submitted(producer)
    wait = expect(Wait, next(late))
    assert (wait.deadline, producer.permits.waiting) == (103.0, 1)
    flows[0].close()
    assert wait.signal.is_fired
    expect_call(late.send(True))


def test_time_spent_waiting_counts_into_the_deadline() -> None:
    producer, flows = full(in_flight_max=10)
    late = submitted(producer)
    next(late)
    clock_of(producer).seconds = 102.0
    flows[0].close()
    assert expect_call(late.send(True)).deadline == 103.0


def test_a_submit_that_finds_no_room_in_time_fails() -> None:
    producer, _ = full(in_flight_max=10)
    late = submitted(producer)
    next(late)
    clock_of(producer).seconds = 103.0
    with pytest.raises(TooManySends, match="in_flight_max=10"):
        late.send(False)
    assert producer.permits.in_flight == 10


def test_bytes_are_limited_too() -> None:
    producer = producer_with(
        route("a"), options=ProducerOptions(in_flight_bytes_max=1 << 20, compress_over_bytes=1)
    )
    large = Message("orders", b"x" * (1 << 20))
    expect_call(next(submitted_one := submitted(producer, large)))
    assert producer.permits.in_flight_bytes == 1 << 20  # the size before compression
    expect(Wait, next(submitted(producer)))
    submitted_one.close()


@pytest.mark.parametrize("when_full", ["block", "queue"])
def test_a_submit_fires_its_signal_when_there_is_room(when_full: str) -> None:
    producer, flows = full(in_flight_max=10, when_full=when_full)
    admitted = Signal()
    late = submitted(producer, admitted=admitted)
    expect(Wait, next(late))
    assert not admitted.is_fired
    flows[0].close()
    handed_over = expect(Wait, late.send(True))
    assert handed_over.signal is admitted
    assert admitted.is_fired
    expect_call(late.send(True))


def test_a_submit_that_finds_room_fires_its_signal_at_once() -> None:
    producer = producer_with(route("a"))
    signals = [Signal(), Signal(), Signal()]
    single = submitted(producer, admitted=signals[0])
    listed = producer.send_batch(
        [MESSAGE], RoundRobin(), producer.submit_rules, is_limited=True, admitted=signals[1]
    )
    asked = request(
        producer,
        MESSAGE,
        RoundRobin(),
        producer.submit_rules,
        is_limited=True,
        admitted=signals[2],
    )
    effects = [next(single), until_sent(listed), next(asked)]
    assert [expect(Wait, effect).signal for effect in effects] == signals
    assert [signal.is_fired for signal in signals] == [True] * 3
    assert producer.permits.in_flight == 3
    expect_call(single.send(True))


def test_a_submit_that_finds_no_room_fails_at_once_when_told_so() -> None:
    producer, flows = full(in_flight_max=10, when_full="raise")
    admitted = Signal()
    for flow in (
        submitted(producer, admitted=admitted),
        request(producer, MESSAGE, RoundRobin(), producer.submit_rules, is_limited=True),
    ):
        with pytest.raises(TooManySends, match=r"in_flight_max=10 .* when_full='raise' does not"):
            next(flow)
    assert (producer.permits.in_flight, producer.permits.waiting) == (10, 0)
    assert not admitted.is_fired
    flows[0].close()
    expect_call(next(submitted(producer)))


def test_only_the_first_request_of_a_list_fails_at_once() -> None:
    options = ProducerOptions(in_flight_max=10, when_full="raise", body_bytes_max=400)
    producer = producer_with(route("a"), options=options)
    messages = [Message("orders", b"x" * 300)] * 2
    rules = producer.submit_rules
    listed = producer.send_batch(messages, RoundRobin(), rules, is_limited=True)
    call = expect_call(until_sent(listed))
    others = [submitted(producer) for _ in range(10)]
    for flow in others[:9]:
        expect_call(next(flow))
    with pytest.raises(TooManySends):
        until_sent(producer.send_batch(messages, RoundRobin(), rules, is_limited=True))
    part = answer_user_call(listed.send(stored(call)))
    expect_call(next(others[9]))
    wait = expect(Wait, listed.send(answer_user_call(listed.send(part))))
    others[0].close()
    assert wait.signal.is_fired
    expect_call(listed.send(True))


def test_a_send_that_waits_is_not_limited() -> None:
    producer, _ = full(in_flight_max=10)
    expect_call(next(sent(producer)))
    assert producer.permits.in_flight == 10


def test_room_is_given_back_whatever_happens() -> None:
    producer, flows = full(in_flight_max=10)
    with pytest.raises(SendFailed):
        flows[0].send(refused(13))
    with pytest.raises(KeyboardInterrupt):
        flows[1].throw(KeyboardInterrupt())
    flows[2].close()
    assert producer.permits.in_flight == 7


# ---- lists of messages ---------------------------------------------------------------------------


def test_a_list_goes_in_as_few_requests_as_it_fits_in() -> None:
    producer = producer_with(route("a", "b"), options=ProducerOptions(body_bytes_max=1000))
    bodies: list[int] = []

    def serve(call: Any) -> Command:
        bodies.append(len(call.command.body))
        return stored(call)

    messages = (Message("orders", b"x" * 300) for _ in range(5))
    receipt = play(producer.send_batch(messages, RoundRobin(), producer.waiting_rules), serve)
    assert (receipt.request_count, receipt.counts, len(receipt)) == (3, (2, 2, 1), 5)
    assert all(size <= 1000 for size in bodies)
    assert len(set(receipt.message_ids)) == 5
    assert [one.queue.number for one in receipt] == [0, 1, 2]
    assert producer.counts.sent == 5


def test_an_empty_list_takes_no_request() -> None:
    producer = producer_with(route("a"))
    receipt = play(producer.send_batch([], RoundRobin(), producer.waiting_rules), stored)
    assert (receipt.request_count, len(receipt)) == (0, 0)


def test_each_request_of_a_list_has_the_whole_time() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(body_bytes_max=400))
    deadlines: list[float] = []

    def serve(call: Any) -> Command:
        deadlines.append(call.deadline)
        clock_of(producer).seconds += 0.75
        return stored(call)

    messages = [Message("orders", b"x" * 300)] * 3
    play(producer.send_batch(messages, RoundRobin(), producer.waiting_rules, None, 1.0), serve)
    assert deadlines == [101.0, 101.75, 102.5]


def test_a_list_may_go_to_one_queue() -> None:
    producer = producer_with(route("a", "b"))
    chosen = QueueId("orders", "b", 3)
    flow = producer.send_batch([MESSAGE], RoundRobin(), producer.waiting_rules, chosen)
    assert play(flow, stored).receipts[0].queue == chosen


def test_a_list_that_breaks_a_rule_is_refused_before_any_of_it_is_sent() -> None:
    producer = producer_with(route("a"))
    with pytest.raises(InvalidMessage, match="message 1"):
        producer.send_batch(
            [MESSAGE, Message("orders", b"1", delay_level=1)], RoundRobin(), producer.waiting_rules
        )


def test_when_the_first_request_of_a_list_fails_it_is_a_failed_send() -> None:
    producer = producer_with(route("a"))
    with pytest.raises(SendFailed) as caught:
        play(
            producer.send_batch([MESSAGE] * 2, RoundRobin(), producer.waiting_rules),
            lambda _: refused(13),
        )
    assert not isinstance(caught.value, BatchFailed)
    assert producer.counts.failed == 2


def test_when_a_later_request_of_a_list_fails_the_error_says_what_was_stored() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(body_bytes_max=400))
    messages = [Message("orders", b"%d" % n * 300) for n in range(3)]
    answers = iter([True, False])

    def serve(call: Any) -> Command:
        return stored(call, offset=7) if next(answers) else refused(13, "never")

    with pytest.raises(BatchFailed, match="messages of a list were stored") as caught:
        play(producer.send_batch(messages, RoundRobin(), producer.waiting_rules), serve)
    failed = caught.value
    assert [receipt.offset for receipt in failed.stored] == [7]
    assert failed.unsent == (messages[1],)
    assert (failed.code, failed.topic, len(failed.attempts)) == (13, "orders", 1)
    assert isinstance(failed.__cause__, SendFailed)


def test_a_stream_that_breaks_a_rule_fails_after_what_was_sent() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(body_bytes_max=400))

    def messages() -> Any:
        yield Message("orders", b"x" * 300)
        yield Message("orders", b"x" * 300)
        yield Message("bills", b"x" * 300)

    with pytest.raises(BatchFailed, match="topic 'bills'") as caught:
        play(producer.send_batch(messages(), RoundRobin(), producer.waiting_rules), stored)
    assert caught.value.stored.request_count == 1
    assert caught.value.unsent == ()


def test_a_message_that_is_too_large_for_a_request_is_named() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(body_bytes_max=400))
    small, large, huge = (Message("orders", b"x" * size) for size in (1, 390, 500))
    for messages, problem in (
        ([small, huge], r"500 bytes, body_bytes_max=400 .* \(message 1 of the list\)"),
        ([small, large], "message 1 takes 4.. bytes in a batch"),
        (iter([small, large]), "message 1 takes 4.. bytes in a batch"),
    ):
        with pytest.raises(InvalidMessage, match=problem):
            play(producer.send_batch(messages, RoundRobin(), producer.waiting_rules), stored)
    assert producer.counts.sent == 0


def test_nothing_of_a_list_is_sent_when_a_later_message_breaks_a_rule() -> None:
    """Issue 14: the limits are checked before anything is sent."""
    producer = producer_with(route("a"), options=ProducerOptions(body_bytes_max=400))
    many = [Message("orders", b"x" * 300)] * 5
    for last in (
        Message("orders", b"x", properties={"TAGS": "reserved"}),
        Message("orders", b"x", keys=["k" * 40_000]),
        Message("orders", b""),
    ):
        with pytest.raises(InvalidMessage):
            producer.send_batch([*many, last], RoundRobin(), producer.waiting_rules)


def batch(producer: ProducerCore) -> Flow[Any]:
    return producer.send_batch([MESSAGE], RoundRobin(), producer.submit_rules, is_limited=True)


def until_sent(flow: Flow[Any]) -> Any:
    """Run the flow of a list until it has read its messages and makes a request."""
    return flow.send(answer_user_call(flow.send(answer_user_call(next(flow)))))


def test_back_pressure_counts_each_request_of_a_list() -> None:
    producer, flows = full(in_flight_max=10)
    flow = batch(producer)
    wait = expect(Wait, until_sent(flow))
    flows[0].close()
    assert wait.signal.is_fired
    call = expect_call(flow.send(True))
    assert producer.permits.in_flight == 10
    no_more = answer_user_call(flow.send(stored(call)))
    assert producer.permits.in_flight == 9
    assert finish(flow, no_more).request_count == 1


def test_a_list_that_is_given_up_gives_its_room_back() -> None:
    producer = producer_with(route("a"))
    flow = batch(producer)
    expect_call(until_sent(flow))
    assert producer.permits.in_flight == 1
    flow.close()
    assert producer.permits.in_flight == 0


# ---- automatic batches ---------------------------------------------------------------------------


def gathering(**settings: Any) -> ProducerCore:
    return producer_with(route("a", "b"), options=ProducerOptions(auto_batch=AutoBatch(**settings)))


def test_small_messages_travel_together() -> None:
    producer = gathering(hold_ms=10)
    leader, second = sent(producer), submitted(producer, Message("orders", b"2"))
    assert expect(Wait, next(leader)).deadline == pytest.approx(100.01)
    joined = expect(Wait, next(second))
    call = expect_call(leader.send(answer_user_call(leader.send(False))))
    assert call.command.code == RequestCode.SEND_BATCH_MESSAGE
    first = finish(leader, stored(call, offset=7))
    assert joined.signal.is_fired
    other = finish(second, True)
    assert (first.offset, other.offset) == (7, 8)
    assert first.message_id != other.message_id
    assert producer.counts.sent == 2


def test_a_lone_message_goes_by_itself() -> None:
    flow = sent(gathering())
    next(flow)
    call = expect_call(flow.send(answer_user_call(flow.send(False))))
    assert call.command.code == RequestCode.SEND_MESSAGE_V2


def test_a_message_for_a_chosen_queue_is_gathered_for_that_queue() -> None:
    chosen = QueueId("orders", "b", 3)
    flow = sent(gathering(), target=chosen)
    next(flow)
    call = expect_call(flow.send(answer_user_call(flow.send(False))))
    assert (call.address, call.command.fields["e"]) == ("b:10911", "3")


def numbered(count: int, **settings: Any) -> list[Message]:
    return [Message("orders", f"{number}", **settings) for number in range(count)]


def bodies_of(call: Any) -> list[bytes]:
    return [item.body for item in decode_batch(call.command.body)]


@pytest.mark.parametrize("how", ["hash", "function", "room", "sharding key"])
def test_messages_whose_queue_is_chosen_travel_together_in_order(how: str) -> None:
    producer = gathering(hold_ms=10)
    second = QueueId("orders", "a", 1)
    targets: dict[str, Any] = {
        "hash": by_hash(1),
        "function": lambda queues, message: second,
        "room": by_room("near", room_of=lambda _: "near", then=by_hash(1)),
    }
    messages = numbered(50, sharding_key="1" if how == "sharding key" else None)
    calls: list[Any] = []

    def serve(call: Any) -> Command:
        calls.append(call)
        return stored(call)

    flows = [submitted(producer, message, target=targets.get(how)) for message in messages]
    receipts = play_together(flows, serve)
    (call,) = calls
    assert [receipt.offset for receipt in receipts] == list(range(9, 59))
    assert {receipt.queue for receipt in receipts} == {receipts[0].queue}
    assert call.command.code == RequestCode.SEND_BATCH_MESSAGE
    assert bodies_of(call) == [message.body for message in messages]
    if how != "sharding key":
        assert receipts[0].queue == second


def test_messages_of_different_queues_do_not_share_a_batch() -> None:
    producer = gathering(hold_ms=10)
    queues: list[tuple[str, str]] = []

    def serve(call: Any) -> Command:
        queues.append((call.address, call.command.fields["e"]))
        return stored(call)

    flows = [
        submitted(producer, message, target=by_hash(number % 3))
        for number, message in enumerate(numbered(30))
    ]
    receipts = play_together(flows, serve)
    assert sorted(queues) == [("a:10911", "0"), ("a:10911", "1"), ("a:10911", "2")]
    assert [receipt.queue.number for receipt in receipts] == [0, 1, 2] * 10


def test_a_route_is_found_before_a_queue_is_chosen() -> None:
    producer = producer_with(options=ProducerOptions(auto_batch=AutoBatch()))

    def serve(call: Any) -> Command:
        if call.command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return routed(body("a"))
        return stored(call)

    flows = [submitted(producer, message, target=by_hash(2)) for message in numbered(3)]
    assert [receipt.queue.number for receipt in play_together(flows, serve)] == [2, 2, 2]


@pytest.mark.parametrize("is_gathered", [False, True])
def test_a_message_for_a_chosen_queue_does_not_overtake_those_that_wait_for_the_route(
    is_gathered: bool,
) -> None:
    auto_batch = AutoBatch() if is_gathered else None
    producer = producer_with(options=ProducerOptions(auto_batch=auto_batch))
    kind: Any = Wait if is_gathered else Call

    def submit() -> Flow[Any]:
        return submitted(producer, target=by_hash(1))

    early = [submit(), submit()]
    lookups = [expect(Once, next(flow)) for flow in early]
    found = route("a")
    producer.client.routes.replace(found)
    late = [submit(), submit(), submit()]
    gates = [expect(Wait, next(flow)) for flow in late]
    late[0].close()  # while it waits
    assert not gates[1].signal.is_fired
    assert lookups[0].key == lookups[1].key
    for flow in early:
        expect(kind, flow.send(found))
    assert gates[1].signal is gates[2].signal
    assert gates[1].signal.is_fired
    next_gate = expect(Wait, next(last := submit()))  # the two have not resumed yet
    expect(kind, late[1].send(True))
    assert not next_gate.signal.is_fired
    late[2].close()  # when its turn has come
    assert next_gate.signal.is_fired
    expect(kind, last.send(True))
    assert not producer._lines
    expect(kind, next(submit()))


def test_a_missing_route_fails_each_message_for_a_chosen_queue() -> None:
    producer = producer_with()
    flows = [submitted(producer, target=by_hash(1)) for _ in range(2)]
    outcomes = play_together(flows, lambda _: routed(None))
    assert [type(outcome) for outcome in outcomes] == [RouteNotFound] * 2
    assert not producer._lines


def test_a_chosen_queue_has_its_namespace() -> None:
    known = route("a", topic="prod%orders")
    client = core_with(known, options=ClientOptions(namespace="prod"))
    producer = producer_with(client=client, options=ProducerOptions(auto_batch=AutoBatch()))
    named = QueueId("orders", "a", 1)
    flows = [
        submitted(producer, message, target=queue)
        for message, queue in zip(numbered(2), (named, by_hash(1)), strict=True)
    ]
    calls: list[Any] = []

    def serve(call: Any) -> Command:
        calls.append(call)
        return stored(call)

    play_together(flows, serve)
    assert len(calls) == 1  # the queue by name and by hash is the same
    assert calls[0].command.fields["b"] == "prod%orders"


@pytest.mark.parametrize(("is_submitted", "attempts"), [(True, 3), (False, 1)])
def test_a_gathered_batch_for_a_chosen_queue_is_repeated_as_its_callers_would(
    is_submitted: bool, attempts: int
) -> None:
    producer = gathering()
    flow = (submitted if is_submitted else sent)(producer, target=by_hash(1))
    with pytest.raises(SendFailed) as caught:
        play(flow, lambda _: ConnectionLost("a:10911", "cut"))
    assert len(caught.value.attempts) == attempts


def test_an_error_of_a_selector_is_that_of_its_message_alone() -> None:
    reports: list[str] = []
    producer = producer_with(
        route("a"),
        options=ProducerOptions(auto_batch=AutoBatch()),
        report=lambda where, error: reports.append(f"{where}: {error!r}"),
    )

    def picky(queues: Any, message: Message) -> QueueId:
        if message.body == b"1":
            raise KeyError("one")
        return queues[0]  # type: ignore[no-any-return]

    first, second, third = play_together(
        [submitted(producer, message, target=picky) for message in numbered(3)], stored
    )
    assert isinstance(second, OptionError)
    assert (first.offset, third.offset) == (9, 10)
    (report,) = reports
    assert report.startswith("selector ")
    assert report.endswith("picky: KeyError('one')")
    assert (producer.counts.user_errors, producer.client.user_errors) == (1, 1)


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        (MESSAGE, {"timeout": 1.0}),
        (MESSAGE, {"target": by_hash("x"), "timeout": 1.0}),
        (Message("orders", b"1", delay_level=1), {}),
        (Message("orders", b"1", delay_level=1, sharding_key="x"), {}),
        (CompressedMessage("orders", b"1", compression="lz4"), {}),
    ],
    ids=[
        "own timeout",
        "selector and own timeout",
        "delayed",
        "delayed and sharding key",
        "compressed",
    ],
)
def test_a_message_that_must_not_wait_is_sent_directly(
    message: Message, settings: dict[str, Any]
) -> None:
    expect_call(next(sent(gathering(), message, **settings)))


def test_a_message_that_breaks_a_rule_spoils_no_batch() -> None:
    with pytest.raises(InvalidMessage):
        sent(gathering(), Message("orders", b""))


# ---- trace ---------------------------------------------------------------------------------------


def test_without_trace_there_is_nothing_to_do_in_the_background() -> None:
    assert producer_with().background() == []


def traced() -> ProducerCore:
    client = core_with(route("a"), route("a", topic="traces"))
    return producer_with(client=client, options=ProducerOptions(trace=Trace(topic="traces")))


def test_traces_are_sent_in_the_background_by_a_producer_of_their_own() -> None:
    producer = traced()
    (loop,) = producer.background()
    play(sent(producer), stored)
    expect(Wait, next(loop))
    clock_of(producer).seconds += 5.0
    (flow,) = expect(Gather, loop.send(False)).flows
    call = expect_call(flow.send(answer_user_call(next(flow))))
    fields = call.command.fields
    assert (fields["b"], fields["a"]) == ("traces", "_INNER_TRACE_PRODUCER-shop-PRODUCE-1")
    assert call.deadline == 110.0
    finish(flow, stored(call))
    assert producer.counts.sent == 1  # traces are not counted


def test_traces_go_to_the_usual_topic_by_default() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(trace=True))
    assert producer.trace is not None
    assert not producer.trace.traces_topic("RMQ_SYS_TRACE_TOPIC")


def test_traces_are_sent_when_closing_as_far_as_there_is_time() -> None:
    producer = traced()
    play(sent(producer), stored)
    closing = producer.exit(101.0)
    (flow,) = expect(Gather, next(closing)).flows
    assert expect_call(flow.send(answer_user_call(next(flow)))).deadline == 101.0


def test_a_trace_that_cannot_be_sent_fails_nothing() -> None:
    producer = traced()
    play(sent(producer), stored)
    play(producer.exit(101.0), lambda call: ConnectionLost(call.address, "cut"))
    assert producer.trace is not None
    assert (producer.trace.failed_count, producer.counts.failed) == (1, 0)


# ---- missing topics ------------------------------------------------------------------------------


def test_a_missing_topic_is_made_where_the_default_topic_is() -> None:
    options = ProducerOptions(auto_create="balanced", default_topic="MINE", default_topic_queues=2)
    producer = producer_with(options=options)
    created: list[Any] = []

    def serve(call: Any) -> Command:
        fields = call.command.fields
        if call.command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            created.append((call.address, fields["topic"], fields["readQueueNums"]))
            return Command(0)
        return routed(body("b", queues=2) if created or fields["topic"] == "MINE" else None)

    play(producer.find_route("orders", 103.0), serve)
    assert created == [("b:10911", "orders", "2")]


def test_the_group_that_sends_traces_is_cut_to_what_a_group_may_be() -> None:
    producer = producer_with(route("a"), options=ProducerOptions(trace=True), group="g" * 120)
    tracer = producer._tracer
    assert tracer is not None
    assert len(tracer.group) == 120
    assert tracer.group.endswith("g-PRODUCE-1")


class Dispatcher:
    """Keeps the ids of the messages that were traced."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def append(self, record: Any) -> None:
        self.calls.append(record.message_id)

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_a_dispatcher_gets_the_traces_in_place_of_the_topic() -> None:
    dispatcher = Dispatcher()
    options = ProducerOptions(trace=Trace(dispatcher=dispatcher))
    producer = producer_with(route("a"), options=options)
    receipt = play(sent(producer), stored)
    (loop,) = producer.background()
    effect = next(loop)
    assert expect(Wait, effect).signal.is_fired
    loop.send(answer_user_call(loop.send(True)))
    play(producer.exit(105.0), lambda _: Command(0))
    assert dispatcher.calls == [receipt.message_id, "flush", "close"]


# ---- routes at the start -------------------------------------------------------------------------


def test_routes_of_the_given_topics_are_loaded_before_the_first_send() -> None:
    producer = producer_with(client=core_with(options=ClientOptions(namespace="prod")))
    asked: list[str] = []

    def serve(call: Any) -> Command:
        topic = call.command.fields["topic"]
        asked.append(topic)
        return routed(body("a") if topic in ("prod%orders", "TBW102") else None)

    assert play(producer.load_routes(["orders", "news", "orders"]), serve) == {}
    assert asked == ["prod%orders", "prod%news", "TBW102"]
    assert producer.client.routes.topics() == ["prod%orders", "prod%news"]
    flow = producer.enter()
    assert expect_call(next(expect(Gather, next(flow)).flows[0])).address == "a:10911"


def test_a_topic_without_a_route_does_not_stop_the_others() -> None:
    producer = producer_with(options=ProducerOptions(auto_create="off"))

    def serve(call: Any) -> Command:
        if call.command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return refused(ResponseCode.SYSTEM_ERROR)
        return routed(body("a") if call.command.fields["topic"] == "orders" else None)

    failures = play(producer.load_routes(["news", "orders"]), serve)
    assert [(topic, type(error)) for topic, error in failures.items()] == [("news", RouteNotFound)]
    assert producer.client.routes.topics() == ["orders"]
