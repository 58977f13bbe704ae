"""Clients that do not read their replies, and the latency of others on a busy server."""

from __future__ import annotations

import socket
import statistics
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import ResponseCode
from downrange.wire.command import encode
from downrange.wire.fields import request_command
from downrange.wire.headers import MaxOffsetRequest
from tests.embedded.brokers import connection, create_request, pull_request, send_request
from tests.faults.load import Sender
from tests.faults.processes import DEADLINE, ServerProcess, served
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Few bytes may be unread, for a time that a test can wait for, or that a slow test never needs.
PATIENCE = """
[listener]
unread_bytes_max = 1000000
unread_timeout = {seconds}
"""
BODY = bytes(200_000)
MESSAGES = 5


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Give a server with messages; the parameter is its `unread_timeout`."""
    config = tmp_path / "config.toml"
    config.write_text(PATIENCE.format(seconds=request.param))
    with served(tmp_path / "store", "--config", str(config)) as server:
        with connection(server.broker) as peer:
            for _ in range(MESSAGES):
                assert peer.ask(send_request(BODY)).code == ResponseCode.SUCCESS
        yield server


def _slow_socket(server: ServerProcess) -> socket.socket:
    host, _, port = server.broker.rpartition(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(DEADLINE)
    slow.connect((host, int(port)))
    return slow


def _send_for_ever(slow: socket.socket, data: bytes) -> None:
    for _ in range(1_000):
        slow.sendall(data)


def _memory_kb(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.parametrize("server", [1.0], indirect=True)
def test_a_client_that_reads_no_replies_is_paused_and_then_cut(server: ServerProcess) -> None:
    before_kb = _memory_kb(server)
    pulls = encode(pull_request(0)) * 2_000  # 400 MB of replies
    with _slow_socket(server) as slow, connection(server.broker) as good:
        slow.sendall(pulls[: 64 * 1024])
        for _ in range(20):
            assert good.ask(pull_request(MESSAGES)).code == ResponseCode.PULL_NOT_FOUND
        assert _memory_kb(server) - before_kb < 50_000
        wait_until(lambda: "reply bytes unread" in server.log())
        with pytest.raises(ConnectionError):
            _send_for_ever(slow, pulls)
        assert good.ask(send_request(b"on")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("server", [DEADLINE], indirect=True)
def test_a_slow_client_gets_every_reply(server: ServerProcess) -> None:
    with connection(server.broker) as good, _slow_socket(server) as slow:
        slow.sendall(encode(pull_request(0)) * 30)
        left = 30 * len(encode(good.ask(pull_request(0))))
        while left > 0:
            taken = len(slow.recv(65_536))
            assert taken, f"{left} bytes are missing"
            left -= taken
            time.sleep(0.001)


def test_others_are_served_while_the_server_is_busy(tmp_path: Path) -> None:
    """Prints the longest latency; its limit depends on the machine."""
    config = tmp_path / "config.toml"
    config.write_text("[broker]\ncheckpoint_interval = 0.2\n")
    options = ("--flush", "sync", "--config", str(config))
    with served(tmp_path / "store", *options) as server:
        senders = [
            Sender(server.broker, f"topic-{number}", f"s{number}", Random(number), window=64)
            for number in range(4)
        ]
        for sender in senders:
            sender.start()
        waits_ms: list[float] = []
        with connection(server.broker) as probe, connection(server.broker) as admin:
            wait_until(lambda: all(sender.acknowledged for sender in senders))
            ask = MaxOffsetRequest(topic="topic-0", queue_id=0)
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                begun = time.perf_counter()
                assert probe.ask(request_command(ask)).code == ResponseCode.SUCCESS
                waits_ms.append((time.perf_counter() - begun) * 1000)
                if len(waits_ms) % 100 == 0:
                    assert admin.ask(create_request(f"new-{len(waits_ms)}")).code == 0
                time.sleep(0.002)
        server.kill()
        for sender in senders:
            sender.join(DEADLINE)
        sent = sum(len(sender.acknowledged) for sender in senders)
    print(
        f"\n{sent} sends with 256 in flight, sync flush, a checkpoint every 0.2 s: of "
        f"{len(waits_ms)} requests beside them half waited {statistics.median(waits_ms):.1f} ms, "
        f"the longest {max(waits_ms):.1f} ms"
    )
