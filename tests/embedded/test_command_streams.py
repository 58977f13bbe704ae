"""Commands as processes whose output is a closed pipe, full, closed, or without Unicode."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from downrange import Message, Producer
from downrange.embedded import Cluster
from downrange.wire.records import Record, encode_record
from tests.support.options import PATIENT_CLIENT, PATIENT_PRODUCER
from tests.support.timing import shortest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 60.0
PYTHON = shlex.join([sys.executable, "-m", "downrange"])
TOPIC = "streams"
BODY = "grün → €"
#: Every way in which commands print: click, rich, print, JSON, bytes.
COMMANDS = [
    "--help",
    "--version",
    "topic list",
    "topic list --json",
    f"topic show {TOPIC}",
    f"tail {TOPIC} --from earliest --no-follow",
    f"tail {TOPIC} --from earliest --no-follow --json",
    f"tail {TOPIC} --from earliest --no-follow --body-only",
    f"send {TOPIC} x",
    "doctor",
]
ASCII = {"PYTHONIOENCODING": "ascii"}
#: Arguments are ASCII, too.
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        with Producer(
            running.name_server,
            group="g",
            options=PATIENT_PRODUCER,
            client_options=PATIENT_CLIENT,
        ) as producer:
            for _ in range(200):
                producer.send(Message(TOPIC, BODY))
        yield running


def _shell(cluster: Cluster, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NAMESRV_ADDR": cluster.name_server, **variables}
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_closed_pipe_ends_a_command_silently_with_141(cluster: Cluster, arguments: str) -> None:
    ended = _shell(cluster, f"{PYTHON} {arguments} | true; exit ${{PIPESTATUS[0]}}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (141, "", "")


def test_head_gets_its_line_and_ends_tail_though_no_message_follows(cluster: Cluster) -> None:
    script = f"{PYTHON} tail {TOPIC} --from earliest --max 1; exit"
    line = _shell(cluster, script).stdout
    script = f"{PYTHON} tail {TOPIC} --from earliest | head -1; exit ${{PIPESTATUS[0]}}"
    ended = _shell(cluster, script)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert ended.stdout.split(" ")[3:] == line.split(" ")[3:]


@full
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_one_line_and_1(cluster: Cluster, arguments: str) -> None:
    ended = _shell(cluster, f"{PYTHON} {arguments} >/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "downrange: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        *((arguments, ">&-") for arguments in COMMANDS),
        (f"send {TOPIC} x", "2>&- >/dev/null"),
        (f"send {TOPIC} x", "<&- >/dev/null"),
        (f"send {TOPIC} x", ">&- 2>&- <&-"),
    ],
)
def test_closed_streams_are_as_the_null_device(
    cluster: Cluster, arguments: str, stream: str
) -> None:
    ended = _shell(cluster, f"{PYTHON} {arguments} {stream}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@full
def test_errors_that_cannot_be_printed_keep_the_exit_code(cluster: Cluster) -> None:
    for stream in ("2>/dev/full", "2>&-"):
        assert _shell(cluster, f"{PYTHON} tail nowhere {stream}").returncode == 5


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [*((arguments, ASCII) for arguments in COMMANDS), (COMMANDS[5], C_LOCALE)],
)
def test_ascii_output_has_escapes(
    cluster: Cluster, arguments: str, variables: dict[str, str]
) -> None:
    ended = _shell(cluster, f"{PYTHON} {arguments} | cat; exit ${{PIPESTATUS[0]}}", **variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    if "--body-only" in arguments:
        assert BODY in ended.stdout  # bytes are not changed
        return
    assert ended.stdout.isascii()
    if "--json" in arguments and "tail" in arguments:
        assert json.loads(ended.stdout.splitlines()[0])["body"] == BODY
    elif "tail" in arguments:
        assert "gr\\xfcn \\u2192 \\u20ac" in ended.stdout


def test_advice_is_ascii_too(cluster: Cluster) -> None:
    ended = _shell(cluster, f"{PYTHON} doctor 127.0.0.1:1", PYTHONIOENCODING="ascii")
    assert ended.returncode == 3
    assert "        -> no server listens there" in ended.stdout


def test_bytes_of_an_argument_are_sent_as_they_are_in_any_locale(cluster: Cluster) -> None:
    with_bytes = f"{PYTHON} send bytes $'gr\\xfcn' && {PYTHON} send bytes 'grün'"
    assert _shell(cluster, with_bytes, **C_LOCALE).returncode == 0
    read = f"{PYTHON} tail bytes --from earliest --no-follow --body-only | od -An -c | tr -d ' \\n'"
    shown = _shell(cluster, read).stdout
    assert "gr374n" in shown
    assert "gr303274n" in shown


def test_the_first_record_of_a_large_segment_is_printed_at_once(tmp_path: Path) -> None:
    record = encode_record(Record(body=bytes(100), topic_bytes=b"orders"))
    segment = tmp_path / "00000000000000000000"
    with segment.open("wb") as file:
        file.write(record * 200_000)
        file.truncate(2**30)  # a hole: the file has the size of a segment, not its blocks

    def seconds_after_the_start() -> float:
        """Return how long the first record takes, without the time in which Python starts."""
        begun = time.monotonic()
        subprocess.run(
            [*shlex.split(PYTHON), "decode", "-h"], check=True, stdout=subprocess.DEVNULL
        )
        start = time.monotonic() - begun
        begun = time.monotonic()
        with subprocess.Popen(
            [*shlex.split(PYTHON), "decode", "--records", "--file", str(segment)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert " orders/0@0 " in process.stdout.readline()
            took = time.monotonic() - begun
            process.stdout.close()
            assert process.wait(DEADLINE) == 141
            assert process.stderr.read() == ""
        return took - start

    assert shortest(seconds_after_the_start, 1.0) < 1.0
