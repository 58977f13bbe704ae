"""The server commands as processes: ready line, logs, signals, exit codes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from downrange.tls import client_context
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PutKeyValueRequest, RouteRequest
from downrange.wire.signatures import sign
from tests.conversations.peers import Peer, SocketChannel
from tests.embedded.brokers import bodies, connection, pull_request, route, send, send_request
from tests.embedded.peers import is_free
from tests.support.timing import shortest
from tests.support.waiting import wait_until
from tests.unit.server.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

DEADLINE = 120.0
#: How long a stop may take.
STOP_SECONDS = 2.0
PYTHON = [sys.executable, "-m", "downrange"]
ANY_PORTS = ("--nameserver-port", "0", "--broker-port", "0")


@contextmanager
def _started(*arguments: str) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a command until it is ready; give the process and its ready line."""
    with subprocess.Popen(
        [*PYTHON, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), f"{line} {process.stderr and process.stderr.read()}"
            words = line.removesuffix("\n").split(" ")[1:]
            yield process, dict(word.split("=", 1) for word in words)
        finally:
            process.kill()


@contextmanager
def _running(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a name server until it is ready; give the process and the address it names."""
    with _started("nameserver", *arguments) as (process, said):
        yield process, said["nameserver"]


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Stop a process, and return the rest of its output."""
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    return said


@pytest.mark.parametrize("command", ["nameserver", "broker", "serve"])
def test_a_stop_is_quick(command: str, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path))

    def stop() -> float:
        with _running("--port", "0") as (name_server, address):
            arguments = {
                "nameserver": ("nameserver", "--port", "0", *store),
                "broker": ("broker", "--nameserver", address, "--port", "0", *store),
                "serve": ("serve", *ANY_PORTS, *store),
            }[command]
            with _started(*arguments) as (process, said):
                address = said["nameserver" if command == "nameserver" else "broker"]
                peer = Peer(SocketChannel(address), HeaderCodec.JSON)
                assert peer.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                begun = time.monotonic()
                _stop(process)
                took = time.monotonic() - begun
                peer.close()
            _stop(name_server)
        return took

    assert shortest(stop, STOP_SECONDS) < STOP_SECONDS


# ---- nameserver ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_ready_once_serves_and_stops_in_order(number: signal.Signals) -> None:
    with _running("--port", "0") as (process, address):
        peer = Peer(SocketChannel(address), HeaderCodec.JSON)
        assert peer.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        process.send_signal(number)
        output, log = process.communicate(timeout=DEADLINE)
        peer.close()
    assert (process.returncode, output) == (0, "")
    assert f"name server listens on {address}" in log
    assert "stopped" in log


def test_a_second_signal_ends_it_at_once() -> None:
    with _running("--port", "0") as (process, _):
        process.send_signal(signal.SIGSTOP)  # both signals are delivered when it continues
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
        assert f"cannot listen on {address}: another process uses the port" in second.stderr


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
        process.kill()  # killed: acknowledged values are there anyway
    assert '"k":"v"' in (tmp_path / "kvConfig.json").read_text()


# ---- serve ----


def test_serve_prints_exactly_one_line_and_logs_elsewhere(tmp_path: Path) -> None:
    store = str(tmp_path / "new" / "store")
    with _started("serve", "--store", store, *ANY_PORTS) as (process, said):
        assert list(said) == ["nameserver", "broker", "store"]
        assert said["store"] == store
        assert said["nameserver"].startswith("127.0.0.1:")
        assert said["broker"].startswith("127.0.0.1:")
        assert send(said["broker"], b"hello") == 0
        assert route(said["nameserver"], "T") == ["broker-a"]
        output, log = _stop(process)
    assert output == ""
    assert f"broker broker-a listens on {said['broker']}" in log
    assert f"broker broker-a on {said['broker']} stopped" in log


def test_serve_keeps_what_it_acknowledged_though_it_is_killed(tmp_path: Path) -> None:
    arguments = ("serve", "--store", str(tmp_path), *ANY_PORTS, "--flush", "sync")
    with _started(*arguments) as (process, said):
        assert send(said["broker"], b"kept") == 0
        process.kill()
    with _started(*arguments) as (process, said):
        assert bodies(said["broker"]) == [b"kept"]
        _, log = _stop(process)
    assert "was not closed" in log


@pytest.mark.parametrize("told", ["not", "flag", "file"])
def test_serve_refuses_sql_filters_when_told(tmp_path: Path, told: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("[broker]\nis_sql_enabled = false\n")
    how = {"not": (), "flag": ("--no-sql",), "file": ("--config", str(config))}[told]
    arguments = ("serve", "--store", str(tmp_path / "s"), *ANY_PORTS, *how)
    with _started(*arguments) as (process, said):
        assert send(said["broker"], b"hello") == 0
        pull = pull_request(0)
        pull.fields |= {"subscription": "a = 1", "expressionType": "SQL92"}
        with connection(said["broker"]) as peer:
            assert peer.ask(pull).code == (20 if told == "not" else 1)
        _stop(process)


@pytest.mark.parametrize("told", ["flag", "file"])
def test_serve_listens_on_the_vip_channel_when_told(tmp_path: Path, told: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("[broker]\nis_vip_port_open = true\n")
    how = ("--vip",) if told == "flag" else ("--config", str(config))
    arguments = ("serve", "--store", str(tmp_path / "s"), *ANY_PORTS, *how)
    with _started(*arguments) as (process, said):
        host, _, port = said["broker"].rpartition(":")
        vip = f"{host}:{int(port) - 2}"
        assert send(vip, b"hello") == 0
        assert bodies(said["broker"]) == [b"hello"]
        _, log = _stop(process)
    assert f"broker broker-a listens on {said['broker']} and {vip} (VIP channel)" in log


@contextmanager
def _serving_below_a_free_port(
    store: Path,
) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run servers with a broker whose port plus 2 no other process uses.

    That port is kept for a server: it can listen there, and no other process gets the port.
    """
    while True:
        with _started("serve", "--store", str(store), *ANY_PORTS) as (process, said):
            above = int(said["broker"].rpartition(":")[2]) + 2
            with socket.socket() as kept:
                kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if is_free(above):
                    kept.bind(("127.0.0.1", above))
                    yield process, said
                    return
            _stop(process)


def test_serve_ends_with_1_and_the_next_step_when_the_vip_channel_is_in_use(tmp_path: Path) -> None:
    with _serving_below_a_free_port(tmp_path / "a") as (process, said):
        port = int(said["broker"].rpartition(":")[2])
        arguments = ("--nameserver", said["nameserver"], "--port", str(port + 2), "--vip")
        second = _end("broker", "--store", str(tmp_path / "b"), *arguments)
        assert second.returncode == 1
        assert f"cannot listen on {said['broker']}: another process uses the port" in second.stderr
        assert f"VIP channel of 127.0.0.1:{port + 2}" in second.stderr
        _stop(process)


def test_serve_runs_several_brokers(tmp_path: Path) -> None:
    arguments = ("serve", "--store", str(tmp_path), *ANY_PORTS, "--brokers", "2")
    with _started(*arguments) as (process, said):
        brokers = said["broker"].split(",")
        assert len(brokers) == 2
        assert [send(broker, b"x") for broker in brokers] == [0, 0]
        assert route(said["nameserver"], "T") == ["broker-a", "broker-b"]
        _stop(process)


def test_serve_reads_a_config_file_and_flags_override_it(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        '[broker]\nname = "mine"\nflush = "async"\nmessage_bytes_max = 100\n'
        '[listener]\nhost = "127.0.0.1"\n[store]\nlog_segment_bytes = 1048576\n'
    )
    arguments = ("--store", str(tmp_path / "s"), *ANY_PORTS, "--config", str(config))
    with _started("serve", *arguments, "--flush", "sync") as (process, said):
        assert send(said["broker"], bytes(101)) == ResponseCode.MESSAGE_ILLEGAL
        assert send(said["broker"], bytes(100)) == 0
        assert route(said["nameserver"], "T") == ["mine"]
        with connection(said["broker"]) as peer:
            shown = peer.ask(Command(int(RequestCode.GET_BROKER_CONFIG))).body
        assert b"flushDiskType=SYNC_FLUSH" in shown
        _stop(process)
    assert (tmp_path / "s/commitlog/00000000000000000000").stat().st_size == 1048576


def test_serve_with_tls_registers_with_itself_and_refuses_plain_text_in_enforcing_mode(
    tmp_path: Path,
) -> None:
    authority = make_authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    arguments = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with _started(
        "serve", "--store", str(tmp_path / "s"), *ANY_PORTS, *arguments, "--tls-mode", "enforcing"
    ) as (process, said):
        tls = client_context(ca=authority.certificate)
        with connection(said["broker"], tls) as peer:
            assert peer.ask(send_request(b"x")).code == 0
        with connection(said["nameserver"], tls) as peer:
            assert peer.ask(request_command(RouteRequest(topic="T"))).code == 0
        with pytest.raises((EOFError, ConnectionError)):
            send(said["broker"], b"plain")
        _stop(process)


def test_serve_with_accounts_denies_unsigned_requests(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text('[accounts.administrator]\nsecret_key = "a long secret"\nadmin = true\n')
    arguments = ("--store", str(tmp_path / "s"), *ANY_PORTS, "--acl", str(accounts))
    with _started("serve", *arguments) as (process, said):
        assert send(said["broker"], b"x") == ResponseCode.NO_PERMISSION
        with connection(said["broker"]) as peer:
            request = send_request(b"x")
            sign(request, "administrator", "a long secret")
            assert peer.ask(request).code == 0
        _, log = _stop(process)
    assert "a long secret" not in log


def test_serve_registers_with_its_own_account_where_name_servers_need_one(tmp_path: Path) -> None:
    accounts, config = tmp_path / "accounts.toml", tmp_path / "serve.toml"
    accounts.write_text(
        "nameserver_open = false\ntrusted_addresses = []\n"
        '[accounts.administrator]\nsecret_key = "a long secret"\nadmin = true\n'
    )
    config.write_text(
        f'[access]\nfile = "{accounts}"\n'
        'access_key = "administrator"\nsecret_key = "a long secret"\n'
    )
    arguments = ("--store", str(tmp_path / "s"), *ANY_PORTS, "--config", str(config))
    with _started("serve", *arguments) as (process, said):
        request = request_command(RouteRequest(topic="TBW102"))
        with connection(said["nameserver"]) as peer:
            assert peer.ask(request).code == ResponseCode.NO_PERMISSION
            sign(request, "administrator", "a long secret")
            assert peer.ask(request).code == 0
        _stop(process)


# ---- broker ----


def test_a_broker_joins_a_name_server_and_leaves_it(tmp_path: Path) -> None:
    with _running("--port", "0") as (_, name_server):
        arguments = ("--nameserver", name_server, "--store", str(tmp_path), "--port", "0")
        with _started("broker", *arguments, "--name", "mine") as (process, said):
            assert list(said) == ["broker", "store"]
            assert send(said["broker"], b"x") == 0
            assert route(name_server, "T") == ["mine"]
            assert _stop(process)[0] == ""
        wait_until(lambda: route(name_server, "T") is None)


def test_a_broker_serves_without_its_name_server(tmp_path: Path) -> None:
    arguments = ("--nameserver", "127.0.0.1:1", "--store", str(tmp_path), "--port", "0")
    with _started("broker", *arguments, "--log-level", "warning") as (process, said):
        assert send(said["broker"], b"x") == 0
        _, log = _stop(process)
    assert "127.0.0.1:1" in log


# ---- exit codes ----


def test_a_store_in_use_ends_it_with_1(tmp_path: Path) -> None:
    arguments = ("serve", "--store", str(tmp_path), *ANY_PORTS)
    with _started(*arguments):
        second = _end(*arguments)
    assert second.returncode == 1
    assert second.stdout == ""
    assert "is in use by another process" in second.stderr


def test_a_taken_broker_port_ends_it_with_1_and_nothing_is_left(tmp_path: Path) -> None:
    with _running("--port", "0") as (_, address):
        port = address.rpartition(":")[2]
        arguments = ("--store", str(tmp_path), "--nameserver-port", "0", "--broker-port", port)
        ended = _end("serve", *arguments)
    assert ended.returncode == 1
    assert "another process uses the port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_name_server_that_is_not_an_address_ends_it_with_2(tmp_path: Path) -> None:
    arguments = ("--nameserver", "no port", "--store", str(tmp_path), "--port", "0")
    ended = _end("broker", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert "no port" in ended.stderr
    assert ended.stdout == ""


def _end_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _end("nameserver", *arguments)


def _end(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
