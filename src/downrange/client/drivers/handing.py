"""Calls that a thread hands to the engine, and waits for.

A thread that finds no connection of its own free is one of many. So this is cheap: no flow, no
future, one lock. The engine writes what threads hand over in one turn together, and lets each go on
when its answer is there. To a connection it is what a running flow is: someone to resume.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from downrange.client.drivers.aio import AioDriver
    from downrange.client.drivers.aio_connection import Connection
    from downrange.client.flows.effects import Call


class HandedCall:
    """One call on its way over the engine.

    Args:
        call: The call.

    Attributes:
        connection, request_id, asked_at, deadline: As in `Running`; connections keep them here.
    """

    __slots__ = (
        *("_answer", "_call", "_error", "_is_answered"),
        *("asked_at", "connection", "deadline", "request_id"),
    )

    def __init__(self, call: Call) -> None:
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        #: Held until there is an answer.
        self._is_answered = threading.Lock()
        self._is_answered.acquire()
        self.connection: Connection | None = None
        self.request_id: int
        self.asked_at: float
        self.deadline: float

    def begin(self, engine: AioDriver) -> None:
        """Make the call, on the engine's thread."""
        call = self._call
        try:
            connection = engine.connection(call.address)
            if not call.is_oneway:
                connection.ask(self, call)
            elif connection.tell(self, call):
                self.resume()
        except BaseException as error:
            self.resume(error=error)

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Let the thread go on, with an answer or an error."""
        self._answer, self._error = value, error
        self._is_answered.release()

    def wait(self) -> Any:
        """Wait, in the thread that handed the call over; return the answer.

        Raises:
            BaseException: What the call ended with.
        """
        self._is_answered.acquire()
        if self._error is not None:
            raise self._error
        return self._answer
