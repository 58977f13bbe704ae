"""A connection of a browser, with limits that uvicorn does not have.

uvicorn refuses requests while too many connections are open, and waits for the first request for
ever. So a connection is closed unless a whole request arrives in time, and one address can have a
part of all connections only. Without that, idle connections would keep everybody out.

The log names a peer that begins with TLS where there is none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from downrange.console import limits
from downrange.server.net.foreign_protocols import RareLines

if TYPE_CHECKING:
    import asyncio

_log: Final = logging.getLogger("downrange.console")
#: A TLS record that begins a handshake, and the major version of all TLS.
_TLS: Final = b"\x16\x03"
_PROBLEM: Final = (
    "a TLS handshake on a port without TLS: open the address with http://, or start the console "
    "with --https-certificate"
)
_TOO_MANY: Final = (
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    "too many connections of your address are open\n"
)
_rare_lines: Final = RareLines()


class HttpConnection(H11Protocol):
    """Reads HTTP as uvicorn does, after a look at the first bytes, and with limits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_new = True
        self._timer: asyncio.TimerHandle | None = None
        self._request_ends_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless the address has too many connections."""
        super().connection_made(transport)
        if self._is_one_too_many():
            self._log_cut("its address has too many connections")
            transport.write(_TOO_MANY.encode())
            transport.close()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes; refuse TLS."""
        is_tls = self._is_new and data.startswith(_TLS)
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

    def _is_one_too_many(self) -> bool:
        ours = [each for each in self.connections if isinstance(each, HttpConnection)]
        hosts = [each.client[0] for each in ours if each.client is not None]
        return hosts.count(self._host) > limits.CONNECTIONS_OF_ONE_MAX

    @property
    def _host(self) -> str:
        return "?" if self.client is None else self.client[0]

    def _log_cut(self, reason: str) -> None:
        is_due = _rare_lines.is_due((self._host, reason))
        level = logging.WARNING if is_due else logging.DEBUG
        _log.log(level, "a connection of %s is cut: %s", self._host, reason)
