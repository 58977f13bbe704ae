"""Small servers in threads, for clients to connect to."""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator


class ThreadedServer:
    """Listens on a free port of 127.0.0.1 and calls a function for each connection, in a thread.

    Args:
        serve: Called with the connection, which is closed when it returns.
        tls: For TLS; a failed handshake ends the connection.
    """

    def __init__(
        self, serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None
    ) -> None:
        self._serve = serve
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    @property
    def is_left(self) -> bool:
        """Whether all connections that it accepted have ended."""
        return not any(thread.is_alive() for thread in self._threads[1:])

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._start(partial(self._run, connection))

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            if self._tls is None:
                self._serve(connection)
                return
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                self._serve(secured)


def echo(connection: socket.socket) -> None:
    """Send back what is received."""
    while data := connection.recv(65_536):
        connection.sendall(data)


def hang_up(connection: socket.socket) -> None:
    """Close at the first byte."""
    connection.recv(1)


def keep_silent(connection: socket.socket) -> None:
    """Read and never answer."""
    while connection.recv(65_536):
        pass


def receive(connection: socket.socket, size: int) -> bytes:
    """Return this many bytes.

    Raises:
        EOFError: The other side closed before.
    """
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise EOFError
        data += more
    return data


@cache
def closed_port() -> int:
    """Return a port on which no server listens; it is taken, so that none can."""
    taken = socket.socket()
    atexit.register(taken.close)
    taken.bind(("127.0.0.1", 0))
    port: int = taken.getsockname()[1]
    return port


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of 127.0.0.1."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def full_port() -> Generator[int]:
    """Give a port that accepts no connection: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
