"""Transactions: the messages that consumers see, and the checks of the broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from downrange import AsyncTransactionProducer, Client, TransactionProducer
from downrange.client.flows.hooks import EndTransactionContext, Hooks
from downrange.client.flows.producing.trace_records import EndTransactionTrace, decode_trace
from downrange.embedded import drop
from downrange.errors import (
    ClientClosed,
    ClientStateError,
    InvalidMessage,
    NotStarted,
    OptionError,
    SendFailed,
)
from downrange.model import Message, Outcome, ReceivedMessage, SendReceipt, SendStatus
from downrange.options import ClientOptions, ProducerOptions, Trace
from downrange.wire.codes import RequestCode, TransactionFlag
from tests.apache import probe
from tests.contract.conftest import patient
from tests.contract.servers import replace_send_codes, stats_of
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.embedded import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.contract.blocking import LoopThread
    from tests.contract.conftest import Embedded, Kind, Make
    from tests.contract.servers import Server

END = RequestCode.END_TRANSACTION
#: The broker does not ask for the outcome of such a message while the test runs, however slow the
#: machine is.
UNASKED = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "600"}


class RecordedCheck:
    """A check function that returns given outcomes and records the checked messages.

    A broker that has no answer in time asks again, so the last outcome is given any number of
    times.
    """

    def __init__(self, answers: dict[bytes, list[Outcome]] | None = None) -> None:
        self._answers = answers or {}
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> Outcome:
        self.messages.append(message)
        answers = self._answers[message.body]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    @property
    def bodies(self) -> set[bytes]:
        return {message.body for message in self.messages}


@pytest.fixture
def transacting(make: Make, unique_name: UniqueName) -> Callable[..., TransactionProducer]:
    """Give the function that starts transaction producers of the front end."""

    def start(server: Server | Client, **settings: Any) -> TransactionProducer:
        where = server if isinstance(server, Client) else server.name_server
        settings = {"group": unique_name("group"), "check": RecordedCheck(), **settings}
        return make(TransactionProducer, where, **settings).start()

    return start


def returning(outcome: Outcome | None) -> Callable[[Message, SendReceipt], Outcome | None]:
    return lambda message, receipt: outcome


def bodies(server: Server, topic: str, count: int) -> list[bytes]:
    return sorted(message.body for message in server.read_all(topic, count))


# ---- outcomes ------------------------------------------------------------------------------------


def test_transactions_end_as_local_work_and_checks_decide(
    server: Server, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = server.topic()
    check = RecordedCheck(
        {
            b"checked": [Outcome.UNKNOWN, Outcome.COMMIT],
            b"left open": [Outcome.COMMIT],
            b"checked away": [Outcome.ROLLBACK],
        }
    )
    producer = transacting(server, check=check)

    def send(body: bytes, outcome: Outcome | None) -> str:
        properties = {} if outcome is None else UNASKED
        message = Message(topic, body, keys=["k"], properties=properties)
        done = producer.send_in_transaction(message, returning(outcome))
        assert (done.outcome, done.error) == (outcome or Outcome.UNKNOWN, None)
        return done.receipt.message_id

    def fail(message: Message, receipt: SendReceipt) -> Outcome:
        raise LookupError(receipt.message_id)

    ids = {b"checked": send(b"checked", None)}
    failed = producer.send_in_transaction(Message(topic, b"checked away"), fail)
    assert failed.outcome is Outcome.UNKNOWN
    assert isinstance(failed.error, LookupError)
    with producer.transaction(Message(topic, b"left open")) as tx:
        tx.leave_open()
    ids[b"committed"] = send(b"committed", Outcome.COMMIT)
    send(b"rolled back", Outcome.ROLLBACK)

    visible = {message.body: message for message in server.read_all(topic, 3)}
    assert sorted(visible) == [b"checked", b"committed", b"left open"]
    assert {body: visible[body].message_id for body in ids} == ids
    assert visible[b"committed"].keys == ["k"]
    wait_until(lambda: len(check.messages) >= 4 and len(check.bodies) == 3)
    assert check.bodies == {b"checked", b"checked away", b"left open"}
    assert [message.body for message in check.messages].count(b"checked") >= 2
    assert {message.topic for message in check.messages} == {topic}
    asked = {message.body: message.message_id for message in check.messages}
    assert (asked[b"checked"], asked[b"left open"]) == (ids[b"checked"], tx.message_id)
    wait_until(lambda: stats_of(producer).checked == len(check.messages))


def test_a_block_commits_when_it_succeeds_and_rolls_back_when_it_fails(
    server: Server, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = server.topic()
    check = RecordedCheck()
    producer = transacting(server, check=check)

    def message(body: bytes) -> Message:
        return Message(topic, body, properties=UNASKED)

    with (
        producer.transaction(message(b"outer")) as outer,
        pytest.raises(LookupError),
        producer.transaction(message(b"inner")) as inner,
    ):
        raise LookupError
    assert (outer.outcome, inner.outcome) == (Outcome.COMMIT, Outcome.ROLLBACK)
    with producer.transaction(message(b"committed early")) as early:
        early.commit()
    with producer.transaction(message(b"rolled back")) as away:
        away.rollback()
    assert (early.outcome, away.outcome) == (Outcome.COMMIT, Outcome.ROLLBACK)
    with producer.transaction(message(b"last")) as last:
        assert last.receipt.status is SendStatus.STORED
        assert last.message_id == last.receipt.message_id
    assert bodies(server, topic, 3) == [b"committed early", b"last", b"outer"]
    assert check.messages == []


def test_the_broker_checks_with_another_producer_of_the_group(
    server: Server, transacting: Callable[..., TransactionProducer], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("group")
    gone = transacting(server, group=group)
    gone.send_in_transaction(Message(topic, b"left behind"), returning(None))
    gone.close()
    check = RecordedCheck({b"left behind": [Outcome.COMMIT]})
    other = transacting(server, group=group, check=check)
    # A producer sends heartbeats only to brokers that it uses, so send something first.
    mine = Message(topic, b"mine", properties=UNASKED)
    other.send_in_transaction(mine, returning(Outcome.COMMIT))
    assert bodies(server, topic, 2) == [b"left behind", b"mine"]
    assert check.bodies == {b"left behind"}


def test_a_group_is_registered_before_its_first_half_message(
    server: Server, transacting: Callable[..., TransactionProducer], unique_name: UniqueName
) -> None:
    topic, group = server.topic(), unique_name("group")
    producer = transacting(server, group=group)
    codes: list[int] = []

    def look(message: Message, receipt: SendReceipt) -> Outcome:
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        codes.append(probe.call(server.brokers[0], code, {"producerGroup": group}).code)
        return Outcome.ROLLBACK

    producer.send_in_transaction(Message(topic, b"1"), look)
    assert codes == [0]


def test_a_lost_end_request_is_followed_by_a_check(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = embedded.topic()
    check = RecordedCheck({b"1": [Outcome.COMMIT]})
    producer = transacting(embedded, check=check)

    def lose(command: Command, peer: Peer) -> Interception | None:
        return None if command.fields["fromTransactionCheck"] == "true" else drop()

    embedded.cluster.intercept(END, lose)
    with producer.transaction(Message(topic, b"1")):
        pass
    assert bodies(embedded, topic, 1) == [b"1"]
    assert check.bodies == {b"1"}


def test_nothing_runs_when_the_half_message_is_not_stored_safely(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = embedded.topic()
    ends: list[EndTransactionContext] = []
    producer = transacting(
        embedded,
        hooks=Hooks(after_call=(replace_send_codes(10, 12),), end_transaction=(ends.append,)),
    )
    done = producer.send_in_transaction(
        Message(topic, b"1", properties=UNASKED), lambda message, receipt: pytest.fail("it ran")
    )
    assert done.receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert done.outcome is Outcome.ROLLBACK
    with (
        pytest.raises(SendFailed, match="FLUSH_SLAVE_TIMEOUT"),
        producer.transaction(Message(topic, b"2", properties=UNASKED)),
    ):
        pytest.fail("it ran")
    assert [end.outcome for end in ends] == [TransactionFlag.ROLLBACK] * 2


def test_a_keyboard_interrupt_leaves_a_transaction_open(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    producer = transacting(embedded, check=RecordedCheck({b"1": [Outcome.ROLLBACK]}))
    tx = producer.transaction(Message(embedded.topic(), b"1"))
    with pytest.raises(KeyboardInterrupt), tx:
        raise KeyboardInterrupt
    assert tx.outcome is Outcome.UNKNOWN


def test_a_namespace_is_invisible_in_transactions(
    embedded: Embedded, transacting: Callable[..., TransactionProducer], unique_name: UniqueName
) -> None:
    topic, group = unique_name("topic"), unique_name("group")
    embedded.topic(name=f"prod%{topic}")
    check = RecordedCheck({b"1": [Outcome.COMMIT]})
    producer = transacting(
        embedded, group=group, check=check, client_options=ClientOptions(namespace="prod")
    )
    done = producer.send_in_transaction(Message(topic, b"1"), returning(None))
    assert done.receipt.queue.topic == topic
    assert bodies(embedded, f"prod%{topic}", 1) == [b"1"]
    asked = {(each.topic, each.properties["PGROUP"]) for each in check.messages}
    assert asked == {(topic, f"prod%{group}")}


# ---- checks --------------------------------------------------------------------------------------


def test_the_number_of_concurrent_checks_is_limited(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = embedded.topic()
    running, most = 0, 0
    lock, is_open = threading.Lock(), threading.Event()

    def check(message: ReceivedMessage) -> Outcome:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        is_open.wait(WAIT_TIMEOUT)
        with lock:
            running -= 1
        return Outcome.COMMIT

    producer = transacting(embedded, check=check, options=ProducerOptions(check_threads=2))
    for number in range(5):
        producer.send_in_transaction(Message(topic, b"%d" % number), returning(None))
    wait_until(lambda: running == 2)  # perhaps of one message, which a slow test left open alone
    # Blocked checks do not block sends.
    producer.send(Message(topic, b"plain"))
    is_open.set()
    embedded.read_all(topic, 6)
    assert most == 2


def test_a_check_that_fails_is_logged_and_repeated(
    embedded: Embedded,
    transacting: Callable[..., TransactionProducer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = embedded.topic()
    check = RecordedCheck({b"1": [Outcome.COMMIT]})
    asked: list[bytes] = []

    def fail_once(message: ReceivedMessage) -> Outcome:
        asked.append(message.body)
        if len(asked) == 1:
            raise LookupError("no row")
        return check(message)

    producer = transacting(embedded, check=fail_once)
    with caplog.at_level(logging.ERROR, "downrange.client"):
        producer.send_in_transaction(Message(topic, b"1"), returning(None))
        assert bodies(embedded, topic, 1) == [b"1"]
    assert "the check of a transaction failed: LookupError('no row')" in caplog.text
    assert "Traceback" in caplog.text
    assert stats_of(producer).user_errors == 1


# ---- hooks and traces ----------------------------------------------------------------------------


def test_hooks_see_how_transactions_end(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    topic = embedded.topic()
    ends: list[EndTransactionContext] = []

    def fail(context: EndTransactionContext) -> None:
        raise LookupError("a hook that fails")

    producer = transacting(
        embedded,
        check=RecordedCheck({b"1": [Outcome.COMMIT]}),
        hooks=Hooks(end_transaction=(fail, ends.append)),
    )
    done = producer.send_in_transaction(Message(topic, b"1"), returning(None))
    embedded.read_all(topic, 1)

    def outcomes() -> Counter[tuple[TransactionFlag, bool]]:
        return Counter((end.outcome, end.is_from_check) for end in ends)

    wait_until(lambda: len(outcomes()) == 2)  # on a slow machine, the check may end first
    assert outcomes()[TransactionFlag.NONE, False] == 1
    assert outcomes()[TransactionFlag.COMMIT, True] >= 1  # a slow answer is asked for again
    assert {end.message_id for end in ends} == {done.receipt.message_id}
    assert {end.message.topic for end in ends} == {topic}


def test_ends_are_traced(
    server: Server, transacting: Callable[..., TransactionProducer], unique_name: UniqueName
) -> None:
    topic, traces = server.topic(), server.topic(queues=1, name=unique_name("traces"))
    trace = Trace(topic=traces, batch_count=2, flush_interval=WAIT_TIMEOUT)
    producer = transacting(server, options=ProducerOptions(trace=trace))
    message = Message(topic, b"1", keys=["k"], properties=UNASKED)
    done = producer.send_in_transaction(message, returning(Outcome.COMMIT))
    records = [
        record
        for message in server.read_all(traces, 1)
        for record in decode_trace(message.body)
        if isinstance(record, EndTransactionTrace)
    ]
    (end,) = records
    assert (end.topic, end.group, end.keys) == (topic, producer.group, "k")
    assert (end.message_id, end.state) == (done.receipt.message_id, "COMMIT_MESSAGE")
    assert end.is_from_check is False


# ---- what is refused -----------------------------------------------------------------------------


def test_a_delayed_message_is_refused(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    producer = transacting(embedded)
    message = Message(embedded.topic(), b"1", delay_level=1)
    with pytest.raises(InvalidMessage, match="cannot be delayed"):
        producer.send_in_transaction(message, returning(Outcome.COMMIT))
    with pytest.raises(InvalidMessage, match="cannot be delayed"):
        producer.transaction(message).__enter__()


def test_a_transaction_ends_once(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    producer = transacting(embedded)
    tx = producer.transaction(Message(embedded.topic(), b"1"))
    with pytest.raises(ClientStateError, match="has not begun"):
        tx.commit()
    with tx:
        tx.rollback()
        with pytest.raises(ClientStateError, match="ended already, with ROLLBACK"):
            tx.commit()
    with pytest.raises(ClientStateError, match="make a new one"):
        tx.__enter__()


def test_a_check_that_cannot_be_called_is_refused(embedded: Embedded, make: Make) -> None:
    with pytest.raises(OptionError, match="check=None cannot be called"):
        make(TransactionProducer, embedded.name_server, group="g", check=None)


def test_local_work_that_cannot_be_called_is_refused(
    embedded: Embedded, transacting: Callable[..., TransactionProducer]
) -> None:
    producer = transacting(embedded)
    message = Message(embedded.topic(), b"1")
    with pytest.raises(OptionError, match="execute=1 cannot be called"):
        producer.send_in_transaction(message, 1)  # type: ignore[arg-type]


def test_transactions_need_a_producer_that_is_running(
    embedded: Embedded, make: Make, unique_name: UniqueName
) -> None:
    producer = make(
        TransactionProducer, embedded.name_server, group=unique_name("group"), check=RecordedCheck()
    )
    message = Message(embedded.topic(), b"1")
    with pytest.raises(NotStarted):
        producer.transaction(message)
    producer.start()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send_in_transaction(message, returning(Outcome.COMMIT))


def test_an_end_after_closing_is_logged_and_no_error(
    embedded: Embedded,
    transacting: Callable[..., TransactionProducer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = transacting(embedded)
    tx = producer.transaction(Message(embedded.topic(), b"1"))
    with caplog.at_level(logging.WARNING, "downrange.client"), tx:
        producer.close()
    assert "was not sent: the client is closed" in caplog.text


# ---- one front end only --------------------------------------------------------------------------


def test_coroutine_functions_are_for_asyncio_only(
    embedded: Embedded, kind: Kind, loop_thread: LoopThread, unique_name: UniqueName
) -> None:
    topic, group = embedded.topic(), unique_name("group")

    is_asked = asyncio.Event()

    async def check(message: ReceivedMessage) -> Outcome:
        is_asked.set()
        return Outcome.COMMIT

    async def execute(message: Message, receipt: SendReceipt) -> Outcome:
        return Outcome.UNKNOWN

    async def use() -> None:
        where = embedded.name_server
        async with AsyncTransactionProducer(
            where, group=group, check=check, options=patient(None)
        ) as producer:
            done = await producer.send_in_transaction(Message(topic, b"1"), execute)
            assert (done.outcome, done.error) == (Outcome.UNKNOWN, None)
            await is_asked.wait()
            assert await asyncio.to_thread(bodies, embedded, topic, 1) == [b"1"]

    if kind == "async":
        loop_thread.run(use())
        return
    with pytest.raises(OptionError, match="check is a coroutine function"):
        TransactionProducer(embedded.name_server, group=group, check=check)  # type: ignore[arg-type]
    with (
        TransactionProducer(embedded.name_server, group=group, check=RecordedCheck()) as producer,
        pytest.raises(OptionError, match="execute is a coroutine function"),
    ):
        producer.send_in_transaction(Message(topic, b"1"), execute)  # type: ignore[arg-type]
