"""`downrange consume` as a process: handlers, programs, limits, health, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin, Message, Producer, PullConsumer
from downrange.cli.program_handler import ProgramHandler
from downrange.embedded import Cluster
from downrange.errors import Retry
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from tests.support.options import PATIENT_CLIENT, PATIENT_PRODUCER, SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

DEADLINE = 60.0
#: Handlers write a line per message to a file, and flush it: what is in there was handled.
HANDLERS = """
import asyncio, os, threading, time
import downrange as mq

_file = open(os.environ["HANDLED"], "a", buffering=1)

def write(message):
    _file.write(message.body.decode() + "\\n")

def quick(message):
    write(message)

def slow(message):
    time.sleep(0.01)
    write(message)

async def slow_async(message):
    await asyncio.sleep(0.01)
    write(message)

def stuck(message):
    write(message)
    threading.Event().wait()

async def stuck_async(message):
    write(message)
    await asyncio.Event().wait()

def batch(messages):
    _file.write(f"{sum(1 for _ in messages)}\\n")

def picky(message):
    write(message)
    if message.body == b"bad":
        raise mq.DeadLetter("it is bad")
    if message.body == b"again" and not message.delivery_attempts:
        raise ValueError("not now")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker=SHORT_TIMES) as running:
        yield running


class Worker:
    """A worker process.

    Attributes:
        lines: What it has printed so far, as JSON.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def has(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["event"] == event), None)

    def end(self) -> tuple[int, str]:
        """Wait until it ends; return its exit code and what it wrote to standard error."""
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        code = self.process.wait(DEADLINE)
        self._thread.join(DEADLINE)
        return code, errors


class Workshop:
    """Starts workers in a folder with handlers.

    Attributes:
        topic: A new topic.
        handled_file: Where handlers write.
    """

    def __init__(self, cluster: Cluster, folder: Path, topic: str) -> None:
        self.cluster, self.folder, self.topic = cluster, folder, topic
        self.handled_file = folder / "handled"
        self.handled_file.touch()
        (folder / "handlers.py").write_text(HANDLERS)

    def handled(self) -> list[str]:
        return self.handled_file.read_text().splitlines()

    def has_handled(self, count: int) -> bool:
        return len(self.handled()) >= count

    def send(self, *bodies: str) -> None:
        with Producer(
            self.cluster.name_server,
            group="sender",
            options=PATIENT_PRODUCER,
            client_options=PATIENT_CLIENT,
        ) as producer:
            producer.send_batch(Message(self.topic, body, tags="new") for body in bodies)

    @contextmanager
    def worker(self, *arguments: str) -> Generator[Worker]:
        environment = {**os.environ, "HANDLED": str(self.handled_file)}
        command = [sys.executable, "-m", "downrange", "consume", *arguments, "--json"]
        command += ["-g", f"g-{self.topic}", "-n", self.cluster.name_server]
        with subprocess.Popen(
            [*command, "--topic", self.topic, "--start", "earliest"],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Worker(process)
            finally:
                process.kill()


@pytest.fixture
def shop(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Workshop:
    topic = request.node.name.translate({ord(mark): "-" for mark in "[]:"})[-60:]
    with Admin(cluster.name_server, client_options=PATIENT_CLIENT) as admin:
        admin.create_topic(topic, queues=4)
    return Workshop(cluster, tmp_path, topic)


@pytest.mark.parametrize("handler", ["handlers:slow", "handlers:slow_async"])
def test_sigterm_under_load_loses_nothing_and_repeats_nothing(shop: Workshop, handler: str) -> None:
    """Some workers are stopped one after the other while messages arrive."""
    total = 1500
    shop.send(*map(str, range(500)))
    for stop in range(3):
        with shop.worker(handler, "--concurrency", "8") as worker:
            enough = len(shop.handled()) + 20
            wait_until(partial(shop.has_handled, enough))
            if stop < 2:
                shop.send(*map(str, range(500 * (stop + 1), 500 * (stop + 2))))
                worker.process.send_signal(signal.SIGTERM if stop else signal.SIGINT)
            else:
                wait_until(partial(shop.has_handled, total))
                worker.process.send_signal(signal.SIGTERM)
            assert worker.end() == (0, "")
            ended = worker.has("stopped")
            assert ended is not None
            assert ended["unfinished"] == 0
    assert sorted(map(int, shop.handled())) == list(range(total))


def test_worker_ends_when_there_is_nothing_to_do_and_reports_its_health(shop: Workshop) -> None:
    shop.send("a", "b")
    with shop.worker(
        "handlers:batch", "--batch", "2", "--idle-timeout", "5", "--health", "0.2"
    ) as (worker):
        assert worker.end() == (0, "")
    assert sum(map(int, shop.handled())) == 2
    health = [line for line in worker.lines if line["event"] == "health"]
    assert health[-1]["healthy"] is True
    assert health[-1]["handled"] == 2
    assert health[-1]["problems"] == []
    events = [line["event"] for line in worker.lines]
    assert [events[0], *events[-2:]] == ["ready", "draining", "stopped"]


@pytest.mark.parametrize("handler", ["handlers:stuck", "handlers:stuck_async"])
def test_handlers_that_do_not_end_are_reported_by_the_exit_code(
    shop: Workshop, handler: str
) -> None:
    shop.send("a")
    with shop.worker(handler, "--drain-timeout", "0.2") as worker:
        wait_until(shop.handled)
        worker.process.terminate()
        code, errors = worker.end()
    assert code == 1
    assert "1 messages were still handled after 0.2 s; they are delivered again" in errors
    with shop.worker("handlers:quick", "--max-messages", "1") as worker:
        assert worker.end()[0] == 0
    assert shop.handled() == ["a", "a"]


@pytest.mark.parametrize("handler", ["handlers:stuck", "handlers:stuck_async"])
def test_second_signal_ends_the_worker_at_once(shop: Workshop, handler: str) -> None:
    shop.send("a")
    with shop.worker(handler, "--drain-timeout", "600") as worker:
        wait_until(shop.handled)
        worker.process.terminate()
        wait_until(lambda: worker.has("draining"))
        worker.process.terminate()
        code, errors = worker.end()
    assert code == 143, errors


def test_failed_messages_come_again_and_dead_letters_do_not(shop: Workshop) -> None:
    shop.send("good", "bad", "again")
    with shop.worker("handlers:picky", "--max-messages", "4") as worker:
        code, errors = worker.end()
    assert code == 0
    assert sorted(shop.handled()) == ["again", "again", "bad", "good"]
    assert "not now" in errors
    (stopped,) = [line for line in worker.lines if line["event"] == "stopped"]
    assert (stopped["handled"], stopped["failed"], stopped["unfinished"]) == (2, 2, 0)
    assert dead_letters(shop) == [b"bad"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "handler", ["handlers:slow", "handlers:quick", "handlers:slow_async", "--exec"]
)
def test_exactly_the_given_number_of_messages_is_handled_and_the_rest_stays(
    shop: Workshop, handler: str, count: int
) -> None:
    bodies = [str(number) for number in range(40)]
    shop.send(*bodies)
    (shop.folder / "program.sh").write_text('body=$(cat); echo "$body" >> "$HANDLED"')
    arguments = ("--exec", "sh program.sh") if handler == "--exec" else (handler,)
    for run in (1, 2):
        with shop.worker(*arguments, "--max-messages", str(count)) as worker:
            assert worker.end() == (0, "")
        assert len(shop.handled()) == run * count
        stopped = worker.has("stopped")
        assert stopped is not None
        assert (stopped["handled"], stopped["failed"], stopped["unfinished"]) == (count, 0, 0)
    with shop.worker("handlers:quick", "--max-messages", str(40 - 2 * count)) as worker:
        assert worker.end() == (0, "")
    assert sorted(shop.handled()) == sorted(bodies)  # nothing twice, nothing lost


def test_a_failed_message_counts_once_and_a_batch_is_not_larger_than_what_is_left(
    shop: Workshop,
) -> None:
    shop.send("again", "again")
    with shop.worker("handlers:picky", "--max-messages", "2") as worker:
        code, errors = worker.end()
    assert (code, errors.count("ValueError: not now")) == (0, 2)
    stopped = worker.has("stopped")
    assert stopped is not None
    assert (stopped["handled"], stopped["failed"]) == (0, 2)
    assert shop.handled() == ["again", "again"]
    shop.send(*map(str, range(20)))
    with shop.worker("handlers:batch", "--batch", "4", "--max-messages", "6") as worker:
        assert worker.end() == (0, "")
    assert sum(map(int, shop.handled()[2:])) == 6


def dead_letters(shop: Workshop) -> list[bytes]:
    with PullConsumer(shop.cluster.name_server, group="look") as consumer:
        consumer.assign(f"%DLQ%g-{shop.topic}", start="earliest")
        return [message.body for message in consumer.poll(timeout=DEADLINE)]


# ---- programs ------------------------------------------------------------------------------------

PROGRAM = """
body=$(cat)
echo "$body $DOWNRANGE_TOPIC $DOWNRANGE_TAGS $DOWNRANGE_ATTEMPT" >> "$HANDLED"
case "$body" in
  bad) echo "cannot be read" >&2; exit 65 ;;
  again) test "$DOWNRANGE_ATTEMPT" = 2 || exit 75 ;;
  slow) sleep 600 & echo $! > child; wait ;;
esac
"""


def test_program_decides_by_its_exit_code(shop: Workshop) -> None:
    (shop.folder / "program.sh").write_text(PROGRAM)
    shop.send("good", "bad", "again")
    with shop.worker("--exec", "sh program.sh", "--max-messages", "4") as worker:
        code, errors = worker.end()
    assert code == 0, errors
    assert sorted(shop.handled()) == sorted(
        f"{what} {shop.topic} new {attempt}"
        for what, attempt in [("good", 1), ("bad", 1), ("again", 1), ("again", 2)]
    )
    assert "cannot be read" in errors
    assert dead_letters(shop) == [b"bad"]


def message(body: str) -> ReceivedMessage:
    return ReceivedMessage(
        message_id="AB",
        queue=QueueId("orders", "broker-a", 3),
        offset=QueueOffset(7),
        body=body.encode(),
        properties={},
        offset_id="",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=5,
        born_host="",
        stored_at_ms=6,
    )


def test_program_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HANDLED", str(tmp_path / "handled"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.sh").write_text(PROGRAM)
    wait = subprocess.Popen.wait

    def wait_for_child(process: subprocess.Popen[Any], timeout: float | None = None) -> int:
        """Give a slow machine time to start the program."""
        wait_until(lambda: child_file.exists() and child_file.read_text())
        return wait(process, timeout)

    child_file = tmp_path / "child"
    monkeypatch.setattr(subprocess.Popen, "wait", wait_for_child)
    with pytest.raises(Retry):
        ProgramHandler("sh program.sh", 1.0)(message("slow"))
    assert "did not end within 1 s and is killed" in caplog.text
    child = int(child_file.read_text())
    wait_until(lambda: not is_running(child))


def test_large_body_does_not_need_to_be_read() -> None:
    ProgramHandler("true", 60.0)(message("x" * 4_000_000))


def test_program_that_a_signal_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Retry):
        ProgramHandler("sh -c 'kill -9 $$'", 60.0)(message("x"))
    assert "message AB: the program was ended by SIGKILL" in caplog.text


def test_no_program_begins_after_all_were_killed() -> None:
    handler = ProgramHandler("true", 60.0)
    handler.kill_all()
    with pytest.raises(Retry):
        handler(message("x"))


def test_second_signal_kills_programs(shop: Workshop) -> None:
    shop.send("a")
    program = "sh -c 'echo $$ >> \"$HANDLED\"; sleep 600'"
    with shop.worker("--exec", program, "--drain-timeout", "600") as worker:
        [process] = wait_until(shop.handled)
        worker.process.send_signal(signal.SIGINT)
        wait_until(lambda: worker.has("draining"))
        worker.process.send_signal(signal.SIGINT)
        assert worker.end()[0] == 130
    wait_until(lambda: not is_running(int(process)))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_broadcast_worker_reads_on_from_its_folder(shop: Workshop) -> None:
    arguments = ("handlers:quick", "--model", "broadcast", "--offsets", "offsets")
    for body in ("a", "b"):
        shop.send(body)
        with shop.worker(*arguments, "--max-messages", "1") as worker:
            assert worker.end()[0] == 0
    assert shop.handled() == ["a", "b"]


def test_worker_without_a_name_server_ends_with_3() -> None:
    command = [sys.executable, "-m", "downrange", "consume", "--exec", "true", "-g", "g"]
    ended = subprocess.run(
        [*command, "--topic", "t", "-n", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 3
    assert "127.0.0.1:1" in ended.stderr
