"""Connections with a loop whose clock is turned by hand; the application never ends an answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvicorn
from starlette.requests import Request
from uvicorn.server import ServerState

from downrange.console import limits
from downrange.console.failures import UnreadableForm
from downrange.console.forms import read_form
from downrange.console.http_connection import HttpConnection
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

PAUSE = limits.REQUEST_PAUSE_SECONDS
HEAD = b"POST /actions/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
WHOLE = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Endless:
    """Is awaited for ever."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def answers_later(_scope: Any, _receive: Any, _send: Any) -> None:
    await Endless()


async def answers_at_once(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


class FakeTask:
    """Never says that it is done."""

    def add_done_callback(self, _call: object) -> None:
        return None


class FakeLoop:
    """Runs what is due when its clock is turned, and each task up to its first pause."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._running: list[Coroutine[Any, Any, None]] = []

    def time(self) -> float:
        return self.clock()

    def call_at(self, at: float, call: Callable[[], object]) -> SimpleNamespace:
        entry = (at, call)
        self._due.append(entry)
        return SimpleNamespace(cancel=lambda: self._due.remove(entry) if entry in self._due else 0)

    def call_later(self, seconds: float, call: Callable[[], object]) -> SimpleNamespace:
        return self.call_at(self.time() + seconds, call)

    def create_task(self, work: Coroutine[Any, Any, None], **_: Any) -> FakeTask:
        try:
            work.send(None)
            self._running.append(work)
        except StopIteration:
            pass
        return FakeTask()

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        for entry in [each for each in self._due if each[0] <= self.time()]:
            self._due.remove(entry)
            entry[1]()

    def close(self) -> None:
        for work in self._running:
            work.close()


class FakeTransport:
    """Keeps what is written."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self.host, 1234), "sockname": ("10.0.0.1", 8080)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None


class Server:
    """Accepts connections."""

    def __init__(self, app: Any = answers_later) -> None:
        self.loop = FakeLoop()
        self._state = ServerState()
        self._config = uvicorn.Config(app, log_config=None)
        self._config.load()

    def connect(self, host: str = "10.0.0.2") -> tuple[HttpConnection, FakeTransport]:
        connection = HttpConnection(self._config, self._state, {}, _loop=cast("Any", self.loop))
        transport = FakeTransport(host)
        connection.connection_made(cast("Any", transport))
        return connection, transport


@pytest.fixture
def server() -> Generator[Server]:
    made = Server()
    yield made
    made.loop.close()


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nhost: a\r\n", HEAD])
def test_a_connection_without_a_whole_request_is_closed(server: Server, start: bytes) -> None:
    connection, transport = server.connect()
    if start:
        connection.data_received(start)
    server.loop.pass_time(PAUSE - 0.1)
    assert not transport.is_closed
    server.loop.pass_time(0.2)
    assert transport.is_closed
    connection.connection_lost(None)


def test_a_head_that_comes_byte_by_byte_gets_no_more_time(server: Server) -> None:
    connection, transport = server.connect()
    for byte in WHOLE[:10]:
        connection.data_received(bytes([byte]))
        server.loop.pass_time(PAUSE / 10)
    assert transport.is_closed


def test_a_slow_body_has_more_time_than_a_pause_but_not_for_ever(server: Server) -> None:
    connection, transport = server.connect()
    connection.data_received(HEAD)
    seconds = 0.0
    while not transport.is_closed:
        assert seconds <= limits.REQUEST_SECONDS_MAX
        server.loop.pass_time(PAUSE / 2)
        seconds += PAUSE / 2
        connection.data_received(b"x")
    assert seconds == limits.REQUEST_SECONDS_MAX


def test_an_answer_may_take_long(server: Server) -> None:
    connection, transport = server.connect()
    connection.data_received(WHOLE)
    server.loop.pass_time(3600.0)
    assert not transport.is_closed


def test_the_next_request_of_a_connection_has_the_same_limit() -> None:
    server = Server(answers_at_once)
    connection, transport = server.connect()
    connection.data_received(WHOLE)
    assert b"200 OK" in transport.written
    server.loop.pass_time(4.0)
    connection.data_received(WHOLE[:5])
    server.loop.pass_time(PAUSE)
    assert transport.is_closed


def test_one_address_cannot_take_the_places_of_others(server: Server) -> None:
    first = [server.connect() for _ in range(limits.CONNECTIONS_OF_ONE_MAX)]
    assert not any(transport.is_closed for _, transport in first)
    refused, transport = server.connect()
    assert transport.is_closed
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    refused.connection_lost(None)
    assert not server.connect("10.0.0.3")[1].is_closed
    connection, _ = first[0]
    connection.connection_lost(None)
    assert not server.connect()[1].is_closed


def test_a_form_whose_connection_ends_is_refused_without_a_traceback() -> None:
    parts = iter(
        (
            {"type": "http.request", "body": b"topic=or", "more_body": True},
            {"type": "http.disconnect"},
        )
    )

    async def receive() -> Any:
        return next(parts)

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(UnreadableForm, match="ended before the form was whole"):
        asyncio.run(read_form(request))
