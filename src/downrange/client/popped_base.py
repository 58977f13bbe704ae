"""The part of popped messages that never waits: their fields, and the delivery behind them."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Final, Self

from downrange.checks import iterated, wrong_type
from downrange.client.flows.consuming.delivery import DEAD_LETTER
from downrange.errors import ReceiptMissing
from downrange.model import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.consuming.delivery import Delivery
    from downrange.client.flows.consuming.pop_sources import PopSource
    from downrange.errors import RocketMQError

_log = logging.getLogger("downrange.client")
_FIELDS: Final = tuple(field.name for field in fields(ReceivedMessage))
_set = object.__setattr__  # messages are frozen


class PoppedBase(ReceivedMessage):
    """A received message that is invisible to other members of the group until it is settled.

    It is equal to every message with the same fields. Pickling and copying keep the fields, not the
    receipt, so a copy cannot be settled.

    Attributes:
        delivery: The state behind it; None for a copy.
    """

    delivery: Delivery | None = None

    @classmethod
    def _of(cls, delivery: Delivery) -> Self:
        self = cls.__new__(cls)
        message = delivery.message
        for name in _FIELDS:
            _set(self, name, getattr(message, name))
        _set(self, "delivery", delivery)
        return self

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self.delivery_attempts + 1

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, given back or moved to the dead letters."""
        return self.delivery is not None and self.delivery.outcome is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = ReceivedMessage.__hash__

    def __repr__(self) -> str:
        text = ReceivedMessage.__repr__(self)
        return text.replace("ReceivedMessage", type(self).__name__, 1)

    def _open(self) -> Delivery:
        """Return the delivery.

        Raises:
            SettleError: The message cannot be settled now.
        """
        if self.delivery is None:
            raise ReceiptMissing(self.message_id)
        self.delivery.check()
        return self.delivery


def deliveries_of(messages: Iterable[PoppedBase]) -> list[Delivery]:
    """Return the deliveries of messages that `receive` returned.

    Raises:
        OptionError: One is not such a message.
        ReceiptMissing: One is a copy.
    """
    found: list[Delivery] = []
    for message in iterated("messages", messages, "a list of messages that receive() returned"):
        if not isinstance(message, PoppedBase):
            expected = "a message that receive() returned"
            raise wrong_type("each of messages", message, expected)
        if message.delivery is None:
            raise ReceiptMissing(message.message_id)
        found.append(message.delivery)
    return found


def log_retry(delivery: Delivery, group: str) -> None:
    """Log that a message became a dead letter instead of being delivered again."""
    if delivery.outcome == DEAD_LETTER:
        message = delivery.message
        _log.warning(
            "message %s was delivered %d times: it is now a dead letter of %s",
            message.message_id,
            message.delivery_attempts + 1,
            group,
        )


def report_source(source: PopSource, error: RocketMQError | None) -> None:
    """Log that a broker cannot be popped from, or can be again."""
    where = (source.topic, source.broker)
    if error is None:
        _log.info("%s can be received from broker %s again", *where)
    else:
        _log.warning("%s cannot be received from broker %s, trying again: %s", *where, error)


def report_renewal(delivery: Delivery, error: RocketMQError | None) -> None:
    """Log that the receipt of a message in a `processing` block is not renewed."""
    name = delivery.message.message_id
    if error is None:
        _log.warning(
            "message %s takes longer than handle_timeout: its receipt is not renewed any more, so "
            "it is delivered again at %s",
            name,
            delivery.expiry,
        )
    else:
        _log.warning("the receipt of message %s was not renewed: %s", name, error)
