"""Between connections and a service: events are handled, outputs are performed.

One rule: every callback of the event loop ends in `_finish_turn`. It first handles the events of
all connections that may proceed, and then writes. So each connection is written once for all the
replies that one read, or one `perform`, leads to, whichever connection the read came from.

A connection that gets large replies yields to the other connections after 2 MiB.

Plain sends that were read together are handled as one run, if the service takes runs. Otherwise, or
if it declines this one, the run becomes the single requests that it was made of: for a rule of
`interception`, for the log of every request, and where the connection's limit would be passed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from downrange.server.net.connection import PendingCall
from downrange.server.net.foreign_protocols import RareLines, foreign_error
from downrange.server.outputs import (
    AskNameServer,
    Call,
    Disconnect,
    Held,
    LateReplies,
    LateReply,
    Note,
    Output,
    Push,
    Reply,
    refusal,
)
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.command import Command
from downrange.wire.link import LinkBroken, ReplyArrived, RequestArrived, RunArrived
from downrange.wire.send_runs import single_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.errors import WireError
    from downrange.server.net.connection import Connection
    from downrange.server.net.interception import Interception, Rule
    from downrange.server.outputs import OnReply, Peer
    from downrange.wire.send_runs import SendRun

    #: Begins to store the sends of a run; returns False if they must be handled one by one.
    HandleRun = Callable[[SendRun, Peer, int], bool]

_log: Final = logging.getLogger("downrange.server")

#: After this many bytes of replies a connection yields to the others: a few ms of work.
_TURN_BYTES: Final = 2 * 1024 * 1024
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class Service(Protocol):
    """Handles the requests of a listener's peers."""

    def handle(self, request: Command, peer: Peer, now_ms: int, /) -> Iterable[Output]:
        """Handle a request; without a `Reply`, a `LateReply` must follow at some time."""
        ...

    def on_reply(
        self, callback: OnReply, reply: Command | None, now_ms: int, /
    ) -> Iterable[Output]:
        """Continue after a `Call`: its callback is `on_reply`; the reply is None if none came."""
        ...

    def on_disconnect(self, peer: Peer, now_ms: int, /) -> Iterable[Output]:
        """Clean up after a connection that ended."""
        ...


class Dispatcher:
    """Passes the requests of all connections of a listener to a service.

    Args:
        service: Handles the requests.
        clock_ms: The time that handlers get.
        logger: Logs the notes of handlers.
        on_closed: Called for every connection that ended, before the service is.
        ask_name_server: Begins an `AskNameServer`; the service's `on_reply` follows in a turn of
            its own. Only brokers need it.
        handle_run: Takes the plain sends of one read, the peer and the time; `LateReplies` follow.
            False means that it declines them. None for a service that takes single requests only.

    Attributes:
        connections: All open ones, by number.
        clock_ms: See above.
        intercept: Decides about requests before the service gets them; for tests.
        unwritten: Connections that have frames to write.
        takes_runs: Whether there is a `handle_run`.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock_ms: Callable[[], int],
        logger: logging.Logger,
        on_closed: Callable[[Peer], None],
        ask_name_server: Callable[[AskNameServer], None] | None = None,
        handle_run: HandleRun | None = None,
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.clock_ms = clock_ms
        self.intercept: Rule | None = None
        self.unwritten: list[Connection] = []
        self.takes_runs = handle_run is not None
        self._service = service
        self._logger = logger
        self._on_closed = on_closed
        self._ask_name_server = ask_name_server
        self._handle_run = handle_run
        self._ready: list[Connection] = []  # they may handle events
        self._is_in_turn = False
        self._rare_lines = RareLines()

    def perform(self, outputs: Iterable[Output]) -> None:
        """Perform outputs that do not answer the request that is being handled."""
        self._perform(outputs)
        self._finish_turn()

    # ---- called by connections ----

    def on_connect(self, connection: Connection) -> None:
        """Add a new connection."""
        self.connections[connection.peer.number] = connection
        _log.debug("connection %s opened", connection.peer.address)

    def on_events(self, connection: Connection) -> None:
        """Handle what was read from a connection, as far as its limits allow."""
        self._ready.append(connection)
        self._finish_turn()

    def on_reply(self, pending: PendingCall, reply: Command | None) -> None:
        """Pass the reply to a call, or None, to the code that made the call."""
        pending.timer.cancel()
        self._continue(pending.on_reply, reply)

    def on_disconnect(self, connection: Connection) -> None:
        """Remove a connection; requests that were read and not handled are dropped."""
        for event in connection.events:
            if not isinstance(event, RequestArrived | RunArrived):
                self._take(connection, event)
        connection.events.clear()
        _log.debug("connection %s closed", connection.peer.address)
        del self.connections[connection.peer.number]
        self._on_closed(connection.peer)
        self.perform(self._service.on_disconnect(connection.peer, self.clock_ms()))

    # ---- a turn: events in, outputs performed, frames written ----

    def _finish_turn(self) -> None:
        """Handle events of all connections that may proceed, then write.

        Does nothing when called inside a turn: that turn writes at its end.
        """
        if self._is_in_turn:
            return
        self._is_in_turn = True
        try:
            while self._ready:
                self._handle_events(self._ready.pop())
            unwritten, self.unwritten = self.unwritten, []
            for connection in unwritten:
                connection.write_frames()
        finally:
            self._is_in_turn = False

    def _handle_events(self, connection: Connection) -> None:
        events, in_flight_max = connection.events, connection.in_flight_max
        is_traced = _log.isEnabledFor(logging.DEBUG)
        now_ms = self.clock_ms()  # the same time for everything that came with one read
        connection.turn_bytes = 0
        while events and connection.unanswered < in_flight_max and not connection.is_congested:
            if connection.turn_bytes >= _TURN_BYTES:
                connection.loop.call_soon(self.on_events, connection)
                break
            event = events.popleft()
            if isinstance(event, RequestArrived):
                request = event.command
                if is_traced:
                    address = connection.peer.address
                    _log.debug("< %d %d %s", request.code, request.request_id, address)
                if self.intercept is None or not self._is_intercepted(connection, request):
                    self._handle(connection, request, now_ms)
            elif isinstance(event, RunArrived):
                if is_traced or not self._is_run_handled(connection, event.run, now_ms):
                    requests = map(RequestArrived, reversed(single_requests(event.run)))
                    events.extendleft(requests)
            else:
                self._take(connection, event)
        connection.pause_or_resume_reading()

    def _handle(self, connection: Connection, request: Command, now_ms: int) -> None:
        is_answered = request.flags & _ONEWAY != 0
        try:
            for output in self._service.handle(request, connection.peer, now_ms):
                if type(output) is Reply:
                    connection.reply(request, output.command)
                    is_answered = True
                elif type(output) is Held:
                    is_answered = is_answered or connection.hold(request)
                else:
                    self._perform((output,))
        except Exception as error:  # a bug in one handler must not disconnect the other clients
            _log.exception("request %d of %s failed", request.code, connection.peer.address)
            if not is_answered:
                remark = f"{type(error).__name__}: {error}"
                connection.reply(request, refusal(ResponseCode.SYSTEM_ERROR, remark))
                is_answered = True
        if not is_answered:
            connection.unanswered += 1

    def _is_run_handled(self, connection: Connection, run: SendRun, now_ms: int) -> bool:
        free = connection.in_flight_max - connection.unanswered
        if self._handle_run is None or self.intercept is not None or run.reply_count > free:
            return False
        try:
            if not self._handle_run(run, connection.peer, now_ms):
                return False
        except Exception:  # each of its requests gets an answer of its own
            _log.exception("%d sends of %s failed together", len(run), connection.peer.address)
            return False
        connection.unanswered += run.reply_count
        return True

    def _take(
        self, connection: Connection, event: ReplyArrived[PendingCall] | LinkBroken[PendingCall]
    ) -> None:
        if isinstance(event, ReplyArrived):
            self.on_reply(event.waiter, event.command)
            return
        self._log_broken(connection.peer.address, event.error)
        for pending in event.waiters:
            self.on_reply(pending, None)
        connection.close()

    def _log_broken(self, address: str, error: WireError) -> None:
        """Log why a connection is cut; other protocols are named, and not logged each time."""
        foreign = foreign_error(error)
        if foreign is None:
            _log.warning("connection %s is cut: %s", address, error)
        elif self._rare_lines.is_due((address.rpartition(":")[0], foreign)):
            _log.warning("connection %s is cut: it began with %s", address, foreign)
        else:
            _log.debug("connection %s is cut: it began with %s", address, foreign)

    # ---- outputs ----

    def _perform(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if type(output) is LateReply:  # by far the most frequent one
                connection = self.connections.get(output.connection)
                if connection is not None:
                    connection.reply_late(output.request, output.command)
                    if not connection.is_reading:  # a place may have become free
                        self._ready.append(connection)
            elif type(output) is LateReplies:
                connection = self.connections.get(output.connection)
                if connection is not None:
                    connection.reply_run_late(output.run, output.form, output.code)
                    if not connection.is_reading:
                        self._ready.append(connection)
            else:
                self._perform_other(output)

    def _perform_other(self, output: Output) -> None:
        match output:
            case Note(text, is_warning):
                self._logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
            case Push(number, command):
                if (connection := self.connections.get(number)) is not None:
                    connection.push(command)
            case Call():
                self._call(output)
            case Held():
                pass  # of a request that is not to be answered
            case AskNameServer() if self._ask_name_server is not None:
                self._ask_name_server(output)
            case Disconnect(number):
                if (connection := self.connections.get(number)) is not None:
                    connection.close()
            case _:
                raise AssertionError(f"{output} where no request is being handled")

    def _call(self, call: Call) -> None:
        connection = self.connections.get(call.connection)
        if connection is not None:
            timer = connection.loop.call_later(
                call.timeout, self._give_up, connection, call.command
            )
            if connection.request(call.command, PendingCall(call.on_reply, timer)):
                return
            timer.cancel()
        self._continue(call.on_reply, None)

    def _give_up(self, connection: Connection, command: Command) -> None:
        pending = connection.abandon(command.request_id)
        if pending is not None:
            self.on_reply(pending, None)
            self._finish_turn()

    def _continue(self, callback: OnReply, reply: Command | None) -> None:
        """Perform the outputs that follow a reply; an error there is only logged."""
        try:
            self._perform(self._service.on_reply(callback, reply, self.clock_ms()))
        except Exception:
            _log.exception("handling the reply of a client failed")

    # ---- interception ----

    def _is_intercepted(self, connection: Connection, request: Command) -> bool:
        assert self.intercept is not None
        interception = self.intercept(request, connection.peer)
        if interception is None:
            return False
        if interception.delay:
            connection.loop.call_later(
                interception.delay, self._apply_late, interception, connection, request
            )
        else:
            self._apply(interception, connection, request)
        return True

    def _apply_late(self, *arguments: Any) -> None:
        self._apply(*arguments)
        self._finish_turn()

    def _apply(self, interception: Interception, connection: Connection, request: Command) -> None:
        if connection.peer.number not in self.connections:
            return  # it ended while the request was delayed
        if interception.refusal is not None:
            code, remark = interception.refusal
            connection.reply(request, Command(code, remark=remark))
        elif interception.is_handled and interception.is_answered:
            self._handle(connection, request, self.clock_ms())
        elif interception.is_handled:
            self._handle_without_reply(connection, request)
        if interception.is_cut:
            connection.abort()

    def _handle_without_reply(self, connection: Connection, request: Command) -> None:
        try:
            outputs = list(self._service.handle(request, connection.peer, self.clock_ms()))
            request.flags |= _ONEWAY  # so that a late reply is not written either
            self._perform(output for output in outputs if type(output) is not Reply)
        except Exception:
            _log.exception("request %d of %s failed", request.code, connection.peer.address)
