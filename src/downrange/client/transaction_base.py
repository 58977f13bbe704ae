"""The part of `Transaction` and `AsyncTransaction` that never waits: receipt and outcome.

One rule: a transaction ends once; to end it a second time is an error.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from downrange.errors import ClientStateError, OptionError, RocketMQError
from downrange.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.client.flows.producing.transactions import Half
    from downrange.model import Message, SendReceipt

_log = logging.getLogger("downrange.client")


class TransactionBase:
    """A message, its receipt and its outcome."""

    def __init__(self, core: ProducerCore, message: Message, timeout: float | None) -> None:
        self._core = core
        self._timeout = timeout
        self._begun: tuple[SendReceipt, Half] | None = None
        self._message = message
        self._outcome: Outcome | None = None

    @property
    def message(self) -> Message:
        """The message of the transaction."""
        return self._message

    @property
    def receipt(self) -> SendReceipt:
        """The broker's receipt for the half message."""
        return self._state()[0]

    @property
    def message_id(self) -> str:
        """The message's id; a good key for the transaction in your own tables."""
        return self.receipt.message_id

    @property
    def outcome(self) -> Outcome | None:
        """The outcome that was sent to the broker; None before that."""
        return self._outcome

    def __repr__(self) -> str:
        state = "new" if self._begun is None else "open" if self._outcome is None else "ended"
        return f"<{type(self).__name__} of {self._message!r} {state}>"

    def _state(self) -> tuple[SendReceipt, Half]:
        if self._begun is None:
            raise ClientStateError("the transaction has not begun: use it in a with statement")
        return self._begun

    def _check_new(self) -> None:
        if self._begun is not None:
            raise ClientStateError("the transaction has begun already; make a new one")

    def _set_outcome(self, outcome: Outcome) -> Half:
        half = self._state()[1]
        if self._outcome is not None:
            raise ClientStateError(f"the transaction has ended already, with {self._outcome.name}")
        self._outcome = outcome
        return half

    def _log_failure(self, error: RocketMQError) -> None:
        """Log that the broker does not know the outcome; it will send a check."""
        _log.warning("the outcome of transaction %s was not sent: %s", self.message_id, error)


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a transaction ends whose block ended with this error."""
    if error is None:
        return Outcome.COMMIT
    return Outcome.ROLLBACK if isinstance(error, Exception) else Outcome.UNKNOWN


def reason_of(error: BaseException | None) -> Exception | None:
    """Return the error that hooks are given as the reason of an outcome."""
    return error if isinstance(error, Exception) else None


def any_function(name: str, function: Any) -> Callable[..., Any]:
    """Return a function of the user, which may be a coroutine function.

    Raises:
        OptionError: It cannot be called.
    """
    if not callable(function):
        raise OptionError(f"{name}={function!r} cannot be called; give a function")
    return function  # type: ignore[no-any-return]


def plain_function(name: str, function: Any) -> Callable[..., Any]:
    """Return a function of the user that a thread can call.

    Raises:
        OptionError: It cannot be called, or it is a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        raise OptionError(f"{name} is a coroutine function; AsyncTransactionProducer takes those")
    return any_function(name, function)
