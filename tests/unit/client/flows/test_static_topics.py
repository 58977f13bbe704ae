"""Static topics: sends, pulls and offsets follow a logical queue to the broker that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.consuming.offsets import (
    group_offset,
    max_offset,
    of_existing,
    set_group_offset,
)
from downrange.client.flows.consuming.pull import by_sql, check_filter, pull
from downrange.client.flows.hooks import Hooks, SendContext
from downrange.client.flows.producing.transactions import begin, send_in_transaction
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.client.flows.routing.routes import route_of
from downrange.errors import (
    ConnectFailed,
    NoPermission,
    OptionError,
    QueueMoved,
    RouteNotFound,
    SendFailed,
    SendTimedOut,
)
from downrange.model import Message, Outcome, QueueId, SendStatus
from downrange.options import FaultTolerance, ProducerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import EndTransactionRequest, OffsetReply, PullReply, SendReply
from tests.unit.client.flows.fake_servers import (
    NAME_SERVER,
    FakeServers,
    record,
    refusal,
    reply,
    route,
    static_route,
)
from tests.unit.client.flows.producer_world import LOG_OFFSET, OFFSET_ID, ProducerWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.model import SendReceipt
    from downrange.wire.bodies import RouteBody
    from downrange.wire.command import Command

SEND, BATCH, PULL = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
)
LOGICAL = "__syslo__global__"
ORDER = Message("orders", b"42")
DEADLINE = 130.0
MOVED = refusal(ResponseCode.NOT_LEADER_FOR_QUEUE, "orders-1 does not exit")
#: Queues 0 and 2 on broker "a", 1 and 3 on "b"; then all of them on "b", then all on "a".
SPREAD = static_route({"a": (0, 2), "b": (1, 3)})
ON_B = static_route({"a": (), "b": (0, 1, 2, 3)}, epoch=2)


def logical(number: int) -> QueueId:
    return QueueId("orders", LOGICAL, number)


def store(command: Command) -> Command:
    """Store a message; the reply has the number of the logical queue."""
    return reply(SendReply(OFFSET_ID, int(command.fields["e"]), 7))


def sending(body: RouteBody = SPREAD, **settings: Any) -> ProducerWorld:
    """Return a producer with a static topic; its brokers store what they get."""
    here = ProducerWorld(**settings)
    here.servers.answer_route("orders", body)
    for broker in "ab":
        for code in (SEND, BATCH):
            here.servers.answer(f"{broker}:1", code, store)
    return here


def send(here: ProducerWorld, message: Message = ORDER, queue: Any = None) -> SendReceipt:
    return send_by(here, "waiting_rules", message, queue)


def send_by(
    here: ProducerWorld, rules: str, message: Message = ORDER, queue: Any = None
) -> SendReceipt:
    producer = here.producer
    return here.run(producer.send(message, RoundRobin(), getattr(producer, rules), queue))


# ---- sends ---------------------------------------------------------------------------------------


def test_messages_go_to_all_logical_queues_in_turn_each_at_its_broker() -> None:
    here = sending()
    turns, rules = RoundRobin(), here.producer.waiting_rules
    receipts = [here.run(here.producer.send(ORDER, turns, rules)) for _ in range(4)]
    assert sorted(receipt.queue for receipt in receipts) == [logical(number) for number in range(4)]
    for address, command in here.servers.calls:
        if command.code == SEND:
            broker = "a" if command.fields["e"] in "02" else "b"
            assert (address, command.fields["n"]) == (f"{broker}:1", broker)


def test_a_namespace_is_put_on_and_taken_off() -> None:
    here = sending(namespace="prod")
    here.servers.answer_route("prod%orders", SPREAD)
    for queue in (logical(1), lambda queues, _: queues[1]):
        assert send(here, queue=queue).queue == logical(1)
    assert send(here).queue.broker == LOGICAL
    assert here.servers.fields(SEND)["b"] == "prod%orders"


@pytest.mark.parametrize(
    "choice",
    [
        {"queue": logical(3)},
        {"queue": lambda queues, _: queues[3]},
        {"message": Message("orders", b"1", sharding_key="key-3")},
    ],
)
def test_a_chosen_queue_is_a_logical_one(choice: dict[str, Any]) -> None:
    here = sending()
    receipt = send(here, **choice)
    number = receipt.queue.number
    assert receipt.queue == logical(number)
    assert here.servers.asked(SEND) == ["a:1" if number % 2 == 0 else "b:1"]
    assert here.servers.fields(SEND)["e"] == str(number)


def test_a_selector_sees_all_queues_also_those_without_a_broker() -> None:
    here = sending(static_route({"a": (0, 2)}))
    seen: list[QueueId] = []

    def choose(queues: Any, _: Message) -> QueueId:
        seen.extend(queues)
        return seen[3]

    with pytest.raises(RouteNotFound, match="the broker that serves it is not registered"):
        send(here, queue=choose)
    assert seen == [logical(number) for number in range(4)]
    assert {send(here).queue.number for _ in range(4)} <= {0, 2}


def test_a_queue_of_a_broker_is_not_a_queue_of_a_static_topic() -> None:
    here = sending()
    with pytest.raises(RouteNotFound, match="it is a static topic, whose 4 queues are those of"):
        send(here, queue=QueueId("orders", "a", 0))


@pytest.mark.parametrize("queue", [None, logical(2)])
@pytest.mark.parametrize("rules", ["waiting_rules", "submit_rules"])
def test_a_message_follows_its_queue_to_another_broker(queue: Any, rules: str) -> None:
    here = sending(SPREAD, options=ProducerOptions(retries=0, submit_retries=0))
    here.servers.answer("a:1", SEND, MOVED)
    here.servers.core.routes.replace(route_of("orders", static_route({"a": (0, 1, 2, 3)})))
    here.servers.answer_route("orders", ON_B)
    receipt = send_by(here, rules, queue=queue)
    assert receipt.queue.broker == LOGICAL
    assert queue in (None, receipt.queue)
    assert here.servers.asked(SEND) == ["a:1", "b:1"]
    assert here.servers.fields(SEND)["n"] == "b"
    (failure,) = receipt.failures
    assert (failure.broker, type(failure.error)) == ("a", QueueMoved)
    assert here.servers.interpreter.pauses == []


def test_the_broker_that_no_longer_serves_a_queue_is_not_avoided() -> None:
    here = sending(options=ProducerOptions(fault_tolerance=FaultTolerance(style="5.x")))
    here.servers.answer("a:1", SEND, MOVED, store)
    assert send(here, queue=logical(0)).queue == logical(0)
    assert here.producer.health.is_available("a", here.clock.now())


def test_a_message_waits_until_the_name_server_has_the_new_broker() -> None:
    here = sending()
    answers = iter([MOVED, MOVED])

    def refuse(_: Command) -> Command:
        answer = next(answers)
        if here.servers.asked(SEND) == ["a:1", "a:1"]:
            here.servers.answer_route("orders", ON_B)
        return answer

    here.servers.answer("a:1", SEND, refuse)
    assert send(here, queue=logical(0)).queue == logical(0)
    assert here.servers.asked(SEND) == ["a:1", "a:1", "b:1"]
    assert here.servers.interpreter.pauses[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "route_answer",
    [
        refusal(ResponseCode.TOPIC_NOT_EXIST),
        ConnectFailed(NAME_SERVER, "gone"),
        reply(body=static_route({"a": (0, 2)}, perm=4)),
        reply(body=static_route({"a": (2,)})),
    ],
)
@pytest.mark.parametrize("queue", [None, logical(0)])
def test_a_queue_that_no_broker_serves_ends_at_the_deadline(route_answer: Any, queue: Any) -> None:
    here = sending(static_route({"a": (0,)}))
    here.run(here.producer.find_route("orders", DEADLINE))
    here.servers.answer("a:1", SEND, MOVED)
    here.servers.answer(NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, route_answer)
    with pytest.raises(SendFailed) as failed:
        send(here, queue=queue)
    assert {type(attempt.error) for attempt in failed.value.attempts} == {QueueMoved}
    assert len(failed.value.attempts) < 50
    assert here.clock.now() >= 103.0


def test_another_refusal_is_treated_as_for_other_topics() -> None:
    here = sending()
    here.servers.answer("a:1", SEND, refusal(ResponseCode.NO_PERMISSION))
    with pytest.raises(SendFailed) as failed:
        send(here, queue=logical(0))
    assert isinstance(failed.value.attempts[0].error, NoPermission)


def test_a_lost_connection_is_followed_by_a_queue_of_another_broker() -> None:
    here = sending()
    here.servers.answer("a:1", SEND, ConnectFailed("a:1", "gone"))
    turns, rules = RoundRobin(), here.producer.waiting_rules
    receipts = [here.run(here.producer.send(ORDER, turns, rules)) for _ in range(4)]
    assert {receipt.queue.number for receipt in receipts} <= {1, 3}


@pytest.mark.parametrize("queue", [None, logical(1)])
def test_oneway_messages_go_to_the_broker_of_their_queue(queue: Any) -> None:
    here = sending(static_route({"b": (0, 1, 2, 3)}))
    here.run(here.producer.send_oneway(ORDER, RoundRobin(), queue))
    assert here.servers.asked(SEND) == ["b:1"]
    assert here.servers.fields(SEND)["n"] == "b"


def test_batches_go_to_the_broker_of_their_queue() -> None:
    here = sending()
    rules = here.producer.waiting_rules
    sent = here.run(here.producer.send_batch([ORDER, ORDER], RoundRobin(), rules, logical(1)))
    assert sent.receipts[0].queue == logical(1)
    assert here.servers.asked(BATCH) == ["b:1"]


@pytest.mark.parametrize("is_oneway", [True, False])
def test_hooks_see_the_logical_queue(is_oneway: bool) -> None:
    seen: list[SendContext] = []
    here = sending(hooks=Hooks(after_send=(seen.append,)))
    if is_oneway:
        here.run(here.producer.send_oneway(ORDER, RoundRobin(), logical(1)))
    else:
        receipt = send(here, queue=logical(1))
        assert receipt.queue == logical(1)
        assert seen[0].receipt == receipt
    assert [(context.queue, context.address) for context in seen] == [(logical(1), "b:1")]


# ---- transactions --------------------------------------------------------------------------------


def transact(here: ProducerWorld) -> EndTransactionRequest:
    rules = here.producer.waiting_rules
    here.servers.answer("b:1", RequestCode.HEART_BEAT, reply())
    here.run(
        send_in_transaction(here.producer, ORDER, lambda *_: Outcome.COMMIT, RoundRobin(), rules)
    )
    (command,) = here.sent(RequestCode.END_TRANSACTION)
    return EndTransactionRequest.from_fields(command.fields)


def half_world() -> ProducerWorld:
    """Return a producer whose broker "a" has the address in the offset id of its receipts."""
    body = static_route({"a": (0, 1, 2, 3)})
    body.broker_datas[0].broker_addrs = {0: "10.0.0.2:10911"}
    here = sending(body)
    for code, answer in (
        (SEND, store),
        (RequestCode.HEART_BEAT, reply()),
        (RequestCode.END_TRANSACTION, reply()),
    ):
        here.servers.answer("10.0.0.2:10911", code, answer)
    return here


def test_the_outcome_goes_to_the_broker_of_the_half_message_with_its_offset_there() -> None:
    here = half_world()
    half = record("RMQ_SYS_TRANS_HALF_TOPIC", 5)
    here.servers.answer("10.0.0.2:10911", RequestCode.VIEW_MESSAGE_BY_ID, reply(body=half))
    ended = transact(here)
    assert here.servers.fields(RequestCode.VIEW_MESSAGE_BY_ID)["offset"] == str(LOG_OFFSET)
    assert (ended.broker_name, ended.tran_state_table_offset) == ("a", 5)


@pytest.mark.parametrize(
    "answer", [refusal(ResponseCode.SYSTEM_ERROR), reply(), reply(body=b"damaged")]
)
def test_a_half_message_that_cannot_be_read_is_ended_with_the_offset_of_its_receipt(
    answer: Command,
) -> None:
    here = half_world()
    here.servers.answer("10.0.0.2:10911", RequestCode.VIEW_MESSAGE_BY_ID, answer)
    assert transact(here).tran_state_table_offset == 7


def test_a_half_message_that_was_not_stored_safely_names_its_broker() -> None:
    here = half_world()
    late = reply(SendReply(OFFSET_ID, 1, 7))
    late.code = SendStatus.FLUSH_DISK_TIMEOUT.value
    here.servers.answer("10.0.0.2:10911", SEND, late)
    with pytest.raises(SendFailed) as failed:
        here.run(begin(here.producer, ORDER, RoundRobin(), here.producer.waiting_rules))
    attempt = failed.value.attempts[-1]
    assert (attempt.broker, attempt.address) == ("a", "10.0.0.2:10911")


# ---- pulls ---------------------------------------------------------------------------------------


def reading(body: RouteBody = SPREAD) -> FakeServers:
    servers = FakeServers()
    servers.answer_route("orders", body)
    return servers


def test_pulled_messages_have_the_logical_queue_and_its_offsets() -> None:
    servers = reading()
    body = record("orders", 3, queue=1) + record("orders", 4, queue=1)
    header = PullReply(0, 10_005, 10_000, 10_005, offset_delta=10_000)
    servers.answer("b:1", PULL, reply(header, body=body))
    batch = servers.run(pull(servers.core, logical(3), 10_003, group="g", deadline=DEADLINE))
    assert [(message.queue, message.offset) for message in batch.messages] == [
        (logical(3), 10_003),
        (logical(3), 10_004),
    ]
    assert servers.fields(PULL)["queueId"] == "3"


def test_a_pull_follows_its_queue_to_another_broker() -> None:
    servers = reading()
    servers.core.routes.replace(route_of("orders", static_route({"a": (0, 1, 2, 3)})))
    servers.answer("a:1", PULL, MOVED)
    servers.answer("b:1", PULL, reply(PullReply(0, 5, 0, 5, offset_delta=0)))
    batch = servers.run(pull(servers.core, logical(1), 5, group="g", deadline=DEADLINE))
    assert batch.next_offset == 5
    assert servers.asked(PULL) == ["a:1", "b:1"]


def test_a_pull_fails_when_the_name_server_has_no_newer_broker() -> None:
    servers = reading()
    servers.answer("b:1", PULL, MOVED)
    with pytest.raises(QueueMoved) as moved:
        servers.run(pull(servers.core, logical(1), 5, group="g", deadline=DEADLINE))
    assert moved.value.retryable
    assert servers.asked(PULL) == ["b:1", "b:1"]


def test_a_filter_is_checked_by_a_broker_that_serves_a_queue() -> None:
    servers = reading(static_route({"b": (2,)}))
    servers.answer("b:1", RequestCode.CHECK_CLIENT_CONFIG, reply())
    servers.run(check_filter(servers.core, "orders", "g", by_sql("a > 1"), DEADLINE))
    assert servers.asked(RequestCode.CHECK_CLIENT_CONFIG) == ["b:1"]


# ---- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda core: max_offset(core, logical(1), deadline=DEADLINE), RequestCode.GET_MAX_OFFSET),
        (
            lambda core: group_offset(core, "g", logical(1), deadline=DEADLINE),
            RequestCode.QUERY_CONSUMER_OFFSET,
        ),
        (
            lambda core: set_group_offset(core, "g", logical(1), 9, deadline=DEADLINE),
            RequestCode.UPDATE_CONSUMER_OFFSET,
        ),
    ],
)
def test_offsets_are_asked_of_the_broker_that_serves_the_queue_now(
    ask: Callable[[Any], Any], code: RequestCode
) -> None:
    servers = reading()
    servers.core.routes.replace(route_of("orders", static_route({"a": (0, 1, 2, 3)})))
    servers.answer("a:1", code, MOVED)
    servers.answer("b:1", code, reply(OffsetReply(9)))
    assert servers.run(ask(servers.core)) in (9, None)
    assert servers.asked(code) == ["a:1", "b:1"]
    assert servers.fields(code)["queueId"] == "1"


def test_a_queue_that_a_static_topic_does_not_have_is_an_error() -> None:
    servers = reading()
    for queue, kind in ((logical(4), OptionError), (QueueId("orders", "a", 0), RouteNotFound)):
        asked = max_offset(servers.core, queue, deadline=DEADLINE)
        with pytest.raises(kind):
            servers.run(of_existing(servers.core, queue, asked, deadline=DEADLINE))


def test_a_topic_that_became_static_is_read_after_the_first_refusal() -> None:
    servers = reading(SPREAD)
    servers.core.routes.replace(route_of("orders", route("a")))
    servers.answer("b:1", RequestCode.GET_MAX_OFFSET, reply(OffsetReply(9)))
    assert servers.run(max_offset(servers.core, logical(1), deadline=DEADLINE)) == 9


def test_no_time_is_left_to_follow_a_queue() -> None:
    here = sending()

    def refuse(_: Command) -> Command:
        here.clock.seconds += 10.0
        return MOVED

    here.servers.answer("a:1", SEND, refuse)
    with pytest.raises((SendTimedOut, SendFailed)):
        send(here, queue=logical(0))
    assert here.servers.asked(SEND) == ["a:1"]
