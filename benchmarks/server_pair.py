"""The two servers of a comparison: ours and Apache's, default settings, each in its own processes.

A `Peer` is a running name server and broker, with a temporary store and free ports. While one
server is measured, the other is paused, so that it uses no CPU. Both are measured in turns.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from benchmarks.load import Connection, Refused, cpu_seconds
from benchmarks.sends import Sends
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

Flush: TypeAlias = Literal["async", "sync"]
Name: TypeAlias = Literal["downrange", "apache"]

APACHE_VERSION = "5.5.0"
QUEUES = 4

_BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 5.0
_COUNT_TIMEOUT = 30.0
_POLL_INTERVAL = 0.02
_SETTLING = 1.0


@dataclass(slots=True, kw_only=True)
class Peer:
    """A running server.

    Attributes:
        name: "downrange" or "apache".
        name_server: Address of the name server.
        broker: Address of the broker.
        pids: Its processes.
        started_in: Seconds from the start of the first process until a send was acknowledged.
        companions: Processes that are paused with the server, such as a client of it.
        acknowledged: Number of acknowledged messages by topic.
    """

    name: Name
    name_server: str
    broker: str
    pids: list[int]
    started_in: float = 0.0
    companions: list[int] = field(default_factory=list[int])
    acknowledged: dict[str, int] = field(default_factory=dict[str, int])

    def make_topic(self, topic: str) -> None:
        """Create a topic with `QUEUES` queues.

        Raises:
            RuntimeError: The server refused the request.
        """
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        answer = probe.call(self.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        if answer.code != 0:
            raise RuntimeError(
                f"{self.name} did not create topic {topic}: {answer.code} {answer.remark}"
            )
        self.acknowledged[topic] = 0

    def check_counts(self) -> None:
        """Compare the acknowledged messages with the sizes of the queues, for all topics.

        Raises:
            RuntimeError: The numbers differ.
        """
        for topic in self.acknowledged:
            self.check_count(topic)

    def check_count(self, topic: str) -> None:
        """Compare for one topic; wait up to half a minute for missing messages.

        Raises:
            RuntimeError: The numbers differ.
        """
        expected = self.acknowledged[topic]
        stored = self.await_stored(topic, expected)
        if stored != expected:
            raise RuntimeError(f"{self.name} stored {stored} of {expected} in {topic}")

    def await_stored(self, topic: str, expected: int) -> int:
        """Wait up to half a minute until a topic holds `expected` messages; return its number.

        A store may index messages after it has acknowledged them.
        """
        deadline = time.monotonic() + _COUNT_TIMEOUT
        while (stored := self.stored(topic)) < expected and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        return stored

    def memory_bytes(self) -> int:
        """Return the memory of all processes; shared pages are divided among them."""
        return sum(_memory_bytes(pid) for pid in self.pids)

    def cpu_percent(self, seconds: float) -> float:
        """Return the share of one core that the server uses, measured over some seconds."""
        before, started = cpu_seconds(self.pids), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds(self.pids) - before) / (time.monotonic() - started) * 100

    def pause(self) -> None:
        """Stop the processes of the server."""
        send_signal(self.pids + self.companions, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the processes of the server."""
        send_signal(self.pids + self.companions, signal.SIGCONT)

    def stored(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic."""
        total = 0
        for queue in range(QUEUES):
            fields = {"topic": topic, "queueId": str(queue)}
            answer = probe.call(self.broker, RequestCode.GET_MAX_OFFSET, fields)
            total += int(answer.fields["offset"])
        return total

    def settled(self, topic: str) -> int:
        """Return the number of messages when it has stopped growing."""
        before, after = -1, self.stored(topic)
        while before != after:
            time.sleep(_SETTLING)
            before, after = after, self.stored(topic)
        return after


class Pair:
    """Both servers; only one runs at a time."""

    def __init__(self, ours: Peer, apache: Peer) -> None:
        """Take two paused servers."""
        self.ours = ours
        self.apache = apache

    def __iter__(self) -> Iterator[Peer]:
        """Yield our server, then Apache's."""
        return iter((self.ours, self.apache))

    @contextlib.contextmanager
    def turn(self, peer: Peer) -> Generator[None]:
        """Run one server while the block lasts."""
        # Pending disk writes of the other server must not slow this one.
        os.sync()
        peer.resume()
        try:
            yield
        finally:
            peer.pause()

    def both(self, act: Callable[[Peer], object]) -> None:
        """Call a function with each server while it runs."""
        for peer in self:
            with self.turn(peer):
                act(peer)


@contextlib.contextmanager
def start_both(flush: Flush) -> Generator[Pair]:
    """Start both servers, one after the other, and pause them."""
    with start("downrange", flush) as ours:
        ours.pause()
        with start("apache", flush) as apache:
            apache.pause()
            yield Pair(ours, apache)


@contextlib.contextmanager
def start(
    name: Name,
    flush: Flush = "async",
    flags: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Generator[Peer]:
    """Start a server and wait until it has stored a message; it ends with the block.

    Args:
        name: Which one.
        flush: When it flushes to disk.
        flags: More flags of `downrange serve`.
        variables: More environment variables of `downrange serve`.
    """
    every = {**environment(), **(variables or {})}  # not part of the start time
    started = time.monotonic()
    with _start_apache(flush) if name == "apache" else _start_ours(flush, flags, every) as peer:
        send_first(peer.broker)
        peer.started_in = time.monotonic() - started
        try:
            yield peer
        finally:
            peer.resume()


@contextlib.contextmanager
def _start_apache(flush: Flush) -> Generator[Peer]:
    options = {"flushDiskType": f"{flush.upper()}_FLUSH"}
    with ApacheCluster(APACHE_VERSION, purpose="benchmark", broker_options=options) as cluster:
        yield Peer(
            name="apache",
            name_server=cluster.name_server,
            broker=cluster.brokers[0].address,
            pids=[child.pid for child in cluster.processes()],
        )


@contextlib.contextmanager
def _start_ours(
    flush: Flush, flags: Sequence[str], variables: Mapping[str, str]
) -> Generator[Peer]:
    with tempfile.TemporaryDirectory(prefix="downrange-bench-") as name:
        folder = Path(name)
        ports = ["--nameserver-port", "0", "--broker-port", "0", "--flush", flush, *flags]
        command = [sys.executable, "-m", "downrange", "serve", "--host", "127.0.0.1", *ports]
        child = ChildProcess(
            "downrange",
            [*command, "--store", str(folder / "store")],
            output=folder / "log",
            directory=folder,
            environment=dict(variables),
            piped=True,
        )
        try:
            line = child.stdout.readline().decode()
            if not line.startswith("ready "):
                raise RuntimeError(f"downrange did not start: {line!r}\n{child.tail(4000)}")
            parts = dict(part.split("=", 1) for part in line.split()[1:])
            yield Peer(
                name="downrange",
                name_server=parts["nameserver"],
                broker=parts["broker"],
                pids=[child.pid],
            )
        finally:
            child.stop(_STOP_TIMEOUT)


@functools.cache
def environment() -> dict[str, str]:
    """Return environment variables with which Python's modules are already compiled.

    This is the state after an installation. Without it, PYTHONDONTWRITEBYTECODE on a developer's
    machine would add compile time to each start.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "PYTHONPYCACHEPREFIX": str(_BYTECODE)}
    command = [sys.executable, "-m", "downrange", "serve", "--help"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return environment


def send_first(broker: str, topic: str = "bench-first", queue_count: int = QUEUES) -> None:
    """Send to an auto-created topic until a message is stored."""
    sends = Sends(topic, queue_count)
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        try:
            with contextlib.closing(Connection(broker)) as connection:
                connection.send(sends.take(1))
                while not connection.replies():
                    pass
            return
        except (OSError, Refused):
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL)


def _memory_bytes(pid: int) -> int:
    """Return the proportional set size, or the resident one if the kernel does not report it."""
    try:
        text, label = Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss:"
    except OSError:
        text, label = Path(f"/proc/{pid}/status").read_text(), "VmRSS:"
    line = next(line for line in text.splitlines() if line.startswith(label))
    return int(line.split()[1]) * 1024


def send_signal(pids: list[int], number: int) -> None:
    """Send a signal to those of the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
