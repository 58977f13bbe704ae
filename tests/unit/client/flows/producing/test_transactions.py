"""Transactions: half messages, their outcomes, and the checks of the broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.flows.effects import UserCall, Wait
from downrange.client.flows.hooks import EndTransactionContext, Hooks
from downrange.client.flows.producing.trace_records import EndTransactionTrace
from downrange.client.flows.producing.transaction_checks import TransactionChecks
from downrange.client.flows.producing.transactions import (
    answer_check,
    begin,
    end,
    send_in_transaction,
    take_checks,
)
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    OptionError,
    SendFailed,
)
from downrange.model import Message, Outcome, ReceivedMessage, SendReceipt, SendStatus
from downrange.options import ProducerOptions
from downrange.wire.codes import RequestCode, ResponseCode, TransactionFlag
from downrange.wire.command import Command
from downrange.wire.headers import CheckTransactionRequest, EndTransactionRequest
from downrange.wire.properties import decode_properties, encode_properties
from tests.unit.client.flows.fake_servers import record, refusal, reply, route
from tests.unit.client.flows.producer_world import HALF_OFFSET, LOG_OFFSET, ProducerWorld

if TYPE_CHECKING:
    from collections.abc import Callable

HEART_BEAT, SEND, END = (
    RequestCode.HEART_BEAT,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.END_TRANSACTION,
)
ORDER = Message("orders", b"42", keys=["o-1"], tags="new")


def asking(**settings: Any) -> ProducerWorld:
    """Return a producer with the route of "orders"."""
    here = ProducerWorld(**settings)
    here.servers.answer_route(
        "orders" if here.client.options.namespace is None else "ns%orders", route(["a"])
    )
    return here


def transact(
    here: ProducerWorld,
    execute: Callable[[Message, SendReceipt], Outcome | None],
    message: Message = ORDER,
) -> Any:
    rules = here.producer.waiting_rules
    return here.run(send_in_transaction(here.producer, message, execute, RoundRobin(), rules))


def ended(here: ProducerWorld) -> EndTransactionRequest:
    """Return the only end of a transaction that the broker got."""
    (command,) = here.sent(END)
    return EndTransactionRequest.from_fields(command.fields)


def commit(message: Message, receipt: SendReceipt) -> Outcome:
    return Outcome.COMMIT


# ---- sending -------------------------------------------------------------------------------------


def test_a_half_message_says_so_and_names_the_group() -> None:
    here = asking()
    transact(here, commit)
    (command,) = here.sent(SEND)
    properties = decode_properties(command.fields["i"])
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "pay")
    assert int(command.fields["f"]) == TransactionFlag.PREPARED


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_broker_gets_what_the_local_work_returns(outcome: Outcome) -> None:
    here = asking()
    done = transact(here, lambda message, receipt: outcome)
    assert (done.outcome, done.error) == (outcome, None)
    word = ended(here)
    assert word.commit_or_rollback == outcome.value
    assert (word.producer_group, word.topic, word.broker_name) == ("pay", "orders", "a")
    assert (word.commit_log_offset, word.tran_state_table_offset) == (LOG_OFFSET, HALF_OFFSET)
    assert (word.msg_id, word.transaction_id) == (done.receipt.message_id,) * 2
    assert word.from_transaction_check is False


def test_the_local_work_is_given_the_message_and_its_receipt() -> None:
    here = asking()
    seen: list[tuple[Message, SendReceipt]] = []
    done = transact(here, lambda *given: seen.append(given))
    assert seen == [(ORDER, done.receipt)]


def test_local_work_without_an_answer_leaves_the_outcome_unknown() -> None:
    here = asking()
    done = transact(here, lambda message, receipt: None)
    assert (done.outcome, done.error) == (Outcome.UNKNOWN, None)
    assert here.sent(END)[0].remark is None


def test_local_work_that_raises_leaves_the_outcome_unknown_and_says_why() -> None:
    here = asking()
    failure = KeyError("account")

    def fail(message: Message, receipt: SendReceipt) -> Outcome:
        raise failure

    done = transact(here, fail)
    assert (done.outcome, done.error) == (Outcome.UNKNOWN, failure)
    assert ended(here).commit_or_rollback == 0
    assert here.sent(END)[0].remark == "the local work failed: KeyError('account')"
    assert here.reports == [("the local work", failure)]


def test_local_work_that_returns_something_else_leaves_the_outcome_unknown() -> None:
    here = asking()
    done = transact(here, lambda message, receipt: True)  # type: ignore[arg-type,return-value]
    assert done.outcome is Outcome.UNKNOWN
    assert isinstance(done.error, OptionError)
    assert "True" in str(done.error)
    assert here.reports == [("the local work", done.error)]


def test_a_message_that_was_not_stored_safely_is_rolled_back_without_the_work() -> None:
    here = asking()
    here.answer_sends(ResponseCode.FLUSH_DISK_TIMEOUT)
    done = transact(here, lambda message, receipt: pytest.fail("it ran"))
    assert done.receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert ended(here).commit_or_rollback == Outcome.ROLLBACK.value


def test_nothing_runs_when_no_broker_takes_the_message() -> None:
    here = asking()
    here.servers.answer("a:1", SEND, refusal(ResponseCode.MESSAGE_ILLEGAL))
    with pytest.raises(SendFailed):
        transact(here, lambda message, receipt: pytest.fail("it ran"))
    assert here.sent(END) == []


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"1", delay_level=1),
        Message("orders", b"1", deliver_in=1.0),
        Message("orders", b"1", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)),
    ],
    ids=["level", "in", "at"],
)
def test_a_delayed_message_is_refused(message: Message) -> None:
    here = asking()
    with pytest.raises(InvalidMessage, match="cannot be delayed") as caught:
        transact(here, commit, message)
    assert caught.value.topic == "orders"
    assert here.servers.calls == []


def test_brokers_get_a_heartbeat_before_their_first_half_message() -> None:
    here = asking()
    transact(here, commit)
    transact(here, commit)
    after_route = here.codes()[1:]
    assert after_route == [HEART_BEAT, SEND, END, SEND, END]


def test_a_broker_that_refuses_the_heartbeat_may_store_the_message() -> None:
    here = asking()
    here.servers.answer("a:1", HEART_BEAT, ConnectionLost("a:1", "cut"))
    assert transact(here, commit).outcome is Outcome.COMMIT


def test_heartbeats_take_only_a_part_of_the_time() -> None:
    here = asking()
    producer = here.producer
    flow = send_in_transaction(producer, ORDER, commit, RoundRobin(), producer.waiting_rules, 3.0)
    effect = next(flow)
    while not (gathered := getattr(effect, "flows", None)):
        effect = flow.send(here.servers.perform(effect))
    assert next(gathered[0]).deadline == pytest.approx(here.clock.now() + 1.0)


def test_an_outcome_that_cannot_be_sent_is_reported_and_not_raised() -> None:
    here = asking()
    lost = ConnectionLost("a:1", "cut")
    here.servers.answer("a:1", END, lost)
    done = transact(here, commit)
    assert done.outcome is Outcome.COMMIT
    assert here.problems == [(f"sending COMMIT of {done.receipt.message_id} to a", lost)]


def test_the_end_goes_to_the_master_of_that_moment() -> None:
    here = asking()
    _, half = here.run(begin(here.producer, ORDER, RoundRobin(), here.producer.waiting_rules))
    moved = route(["a"])
    moved.broker_datas[0].broker_addrs[0] = "a:9"
    here.servers.answer_route("orders", moved)
    here.servers.answer("a:9", END, reply())
    here.client.routes.forget("orders")
    here.run(end(here.producer, half, Outcome.COMMIT))
    assert here.servers.asked(END) == ["a:9"]


def test_the_end_of_a_transaction_is_shown_to_hooks_and_traced() -> None:
    shown: list[EndTransactionContext] = []
    here = asking(hooks=Hooks(end_transaction=(shown.append,)), options=ProducerOptions(trace=True))
    done = transact(here, commit)
    (context,) = shown
    assert (context.group, context.message, context.address) == ("pay", ORDER, "a:1")
    assert (context.message_id, context.transaction_id) == (done.receipt.message_id,) * 2
    assert (context.outcome, context.is_from_check) == (TransactionFlag.COMMIT, False)
    trace = here.producer.trace
    assert trace is not None
    _, (traced, *_) = trace._waiting
    assert isinstance(traced, EndTransactionTrace)
    assert (traced.state, traced.topic, traced.group) == ("COMMIT_MESSAGE", "orders", "pay")
    assert (traced.keys, traced.tags, traced.address) == ("o-1", "new", "a:1")


def test_a_transaction_in_a_namespace_names_everything_as_servers_know_it() -> None:
    here = asking(namespace="ns")
    transact(here, commit)
    (command,) = here.sent(SEND)
    assert decode_properties(command.fields["i"])["PGROUP"] == "ns%pay"
    word = ended(here)
    assert (word.topic, word.producer_group) == ("ns%orders", "ns%pay")


def test_half_messages_of_asyncio_wait_for_their_turn_but_local_work_does_not() -> None:
    here = asking()
    seen: list[int] = []

    def look(message: Message, receipt: SendReceipt) -> Outcome:
        seen.append(here.producer.permits.in_flight)
        return Outcome.COMMIT

    rules = here.producer.async_rules
    here.run(send_in_transaction(here.producer, ORDER, look, RoundRobin(), rules))
    assert (here.producer.permits.in_flight_high, seen) == (1, [0])


# ---- with a block --------------------------------------------------------------------------------


def test_a_block_begins_with_the_half_message_alone() -> None:
    here = asking()
    receipt, half = here.run(begin(here.producer, ORDER, RoundRobin(), here.producer.waiting_rules))
    assert here.sent(END) == []
    assert half.message_id == receipt.message_id
    here.run(end(here.producer, half, Outcome.ROLLBACK, ValueError("no")))
    assert ended(here).commit_or_rollback == Outcome.ROLLBACK.value
    assert here.sent(END)[0].remark == "the local work failed: ValueError('no')"


def test_a_block_does_not_begin_when_the_message_was_not_stored_safely() -> None:
    here = asking()
    here.answer_sends(ResponseCode.SLAVE_NOT_AVAILABLE)
    with pytest.raises(SendFailed, match="SLAVE_NOT_AVAILABLE") as caught:
        here.run(begin(here.producer, ORDER, RoundRobin(), here.producer.waiting_rules))
    assert (caught.value.code, caught.value.address) == (11, "a:1")
    assert ended(here).commit_or_rollback == Outcome.ROLLBACK.value


# ---- checks of the broker ------------------------------------------------------------------------


def question(here: ProducerWorld, *, group: str = "pay", broker: str | None = "a") -> Command:
    """Return a broker's check of a half message, with the offsets of a new record."""
    header = CheckTransactionRequest(
        tran_state_table_offset=91, commit_log_offset=5000, transaction_id="T1", broker_name=broker
    )
    namespace = here.client.options.namespace
    topic = "orders" if namespace is None else f"{namespace}%orders"
    group = group if namespace is None else f"{namespace}%{group}"
    properties = encode_properties({"UNIQ_KEY": "ID1", "PGROUP": group, "KEYS": "o-1"})
    body = record(topic, 91, queue=2, properties=properties, body=b"42")
    return Command(int(RequestCode.CHECK_TRANSACTION_STATE), header.to_fields(), body)


def test_a_question_is_answered_by_the_check_function() -> None:
    here = asking()
    seen: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> Outcome:
        seen.append(message)
        return Outcome.COMMIT

    take_checks(here.producer, check)
    assert here.run(here.client.answer("a:1", question(here))) is None
    (message,) = seen
    assert (message.message_id, message.topic, message.body) == ("ID1", "orders", b"42")
    word = ended(here)
    assert (word.commit_or_rollback, word.from_transaction_check) == (8, True)
    assert (word.commit_log_offset, word.tran_state_table_offset) == (5000, 91)
    assert (word.msg_id, word.transaction_id, word.topic) == ("ID1", "T1", "orders")
    assert (word.producer_group, word.broker_name) == ("pay", "a")
    assert here.servers.asked(END) == ["a:1"]
    assert here.producer.counts.checked == 1


def test_a_check_may_block_without_holding_others_up() -> None:
    here = asking()
    take_checks(here.producer, lambda message: Outcome.COMMIT)
    effect = next(answer_check(here.client, "a:1", question(here)))
    assert isinstance(effect, UserCall)
    assert effect.may_block


def test_a_check_that_raises_means_unknown() -> None:
    here = asking()

    def check(message: ReceivedMessage) -> Outcome:
        raise LookupError("no row")

    take_checks(here.producer, check)
    here.run(here.client.answer("a:1", question(here)))
    assert ended(here).commit_or_rollback == 0
    assert here.sent(END)[0].remark == "the check failed: LookupError('no row')"
    assert [where for where, _ in here.reports] == ["the check of a transaction"]


def test_a_question_of_an_old_broker_is_answered_under_the_name_that_routes_say() -> None:
    here = asking()
    transact(here, commit)
    here.servers.calls.clear()
    take_checks(here.producer, lambda message: Outcome.ROLLBACK)
    here.run(here.client.answer("a:1", question(here, broker=None)))
    assert ended(here).broker_name == "a"


def test_a_question_of_a_broker_that_no_route_names_is_answered_too() -> None:
    here = asking()
    take_checks(here.producer, lambda message: Outcome.ROLLBACK)
    here.servers.answer("b:1", END, reply())
    here.run(here.client.answer("b:1", question(here, broker=None)))
    assert here.servers.asked(END) == ["b:1"]


def test_a_check_in_a_namespace_sees_plain_names() -> None:
    here = asking(namespace="ns")
    topics: list[str] = []

    def check(message: ReceivedMessage) -> Outcome:
        topics.append(message.topic)
        return Outcome.COMMIT

    take_checks(here.producer, check)
    here.run(here.client.answer("a:1", question(here)))
    assert topics == ["orders"]
    assert (ended(here).topic, ended(here).producer_group) == ("ns%orders", "ns%pay")


def test_a_question_about_another_group_is_passed_over() -> None:
    here = asking()
    take_checks(here.producer, lambda message: pytest.fail("it was asked"))
    here.run(here.client.answer("a:1", question(here, group="others")))
    assert here.servers.calls == []


def test_a_question_to_a_plain_producer_is_passed_over() -> None:
    here = asking()
    here.run(answer_check(here.client, "a:1", question(here)))
    assert here.servers.calls == []


def test_an_answer_that_does_not_get_through_is_reported() -> None:
    here = asking()
    take_checks(here.producer, lambda message: Outcome.COMMIT)
    unreachable = ConnectFailed("a:1", "refused")
    here.servers.answer("a:1", END, unreachable)
    here.run(here.client.answer("a:1", question(here)))
    assert here.problems == [("sending COMMIT of ID1 to a", unreachable)]
    assert here.producer.counts.checked == 0


def test_only_so_many_checks_run_at_a_time() -> None:
    here = asking(options=ProducerOptions(check_threads=1, checks_waiting_max=1))
    take_checks(here.producer, lambda message: Outcome.COMMIT)
    first = answer_check(here.client, "a:1", question(here))
    assert isinstance(next(first), UserCall)
    second = answer_check(here.client, "a:1", question(here))
    waiting = next(second)
    assert isinstance(waiting, Wait)
    # A third check has no room to wait; the broker repeats it.
    with pytest.raises(StopIteration):
        next(answer_check(here.client, "a:1", question(here)))
    assert here.producer.counts.checks_dropped == 1
    first.send(Outcome.COMMIT)
    assert waiting.signal.is_fired
    assert isinstance(second.send(True), UserCall)


def test_a_question_that_waits_too_long_is_dropped() -> None:
    here = asking(options=ProducerOptions(check_threads=1))
    take_checks(here.producer, lambda message: Outcome.COMMIT)
    first = answer_check(here.client, "a:1", question(here))
    next(first)
    here.run(answer_check(here.client, "a:1", question(here)))
    assert here.producer.counts.checks_dropped == 1


def test_a_check_that_is_given_up_frees_its_place() -> None:
    here = asking(options=ProducerOptions(check_threads=1))
    checks = TransactionChecks(lambda message: None, here.producer.options, here.clock)
    here.producer.checks = checks
    first = answer_check(here.client, "a:1", question(here))
    next(first)
    first.close()
    assert here.run(checks.enter(0.0))


def test_a_producer_that_is_being_closed_answers_no_question() -> None:
    here = asking()
    take_checks(here.producer, lambda message: pytest.fail("it was asked"))
    here.run(here.producer.exit(here.clock.now()))
    here.client.add_producer("pay", here.producer)
    with pytest.raises(ClientClosed):
        here.run(here.client.answer("a:1", question(here)))
