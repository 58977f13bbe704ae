"""A small HTTP/1.1 responder: GET and HEAD of a few fixed paths, one request per connection.

It shares the event loop with a server, so a page is written in pieces: after a millisecond of work,
or 64 KiB, the other connections get their turn. Everything has a limit: the size of a request, the
number of connections, and the time of each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from downrange.errors import CannotListen
from downrange.server.net.foreign_protocols import RareLines, begins_with_tls
from downrange.server.net.listener import bind_error, text_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Mapping

_log: Final = logging.getLogger("downrange.metrics")

#: The longest piece of work on a page before the event loop goes on with other things, in seconds.
PIECE_SECONDS: Final = 0.001
_PIECE_BYTES: Final = 64 * 1024
_METHODS: Final = ("GET", "HEAD")
_TEXT: Final = "text/plain; charset=utf-8"
#: Bytes of a request that are looked at before the rest has arrived; every request has more.
_START_BYTES: Final = 4
_TLS: Final = (
    "a TLS handshake on a port without TLS: read metrics and health by http://, or put a proxy "
    "with TLS in front of this port"
)
_FRAME: Final = (
    "what is no HTTP request: this port shows metrics and health (--metrics); clients of RocketMQ "
    "connect to the port of a name server or broker"
)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer.

    Attributes:
        status: The status code.
        body: Its text, or an iterator of texts.
        content_type: The type of the text.
    """

    status: int
    body: str | Iterable[str]
    content_type: str = _TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderLimits:
    """The limits of a responder.

    Attributes:
        connections_max: Open connections; further ones get 503.
        header_bytes_max: The size of a request; a larger one gets 431.
        timeout: Seconds that a request and its answer may take together. Then the connection is
            cut, also if the peer has not read all of a finished page.
    """

    connections_max: int = 32
    header_bytes_max: int = 8 * 1024
    timeout: float = 30.0


class HttpResponder:
    """Answers requests for fixed paths.

    Args:
        pages: Path -> makes the page.
        host: Address to listen on.
        port: Port; 0 picks a free one.
        limits: The limits.
    """

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        host: str,
        port: int,
        limits: ResponderLimits | None = None,
    ) -> None:
        self._pages = pages
        self._host = host
        self._port = port
        self._limits = limits or ResponderLimits()
        self._server: asyncio.Server | None = None
        self._address = ""
        self._open: set[asyncio.Task[None]] = set()
        self._rare_lines = RareLines()

    @property
    def address(self) -> str:
        """Where it listens, "host:port"; empty before the first start."""
        return self._address

    async def start(self) -> None:
        """Listen; does nothing if it listens already.

        Raises:
            CannotListen: The address cannot be bound.
        """
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(
                self._serve,
                self._host,
                self._port,
                limit=self._limits.header_bytes_max,
                reuse_address=True,
            )
        except OSError as error:
            raise CannotListen(text_of((self._host, self._port)), bind_error(error)) from error
        bound: socket.socket = self._server.sockets[0]
        self._address = text_of(bound.getsockname())
        self._port = bound.getsockname()[1]  # a restart keeps it

    async def stop(self) -> None:
        """Stop listening and cut open connections; does nothing if it is stopped."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_full = len(self._open) >= self._limits.connections_max
        self._open.add(task)
        try:
            async with asyncio.timeout(self._limits.timeout):
                if is_full:
                    busy = Page(503, "too many connections; try again later\n")
                    await self._write(writer, busy, is_head=False)
                else:
                    await self._answer(reader, writer)
                writer.close()
                await writer.wait_closed()  # until the peer has taken the rest of the page
        except (OSError, asyncio.CancelledError):  # the peer is gone or too slow, or a stop
            pass
        except Exception:  # the peer sees that the page has no end
            _log.exception("a page was cut")
        finally:
            writer.transport.abort()  # drops what a slow peer left unread, and waits for nothing
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            start = await reader.readexactly(_START_BYTES)
            if (foreign := _foreign(start)) is not None:
                self._log_foreign(writer, foreign)
                await self._write(writer, Page(400, f"it began with {foreign}\n"), is_head=False)
                return
            head = start + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            problem = f"a request has at most {self._limits.header_bytes_max} bytes\n"
            await self._write(writer, Page(431, problem), is_head=False)
            return
        except asyncio.IncompleteReadError:
            return
        method, path = _method_and_path(head)
        is_head = method == "HEAD"
        await self._write(writer, self._page(method, path), is_head=is_head)

    def _log_foreign(self, writer: asyncio.StreamWriter, foreign: str) -> None:
        peer = writer.get_extra_info("peername")
        host = peer[0] if peer else "?"
        level = logging.WARNING if self._rare_lines.is_due((host, foreign)) else logging.DEBUG
        _log.log(level, "a connection of %s is cut: it began with %s", host, foreign)

    def _page(self, method: str | None, path: str) -> Page:
        if method is None:
            return Page(400, "this is not an HTTP request\n")
        if method not in _METHODS:
            return Page(405, "only GET and HEAD are answered\n")
        make = self._pages.get(path)
        if make is None:
            return Page(404, f"not found; there are {', '.join(self._pages)}\n")
        try:
            return make()
        except Exception:
            _log.exception("page %s failed", path)
            return Page(500, "the page failed; the log of the server says why\n")

    async def _write(self, writer: asyncio.StreamWriter, page: Page, *, is_head: bool) -> None:
        head = [
            f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}",
            f"Content-Type: {page.content_type}",
            "Connection: close",
            "X-Content-Type-Options: nosniff",
        ]
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET, HEAD")
        if isinstance(page.body, str):
            body = page.body.encode()
            head.append(f"Content-Length: {len(body)}")
            writer.write(_joined(head) + (b"" if is_head else body))
        else:
            head.append("Transfer-Encoding: chunked")
            writer.write(_joined(head))
            if not is_head:
                await self._write_chunks(writer, iter(page.body))
        await writer.drain()

    async def _write_chunks(self, writer: asyncio.StreamWriter, texts: Iterator[str]) -> None:
        while True:
            part, is_last = _next_part(texts)
            if part:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
            if is_last:
                writer.write(b"0\r\n\r\n")
                return
            await asyncio.sleep(0)  # `drain` does not give way while the peer reads fast enough


def _next_part(texts: Iterator[str]) -> tuple[bytes, bool]:
    """Return what can be made in a short time, and whether that was the rest."""
    found: list[str] = []
    size, until = 0, time.perf_counter() + PIECE_SECONDS
    for text in texts:
        if text:
            found.append(text)
            size += len(text)
        if size >= _PIECE_BYTES or time.perf_counter() >= until:
            return "".join(found).encode(), False
    return "".join(found).encode(), True


def _foreign(start: bytes) -> str | None:
    """Return what the first bytes are, if they cannot begin a request."""
    if begins_with_tls(start):
        return _TLS
    return None if all(0x20 <= byte < 0x7F for byte in start) else _FRAME


def _method_and_path(head: bytes) -> tuple[str | None, str]:
    """Return both of a request line; None if it is not one."""
    words = head.split(b"\r\n", 1)[0].decode("ascii", errors="replace").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None, ""
    return words[0], words[1].partition("?")[0]


def _joined(lines: list[str]) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
