"""Between connections and a service: requests in, outputs carried out.

One rule: whatever the event loop calls us for ends in `settle`, which lets connections go on that
were held back, and only then writes. So a connection is written once for all the replies that one
read, or one `perform`, leads to, whichever connection the read came from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from downrange.server.outputs import Call, Disconnect, LateReply, Note, Output, Push, Reply, refusal
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.server.net.connection import Connection
    from downrange.server.net.interception import Interception, Rule
    from downrange.server.outputs import Peer

_log: Final = logging.getLogger("downrange.server")

_ONEWAY: Final = int(CommandFlag.ONEWAY)


class Service(Protocol):
    """What a listener feeds."""

    def handle(self, request: Command, peer: Peer, now_ms: int, /) -> Iterable[Output]:
        """Answer a request; without a `Reply` the listener waits for a `LateReply`."""
        ...

    def on_disconnect(self, peer: Peer, now_ms: int, /) -> Iterable[Output]:
        """Hear that a connection ended."""
        ...


class Dispatcher:
    """Has the requests of all connections of a listener handled.

    Args:
        service: Answers the requests.
        clock_ms: The time that handlers are given.
        logger: Where the handlers' notes go.
        on_closed: Hears of every connection that ended, before the service does.

    Attributes:
        connections: All open ones, by their numbers.
        clock_ms: See above.
        intercept: Decides what becomes of requests before the service sees them; for tests.
        ready: Connections that were held back and may go on.
        unwritten: Connections that have something to write.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock_ms: Callable[[], int],
        logger: logging.Logger,
        on_closed: Callable[[Peer], None],
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.clock_ms = clock_ms
        self.intercept: Rule | None = None
        self.ready: list[Connection] = []
        self.unwritten: list[Connection] = []
        self._service = service
        self._logger = logger
        self._on_closed = on_closed
        self._is_settling = False

    def perform(self, outputs: Iterable[Output]) -> None:
        """Act on outputs that belong to no request that is being handled."""
        self._act(outputs)
        self.settle()

    def settle(self) -> None:
        """Let connections go on that were held back, then write each that has something to write.

        Called while a request is handled it does nothing, as that ends in another one.
        """
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self.ready:
                self.ready.pop().work()
            unwritten, self.unwritten = self.unwritten, []
            for connection in unwritten:
                connection.flush()
        finally:
            self._is_settling = False

    # ---- what connections tell ----

    def opened(self, connection: Connection) -> None:
        """Keep a new connection."""
        self.connections[connection.peer.number] = connection
        _log.debug("connection %s opened", connection.peer.address)

    def closed(self, connection: Connection) -> None:
        """Forget a connection, and tell the service."""
        _log.debug("connection %s closed", connection.peer.address)
        del self.connections[connection.peer.number]
        self._on_closed(connection.peer)
        self.perform(self._service.on_disconnect(connection.peer, self.clock_ms()))

    def arrived(self, connection: Connection, request: Command, now_ms: int) -> None:
        """Have a request handled, and act on the outputs."""
        if self.intercept is not None:
            interception = self.intercept(request, connection.peer)
            if interception is not None:
                self._carry_out(interception, connection, request)
                return
        self._handle(connection, request, now_ms)

    def conclude(
        self,
        then: Callable[[Command | None, int], Iterable[Output]],
        reply: Command | None,
        now_ms: int,
    ) -> None:
        """Tell one who asked what came of it; a fault there harms nobody else."""
        try:
            self._act(then(reply, now_ms))
        except Exception:
            _log.exception("what follows an answer failed")

    # ---- inside ----

    def _handle(self, connection: Connection, request: Command, now_ms: int) -> None:
        is_answered = request.flags & _ONEWAY != 0
        try:
            for output in self._service.handle(request, connection.peer, now_ms):
                if type(output) is Reply:
                    connection.answer(request, output.command)
                    is_answered = True
                else:
                    self._act((output,))
        except Exception as error:  # a fault of ours must not take the other clients along
            _log.exception("request %d of %s failed", request.code, connection.peer.address)
            if not is_answered:
                remark = f"{type(error).__name__}: {error}"
                connection.answer(request, refusal(ResponseCode.SYSTEM_ERROR, remark))
                is_answered = True
        if not is_answered:
            connection.unanswered += 1

    def _act(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if type(output) is LateReply:  # far more of these than of all others
                connection = self.connections.get(output.connection)
                if connection is not None:
                    connection.answer_late(output.request, output.command)
            else:
                self._act_on(output)

    def _act_on(self, output: Output) -> None:
        match output:
            case Note(text, is_warning):
                self._logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
            case Push(number, command):
                if (connection := self.connections.get(number)) is not None:
                    connection.push(command)
            case Call(number, command, timeout, on_reply):
                connection = self.connections.get(number)
                if connection is None or not connection.ask(command, timeout, on_reply):
                    self.conclude(on_reply, None, self.clock_ms())
            case Disconnect(number):
                if (connection := self.connections.get(number)) is not None:
                    connection.close()
            case _:
                raise AssertionError(f"{output} where no request is being handled")

    # ---- interception ----

    def _carry_out(
        self, interception: Interception, connection: Connection, request: Command
    ) -> None:
        if interception.delay:
            connection.loop.call_later(
                interception.delay, self._carry_out_late, interception, connection, request
            )
        else:
            self._carry_out_now(interception, connection, request)

    def _carry_out_late(self, *what: Any) -> None:
        self._carry_out_now(*what)
        self.settle()

    def _carry_out_now(
        self, interception: Interception, connection: Connection, request: Command
    ) -> None:
        if connection.peer.number not in self.connections:
            return  # it ended while the request was held back
        if interception.refusal is not None:
            code, remark = interception.refusal
            connection.answer(request, Command(code, remark=remark))
        elif interception.is_handled and interception.is_answered:
            self._handle(connection, request, self.clock_ms())
        elif interception.is_handled:
            self._handle_and_lose_reply(connection, request)
        if interception.is_cut:
            connection.abort()

    def _handle_and_lose_reply(self, connection: Connection, request: Command) -> None:
        try:
            outputs = list(self._service.handle(request, connection.peer, self.clock_ms()))
            request.flags |= _ONEWAY  # so that a late reply will not be written either
            self._act(output for output in outputs if type(output) is not Reply)
        except Exception:
            _log.exception("request %d of %s failed", request.code, connection.peer.address)
