"""An HTTP server that returns addresses of name servers, as Apache's address server does."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

PATH = "/rocketmq/nsaddr"


class AddressServer(ThreadingHTTPServer):
    """Returns the same page for every request, and records the requested paths."""

    def __init__(self, body: bytes, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.body = body
        self.status = status
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}{PATH}"


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, AddressServer)
        server.asked.append(self.path)
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not print a line per request."""


@contextmanager
def serving_addresses(body: bytes, status: int = 200) -> Generator[AddressServer]:
    """Serve a page with addresses on a free port."""
    with AddressServer(body, status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
