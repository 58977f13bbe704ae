"""The part of messages with a consumer behind them that never waits.

Such a message has the fields of a `ReceivedMessage`, and is equal to every message with the same
fields. A copy, also a pickled one, is a plain `ReceivedMessage`, without the consumer.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from downrange.model import ReceivedMessage

_FIELDS: Final = tuple(field.name for field in fields(ReceivedMessage))


class ConsumedMessage(ReceivedMessage):
    """A received message that knows its consumer."""

    __slots__ = ("_consumer",)
    _consumer: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = ReceivedMessage.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, tuple(getattr(self, name) for name in _FIELDS)


def link_to(message: ReceivedMessage, consumer: object) -> None:
    """Set the consumer of a message that no user has seen yet."""
    object.__setattr__(message, "_consumer", consumer)


def _plain(*values: Any) -> ReceivedMessage:
    return ReceivedMessage(**dict(zip(_FIELDS, values, strict=True)))
