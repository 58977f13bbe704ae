"""Connections of the calling thread: one call at a time, kept after success."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from downrange.client.drivers.blocking import (
    BlockingConnection,
    BlockingConnections,
    NoneFree,
    TlsConnection,
)
from downrange.client.drivers.identity import SystemClock
from downrange.client.flows.effects import Call
from downrange.errors import CallTimeout, ClientClosed, ConnectFailed, ConnectionLost, Unencodable
from downrange.options import ClientOptions
from downrange.wire.codes import HeaderCodec
from downrange.wire.command import Command
from tests.support.clock import FakeClock
from tests.unit.client.drivers.peers import (
    PATIENCE,
    FakeDialer,
    Peer,
    Serve,
    agree,
    refused,
    silence,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from downrange.client.flows.effects import Clock

CLOCK = SystemClock()


@contextlib.contextmanager
def connections(
    serve: Serve = agree, clock: Clock = CLOCK, **options: Any
) -> Generator[tuple[BlockingConnections, FakeDialer]]:
    dialer = FakeDialer(serve)
    made = BlockingConnections(dialer, ClientOptions(**options), clock)
    try:
        yield made, dialer
    finally:
        made.close()
        dialer.close()


def call(body: bytes = b"", timeout: float = PATIENCE, clock: Clock = CLOCK, **more: Any) -> Call:
    command = Command(11, more.pop("fields", {}), body)
    return Call("a:1", command, clock.now() + timeout, **more)


# ---- calls ---------------------------------------------------------------------------------------


def test_a_call_returns_its_reply_and_keeps_the_connection() -> None:
    with connections() as (made, dialer):
        for body in (b"1", b"2"):
            reply = made.call(call(body))
            assert reply is not None
            assert reply.body == body
        assert len(dialer.peers) == 1
        assert made.counts() == {"a:1": 1}


def test_a_reply_may_come_in_pieces() -> None:
    def large(_: Peer, command: Command) -> Command:
        return Command(0, body=b"x" * 300_000)

    with connections(large) as (made, _):
        reply = made.call(call())
        assert reply is not None
        assert len(reply.body) == 300_000


def test_replies_may_be_waited_for_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr("downrange.busy_poll._yield_core", lambda: looks.append(CLOCK.now()))

    def slow(_: Peer, command: Command) -> Command:
        time.sleep(0.05)
        return Command(0, body=command.body)

    with connections(slow, busy_poll=PATIENCE) as (made, _):
        for body in (b"1", b"2"):
            reply = made.call(call(body))
            assert reply is not None
            assert reply.body == body
        assert len(looks) > 2


def test_a_reply_that_does_not_come_is_not_waited_for_beyond_its_deadline() -> None:
    with connections(silence, busy_poll=PATIENCE) as (made, _):
        started = CLOCK.now()
        # Connecting may take all of the time; the answer is then waited for 0 s.
        with pytest.raises(CallTimeout, match=r"a:1: no answer within 0(\.0\d*)? s"):
            made.call(call(timeout=0.02))
        assert 0.02 <= CLOCK.now() - started < PATIENCE / 2


def test_headers_are_written_as_the_options_say() -> None:
    with connections(header_codec="binary") as (made, dialer):
        made.call(call())
        assert dialer.peers[0].requests[0].codec is HeaderCodec.BINARY


def test_connections_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "downrange.drivers"), connections() as (made, dialer):
        made.call(call())
        made.call(call())
        dialer.failure = ConnectFailed("b:1", "connection refused")
        with pytest.raises(ConnectFailed):
            made.call(Call("b:1", Command(11), CLOCK.now() + PATIENCE))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "connected to a:1"),
        ("DEBUG", "no connection to b:1: connection refused"),
    ]


def test_a_one_way_call_does_not_wait() -> None:
    with connections(silence) as (made, dialer):
        assert made.call(call(is_oneway=True)) is None
        assert dialer.peers[0].has_heard.acquire(timeout=PATIENCE)
        assert dialer.peers[0].requests[0].is_oneway


def test_a_call_without_an_answer_is_late_at_its_deadline_and_leaves_no_connection() -> None:
    with connections(silence) as (made, dialer):
        started = CLOCK.now()
        # Connecting may take all of the time; the answer is then waited for 0 s.
        with pytest.raises(CallTimeout, match=r"a:1: no answer within 0(\.0\d*)? s"):
            made.call(call(timeout=0.02))
        assert 0.02 <= CLOCK.now() - started < PATIENCE / 2
        assert made.counts() == {}
        assert dialer.peers[0].is_ended.wait(PATIENCE)


def test_replies_to_other_requests_do_not_extend_the_deadline() -> None:
    clock = FakeClock(100.0)

    def other(peer: Peer, command: Command) -> None:
        clock.seconds += 2 * PATIENCE
        peer.ask(Command(40))  # a request of its own, which is none of our business here

    with connections(other, clock) as (made, _), pytest.raises(CallTimeout):
        made.call(call(clock=clock))


def test_a_reply_may_come_after_something_else() -> None:
    def chatty(peer: Peer, command: Command) -> Command:
        peer.ask(Command(40))
        return Command(0, body=b"x" * 200_000)

    with connections(chatty) as (made, _):
        assert made.call(call()) is not None


def test_a_request_larger_than_all_buffers_goes_out_piece_by_piece() -> None:
    body = bytes(8 << 20)
    with connections(lambda _, command: Command(0, body=command.body[-1:])) as (made, _):
        reply = made.call(call(body))
        assert reply is not None
        assert reply.body == body[-1:]


def test_a_server_that_does_not_take_a_request_is_late() -> None:
    ours, theirs = socket.socketpair()
    connection = BlockingConnection("a:1", ours, CLOCK, HeaderCodec.JSON)
    with theirs, pytest.raises(CallTimeout, match="a:1: no answer within"):
        connection.call(call(bytes(8 << 20), timeout=0.05))
    connection.close()


def test_a_tls_connection_without_time_is_late() -> None:
    ours, theirs = socket.socketpair()
    connection = TlsConnection("a:1", ours, CLOCK, HeaderCodec.JSON)
    with theirs, pytest.raises(CallTimeout):
        connection.call(call(timeout=0.0))
    connection.close()


def test_a_connection_that_the_server_closes_is_lost() -> None:
    with (
        connections(lambda peer, _: peer.cut()) as (made, _),
        pytest.raises(ConnectionLost, match="the server closed the connection"),
    ):
        made.call(call())
    assert made.counts() == {}


def test_a_server_that_breaks_the_protocol_is_disconnected() -> None:
    with (
        connections(lambda peer, _: peer.push(b"\xff" * 8)) as (made, _),
        pytest.raises(ConnectionLost, match="frame"),
    ):
        made.call(call())


def test_an_error_of_the_system_is_a_lost_connection() -> None:
    class Broken:
        def __init__(self, end: socket.socket) -> None:
            self._end = end

        def send(self, _: bytes) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._end, name)

    ours, theirs = socket.socketpair()
    broken: Any = Broken(ours)
    connection = BlockingConnection("a:1", broken, CLOCK, HeaderCodec.JSON)
    with theirs, pytest.raises(ConnectionLost, match="a:1: Broken pipe"):
        connection.call(call())
    connection.close()


def test_a_command_that_cannot_be_written_is_its_callers_error() -> None:
    with connections() as (made, _), pytest.raises(Unencodable):
        made.call(call(fields={"a": "\ud800"}))


# ---- which connection ----------------------------------------------------------------------------


def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    with connections() as (made, dialer):
        made.call(call())
        dialer.peers[0].close()
        assert made.call(call()) is not None
        assert len(dialer.peers) == 2
        assert made.counts() == {"a:1": 1}


def test_a_connection_with_something_unasked_in_it_is_not_used() -> None:
    with connections() as (made, dialer):
        made.call(call())
        dialer.peers[0].ask(Command(40))
        made.call(call())
        assert len(dialer.peers) == 2


def test_there_are_no_more_connections_than_allowed() -> None:
    gate, is_asked = threading.Event(), threading.Event()

    def wait(_: Peer, __: Command) -> Command:
        is_asked.set()
        gate.wait(PATIENCE)
        return Command(0)

    clock = FakeClock(100.0)
    with connections(wait, clock, sync_connections_max=1) as (made, _):
        thread = threading.Thread(target=made.call, args=(call(clock=clock),))
        thread.start()
        assert is_asked.wait(PATIENCE)
        with pytest.raises(NoneFree):
            made.call(call(clock=clock))
        gate.set()
        thread.join(PATIENCE)
        clock.seconds += 0.04
        with pytest.raises(NoneFree):  # free again, but where there was a crowd there may be one
            made.call(call(clock=clock))
        clock.seconds += 0.02
        assert made.call(call(clock=clock)) is not None
        assert made.counts() == {"a:1": 1}


def test_a_server_that_cannot_be_reached_takes_no_place() -> None:
    with connections(sync_connections_max=1) as (made, dialer):
        dialer.failure = refused()
        for _ in range(2):
            with pytest.raises(ConnectFailed):
                made.call(call())
        dialer.failure = None
        assert made.call(call()) is not None


def test_connections_that_were_not_used_for_long_are_closed() -> None:
    clock = FakeClock(100.0)
    with connections(clock=clock, idle_timeout=10.0) as (made, dialer):
        made.call(call(clock=clock))
        clock.seconds += 10.0
        made.tidy()
        assert made.counts() == {"a:1": 1}
        clock.seconds += 0.1
        made.tidy()
        assert made.counts() == {}
        assert dialer.peers[0].is_ended.wait(PATIENCE)


@pytest.mark.parametrize(
    ("finding", "is_usable"),
    [(ssl.SSLWantReadError(), True), (b"x", False), (b"", False), (OSError(), False)],
    ids=["ticket", "data", "end", "error"],
)
def test_a_session_ticket_in_a_tls_connection_does_no_harm(finding: Any, is_usable: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = TlsConnection("a:1", ours, CLOCK, HeaderCodec.JSON)
        assert connection.is_usable()
        theirs.sendall(b"something")
        tls = Mock(spec=ssl.SSLSocket)
        tls.recv.side_effect = [finding]
        connection._socket = tls
        assert connection.is_usable() is is_usable
        tls.settimeout.assert_called_once_with(0)  # it must not wait


# ---- the end -------------------------------------------------------------------------------------


def test_closing_ends_free_connections_and_refuses_calls() -> None:
    with connections() as (made, dialer):
        made.call(call())
        made.close()
        assert dialer.peers[0].is_ended.wait(PATIENCE)
        with pytest.raises(ClientClosed):
            made.call(call())


def test_closing_fails_a_call_that_is_under_way() -> None:
    errors: list[Exception] = []
    with connections(silence) as (made, dialer):

        def ask() -> None:
            try:
                made.call(call())
            except ConnectionLost as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        dialer.wait_for_request()
        made.close()
        thread.join(PATIENCE)
        assert len(errors) == 1
        assert made.counts() == {}


def test_a_connection_that_opens_after_closing_is_ended() -> None:
    class Closing(FakeDialer):
        def connect(self, address: str, within: float) -> socket.socket:
            made.close()
            return super().connect(address, within)

    dialer = Closing()
    made = BlockingConnections(dialer, ClientOptions(), CLOCK)
    with pytest.raises(ConnectionLost):
        made.call(call())
    dialer.close()


def test_a_reply_that_comes_while_closing_is_returned() -> None:
    with connections() as (made, dialer):
        made.call(call())
        (free,) = made._free["a:1"]
        whole = free.call

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(free, name)

            def call(self, one: Call) -> Any:
                reply = whole(one)
                made.close()
                return reply

        slow: Any = Slow()
        made._free["a:1"] = [slow]
        reply = made.call(call(b"7"))
        assert reply is not None
        assert reply.body == b"7"
        assert dialer.peers[0].is_ended.wait(PATIENCE)


def test_a_lock_that_was_held_during_a_fork_does_not_block_the_child() -> None:
    with connections() as (made, _):
        made._lock.acquire()
        made.forget_threads()
        assert made.counts() == {}


def test_closing_in_a_forked_child_leaves_alone_what_threads_of_the_parent_use() -> None:
    with connections() as (made, dialer):
        made.call(call())
        (used,) = made._free.pop("a:1")
        made._used.add(used)
        made.forget_threads()
        made.close()
        assert not dialer.peers[0].is_ended.wait(0.05)
        used.close()
