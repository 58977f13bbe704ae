"""Our producer beside the Java client 5.5.0, on the same Apache 5.5.0 broker, in one run.

They take turns, round by round, with 1 KB bodies and no compression, and who is not measured is
paused. All messages are counted at the broker in the end; a rate with losses is a failure. Nothing
else should run meanwhile.

    python -m benchmarks.client [--quick] [--only NAME …] [--server apache|downrange]
        [--json FILE] [--store]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import peers
from benchmarks.load import cpu_seconds
from benchmarks.sender import BATCH, BATCHES_IN_FLIGHT, THREADS, WINDOW, SendMeasured, SendWork
from tests.apache.java_client import JavaClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Peer
    from benchmarks.sender import SendMode

TOPIC: Final = "bench-client"
PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
HEADINGS: Final = [
    *("", "ratio", "target", "messages/s", "client CPU", "server CPU"),
    *("median, µs", "99th percentile, µs"),
]
_BEGIN: Final = "<!-- begin: python -m benchmarks.client -->"
_END: Final = "<!-- end: client -->"
_SENDER_TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to send, by one client.

    Attributes:
        name: What it is called on the command line.
        label: What the table says.
        ours: Our mode, or None for Java.
        java: Java's mode and width.
        base: The way that this one is compared with.
        target: The ratio of rates that is wanted.
    """

    name: str
    label: str
    ours: SendMode | None = None
    java: tuple[str, int] | None = None
    base: str | None = None
    target: float | None = None


WAYS: Final = (
    Way(name="java-sync", label="Java, one thread", java=("sync", 1)),
    Way(name="sync", label="one thread", ours="sync", base="java-sync", target=2.0),
    Way(name="java-async", label=f"Java, {WINDOW} in flight", java=("async", WINDOW)),
    Way(
        name="uvloop",
        label=f"asyncio (uvloop), {WINDOW} in flight",
        ours="uvloop",
        base="java-async",
        target=1.5,
    ),
    Way(name="aio", label=f"asyncio, {WINDOW} in flight", ours="aio", base="java-async"),
    Way(name="submit", label=f"submit, {WINDOW} in flight", ours="submit", base="java-async"),
    Way(name="java-batch", label=f"Java, batches of {BATCH}", java=("batch", BATCH)),
    Way(
        name="batch",
        label=f"batches of {BATCH}, {BATCHES_IN_FLIGHT} in flight",
        ours="aio-batch",
        base="java-batch",
        target=1.5,
    ),
    Way(name="threads", label=f"{THREADS} threads", ours="sync-threads"),
    Way(
        name="auto-batch",
        label=f"automatic batches, {THREADS} threads",
        ours="auto-batch",
        base="threads",
        target=3.0,
    ),
    Way(
        name="aio-auto-batch",
        label=f"automatic batches, {WINDOW} tasks",
        ours="aio-auto-batch",
        base="threads",
        target=3.0,
    ),
)


class Sample(msgspec.Struct, frozen=True):
    """One round of one way."""

    rate: float
    client_cpu_us: float
    server_cpu_us: float
    p50_us: float | None = None
    p99_us: float | None = None


class Bench:
    """One run against one server."""

    def __init__(self, peer: Peer, java: JavaClient, seconds: float, lead_in: float) -> None:
        self._peer = peer
        self._java = java
        self._seconds = seconds
        self._lead_in = lead_in
        options = {"compressMsgBodyOverHowmuch": 1 << 22, "sendMsgTimeout": 10_000}
        self._producer = java.start_producer(peer.name_server, "bench-java", options=options)
        peer.make_topic(TOPIC)

    def warm_up(self, mode: str, width: int, seconds: float) -> None:
        """Let the JVM compile what it will run."""
        self._peer.acknowledged[TOPIC] += self._load(mode, width, seconds)["messages"]

    def measure(self, way: Way) -> Sample:
        """Run one round."""
        server_cpu = cpu_seconds(self._peer.pids)
        if way.java is not None:
            sample = self._measure_java(*way.java)
        else:
            assert way.ours is not None
            sample = self._measure_ours(way.ours)
        spent = cpu_seconds(self._peer.pids) - server_cpu
        count, rate, client_cpu, p50, p99 = sample
        return Sample(rate, client_cpu / count * 1e6, spent / count * 1e6, p50, p99)

    def _measure_java(self, mode: str, width: int) -> tuple[int, float, float, Any, Any]:
        self._peer.acknowledged[TOPIC] += self._load(mode, width, self._lead_in)["messages"]
        before = cpu_seconds([self._java.pid])
        found = self._load(mode, width, self._seconds)
        cpu = cpu_seconds([self._java.pid]) - before
        self._peer.acknowledged[TOPIC] += found["messages"]
        seconds = found["elapsedNs"] / 1e9
        p50, p99 = (None if found[key] is None else found[key] / 1e3 for key in ("p50Ns", "p99Ns"))
        return found["messages"], found["messages"] / seconds, cpu, p50, p99

    def _load(self, mode: str, width: int, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = self._java.call(
            "producer.bench",
            name=self._producer,
            topic=TOPIC,
            mode=mode,
            width=width,
            durationMs=round(seconds * 1000),
            bodyBytes=1024,
            timeout=seconds + 60,
        )
        return found

    def _measure_ours(self, mode: SendMode) -> tuple[int, float, float, Any, Any]:
        work = SendWork(
            mode=mode,
            name_server=self._peer.name_server,
            topic=TOPIC,
            seconds=self._seconds,
            lead_in=self._lead_in,
        )
        self._java_signal(signal.SIGSTOP)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.sender", msgspec.json.encode(work).decode()],
                stdout=subprocess.PIPE,
                timeout=_SENDER_TIMEOUT,
                check=True,
            )
        finally:
            self._java_signal(signal.SIGCONT)
        found = msgspec.json.decode(done.stdout, type=SendMeasured)
        self._peer.acknowledged[TOPIC] += found.messages + found.messages_before
        p50, p99 = found.latencies_us or (None, None)
        return found.messages, found.messages / found.seconds, found.client_cpu, p50, p99

    def _java_signal(self, number: int) -> None:
        os.kill(self._java.pid, number)


def rows_of(samples: dict[str, list[Sample]], ways: Sequence[Way]) -> list[list[str]]:
    """Return the result, a row of texts per way.

    A ratio is the median of the rounds' ratios: the two of a round met the same machine.
    """
    rows: list[list[str]] = []
    for way in ways:
        found = samples[way.name]
        rates = [sample.rate for sample in found]
        middle = statistics.median(rates)
        ratio = ""
        if way.base in samples:
            pairs = zip(found, samples[way.base], strict=True)
            ratio = f"{statistics.median(ours.rate / base.rate for ours, base in pairs):.1f}x"
        rows.append(
            [
                way.label,
                ratio,
                "" if way.target is None else f"{way.target:g}x",
                f"{middle:,.0f} ±{max(abs(rate - middle) for rate in rates) / middle:.0%}",
                f"{statistics.median(sample.client_cpu_us for sample in found):.1f}",
                f"{statistics.median(sample.server_cpu_us for sample in found):.1f}",
                _middle([sample.p50_us for sample in found]),
                _middle([sample.p99_us for sample in found]),
            ]
        )
    return rows


def _middle(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if known else ""


def table_of(rows: list[list[str]], server: str) -> Table:
    """Return the result as a table for a terminal."""
    table = Table(title=f"Producers against {server}")
    for column in HEADINGS:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    return table


def write_into(page: Path, rows: list[list[str]]) -> None:
    """Replace the figures on a page of the docs, which stand between two comments."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{page} has no place for figures"
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    page.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    parser.add_argument("--only", nargs="+", choices=[way.name for way in WAYS])
    parser.add_argument("--server", choices=("apache", "downrange"), default="apache")
    parser.add_argument("--json", type=Path, help="file for the samples")
    parser.add_argument("--store", action="store_true", help="write the figures into the docs")
    arguments = parser.parse_args()
    ways = [way for way in WAYS if arguments.only is None or way.name in arguments.only]
    rounds, seconds, warm_up = (3, 1.5, 3.0) if arguments.quick else (7, 3.0, 15.0)
    samples: dict[str, list[Sample]] = {way.name: [] for way in ways}
    with (
        peers.start(arguments.server) as peer,
        JavaClient("5.5.0", purpose="benchmark") as java,
        Progress(console=Console(stderr=True)) as progress,
    ):
        bench = Bench(peer, java, seconds, lead_in=0.5)
        task = progress.add_task("warming up", total=len(ways) * (rounds + 1))
        for way in ways:
            if way.java is not None:
                bench.warm_up(*way.java, warm_up)
            progress.advance(task)
        for number in range(rounds):
            for way in ways:
                progress.update(task, description=f"round {number + 1}: {way.label}")
                samples[way.name].append(bench.measure(way))
                progress.advance(task)
        peer.check_counts()
    rows = rows_of(samples, ways)
    Console(width=None if sys.stdout.isatty() else 120).print(table_of(rows, arguments.server))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(samples))
    if arguments.store:
        write_into(PAGE, rows)


if __name__ == "__main__":
    main()
