"""Hostile clients over real sockets: each is disconnected with one log line, others are served."""

from __future__ import annotations

import logging
import re
import socket
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from downrange.options import NameServerOptions
from downrange.server.net import listener
from downrange.wire.bodies import TopicConfig
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command, encode
from tests.embedded.servers import (
    DEADLINE,
    connected,
    is_closed,
    plain_socket,
    register,
    route_code,
    serving,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange.server import NameServer

GONE = int(ResponseCode.TOPIC_NOT_EXIST)
LIST = Command(int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))


def _send_for_ever(opened: socket.socket, data: bytes) -> None:
    for _ in range(100_000):
        opened.sendall(data)


def _goes_on(server: NameServer) -> bool:
    return route_code(server, "never created") == GONE


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "began with an HTTP request.*--metrics"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "began with an HTTP/2 request.*gRPC"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS handshake.*--tls-certificate.*--tls\\)"),
        (b"\x7f\xff\xff\xff", "frame length"),
        (b"\xff\xff\xff\xff", "frame length"),
        (b"\x00\x00\x00\x00", "frame length"),
        (b"\x00\x00\x00\x08\x00\x00\x00\xff    ", "frame header word"),
        (b"\x00\x00\x00\x08\x09\x00\x00\x04    ", "unknown header codec"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x04oops", "JSON header"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x04oops", "binary header"),
    ],
)
def test_bytes_that_break_the_protocol_end_their_connection_alone(
    data: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server, connected(server) as good:
        with plain_socket(server) as bad:
            address = "{}:{}".format(*bad.getsockname())
            bad.sendall(data)
            assert is_closed(bad)
        assert good.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.name == "downrange.server"
    assert address in line.getMessage()
    assert re.search(problem, line.getMessage())


def test_the_same_other_protocol_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        for _ in range(3):
            with plain_socket(server) as bad:
                bad.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert is_closed(bad)
    lines = [each for each in caplog.records if "an HTTP request" in each.getMessage()]
    assert [each.levelno for each in lines if each.levelno > logging.DEBUG] == [logging.WARNING]


def test_a_frame_above_the_limit_is_refused_at_its_length() -> None:
    with serving(frame_bytes_max=1000) as server, plain_socket(server) as bad:
        bad.sendall((1000).to_bytes(4, "big"))
        assert is_closed(bad)
        assert _goes_on(server)


def test_requests_before_the_damage_have_their_effect() -> None:
    with serving() as server, connected(server) as broker:
        register(broker, "a", [TopicConfig(topic_name="T"), TopicConfig(topic_name="U")])
        with plain_socket(server) as bad:
            delete = Command(int(RequestCode.DELETE_TOPIC_IN_NAMESRV), {"topic": "T"})
            bad.sendall(encode(delete) + b"\xff" * 8)
            assert is_closed(bad)
        assert (route_code(server, "T"), route_code(server, "U")) == (GONE, 0)


def test_a_frame_that_comes_byte_by_byte_is_answered() -> None:
    with serving() as server, plain_socket(server) as slow:
        for byte in encode(LIST):
            slow.sendall(bytes([byte]))
        assert slow.recv(1 << 16)


def test_a_client_that_reads_no_replies_is_cut_and_uses_little_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server must stop reading from it; otherwise it could send requests without end."""
    with serving(unread_bytes_max=100_000, unread_timeout=0.5) as server:
        with connected(server) as broker:
            names = [f"topic-with-a-long-name-{number:05}" for number in range(2_000)]
            register(broker, "a", [TopicConfig(topic_name=name) for name in names])
            with plain_socket(server) as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with pytest.raises(ConnectionError):
                    _send_for_ever(slow, encode(LIST) * 1000)  # the reply to each has 60 kB
            wait_until(lambda: server.connection_count == 1)
        assert _goes_on(server)
    assert "reply bytes unread" in caplog.text


def test_a_slow_client_gets_every_reply() -> None:
    with (
        serving(unread_bytes_max=50_000, unread_timeout=DEADLINE) as server,
        connected(server) as broker,
        plain_socket(server) as slow,
    ):
        names = [f"topic-{number:05}" for number in range(500)]
        register(broker, "a", [TopicConfig(topic_name=name) for name in names])
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(encode(LIST) * 1000)
        time.sleep(0.3)
        left = 1000 * len(encode(broker.ask(LIST)))
        while left > 0:
            received = len(slow.recv(65536))
            assert received > 0, f"{left} bytes are missing"
            left -= received


def test_a_silent_connection_is_closed_and_a_talking_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connections are made older, because a busy machine may silence any of them."""
    monkeypatch.setattr(listener, "_SWEEP_INTERVAL_MAX", 0.05)
    idle = 600.0
    with serving(idle_timeout=idle) as server, plain_socket(server) as silent:
        wait_until(lambda: len(server._listener._dispatcher.connections) == 1)
        with connected(server) as talking:
            talking.ask(LIST)
            old, new = server._listener._dispatcher.connections.values()
            for _ in range(2):  # together longer than the limit
                new.active_at -= 0.6 * idle
                talking.ask(LIST)
            new.active_at -= 0.6 * idle
            old.active_at -= 1.1 * idle
            assert is_closed(silent)
            talking.ask(LIST)


def test_connections_beyond_the_limit_are_refused_until_one_closes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 2_000
    monkeypatch.setattr(listener, "_REFUSAL_LOG_INTERVAL", 600.0)
    with serving(connections_max=limit, connections_per_host_max=limit) as server:
        with ExitStack() as crowd:
            opened = [crowd.enter_context(plain_socket(server)) for _ in range(limit)]
            wait_until(lambda: server.connection_count == limit)
            for _ in range(50):
                with plain_socket(server) as late:
                    assert is_closed(late)
            opened[0].sendall(encode(LIST))  # the open ones are served
            assert opened[0].recv(65536)
        wait_until(lambda: server.connection_count == 0)
        assert _goes_on(server)
    assert f"connections_max={limit} are open" in caplog.text
    lines = [record for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1  # not one line per connection


def test_one_host_cannot_use_all_connections(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(connections_per_host_max=2) as server,
        plain_socket(server),
        plain_socket(server),
    ):
        wait_until(lambda: server.connection_count == 2)
        with plain_socket(server) as third:
            assert is_closed(third)
        port = int(server.address.rpartition(":")[2])
        if sys.platform == "linux":  # on other systems there is only one loopback address
            other = socket.create_connection(("127.0.0.1", port), DEADLINE, ("127.0.0.9", 0))
            with other:
                other.sendall(encode(LIST))
                assert other.recv(65536)
    assert "connections_per_host_max=2 are open" in caplog.text


def test_registrations_cannot_fill_the_memory() -> None:
    options = NameServerOptions(topics_max=10)
    with serving(options) as server, connected(server) as broker:
        names = [TopicConfig(topic_name=f"t{number}") for number in range(11)]
        with pytest.raises(AssertionError):
            register(broker, "a", names)
        register(broker, "a", names[:10])
