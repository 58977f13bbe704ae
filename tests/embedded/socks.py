"""A small SOCKS5 proxy (RFC 1928, 1929) that records its requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from tests.embedded.peers import ThreadedServer, receive

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSED = 5


class SocksProxy(ThreadedServer):
    """Connects clients to the host that they name.

    Args:
        account: User and password that it requires; without it, none.
        hosts: Addresses of names that only the proxy can resolve.
        reply: If not 0, the error code that it replies with instead of connecting.
    """

    def __init__(
        self,
        account: tuple[str, str] | None = None,
        hosts: Mapping[str, str] | None = None,
        reply: int = 0,
    ) -> None:
        super().__init__(self._serve)
        self.asked: list[tuple[str, int]] = []
        self._account = account
        self._hosts = hosts or {}
        self._reply = reply

    def _serve(self, client: socket.socket) -> None:
        if not self._greet(client):
            return
        receive(client, 3)  # version, "connect", reserved
        host = self._read_host(client)
        port = int.from_bytes(receive(client, 2), "big")
        self.asked.append((host, port))
        client.sendall(bytes([5, self._reply, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self._reply:
            return
        with socket.create_connection((self._hosts.get(host, host), port)) as server:
            back = threading.Thread(target=_copy, args=(server, client))
            back.start()
            _copy(client, server)
            back.join()

    def _greet(self, client: socket.socket) -> bool:
        methods = receive(client, receive(client, 2)[1])
        if self._account is None:
            client.sendall(b"\5\0")
            return True
        if 2 not in methods:
            client.sendall(b"\5\xff")
            return False
        client.sendall(b"\5\2")
        receive(client, 1)
        given = tuple(receive(client, receive(client, 1)[0]).decode() for _ in range(2))
        client.sendall(b"\1\0" if given == self._account else b"\1\1")
        return given == self._account

    def _read_host(self, client: socket.socket) -> str:
        kind = receive(client, 1)[0]
        if kind == 3:
            return receive(client, receive(client, 1)[0]).decode()
        return socket.inet_ntoa(receive(client, 4))


def _copy(source: socket.socket, drain: socket.socket) -> None:
    """Copy bytes until one side closes, then close the other."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            drain.sendall(data)
    with contextlib.suppress(OSError):
        drain.shutdown(socket.SHUT_WR)
