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

    def call_later(
        self, seconds: float, call: Callable[..., object], *arguments: object
    ) -> SimpleNamespace:
        return self.call_at(self.time() + seconds, lambda: call(*arguments))

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
    """Keeps what is written; after `peer_stops`, it waits until the peer takes it.

    Attributes:
        waiting: Bytes that the peer has not taken; None while it takes everything.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.written = b""
        self.is_closed = False
        self.is_aborted = False
        self.waiting: int | None = None
        self.high = 64 * 1024
        self.protocol: HttpConnection | None = None

    def peer_stops(self) -> None:
        self.waiting = 0

    def peer_takes(self, count: int) -> None:
        assert self.waiting is not None
        assert self.protocol is not None
        self.waiting -= count
        if self.waiting == 0:
            self.protocol.resume_writing()

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self.host, 1234), "sockname": ("10.0.0.1", 8080)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data
        if self.waiting is not None:
            was_paused = self.waiting > self.high
            self.waiting += len(data)
            if self.waiting > self.high and not was_paused:
                assert self.protocol is not None
                self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.waiting or 0

    def abort(self) -> None:
        assert self.protocol is not None
        self.is_closed = self.is_aborted = True
        self.protocol.connection_lost(None)

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

    def __init__(self, app: Any = answers_later, connections_max: int | None = None) -> None:
        self.loop = FakeLoop()
        self._state = ServerState()
        self._config = uvicorn.Config(
            app, log_config=None, ws="none", limit_concurrency=connections_max
        )
        self._config.load()

    def connect(self, host: str = "10.0.0.2") -> tuple[HttpConnection, FakeTransport]:
        connection = HttpConnection(self._config, self._state, {}, _loop=cast("Any", self.loop))
        transport = FakeTransport(host)
        transport.protocol = connection
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


def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    server = Server(answers_at_once)
    connection, transport = server.connect()
    transport.peer_stops()
    connection.data_received(WHOLE * 5)
    assert transport.waiting
    server.loop.pass_time(limits.ANSWER_PAUSE_SECONDS - 0.1)
    assert not transport.is_aborted
    server.loop.pass_time(0.2)
    assert transport.is_aborted
    assert connection not in connection.connections
    server.loop.close()


def test_a_closed_connection_whose_peer_does_not_read_ends_too() -> None:
    """Closing waits until the rest is written, which may never be."""
    server = Server(answers_at_once)
    connection, transport = server.connect()
    transport.peer_stops()
    connection.data_received(WHOLE.replace(b"host", b"connection: close\r\nhost"))
    assert transport.is_closed
    server.loop.pass_time(limits.ANSWER_PAUSE_SECONDS)
    assert transport.is_aborted
    server.loop.close()


def test_a_reader_who_is_slow_is_not_cut(server: Server) -> None:
    """The answer is one that does not end, such as a stream of events."""
    connection, transport = server.connect()
    connection.data_received(WHOLE)
    transport.peer_stops()
    transport.write(b"x" * 100)  # an event of a stream
    for _ in range(100):
        transport.peer_takes(1)
        server.loop.pass_time(limits.ANSWER_PAUSE_SECONDS)
    server.loop.pass_time(3600.0)  # the stream has no event for an hour
    assert not transport.is_closed
    transport.write(b"x" * 100)
    server.loop.pass_time(limits.ANSWER_PAUSE_SECONDS)
    assert transport.is_aborted


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_peer_that_sends_no_http_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    for _ in range(20):
        connection, transport = server.connect("10.1.0.1")
        connection.data_received(b"XX\r\n\r\n")
        assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert lines_of(caplog) == [
        "a connection of 10.1.0.1 is cut: it sent what is no HTTP request",
    ]


def test_a_request_for_a_web_socket_is_answered_as_http_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(answers_at_once)
    for _ in range(20):
        connection, transport = server.connect("10.1.0.2")
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nhost"
        connection.data_received(WHOLE.replace(b"host", upgrade))
        assert transport.written.startswith(b"HTTP/1.1 200 ")
    (line,) = lines_of(caplog)
    assert line.startswith("a request of 10.1.0.2 asks for another protocol")
    server.loop.close()


def test_a_request_above_the_limit_of_all_connections_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(connections_max=1)
    for _ in range(20):
        connection, transport = server.connect("10.1.0.3")
        connection.data_received(WHOLE)
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        connection.connection_lost(None)
    assert lines_of(caplog) == [
        "a request of 10.1.0.3 gets 503: too many connections are open",
    ]


def test_other_warnings_of_the_web_server_name_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    connection, _ = Server().connect("10.1.0.4")
    connection.logger.warning("it has %s", "a problem")
    connection.logger.error("a bug")
    assert lines_of(caplog) == ["10.1.0.4: it has a problem", "a bug"]


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
