"""The servers under load: each in processes of its own, which can be paused, killed and restarted.

A `Server` counts what it acknowledged and can be asked whether all of it is there. Its store is
temporary but outlives a kill. Ours is `downrange serve` as it is installed, but for staying awake;
Apache's is as shipped.
"""

from __future__ import annotations

import contextlib
import functools
import os
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
from benchmarks.load import Connection, Refused, cpu_seconds
from benchmarks.sends import Sends
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.processes import ChildProcess

Side: TypeAlias = Literal["downrange", "apache"]

APACHE_VERSION: Final = "5.5.0"

_BYTECODE: Final = Path(__file__).parents[2] / "build" / "bytecode"
# A server that stays awake between two messages takes CPU that no message costs.
_SETTINGS: Final = "[listener]\nbusy_poll = 0.0\n"
_TOPICS_AT_ONCE: Final = 500
_TOPICS_TIMEOUT: Final = 60.0
_COUNT_TIMEOUT: Final = 60.0
_FIRST_TIMEOUT: Final = 120.0
_POLL_INTERVAL: Final = 0.02
_STOP_TIMEOUT: Final = 5.0
_CALM_TIMEOUT: Final = 60.0
_CALM_SECONDS: Final = 0.5
_CALM_SHARE: Final = 0.2  # of a core; an idle Apache takes half of that
_RECEIVE_BYTES: Final = 1 << 18
_FIRST_TOPIC: Final = "growth-first"
_GRACE: Final = 120.0


class Server(Protocol):
    """A server and its store.

    Attributes:
        side: Whose it is.
        broker: Address of the broker.
        pids: Its processes.
        topics: How many topics `make_topics` made.
        queues: Queues of each.
        stored_min: How many messages must be in them.
        stored_max: How many can be: more, where a crash cut off answers.
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
        """Make durable what there is, so that a crash finds only what comes after."""

    @abstractmethod
    def kill(self) -> None:
        """End the broker as a crash would; its store stays."""

    @abstractmethod
    def restart(self) -> float:
        """Start again after a kill; return the seconds until a message was stored."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove its store."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where the store is."""

    def make_topics(self, topics: int, queues: int) -> None:
        """Create the topics that are loaded.

        Raises:
            RuntimeError: The server refused.
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
                raise RuntimeError(f"{self.side} made no topics: {answer.code} {answer.remark}")
        self.topics, self.queues = topics, queues
        self.stored_min = self.stored_max = 0

    def begin(self, work: Work) -> subprocess.Popen[bytes]:
        """Start to load the server; `note` takes what came of it."""
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

    def note(self, load: subprocess.Popen[bytes]) -> Loaded:
        """Wait for a load's end and count its messages.

        Raises:
            RuntimeError: It failed.
        """
        try:
            said, _ = load.communicate(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            load.kill()
            raise
        if load.returncode:
            raise RuntimeError(f"the load on {self.side} failed")
        found = msgspec.json.decode(said, type=Loaded)
        self.stored_min += found.messages + found.messages_before
        self.stored_max += found.messages + found.messages_before + found.unknown
        return found

    def load(self, work: Work) -> Loaded:
        """Load the server and return what came of it."""
        return self.note(self.begin(work))

    def check_count(self) -> None:
        """Compare what was acknowledged with what the queues hold.

        Raises:
            RuntimeError: A message is missing, or there is one too many.
        """
        deadline = time.monotonic() + _COUNT_TIMEOUT
        # A store may index behind the acknowledgement.
        while (stored := self._count()) < self.stored_min and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        if not self.stored_min <= stored <= self.stored_max:
            wanted = f"{self.stored_min} to {self.stored_max}"
            raise RuntimeError(f"{self.side} stored {stored}, not {wanted}")
        self.stored_min = self.stored_max = stored

    def wait_until_calm(self) -> None:
        """Wait until the server has hardly anything left to do, or for a minute."""
        deadline = time.monotonic() + _CALM_TIMEOUT
        while time.monotonic() < deadline:
            before = cpu_seconds(self.pids)
            time.sleep(_CALM_SECONDS)
            if cpu_seconds(self.pids) - before < _CALM_SHARE * _CALM_SECONDS:
                return

    def pause(self) -> None:
        """Take all CPU from the server."""
        _signal(self.pids, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the server go on."""
        _signal(self.pids, signal.SIGCONT)

    def _count(self) -> int:
        """Add up the ends of all queues, asked for on one connection."""
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
        """Where the store is."""
        return self._home / "store"

    def settle(self) -> None:
        """Stop and start: the next checkpoint is then some seconds away."""
        assert self._child is not None
        self._child.stop(_STOP_TIMEOUT)
        self.restart()

    def kill(self) -> None:
        """End it as a crash would; the store stays."""
        assert self._child is not None
        self._child.kill()

    def restart(self) -> float:
        """Start it; return the seconds until a message was stored."""
        environment = _environment()  # before the clock starts
        ports = ["--nameserver-port", "0", "--broker-port", "0"]
        command = [sys.executable, "-m", "downrange", "serve", "--host", "127.0.0.1", *ports]
        begun = time.monotonic()
        self._child = ChildProcess(
            "downrange",
            [*command, "--store", str(self.folder), "--config", str(self._settings)],
            output=self._home / "log",
            directory=self._home,
            environment=environment,
            piped=True,
        )
        said = self._child.stdout.readline().decode()
        if not said.startswith("ready "):
            raise RuntimeError(f"downrange did not start: {said!r}\n{self._child.tail(4000)}")
        self.broker = dict(part.split("=", 1) for part in said.split()[1:])["broker"]
        self.pids = [self._child.pid]
        _send_first(self.broker)
        return time.monotonic() - begun

    def close(self) -> None:
        """End it and remove the store."""
        self.resume()
        if self._child is not None:
            self._child.stop(_STOP_TIMEOUT)
        shutil.rmtree(self._home, ignore_errors=True)


class Apache(Server):
    """Apache's name server and broker, of which only the broker is killed and started again."""

    def __init__(self) -> None:
        """Start with an empty store."""
        self.side = "apache"
        self._cluster = ApacheCluster(APACHE_VERSION, purpose="benchmark")
        self._cluster.start()
        self._find()
        _send_first(self.broker)

    @property
    def folder(self) -> Path:
        """Where the store is."""
        return self._cluster.brokers[0].store

    def settle(self) -> None:
        """Do nothing: it flushes all the time, and reads whole files of its log after a crash."""

    def kill(self) -> None:
        """End the broker as a crash would; the store stays."""
        self._cluster.kill_broker(0)

    def restart(self) -> float:
        """Start the broker; return the seconds until a message was stored."""
        begun = time.monotonic()
        self._cluster.start_broker(0)
        self._find()
        _send_first(self.broker)
        return time.monotonic() - begun

    def close(self) -> None:
        """End both and remove the store."""
        self._cluster.close()

    def _find(self) -> None:
        self.broker = self._cluster.brokers[0].address
        self.pids = [child.pid for child in self._cluster.processes()]


def start(side: Side) -> Server:
    """Start a server with an empty store."""
    return Apache() if side == "apache" else Ours()


@functools.cache
def _environment() -> dict[str, str]:
    """Return an environment in which modules are compiled already, as after an installation."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "PYTHONPYCACHEPREFIX": str(_BYTECODE)}
    command = [sys.executable, "-m", "downrange", "serve", "--help"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return environment


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


def _send_first(broker: str) -> None:
    """Send until a message is stored, in a topic that is made by it."""
    sends = Sends(_FIRST_TOPIC, 1)
    deadline = time.monotonic() + _FIRST_TIMEOUT
    while True:
        try:
            connection = Connection(broker)
            connection.send(sends.take(1))
            while not connection.replies():
                pass
            return
        except (OSError, Refused):
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
