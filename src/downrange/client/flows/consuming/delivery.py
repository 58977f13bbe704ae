"""One delivery of a popped message: its newest receipt, its time, and what became of it.

    popped -> acknowledged | given back | dead letter          settled: nothing more can be done
           -> its time is over                                 it is delivered again, to any member

An Apache broker does not refuse a receipt that is settled or over: it would deliver the message a
second time. So both are checked here, before a request is made. Times are the client's: it asked
for the message before the broker popped it, so a receipt is over here not later than there.

One rule: at most one request about a delivery is in flight. A renewal replaces the receipt, and an
acknowledgement with the old one at the same time would do nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from downrange.client.flows.consuming.receipts import (
    ack,
    ack_many,
    change_invisible,
    send_to_dead_letters,
)
from downrange.client.flows.consuming.send_back import usual_delay
from downrange.client.flows.effects import Flow, Signal, Wait
from downrange.errors import (
    AlreadySettled,
    CallTimeout,
    ClosedUnsettled,
    NotFound,
    ReceiptExpired,
    RocketMQError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.pop import Popped
    from downrange.wire.pop_receipts import Receipt

ResultT = TypeVar("ResultT")

#: What `AlreadySettled` says was done with a message.
ACKNOWLEDGED: Final = "was acknowledged"
GIVEN_BACK: Final = "was given back"
LEFT: Final = "was left to others"
DEAD_LETTER: Final = "was moved to the dead letters"
#: The part of its time after which a receipt is renewed.
_RENEWED_AFTER: Final = 0.5
#: Seconds until a renewal that failed is repeated, at most.
_RENEWAL_PAUSE: Final = 1.0


class DeliveryOwner(Protocol):
    """The consumer that received a message, as its deliveries need it."""

    @property
    def core(self) -> ClientCore:
        """The client."""
        ...

    @property
    def group(self) -> str:
        """The group, without the namespace."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether messages cannot be settled any more."""
        ...

    @property
    def retries(self) -> int:
        """How often a message is delivered again."""
        ...

    def settled(self, outcome: str) -> None:
        """Count a message."""
        ...

    def renewed(self) -> None:
        """Count a receipt that was replaced."""
        ...

    def not_renewed(self, delivery: Delivery, error: RocketMQError | None) -> None:
        """Report that a renewal failed, or that there are no more of them (None)."""
        ...


class Delivery:
    """One popped message.

    Args:
        owner: The consumer.
        popped: The message and its first receipt.
        asked_at: When it was asked for, on the client's clock.
        invisible: Seconds for which it is invisible from then on.

    Attributes:
        receipt: The newest receipt.
        expires_at: When the receipt is over, on the client's clock.
        outcome: What was done with the message; None until it is settled.
    """

    __slots__ = (
        "_busy",
        "_invisible",
        "_owner",
        "expires_at",
        "message",
        "outcome",
        "receipt",
    )

    def __init__(
        self, owner: DeliveryOwner, popped: Popped, asked_at: float, invisible: float
    ) -> None:
        self._owner = owner
        self.message = popped.message
        self.receipt: Receipt = popped.receipt
        self.expires_at = asked_at + invisible
        self.outcome: str | None = None
        self._invisible = invisible
        #: Fires when the request that is in flight has ended.
        self._busy: Signal | None = None

    # ---- state -------------------------------------------------------------------------------

    @property
    def expiry(self) -> str:
        """When the receipt is over, as text."""
        clock = self._owner.core.clock
        left = self.expires_at - clock.now()
        now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        return f"{now + timedelta(seconds=left):%Y-%m-%d %H:%M:%S} UTC"

    def check(self) -> None:
        """Check that the message can be settled now.

        Raises:
            AlreadySettled: It was settled before.
            ReceiptExpired: Its time is over.
            ClosedUnsettled: The consumer was closed.
        """
        message_id = self.message.message_id
        if self.outcome is not None:
            raise AlreadySettled(message_id, self.outcome)
        if self._owner.core.clock.now() >= self.expires_at:
            raise ReceiptExpired(message_id, self.expiry)
        if self._owner.is_closed:
            raise ClosedUnsettled(message_id, self.expiry)

    # ---- settling ----------------------------------------------------------------------------

    def ack(self, deadline: float) -> Flow[None]:
        """Acknowledge the message.

        Raises:
            SettleError: It is too late; see `check`.
            RocketMQError: The broker refused, or did not answer; the call may be repeated.
        """
        owner = self._owner
        yield from self.take_turn(deadline)
        request = ack(owner.core, owner.group, self.message.topic, self.receipt, deadline=deadline)
        yield from self._perform(request)
        self.note(ACKNOWLEDGED)

    def retry(self, after: float | None, deadline: float) -> Flow[float | None]:
        """Give the message back, or to the dead letters if it was delivered often enough.

        Args:
            after: Seconds until it is delivered again; None for the usual time.
            deadline: When to give up.

        Returns:
            The seconds until it is delivered again; None for a dead letter.

        Raises:
            SettleError: It is too late; see `check`.
            RocketMQError: The broker refused, or did not answer; the call may be repeated.
        """
        attempts = self.message.delivery_attempts
        if attempts >= self._owner.retries:
            yield from self.dead_letter(deadline)
            return None
        if after is None:
            after = usual_delay(attempts)  # as Java's pop consumer, and as brokers do
        yield from self.take_turn(deadline)
        yield from self._change(after, deadline)
        self.note(GIVEN_BACK)
        return after

    def dead_letter(self, deadline: float) -> Flow[None]:
        """Move the message to the dead letters of the group; for errors see `retry`."""
        owner = self._owner
        yield from self.take_turn(deadline)
        request = send_to_dead_letters(
            owner.core, owner.group, self.message, self.receipt, deadline=deadline
        )
        yield from self._perform(request)
        self.note(DEAD_LETTER)

    def leave(self, deadline: float) -> Flow[None]:
        """Let the broker deliver the message again at once; for errors see `retry`."""
        yield from self.take_turn(deadline)
        yield from self._change(0.0, deadline)
        self.note(LEFT)

    def extend(self, seconds: float, deadline: float) -> Flow[None]:
        """Keep the message invisible for so many seconds from now on; for errors see `retry`."""
        yield from self.take_turn(deadline)
        asked_at = self._owner.core.clock.now()
        self.receipt = yield from self._change(seconds, deadline)
        self._invisible = seconds
        self.expires_at = asked_at + seconds
        self._owner.renewed()

    def _change(self, seconds: float, deadline: float) -> Flow[Receipt]:
        owner, message = self._owner, self.message
        request = change_invisible(
            owner.core,
            owner.group,
            message.topic,
            self.receipt,
            seconds=seconds,
            deadline=deadline,
        )
        try:
            return (yield from self._perform(request))
        except NotFound as error:  # our own broker refuses a receipt that is over
            raise ReceiptExpired(message.message_id, self.expiry) from error

    def take_turn(self, deadline: float) -> Flow[None]:
        """Wait until no request is in flight, and take the turn for the next one.

        Raises:
            SettleError: It is too late; see `check`.
            CallTimeout: The turn did not come before the deadline.
        """
        started = self._owner.core.clock.now()
        while self._busy is not None:
            is_free: bool = yield Wait(self._busy, deadline)
            if not is_free:
                raise CallTimeout(self.receipt.broker, deadline - started)
        self.check()
        self._busy = Signal()

    def _perform(self, request: Flow[ResultT]) -> Flow[ResultT]:
        try:
            return (yield from request)
        finally:
            self.end_turn()

    def end_turn(self) -> None:
        """Let the next request begin."""
        busy, self._busy = self._busy, None
        assert busy is not None
        busy.fire()

    def note(self, outcome: str) -> None:
        """Note what was done with the message."""
        self.outcome = outcome
        self._owner.settled(outcome)

    # ---- renewing ----------------------------------------------------------------------------

    def keep_invisible(self, done: Signal, until: float) -> Flow[None]:
        """Renew the receipt until a signal fires, the message is settled, or a time.

        A renewal that fails is repeated until the receipt is over.
        """
        core = self._owner.core
        due = self.expires_at - self._invisible * (1 - _RENEWED_AFTER)
        while not (yield Wait(done, min(due, until))):
            now = core.clock.now()
            if now >= until:
                self._owner.not_renewed(self, None)
                return
            try:
                deadline = min(self.expires_at, now + core.options.call_timeout)
                yield from self.extend(self._invisible, deadline)
                due = self.expires_at - self._invisible * (1 - _RENEWED_AFTER)
            except (AlreadySettled, ClosedUnsettled):
                return
            except RocketMQError as error:
                self._owner.not_renewed(self, error)
                if isinstance(error, ReceiptExpired):
                    return
                due = core.clock.now() + min(_RENEWAL_PAUSE, self._invisible / 10)


def ack_all(
    owner: DeliveryOwner, deliveries: Sequence[Delivery], deadline: float
) -> Flow[list[RocketMQError | None]]:
    """Acknowledge many messages with few requests.

    Returns:
        For each message, in order: None, or why it was not acknowledged.
    """
    failures: dict[int, RocketMQError] = {}
    taken: dict[int, Delivery] = {}
    try:
        # The same order in all flows: two that have messages in common do not wait for each other.
        for number, delivery in sorted({id(each): each for each in deliveries}.items()):
            try:
                yield from delivery.take_turn(deadline)
                taken[number] = delivery
            except RocketMQError as error:
                failures[number] = error
        popped = [(each.message.topic, each.receipt) for each in taken.values()]
        outcomes = yield from ack_many(owner.core, owner.group, popped, deadline=deadline)
        for (number, delivery), outcome in zip(taken.items(), outcomes, strict=True):
            if outcome is None:
                delivery.note(ACKNOWLEDGED)
            else:
                failures[number] = outcome
    finally:
        for delivery in taken.values():
            delivery.end_turn()
    return [failures.get(id(delivery)) for delivery in deliveries]
