"""The servers under load: each in its own processes, which can be paused, killed and restarted.

A `Server` counts its acknowledged messages and can check that all of them are stored. Its store is
temporary but survives a kill. Ours is `downrange serve` with default settings, but without busy
polling; Apache's has default settings.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from benchmarks.growth.loader import TOPIC, Loaded, Work
from benchmarks.load import cpu_seconds
from benchmarks.server_pair import environment as compiled_environment
from benchmarks.server_pair import send_first, send_signal
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.processes import ChildProcess

Side: TypeAlias = Literal["downrange", "apache"]

APACHE_VERSION: Final = "5.5.0"

# The CPU of busy polling between two messages is not a cost of the messages.
_SETTINGS: Final = "[listener]\nbusy_poll = 0.0\n"
_TOPICS_AT_ONCE: Final = 500
_TOPICS_TIMEOUT: Final = 60.0
_COUNT_TIMEOUT: Final = 60.0
_POLL_INTERVAL: Final = 0.02
_STOP_TIMEOUT: Final = 5.0
_CALM_TIMEOUT: Final = 60.0
_CALM_SECONDS: Final = 0.5
_CALM_SHARE: Final = 0.2  # of a core; an idle Apache broker uses half of that
_RECEIVE_BYTES: Final = 1 << 18
_FIRST_TOPIC: Final = "growth-first"
_GRACE: Final = 120.0


class Server(Protocol):
    """A server and its store.

    Attributes:
        side: "downrange" or "apache".
        broker: Address of the broker.
        pids: Its processes.
        topics: Number of topics that `make_topics` created.
        queues: Queues of each topic.
        stored_min: Smallest number of messages that must be stored.
        stored_max: Largest possible number; a crash may have cut off replies.
    """

    side: Side
    broker: str
    pids: list[int]
    topics: int
    queues: int
    stored_min: int
    stored_max: int

    @abstractmethod
    def settle(self) -> None:
        """Flush everything, so that a crash can lose only later messages."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker, as a crash would; its store remains."""

    @abstractmethod
    def restart(self) -> float:
        """Restart after a kill; return the seconds until a message was stored."""

    @abstractmethod
    def close(self) -> None:
        """Stop it and remove its store."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder of the store."""

    def make_topics(self, topics: int, queues: int) -> None:
        """Create the topics for the load.

        Raises:
            RuntimeError: The server refused the request.
        """
        for first in range(0, topics, _TOPICS_AT_ONCE):
            numbers = range(first, min(first + _TOPICS_AT_ONCE, topics))
            body = {"topicConfigList": [_topic(number, queues) for number in numbers]}
            answer = probe.call(
                self.broker,
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                {},
                body=msgspec.json.encode(body),
                timeout=_TOPICS_TIMEOUT,
            )
            if answer.code != ResponseCode.SUCCESS:
                raise RuntimeError(
                    f"{self.side} did not create topics: {answer.code} {answer.remark}"
                )
        self.topics, self.queues = topics, queues
        self.stored_min = self.stored_max = 0

    def begin(self, work: Work) -> subprocess.Popen[bytes]:
        """Start a load generator; pass the process to `finish`."""
        work = msgspec.structs.replace(
            work,
            address=self.broker,
            topics=self.topics,
            queues=self.queues,
            pids=tuple(self.pids),
        )
        command = [sys.executable, "-m", "benchmarks.growth.loader"]
        text = msgspec.json.encode(work).decode()
        return subprocess.Popen([*command, text], stdout=subprocess.PIPE)

    def finish(self, load: subprocess.Popen[bytes]) -> Loaded:
        """Wait for the end of a load generator and count its messages.

        Raises:
            RuntimeError: The load generator failed.
        """
        try:
            line, _ = load.communicate(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            load.kill()
            raise
        if load.returncode:
            raise RuntimeError(f"the load on {self.side} failed")
        found = msgspec.json.decode(line, type=Loaded)
        self.stored_min += found.messages + found.messages_before
        self.stored_max += found.messages + found.messages_before + found.unknown
        return found

    def load(self, work: Work) -> Loaded:
        """Load the server and return the results."""
        return self.finish(self.begin(work))

    def check_count(self) -> None:
        """Compare the acknowledged messages with the sizes of the queues.

        Raises:
            RuntimeError: The numbers differ.
        """
        deadline = time.monotonic() + _COUNT_TIMEOUT
        # A store may index messages after it has acknowledged them.
        while (stored := self._count()) < self.stored_min and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        if not self.stored_min <= stored <= self.stored_max:
            expected = f"{self.stored_min} to {self.stored_max}"
            raise RuntimeError(f"{self.side} stored {stored}, not {expected}")
        self.stored_min = self.stored_max = stored

    def wait_until_calm(self) -> None:
        """Wait up to a minute until the server is nearly idle."""
        deadline = time.monotonic() + _CALM_TIMEOUT
        while time.monotonic() < deadline:
            before = cpu_seconds(self.pids)
            time.sleep(_CALM_SECONDS)
            if cpu_seconds(self.pids) - before < _CALM_SHARE * _CALM_SECONDS:
                return

    def pause(self) -> None:
        """Stop the processes of the server."""
        send_signal(self.pids, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the processes of the server."""
        send_signal(self.pids, signal.SIGCONT)

    def _count(self) -> int:
        """Return the sum of the ends of all queues, requested on one connection."""
        asked = [(topic, queue) for topic in range(self.topics) for queue in range(self.queues)]
        host, _, port = self.broker.rpartition(":")
        splitter, total, answers = FrameSplitter(), 0, 0
        with socket.create_connection((host, int(port)), _COUNT_TIMEOUT) as connection:
            for first in range(0, len(asked), _TOPICS_AT_ONCE):
                part = asked[first : first + _TOPICS_AT_ONCE]
                connection.sendall(b"".join(_end_request(*each) for each in part))
                while answers < first + len(part):
                    data = connection.recv(_RECEIVE_BYTES)
                    if not data:
                        raise ConnectionError(f"{self.side} closed the connection")
                    splitter.receive(data)
                    while (frame := splitter.next_frame()) is not None:
                        total += int(decode(frame).fields["offset"])
                        answers += 1
        return total


class Ours(Server):
    """`downrange serve`, name server and broker in one process."""

    def __init__(self) -> None:
        """Start with an empty store."""
        self.side = "downrange"
        self._home = Path(tempfile.mkdtemp(prefix="downrange-growth-"))
        self._settings = self._home / "settings.toml"
        self._settings.write_text(_SETTINGS, encoding="utf-8")
        self._child: ChildProcess | None = None
        self.restart()

    @property
    def folder(self) -> Path:
        """Folder of the store."""
        return self._home / "store"

    def settle(self) -> None:
        """Stop and start: this flushes, and the next checkpoint is some seconds away."""
        assert self._child is not None
        self._child.stop(_STOP_TIMEOUT)
        self.restart()

    def kill(self) -> None:
        """Kill it, as a crash would; the store remains."""
        assert self._child is not None
        self._child.kill()

    def restart(self) -> float:
        """Start it; return the seconds until a message was stored."""
        environment = compiled_environment()  # not part of the start time
        ports = ["--nameserver-port", "0", "--broker-port", "0"]
        command = [sys.executable, "-m", "downrange", "serve", "--host", "127.0.0.1", *ports]
        started = time.monotonic()
        self._child = ChildProcess(
            "downrange",
            [*command, "--store", str(self.folder), "--config", str(self._settings)],
            output=self._home / "log",
            directory=self._home,
            environment=environment,
            piped=True,
        )
        line = self._child.stdout.readline().decode()
        if not line.startswith("ready "):
            raise RuntimeError(f"downrange did not start: {line!r}\n{self._child.tail(4000)}")
        self.broker = dict(part.split("=", 1) for part in line.split()[1:])["broker"]
        self.pids = [self._child.pid]
        send_first(self.broker, _FIRST_TOPIC, 1)
        return time.monotonic() - started

    def close(self) -> None:
        """Stop it and remove the store."""
        self.resume()
        if self._child is not None:
            self._child.stop(_STOP_TIMEOUT)
        shutil.rmtree(self._home, ignore_errors=True)


class Apache(Server):
    """Apache's name server and broker; only the broker is killed and restarted."""

    def __init__(self) -> None:
        """Start with an empty store."""
        self.side = "apache"
        self._cluster = ApacheCluster(APACHE_VERSION, purpose="benchmark")
        self._cluster.start()
        self._find()
        send_first(self.broker, _FIRST_TOPIC, 1)

    @property
    def folder(self) -> Path:
        """Folder of the store."""
        return self._cluster.brokers[0].store

    def settle(self) -> None:
        """Do nothing: Apache flushes continuously, and reads whole log files after a crash."""

    def kill(self) -> None:
        """Kill the broker, as a crash would; the store remains."""
        self._cluster.kill_broker(0)

    def restart(self) -> float:
        """Start the broker; return the seconds until a message was stored."""
        started = time.monotonic()
        self._cluster.start_broker(0)
        self._find()
        send_first(self.broker, _FIRST_TOPIC, 1)
        return time.monotonic() - started

    def close(self) -> None:
        """Stop both and remove the store."""
        self._cluster.close()

    def _find(self) -> None:
        self.broker = self._cluster.brokers[0].address
        self.pids = [child.pid for child in self._cluster.processes()]


def start(side: Side) -> Server:
    """Start a server with an empty store."""
    return Apache() if side == "apache" else Ours()


def _topic(number: int, queues: int) -> dict[str, object]:
    return {
        "topicName": TOPIC % number,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }


def _end_request(topic: int, queue: int) -> bytes:
    fields = {"topic": TOPIC % topic, "queueId": str(queue)}
    return encode(Command(code=RequestCode.GET_MAX_OFFSET, fields=fields))
