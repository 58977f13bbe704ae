from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.consuming.delivery import Delivery, ack_all
from downrange.client.flows.consuming.pop import Popped
from downrange.client.flows.effects import Call, Signal, Wait
from downrange.errors import (
    AlreadySettled,
    CallTimeout,
    ClosedUnsettled,
    ConnectionLost,
    NotFound,
    ReceiptExpired,
    RocketMQError,
    ServerFailure,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.pop_headers import ChangeInvisibleReply
from downrange.wire.pop_receipts import PLAIN, Receipt
from downrange.wire.records import decode_records
from tests.support.plain_messages import received
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.command import Command

DEADLINE = 130.0
INVISIBLE = 20.0
ACK = RequestCode.ACK_MESSAGE
MANY = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


class Owner:
    """A consumer, as deliveries need it; with what they told it."""

    def __init__(self) -> None:
        self.servers = FakeServers()
        self.servers.answer_route("orders", route("a"))
        for code in (ACK, MANY, BACK):
            self.servers.answer("a:1", code, reply())
        self.servers.answer("a:1", CHANGE, self.change)
        self.group = "jobs"
        self.is_closed = False
        self.retries = 2
        self.outcomes: list[str] = []
        self.renewals = 0
        self.failures: list[RocketMQError | None] = []

    @property
    def core(self) -> ClientCore:
        return self.servers.core

    def settled(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    def renewed(self) -> None:
        self.renewals += 1

    def not_renewed(self, delivery: Delivery, error: RocketMQError | None) -> None:
        self.failures.append(error)

    def change(self, command: Command) -> Command:
        invisible_ms = int(command.fields["invisibleTime"])
        return reply(ChangeInvisibleReply(self.servers.clock.wall_ms(), invisible_ms, 4))

    def delivery(self, offset: int = 5, attempts: int = 0) -> Delivery:
        (message,) = received(decode_records(record("orders", offset))[0], "a", body_bytes_max=9)
        object.__setattr__(message, "delivery_attempts", attempts)
        receipt = Receipt(3, 1_000, 20_000, 2, PLAIN, "a", 0, offset)
        return Delivery(self, Popped(message, receipt), self.servers.clock.now(), INVISIBLE)

    def run_ack(self, delivery: Delivery) -> None:
        self.servers.run(delivery.ack(DEADLINE))

    def changed_to(self) -> str:
        return self.servers.fields(CHANGE)["invisibleTime"]


# ---- settling ----------------------------------------------------------------------------------


def test_an_acknowledged_message_is_settled() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.run_ack(delivery)
    assert owner.outcomes == ["was acknowledged"]
    assert owner.servers.asked(ACK) == ["a:1"]
    with pytest.raises(AlreadySettled, match="was acknowledged already"):
        owner.run_ack(delivery)
    with pytest.raises(AlreadySettled):
        owner.servers.run(delivery.retry(None, DEADLINE))
    assert len(owner.servers.asked(ACK)) == 1


def test_a_message_whose_time_is_over_is_not_settled() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.servers.clock.seconds += INVISIBLE
    with pytest.raises(ReceiptExpired, match="until 1970-01-01 00:02:00 UTC"):
        owner.run_ack(delivery)
    assert not owner.servers.asked(ACK)


def test_a_message_is_not_settled_after_its_consumer_was_closed() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.is_closed = True
    with pytest.raises(ClosedUnsettled, match="again at 1970-01-01 00:02:00 UTC"):
        owner.run_ack(delivery)


def test_an_acknowledgement_that_failed_is_repeated() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.servers.answer("a:1", ACK, ConnectionLost("a:1", "cut"), reply())
    with pytest.raises(ConnectionLost):
        owner.run_ack(delivery)
    assert owner.outcomes == []
    owner.run_ack(delivery)
    assert owner.outcomes == ["was acknowledged"]


@pytest.mark.parametrize(
    ("attempts", "after", "expected"),
    [(0, None, "10000"), (1, None, "30000"), (1, 0.0, "0"), (0, 2.5, "2500")],
)
def test_a_message_is_given_back(attempts: int, after: float | None, expected: str) -> None:
    owner = Owner()
    delivery = owner.delivery(attempts=attempts)
    owner.servers.run(delivery.retry(after, DEADLINE))
    assert owner.changed_to() == expected
    assert owner.outcomes == ["was given back"]


def test_the_usual_time_of_a_retry_has_a_limit() -> None:
    owner = Owner()
    owner.retries = 1000
    owner.servers.run(owner.delivery(attempts=500).retry(None, DEADLINE))
    assert owner.changed_to() == "7200000"


def test_a_message_that_was_delivered_often_enough_becomes_a_dead_letter() -> None:
    owner = Owner()
    owner.servers.run(owner.delivery(attempts=2).retry(5.0, DEADLINE))
    assert owner.servers.asked(BACK) == ["a:1"]
    assert owner.servers.asked(ACK) == ["a:1"]
    assert not owner.servers.asked(CHANGE)
    assert owner.outcomes == ["was moved to the dead letters"]


def test_a_dead_letter_that_is_refused_can_be_settled_otherwise() -> None:
    owner = Owner()
    owner.servers.answer("a:1", BACK, refusal(ResponseCode.SYSTEM_ERROR))
    delivery = owner.delivery()
    with pytest.raises(ServerFailure):
        owner.servers.run(delivery.dead_letter(DEADLINE))
    owner.run_ack(delivery)
    assert owner.outcomes == ["was acknowledged"]


def test_an_extension_replaces_the_receipt() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.servers.clock.seconds += 10
    owner.servers.run(delivery.extend(50.0, DEADLINE))
    assert owner.renewals == 1
    assert delivery.receipt == Receipt(5, 110_000, 50_000, 4, PLAIN, "a", 0, 5)
    owner.servers.clock.seconds += 45  # later than the end of the first receipt
    owner.run_ack(delivery)
    assert owner.servers.fields(ACK)["extraInfo"] == "5 110000 50000 4 0 a 0 5"


def test_a_broker_may_know_better_that_a_receipt_is_over() -> None:
    owner = Owner()
    owner.servers.answer("a:1", CHANGE, refusal(ResponseCode.NO_MESSAGE))
    with pytest.raises(ReceiptExpired) as raised:
        owner.servers.run(owner.delivery().extend(5.0, DEADLINE))
    assert isinstance(raised.value.__cause__, NotFound)


def test_one_request_at_a_time() -> None:
    owner = Owner()
    delivery = owner.delivery()
    renewing, acking = delivery.extend(50.0, DEADLINE), delivery.ack(DEADLINE)
    owner.servers.interpreter.run_together([renewing, acking])
    assert owner.servers.fields(ACK)["extraInfo"].startswith("5 100000 50000 ")
    assert owner.outcomes == ["was acknowledged"]


def test_a_turn_that_does_not_come_is_given_up() -> None:
    owner = Owner()
    owner.run_ack(owner.delivery())  # the route is known from now on
    delivery = owner.delivery()
    hanging = delivery.extend(50.0, DEADLINE)
    assert isinstance(next(hanging), Call)
    with pytest.raises(CallTimeout, match="no answer within 10 s"):
        owner.servers.run(delivery.ack(110.0))
    hanging.close()  # as a driver does with a caller that was cancelled
    owner.servers.clock.seconds = 111.0
    owner.run_ack(delivery)


# ---- renewing ----------------------------------------------------------------------------------


def test_a_receipt_is_renewed_until_the_signal() -> None:
    owner = Owner()
    delivery, done = owner.delivery(), Signal()
    flow = delivery.keep_invisible(done, until=1000.0)
    waits: list[float] = []
    effect = next(flow)
    for _ in range(3):
        assert isinstance(effect, Wait)
        waits.append(effect.deadline)
        owner.servers.clock.seconds = effect.deadline
        effect = flow.send(False)
        while not isinstance(effect, Wait):
            effect = flow.send(owner.servers.perform(effect))
    assert waits == [110.0, 120.0, 130.0]
    assert owner.renewals == 3
    with pytest.raises(StopIteration):
        flow.send(True)


def test_renewals_end_when_the_block_takes_too_long() -> None:
    owner = Owner()
    owner.servers.run(owner.delivery().keep_invisible(Signal(), until=125.0))
    assert owner.servers.clock.now() == 125.0
    assert owner.renewals == 2
    assert owner.failures == [None]


def test_a_renewal_that_failed_is_repeated_until_the_receipt_is_over() -> None:
    owner = Owner()
    cut = ConnectionLost("a:1", "cut")
    owner.servers.answer("a:1", CHANGE, cut)
    owner.servers.run(owner.delivery().keep_invisible(Signal(), until=1000.0))
    assert owner.servers.clock.now() == 120.0
    assert owner.failures[:-1] == [cut] * 10
    assert isinstance(owner.failures[-1], ReceiptExpired)


def test_a_settled_message_is_not_renewed() -> None:
    owner = Owner()
    delivery = owner.delivery()
    owner.run_ack(delivery)
    owner.servers.run(delivery.keep_invisible(Signal(), until=1000.0))
    assert not owner.servers.asked(CHANGE)
    assert owner.failures == []


# ---- many --------------------------------------------------------------------------------------


def test_many_messages_are_acknowledged_with_one_request() -> None:
    owner = Owner()
    deliveries = [owner.delivery(offset) for offset in range(3, 8)]
    outcomes = owner.servers.run(ack_all(owner, [*deliveries, deliveries[0]], DEADLINE))
    assert outcomes == [None] * 6
    assert owner.outcomes == ["was acknowledged"] * 5
    assert owner.servers.asked(MANY) == ["a:1"]


def test_each_message_that_is_not_acknowledged_has_its_error() -> None:
    owner = Owner()
    first, second, third = (owner.delivery(offset) for offset in range(3, 6))
    owner.run_ack(second)
    failure = ConnectionLost("a:1", "cut")
    owner.servers.answer("a:1", MANY, failure)
    outcomes = owner.servers.run(ack_all(owner, [first, second, third], DEADLINE))
    assert outcomes[0] is outcomes[2] is failure
    assert isinstance(outcomes[1], AlreadySettled)
    owner.run_ack(first)  # the turn was given back


def test_nothing_is_asked_for_an_empty_list() -> None:
    owner = Owner()
    assert owner.servers.run(ack_all(owner, [], DEADLINE)) == []
    assert owner.servers.calls == []
