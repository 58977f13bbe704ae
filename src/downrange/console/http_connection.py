"""A connection of a browser, with limits that uvicorn does not have.

uvicorn refuses requests while too many connections are open, and waits for the first request for
ever. So a connection is closed unless a whole request arrives in time, and one address can have a
part of all connections only. Without that, idle connections would take all places. A connection is
also closed if its peer does not read the answer: while bytes wait to be sent, some of them have to
go out within the limit.

The log names a peer that begins with TLS where there is none, and one of which uvicorn would warn
without its name. Each such line comes once in ten seconds per host.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from downrange.console import limits
from downrange.server.net.foreign_protocols import RareLines, begins_with_tls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_log: Final = logging.getLogger("downrange.console")
_PROBLEM: Final = (
    "a TLS handshake on a port without TLS: open the address with http://, or start the console "
    "with --https-certificate"
)
_TOO_MANY: Final = (
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    "too many connections of your address are open\n"
)
_CUT: Final = "a connection of %s is cut: {}"
#: What uvicorn warns of -> the line for it, which names the host; None if another line says it.
_LINES: Final = (
    ("Invalid HTTP request", _CUT.format("it sent what is no HTTP request")),
    ("Exceeded concurrency", "a request of %s gets 503: too many connections are open"),
    (
        "Unsupported upgrade",
        "a request of %s asks for another protocol (Upgrade); it is answered as HTTP: the console "
        "has no web sockets",
    ),
    ("No supported WebSocket", None),
)
_rare_lines: Final = RareLines()


class _PeerLog(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's log of one connection: each warning is passed on, since it names no peer."""

    def __init__(self, logger: logging.Logger, warn: Callable[[str], None]) -> None:
        super().__init__(logger)
        self._warn = warn

    @property
    def level(self) -> int:
        """The level of the logger; uvicorn reads it."""
        return self.logger.level

    def warning(self, msg: object, *args: object, **_: Any) -> None:
        """Pass a warning on."""
        self._warn(str(msg) % args if args else str(msg))


class HttpConnection(H11Protocol):
    """Reads HTTP as uvicorn does, after a look at the first bytes, and with limits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _PeerLog(self.logger, self._log_warning)  # type: ignore[assignment]
        self._is_new = True
        self._timer: asyncio.TimerHandle | None = None
        self._request_ends_at = 0.0
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless the address has too many connections."""
        super().connection_made(transport)
        # Writing is paused as soon as anything waits here, so that the timer of answers runs.
        transport.set_write_buffer_limits(1)
        if self._is_one_too_many():
            self._log_cut("its address has too many connections")
            transport.write(_TOO_MANY.encode())
            transport.close()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        super().connection_lost(exc)  # which resumes writing

    def pause_writing(self) -> None:
        """Begin to watch whether the peer reads."""
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop to watch: the peer has read what waited, or is gone."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Read bytes; refuse TLS."""
        is_tls = self._is_new and begins_with_tls(data)
        self._is_new = False
        if is_tls:
            self._log_cut(f"it began with {_PROBLEM}")
            self.send_400_response(_PROBLEM)
        else:
            super().data_received(data)

    def handle_events(self) -> None:
        """Handle what has arrived; then wait for the rest of a request, or for the next one."""
        super().handle_events()
        if self.conn.their_state is h11.SEND_BODY:
            self._wait()  # the body makes progress
        elif self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._wait()

    def _wait(self) -> None:
        """Close the connection after a pause, or when the whole request takes too long."""
        now = self.loop.time()
        if self._timer is None:
            self._request_ends_at = now + limits.REQUEST_SECONDS_MAX
        else:
            self._timer.cancel()
        ends_at = min(now + limits.REQUEST_PAUSE_SECONDS, self._request_ends_at)
        self._timer = self.loop.call_at(ends_at, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_reader(self, size: int) -> None:
        self._answer_timer = self.loop.call_later(
            limits.ANSWER_PAUSE_SECONDS, self._check_reader, size
        )

    def _check_reader(self, size_before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size < size_before:
            self._watch_reader(size)
        else:
            self._answer_timer = None
            self._log_cut("it does not read its answers")
            self.transport.abort()

    def _is_one_too_many(self) -> bool:
        ours = [each for each in self.connections if isinstance(each, HttpConnection)]
        hosts = [each.client[0] for each in ours if each.client is not None]
        return hosts.count(self._host) > limits.CONNECTIONS_OF_ONE_MAX

    @property
    def _host(self) -> str:
        return "?" if self.client is None else self.client[0]

    def _log_cut(self, reason: str) -> None:
        self._log_rarely(_CUT.format(reason))

    def _log_warning(self, text: str) -> None:
        line = next((line for start, line in _LINES if text.startswith(start)), f"%s: {text}")
        if line is not None:
            self._log_rarely(line)

    def _log_rarely(self, line: str) -> None:
        is_due = _rare_lines.is_due((self._host, line))
        _log.log(logging.WARNING if is_due else logging.DEBUG, line, self._host)
