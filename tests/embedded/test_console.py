"""The console as a process: ready line, child of `serve`, attacks over a raw socket, HTTPS."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import httpx2
import pytest

import downrange as mq
from downrange.wire.codes import RequestCode
from tests.embedded.peers import closed_port
from tests.support.waiting import WAIT_SCALE, WAIT_TIMEOUT, wait_until
from tests.unit.server.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

PYTHON = (sys.executable, "-m", "downrange")
#: Seconds between two polls of a console.
REFRESH = 0.5
ROOT = Path(__file__).parents[2]
PORTS = ("--nameserver-port", "0", "--broker-port", "0", "--log-level", "warning")


@contextmanager
def started(
    *arguments: str, **environment: str
) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a command until it is ready; give the process and the facts of its ready line."""
    process = subprocess.Popen(
        [*PYTHON, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), line
        yield process, dict(fact.split("=", 1) for fact in line.split()[1:])
    finally:
        process.terminate()
        process.wait(WAIT_TIMEOUT)
        process.stdout.close()


@contextmanager
def console(*arguments: str, folder: Path, **environment: str) -> Generator[str]:
    """Run a console that has no cluster; give its address."""
    audit = ("--audit", str(folder / "audit.jsonl"))
    with started("console", "--port", "0", *audit, *arguments, **environment) as (_, facts):
        yield facts["console"]


def read(address: str, page: str = "/") -> Any:
    with urlopen(f"{address}{page}?format=json", timeout=WAIT_TIMEOUT) as answer:
        return json.loads(answer.read())


def program(address: str) -> httpx2.Client:
    """Make a client of the pages as an API."""
    headers = {"accept": "application/json"}
    return httpx2.Client(base_url=address, headers=headers, timeout=WAIT_TIMEOUT)


def exchange(address: str, request: bytes) -> bytes:
    """Send bytes to a console; return all bytes of the answer."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_TIMEOUT) as peer:
        peer.sendall(request)
        answer = b""
        try:
            while piece := peer.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


def test_serve_runs_a_console_that_ends_with_it(tmp_path: Path) -> None:
    arguments = ("serve", "--store", str(tmp_path / "store"), *PORTS)
    with started(*arguments, "--console", "--console-port", "0") as (process, facts):
        assert list(facts) == ["nameserver", "broker", "store", "console"]
        address = facts["console"]
        wait_until(lambda: read(address)["brokers_up"] == 1)
        with mq.Producer(facts["nameserver"], group="shop") as producer:
            producer.send(mq.Message("orders", "one"))
        assert (tmp_path / "store" / "console" / "audit.jsonl").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_TIMEOUT) == 0
        assert not _answers(address)
    with started(*arguments, "--console", "--console-port", "0") as (process, facts):
        process.kill()
        process.wait()
        wait_until(lambda: not _answers(facts["console"]))


def test_a_console_that_waits_for_the_end_of_its_input_stops_cleanly(tmp_path: Path) -> None:
    """Python aborts at its exit while a thread holds the lock of sys.stdin."""
    audit = ("--audit", str(tmp_path / "audit.jsonl"))
    command = [*PYTHON, "console", "--until-eof", "--port", "0", *audit, "127.0.0.1:1"]

    def stopped(stop: Callable[[subprocess.Popen[str]], object]) -> tuple[int, str]:
        with (tmp_path / "errors").open("w+") as errors:
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin, process.stdout:
                assert process.stdout.readline().startswith("ready console=")
                stop(process)
                code = process.wait(20 * WAIT_SCALE)
            errors.seek(0)
            return code, errors.read()

    def end_input(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.close()

    for stop in (end_input, lambda process: process.send_signal(signal.SIGTERM)):
        code, text = stopped(stop)
        assert code == 0
        assert "Fatal" not in text


def test_a_console_with_an_open_window_stops_at_once_and_without_a_traceback(
    tmp_path: Path,
) -> None:
    audit = ("--audit", str(tmp_path / "audit.jsonl"))
    command = [*PYTHON, "console", "--port", "0", *audit, "127.0.0.1:1"]
    with (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip().partition("=")[2]
            with urlopen(f"{address}/events", timeout=WAIT_TIMEOUT) as stream:
                assert stream.readline() == b"retry: 2000\n"
                while b"overview" not in stream.readline():
                    pass  # the window is open when it has its figures
                process.send_signal(signal.SIGTERM)
                stream.read()  # it ends
            assert process.wait(20 * WAIT_SCALE) == 0
        finally:
            process.kill()
            process.communicate()
        errors.seek(0)
        text = errors.read()
    assert "Traceback" not in text
    assert "Cancel" not in text


def _answers(address: str) -> bool:
    try:
        read(address)
    except OSError:
        return False
    return True


def test_idle_connections_of_one_address_do_not_keep_others_out(tmp_path: Path) -> None:
    with console("127.0.0.1:1", folder=tmp_path) as address, ExitStack() as idle:
        host, port = address.removeprefix("http://").split(":")
        for _ in range(205):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_TIMEOUT))
        other = idle.enter_context(
            socket.create_connection(
                (host, int(port)), timeout=WAIT_TIMEOUT, source_address=("127.0.0.2", 0)
            )
        )
        other.sendall(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert b" 503 " in exchange(address, b"").partition(b"\r\n")[0]


def test_serve_ends_with_1_when_the_console_cannot_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = (*PYTHON, "serve", "--store", str(tmp_path), *PORTS, "--console")
        done = subprocess.run(
            [*command, "--console-port", port], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_console_of_serve_asks_for_accounts_of_its_access_file(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text('[accounts.operators]\nsecret_key = "seven-or-more"\nadmin = true\n')
    arguments = ("serve", "--store", str(tmp_path / "store"), *PORTS, "--acl", str(access))
    with (
        started(*arguments, "--console", "--console-port", "0") as (_, facts),
        program(facts["console"]) as http,
    ):
        assert http.get("/topics").status_code == 401
        token = http.get("/session").json()["token"]
        secrets = {"name": "operators", "secret": "seven-or-more", "token": token}
        session = http.post("/login", data=secrets).json()
        assert session["may_administer"] is True
        wait_until(lambda: http.get("/").json()["brokers_up"] == 1)
        done = http.post(
            "/actions/create-topic",
            data={"topic": "orders"},
            headers={"x-downrange-token": session["token"]},
        )
        assert done.json()["is_ok"] is True
        assert http.get("/topics").json()["rows"][0]["topic"] == "orders"


def test_program_uses_the_pages_as_an_api(tmp_path: Path) -> None:
    with mq.Cluster() as cluster, console(cluster.name_server, folder=tmp_path) as address:
        with program(address) as http:
            token = {"x-downrange-token": http.get("/session").json()["token"]}
            form = {"topic": "orders", "queues": "2"}
            assert http.post("/actions/create-topic", data=form, headers=token).status_code == 200
            sent = http.post(
                "/actions/send-message",
                data={"topic": "orders", "body": "hello", "keys": "o-1"},
                headers=token,
            ).json()
            wait_until(lambda: http.get("/messages?topic=orders&text=o-1").json()["messages"])
            place = f"/message?topic=orders&id={sent['values']['message_id']}"
            assert http.get(place).json()["body"]["text"] == "hello"
            body = http.get(place.replace("/message?", "/message/body?"))
            assert body.content == b"hello"
            records = http.get("/audit").json()["records"]
            assert [each["action"] for each in records] == ["send-message", "create-topic"]
            command = records[0]["command"]
        assert cluster.name_server in command
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["create-topic", "send-message"]


def test_viewers_share_one_poll(tmp_path: Path) -> None:
    requests: list[int] = []

    def count(request: Command, _peer: Peer) -> None:
        requests.append(request.code)

    with mq.Cluster() as cluster:
        cluster.intercept(RequestCode.GET_BROKER_RUNTIME_INFO, count)
        with console(cluster.name_server, "--refresh", str(REFRESH), folder=tmp_path) as address:
            wait_until(lambda: read(address)["brokers_up"] == 1)

            def polled(viewers: int) -> tuple[int, float]:
                """Return the requests while they look, and those of a poll alone in that time."""
                # Before they look: events that came while this process stalled are read at once.
                before, begun = len(requests), time.monotonic()
                with httpx2.Client(timeout=WAIT_TIMEOUT) as http:
                    streams = [
                        http.send(http.build_request("GET", f"{address}/events"), stream=True)
                        for _ in range(viewers)
                    ]
                    lines = [stream.iter_lines() for stream in streams]
                    for _ in range(3):
                        for each in lines:
                            next(line for line in each if line.startswith("data:"))
                    count = len(requests) - before
                    polls = (time.monotonic() - begun) / REFRESH
                    for stream in streams:
                        stream.close()
                    return count, polls

            (one, of_one), (ten, of_ten) = polled(1), polled(10)
    # An event per poll: three or four polls, whoever looks, or more if reading them took longer.
    # The first event is there at once, and the second may be of a poll that began before.
    assert 1 <= one <= of_one + 4
    assert ten <= of_ten + 4, f"{ten} requests for ten viewers, {one} for one"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: attacker.example\r\nConnection: close\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b" 400 "),
        (b"GET /static/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n"
         b"Connection: close\r\n\r\n", b" 404 "),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n"
         b"Connection: close\r\n\r\n", b" 404 "),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * 50_000
         + b"\r\n\r\n", b" 4"),
        (b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
         b"Connection: close\r\n\r\n", b" 413 "),
        (b"\x16\x03\x01\x02\x00\x01\x00", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
         b"Connection: Upgrade, close\r\nSec-WebSocket-Version: 13\r\n"
         b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", b" 200 "),  # a plain page
    ],
    ids=["host", "no-host", "path", "encoded-path", "header", "length", "tls", "websocket"],
)  # fmt: skip
def test_hostile_bytes_are_refused(idle_console: str, request_bytes: bytes, status: bytes) -> None:
    answer = exchange(idle_console, request_bytes)
    assert status in answer.split(b"\r\n")[0], answer[:200]
    assert b"root:" not in answer
    assert read(idle_console)["brokers_up"] == 0, "it serves on"


@pytest.fixture(scope="module")
def idle_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console whose cluster does not answer."""
    nowhere = f"127.0.0.1:{closed_port()}"
    with console(nowhere, folder=tmp_path_factory.mktemp("console")) as address:
        yield address


def test_https_is_served_with_strict_cookies(tmp_path: Path) -> None:
    certificate, key = make_authority(tmp_path, "authority").issue("console")
    arguments = ("--https-certificate", str(certificate), "--https-key", str(key))
    with console("127.0.0.1:1", *arguments, folder=tmp_path) as address:
        assert address.startswith("https://")
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with httpx2.Client(base_url=address, verify=context, timeout=WAIT_TIMEOUT) as http:
            answer = http.get("/")
    assert "secure" in answer.headers["set-cookie"].lower()
    assert "strict-transport-security" in answer.headers


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--host", "0.0.0.0"), "--password-file or --acl"),
        (("--read-only", "--allow-actions"), "not both"),
        (("--refresh", "0"), "refresh"),
        (("--password-file", "EMPTY"), "is empty"),
        (("--audit", "/dev/null/audit.jsonl"), "audit file"),
        (("--host", "203.0.113.1", "--no-login"), "cannot listen"),
    ],
)
def test_console_names_a_wrong_option(
    arguments: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    given = [str(empty) if each == "EMPTY" else each for each in arguments]
    if "--audit" not in given:
        given += ["--audit", str(tmp_path / "audit.jsonl")]
    done = subprocess.run(
        [*PYTHON, "console", "--port", "0", *given], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (("text", "key"), "does not contain a certificate"),
        (("certificate", "other_key"), "does not belong to certificate"),
        (("certificate",), "does not contain a private key"),
    ],
)
def test_console_names_a_wrong_certificate_before_it_listens(
    files: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path, "authority")
    certificate, key = authority.issue("console")
    _, other_key = authority.issue("other")
    text = tmp_path / "text"
    text.write_text("a host name\n")
    known = {"text": text, "certificate": certificate, "key": key, "other_key": other_key}
    options = ("--https-certificate", "--https-key")
    given = [word for pair in zip(options, files, strict=False) for word in (pair[0], pair[1])]
    words = [str(known.get(word, word)) for word in given]
    audit = ["--audit", str(tmp_path / "audit.jsonl")]
    done = subprocess.run(
        [*PYTHON, "console", "--port", "0", *audit, *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_consoles_of_one_host_do_not_log_each_other_out(tmp_path: Path) -> None:
    """Browsers send a cookie to all ports of a host."""
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with (
        console("127.0.0.1:1", folder=tmp_path, **variable) as one,
        console("127.0.0.1:1", folder=tmp_path, **variable) as other,
        httpx2.Client(timeout=WAIT_TIMEOUT, headers={"accept": "application/json"}) as http,
    ):
        for address in (one, other):
            token = http.get(f"{address}/session").json()["token"]
            form = {"secret": "open sesame", "token": token}
            assert http.post(f"{address}/login", data=form).json()["visitor"] == "operator"
        for address in (one, other):
            assert http.get(f"{address}/session").json()["visitor"] == "operator"


def test_password_of_the_environment_is_not_for_a_console_with_accounts(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text('[accounts.operators]\nsecret_key = "seven-or-more"\nadmin = true\n')
    store = ("--store", str(tmp_path / "store"), "--acl", str(access))
    variable = {"DOWNRANGE_CONSOLE_PASSWORD": "open sesame"}
    with (
        started("serve", *store, *PORTS, "--console", "--console-port", "0", **variable) as (
            _,
            facts,
        ),
        program(facts["console"]) as http,
    ):
        token = http.get("/session").json()["token"]
        assert http.post("/login", data={"secret": "open sesame", "token": token}).is_error
        form = {"name": "operators", "secret": "seven-or-more", "token": token}
        assert http.post("/login", data=form).json()["visitor"] == "operators"


def test_wheel_and_sdist_have_all_files_of_the_console(tmp_path: Path) -> None:
    for kind in ("wheel", "sdist"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=300,
        )
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    with tarfile.open(sdist) as tar:
        sources = {name.partition("/src/")[2] for name in tar.getnames()}
    source = ROOT / "src"
    files = [
        path.relative_to(source).as_posix()
        for path in (source / "downrange" / "console").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert [name for name in files if name not in packed or name not in sources] == []
    assert any(name.endswith("uplot-LICENSE.txt") for name in files)
    used = re.findall(r"asset\('([\w./-]+)'\)", "".join(
        path.read_text() for path in (source / "downrange" / "console" / "templates").glob("*.html")
    ))  # fmt: skip
    assert used
    assert [name for name in used if f"downrange/console/static/{name}" not in packed] == []


def test_demo_ends_with_the_address_of_a_console(tmp_path: Path) -> None:
    arguments = ("demo", "--no-spark", "--seconds", "2", "--console", "--output", str(tmp_path))
    process = subprocess.Popen(
        [*PYTHON, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        address = next(line.strip() for line in process.stdout if line.startswith("  http://"))
        wait_until(lambda: read(address)["brokers_up"] == 2)
        topics = read(address, "/topics")["rows"]
        assert "orders" in [row["topic"] for row in topics]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not _answers(address)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
