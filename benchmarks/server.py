"""Our server beside Apache's, on this machine, in one run.

Both run as they are shipped, with 1 KB messages. They take turns, round by round, and who is not
measured is paused: a noisy machine hits both alike, and each has it to itself. All messages are
counted in the end; a rate with losses is a failure. Nothing else should run meanwhile.

    python -m benchmarks.server [--quick] [--only NAME] [--json FILE] [--store]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from rich.console import Console

from benchmarks import peers, report
from benchmarks.load import SENDERS, WINDOW, Measured, Mode, Work, cpu_seconds
from benchmarks.report import Row, Run, Sample
from benchmarks.sends import BATCH
from tests.apache.artifacts import resolve
from tests.apache.java_client import JavaClient

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from benchmarks.peers import Flush, Pair, Peer

_ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = _ROOT / "benchmarks" / "results" / "server.json"
PAGE: Final = _ROOT / "docs" / "benchmarks.md"

_JAVA_TOPIC: Final = "bench-java"
_FILLING_SECONDS: Final = 1.0
_WIDTH: Final = 100  # of the table, where it goes to a file
_JAVA_GRACE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long to measure what.

    Attributes:
        rounds: Rounds per row.
        seconds: Length of a round.
        lead_in: Load before each round, after a server was paused.
        warm_up: Load before the first row, for a JVM to compile what it runs often.
        row_warm_up: Load before the first round of each row.
        settling: Seconds from start until a server counts as idle.
        idle_seconds: How long to watch it then.
        more_starts: Starts that serve only to be timed.
    """

    rounds: int
    seconds: float
    lead_in: float
    warm_up: float
    row_warm_up: float
    settling: float
    idle_seconds: float
    more_starts: int


FULL: Final = Plan(
    rounds=7,
    seconds=3.0,
    lead_in=0.5,
    warm_up=15.0,
    row_warm_up=5.0,
    settling=20.0,
    idle_seconds=5.0,
    more_starts=3,
)
QUICK: Final = Plan(
    rounds=2,
    seconds=0.7,
    lead_in=0.2,
    warm_up=10.0,
    row_warm_up=1.0,
    settling=2.0,
    idle_seconds=3.0,
    more_starts=0,
)


class Load(NamedTuple):
    """A row whose client is our load generator."""

    mode: Mode
    title: str
    target: float | None


class JavaLoad(NamedTuple):
    """A row whose client is Java's."""

    name: str
    mode: str
    width: int
    title: str
    target: float


LOADS: Final = (
    Load("single", "one in flight", 3.0),
    Load("window", f"{WINDOW} in flight", 3.0),
    Load("batch", f"batches of {BATCH}", 1.5),
    Load("pull", "pull", None),
)
JAVA_LOADS: Final = (
    JavaLoad("java-sync", "sync", 1, "Java client, sync", 1.7),
    JavaLoad("java-async", "async", WINDOW, f"Java client, {WINDOW} async", 1.5),
    JavaLoad("java-batch", "batch", BATCH, f"Java client, batches of {BATCH}", 1.2),
)
SENDERS_LOAD: Final = Load("senders", f"{SENDERS} senders, sync flush", None)
START, MEMORY, CPU = "start", "idle-memory", "idle-cpu"
NAMES: Final = (
    *(load.mode for load in LOADS),
    *(load.name for load in JAVA_LOADS),
    *(SENDERS_LOAD.mode, START, MEMORY, CPU),
)

Client: TypeAlias = "Callable[[Peer, float, float], Sample]"
"""Loads a server for so many seconds after so many seconds of lead-in."""


class Comparison:
    """One run: measures the rows that are wanted, and collects them."""

    def __init__(self, plan: Plan, wanted: Collection[str], say: Callable[[str], None]) -> None:
        """Prepare a run; `say` is told what is going on."""
        self.rows: list[Row] = []
        self._plan = plan
        self._wanted = wanted
        self._say = say
        self._starts: list[tuple[float, float]] = []

    def run(self) -> None:
        """Measure everything that is wanted.

        Raises:
            RuntimeError: A message was lost.
        """
        loads = [load for load in LOADS if load.mode in self._wanted]
        java_loads = [load for load in JAVA_LOADS if load.name in self._wanted]
        idle: list[Row] = []
        if loads or java_loads or MEMORY in self._wanted or CPU in self._wanted:
            with self._started("async") as pair:
                idle = self._watch_idle(pair)
                self._compare_loads(pair, loads)
                self._compare_java(pair, java_loads)
                pair.both(lambda peer: peer.check_counts())
        if SENDERS_LOAD.mode in self._wanted:
            with self._started("sync") as pair:
                self._compare_loads(pair, [SENDERS_LOAD])
                pair.both(lambda peer: peer.check_counts())
        if START in self._wanted:
            self._time_starts()
        self.rows += idle

    @contextlib.contextmanager
    def _started(self, flush: Flush) -> Generator[Pair]:
        self._say(f"start, {flush} flush")
        with peers.start_both(flush) as pair:
            self._starts.append((pair.ours.started_in, pair.apache.started_in))
            yield pair

    def _time_starts(self) -> None:
        for _ in range(self._plan.more_starts if self._starts else 1):
            with self._started("async"):
                pass
        ours = [Sample(value=seconds) for seconds, _ in self._starts]
        apache = [Sample(value=seconds) for _, seconds in self._starts]
        title = "start to first send"
        self.rows.append(
            Row(name=START, title=title, unit="s", target=20.0, ours=ours, apache=apache)
        )

    def _watch_idle(self, pair: Pair) -> list[Row]:
        """Watch both for a while, before anything was done with them."""
        rows = [
            Row(name=MEMORY, title="memory when idle", unit="MB", target=10.0, ours=[], apache=[]),
            Row(name=CPU, title="CPU when idle", unit="% of a core", ours=[], apache=[]),
        ]
        rows = [row for row in rows if row.name in self._wanted]
        if rows:
            self._say("idle")
        for peer in pair if rows else ():
            with pair.turn(peer):
                time.sleep(self._plan.settling)
                found = {CPU: peer.cpu_percent(self._plan.idle_seconds)}
                found[MEMORY] = peer.memory_bytes() / 1e6
            for row in rows:
                side = row.ours if peer is pair.ours else row.apache
                side.append(Sample(value=found[row.name]))
        return rows

    def _compare_loads(self, pair: Pair, loads: Sequence[Load]) -> None:
        for load in loads:
            topic = f"bench-{load.mode}"
            pair.both(_topic_maker(topic))
            if load.mode == "pull":
                _exercise(pair, _load_client("batch", topic), _FILLING_SECONDS)
            client = _load_client(load.mode, topic)
            if load is loads[0]:
                self._say("warm-up")
                with pair.turn(pair.apache):
                    client(pair.apache, self._plan.warm_up, 0.0)
            row = self._compare(pair, load.mode, load.title, load.target, client)
            if load.mode == "single":
                self.rows += report.latency_rows(row)

    def _compare_java(self, pair: Pair, loads: Sequence[JavaLoad]) -> None:
        with contextlib.ExitStack() as stack:
            clients: dict[peers.Name, tuple[JavaClient, str]] = {}
            for peer in pair if loads else ():
                with pair.turn(peer):
                    peer.make_topic(_JAVA_TOPIC)
                    java = stack.enter_context(JavaClient("5.5.0", purpose="benchmark"))
                    clients[peer.name] = java, java.start_producer(peer.name_server, "bench-java")
                    # While its server is paused, a client would only complain.
                    peer.companions.append(java.pid)
            for load in loads:
                client = _java_client(clients, load)
                if load is loads[0]:
                    self._say("warm-up of the Java clients")
                    _exercise(pair, client, self._plan.warm_up / 2)
                self._compare(pair, load.name, load.title, load.target, client)
            for peer in pair:
                with pair.turn(peer):  # whatever is paused cannot be ended in order
                    peer.companions.clear()

    def _compare(
        self, pair: Pair, name: str, title: str, target: float | None, client: Client
    ) -> Row:
        self._say(title)
        _exercise(pair, client, self._plan.row_warm_up)
        ours: list[Sample] = []
        apache: list[Sample] = []
        for _ in range(self._plan.rounds):
            for peer in pair:
                with pair.turn(peer):
                    found = client(peer, self._plan.seconds, self._plan.lead_in)
                (ours if peer is pair.ours else apache).append(found)
        row = Row(
            name=name, title=title, unit="messages/s", target=target, ours=ours, apache=apache
        )
        self.rows.append(row)
        return row


def _topic_maker(topic: str) -> Callable[[Peer], None]:
    return lambda peer: peer.make_topic(topic)


def _exercise(pair: Pair, client: Client, seconds: float) -> None:
    """Load both, and look at no figure."""
    pair.both(lambda peer: client(peer, seconds, 0.0))


def _load_client(mode: Mode, topic: str) -> Client:
    """Return a client that runs the load generator in a process of its own."""

    def load(peer: Peer, seconds: float, lead_in: float) -> Sample:
        work = Work(
            mode=mode,
            address=peer.broker,
            topic=topic,
            queue_count=peers.QUEUES,
            seconds=seconds,
            lead_in=lead_in,
            pids=tuple(peer.pids),
        )
        command = [sys.executable, "-m", "benchmarks.load", msgspec.json.encode(work).decode()]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=_ROOT)
        found = msgspec.json.decode(done.stdout, type=Measured)
        if mode != "pull":
            peer.acknowledged[topic] += found.messages + found.messages_before
        return Sample(
            value=found.messages / found.seconds,
            server_us=found.server_cpu / found.messages * 1e6,
            client_us=found.load_cpu / found.messages * 1e6,
            latencies_us=found.latencies_us,
        )

    return load


def _java_client(clients: Mapping[peers.Name, tuple[JavaClient, str]], load: JavaLoad) -> Client:
    """Return a client that lets Java's producers send."""

    def send(peer: Peer, seconds: float) -> Any:
        java, producer = clients[peer.name]
        found = java.call(
            "producer.bench",
            timeout=seconds + _JAVA_GRACE,
            name=producer,
            topic=_JAVA_TOPIC,
            mode=load.mode,
            width=load.width,
            durationMs=int(seconds * 1000),
        )
        peer.acknowledged[_JAVA_TOPIC] += found["messages"]
        return found

    def client(peer: Peer, seconds: float, lead_in: float) -> Sample:
        send(peer, lead_in)
        jvm = [clients[peer.name][0].pid]
        server_cpu, client_cpu = cpu_seconds(peer.pids), cpu_seconds(jvm)
        found = send(peer, seconds)
        messages = found["messages"]
        return Sample(
            value=messages / found["elapsedNs"] * 1e9,
            server_us=(cpu_seconds(peer.pids) - server_cpu) / messages * 1e6,
            client_us=(cpu_seconds(jvm) - client_cpu) / messages * 1e6,
        )

    return client


def _java_version() -> str:
    command = [str(resolve(peers.APACHE_VERSION).java), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.split('"')[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    parser.add_argument("--only", action="append", choices=NAMES, help="measure this row")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to a file")
    parser.add_argument(
        "--store", action="store_true", help="make this run the one that the docs show"
    )
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with console.status("") as status:
        plan = QUICK if asked.quick else FULL
        comparison = Comparison(plan, asked.only or NAMES, status.update)
        begun = time.monotonic()
        comparison.run()
    run = Run(
        is_quick=asked.quick,
        seconds=time.monotonic() - begun,
        machine=report.machine(_java_version()),
        rows=comparison.rows,
    )
    console.print(report.table(run))
    text = msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    for path in [asked.json, RESULTS if asked.store else None]:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    if asked.store:
        report.write_into(PAGE, run)


if __name__ == "__main__":
    main()
