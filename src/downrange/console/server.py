"""Runs the console: binds the socket, starts uvicorn, prints the ready line."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn

from downrange.console import limits
from downrange.console.accounts import Accounts
from downrange.console.app import Console, create_app
from downrange.console.cluster.view import ClusterView
from downrange.console.http_connection import HttpConnection
from downrange.errors import CannotListen
from downrange.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from downrange.console.settings import ConsoleOptions

_BACKLOG: Final = 128
#: Seconds that open requests may take when the console stops; streams are cut before.
_STOP_SECONDS: Final = 2
_CONNECT_TIMEOUT_MAX: Final = 3.0


def run_console(options: ConsoleOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: Where and for whom.
        on_ready: Called with the address when it serves; the cluster may not answer yet.

    Raises:
        OptionError: A file cannot be used.
        CannotListen: The address is in use, or not one of this machine.
    """
    accounts = Accounts(options)
    console = Console(options, _view(options, accounts), accounts=accounts)
    console.templates.compile_all()
    listener = _listen(options)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        create_app(console),
        http=HttpConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.CONNECTIONS_MAX,
        h11_max_incomplete_event_size=limits.HEADER_BYTES_MAX,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=options.https_certificate,
        ssl_keyfile=options.https_key,
    )
    with listener:
        address = f"{options.scheme}://{shown}:{port}"
        server = _Server(config, lambda: on_ready(address), console.streams.stop)
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


class _Server(uvicorn.Server):
    """A server that says when it is ready, and when it stops."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop on SIGTERM and SIGINT; uvicorn would raise them once more at the end."""
        signals = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; then call back."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Call back; then stop."""
        self._on_stop()
        await super().shutdown(sockets)


def _view(options: ConsoleOptions, accounts: Accounts) -> ClusterView:
    connection = accounts.connection()
    timeout = connection.call_timeout or _CONNECT_TIMEOUT_MAX
    base = ClientOptions(connect_timeout=min(timeout, _CONNECT_TIMEOUT_MAX))
    return ClusterView(
        connection.name_server,
        client_options=connection.client_options(base),
        credentials=connection.credentials,
        tls=connection.tls_options,
        poll_seconds=options.refresh,
        trace_report=options.trace_report,
    )


def _listen(options: ConsoleOptions) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host.strip("[]"), options.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise CannotListen(f"{options.host}:{options.port}", str(error)) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.ANSWER_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(f"{options.host}:{options.port}", str(error)) from error
    return listener
