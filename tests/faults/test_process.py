"""The end of the process: signals while clients wait, and failed starts."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import ResponseCode
from tests.embedded.brokers import connection, pull_request, send_request
from tests.faults.processes import FREE_PORTS, end_of, served

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conversations.peers import Peer

#: How long a pull waits for a message, and a stop that does not wait for pulls on a busy machine.
PULL_SECONDS, STOP_SECONDS = 60.0, 30.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_pulls_that_wait_and_is_quick(
    tmp_path: Path, number: signal.Signals
) -> None:
    with served(tmp_path / "store") as server, ExitStack() as clients:
        crowd = [clients.enter_context(connection(server.broker)) for _ in range(50)]
        assert crowd[0].ask(send_request(b"one")).code == ResponseCode.SUCCESS
        request = pull_request(1, suspend_ms=int(PULL_SECONDS * 1000))
        calls = [peer.start(request) for peer in crowd[:40]]
        for peer in crowd[:40]:
            peer.ask(pull_request(0))  # it is answered after the other one has arrived
        begun = time.monotonic()
        server.process.send_signal(number)
        answers = [peer.finish(call) for peer, call in zip(crowd, calls, strict=False)]
        assert server.wait() == 0
        assert time.monotonic() - begun < STOP_SECONDS
        assert {answer.code for answer in answers} == {int(ResponseCode.PULL_NOT_FOUND)}
        for peer in crowd:
            assert _is_over(peer)
    with served(tmp_path / "store") as server:
        assert server.stop() == 0
        assert "was not closed" not in server.log()


def _is_over(peer: Peer) -> bool:
    try:
        peer.ask(pull_request(0))
    except (OSError, EOFError):
        return True
    return False


def test_a_second_signal_ends_it_at_once_and_the_next_one_recovers(tmp_path: Path) -> None:
    with served(tmp_path / "store") as server:
        with connection(server.broker) as peer:
            assert peer.ask(send_request(b"kept")).code == ResponseCode.SUCCESS
            server.process.send_signal(signal.SIGSTOP)  # the next two arrive when it continues
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)
            server.process.send_signal(signal.SIGCONT)
            code = server.wait()
        assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    with served(tmp_path / "store") as server, connection(server.broker) as peer:
        assert b"kept" in peer.ask(pull_request(0)).body


def test_a_taken_port_ends_it_with_1_and_the_next_step(tmp_path: Path) -> None:
    with served(tmp_path / "store") as server:
        port = server.broker.rpartition(":")[2]
        ports = ("--nameserver-port", "0", "--broker-port", port)
        second = end_of("--store", str(tmp_path / "other"), *ports)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"cannot listen on {server.broker}: another process uses the port" in second.stderr


def test_a_folder_that_another_process_uses_ends_it_with_1(tmp_path: Path) -> None:
    with served(tmp_path / "store") as server, connection(server.broker) as peer:
        second = end_of("--store", str(tmp_path / "store"), *FREE_PORTS)
        assert peer.ask(send_request(b"undisturbed")).code == ResponseCode.SUCCESS
    assert (second.returncode, second.stdout) == (1, "")
    assert "another process" in second.stderr
    assert str(tmp_path / "store") in second.stderr


def test_a_folder_that_cannot_be_used_ends_it_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = end_of("--store", str(tmp_path / "file" / "store"), *FREE_PORTS)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "cannot be used" in ended.stderr


def test_a_wrong_option_ends_it_with_2(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[broker]\nflush_intervall = 1\n")
    ended = end_of("--store", str(tmp_path / "store"), "--config", str(config), *FREE_PORTS)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "flush_interval'" in ended.stderr.replace("\n", "")
    assert not (tmp_path / "store").exists()


def test_a_damaged_store_ends_it_with_1_and_names_the_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with served(store, "--flush", "sync") as server:
        with connection(server.broker) as peer:
            for _ in range(3):
                assert peer.ask(send_request(b"to be damaged")).code == ResponseCode.SUCCESS
        assert server.stop() == 0
    (store / "config" / "topics.json").write_bytes(b"{")
    (store / "config" / "topics.json.bak").unlink(missing_ok=True)
    ended = end_of("--store", str(store), *FREE_PORTS)
    assert ended.returncode == 1
    assert "topics.json" in ended.stderr
