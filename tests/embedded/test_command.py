"""`downrange nameserver` as a process: its one line, its logs, signals, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import HeaderCodec, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PutKeyValueRequest
from tests.conversations.peers import Peer, SocketChannel

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

DEADLINE = 20.0
COMMAND = [sys.executable, "-m", "downrange", "nameserver"]


@contextmanager
def _running(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run the command until it is ready; give the process and the address it names."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready nameserver=127.0.0.1:"), line
            yield process, line.strip().partition("=")[2]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_ready_once_serves_and_stops_in_order(number: signal.Signals) -> None:
    with _running("--port", "0") as (process, address):
        peer = Peer(SocketChannel(address), HeaderCodec.JSON)
        assert peer.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        begun = time.monotonic()
        process.send_signal(number)
        output, log = process.communicate(timeout=DEADLINE)
        assert time.monotonic() - begun < 2.0
        peer.close()
    assert (process.returncode, output) == (0, "")
    assert f"name server listens on {address}" in log
    assert "stopped" in log


def test_a_second_signal_ends_it_at_once() -> None:
    with _running("--port", "0") as (process, _):
        process.send_signal(signal.SIGSTOP)  # both signals wait until it goes on
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=DEADLINE)
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_a_taken_port_ends_it_with_1_and_the_next_step() -> None:
    with _running("--port", "0") as (_, address):
        port = address.rpartition(":")[2]
        second = _end_of("--port", port)
        assert second.returncode == 1
        assert second.stdout == ""
        assert f"cannot listen on {address}: another process has the port" in second.stderr


def test_a_folder_that_cannot_be_used_ends_it_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = _end_of("--port", "0", "--store", str(tmp_path / "file"))
    assert ended.returncode == 1
    assert "cannot be used" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--port", "70000"), "port=70000"), (("--host", ""), "host=''"), (("--level",), "No such")],
)
def test_a_wrong_option_ends_it_with_2(arguments: tuple[str, ...], text: str) -> None:
    ended = _end_of(*arguments)
    assert ended.returncode == 2
    assert text in ended.stderr


def test_values_are_kept_in_the_folder(tmp_path: Path) -> None:
    with _running("--port", "0", "--store", str(tmp_path)) as (process, address):
        peer = Peer(SocketChannel(address), HeaderCodec.JSON)
        put = PutKeyValueRequest(namespace="n", key="k", value="v")
        assert peer.ask(request_command(put)).code == 0
        peer.close()
        process.kill()  # not asked to stop: what was acknowledged is there even so
    assert '"k":"v"' in (tmp_path / "kvConfig.json").read_text()


def _end_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
