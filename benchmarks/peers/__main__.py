"""Compare Downrange with the other Python clients of RocketMQ, on the same Apache 5.5.0 server.

    python -m benchmarks.peers [--rounds 3] [--seconds 5] [--bytes 1024] [--only NAME …] [--store]

Each client is installed into an environment of its own (`build/peers`) and runs in a process of its
own. In each round all clients send in turn: one message at a time, then with 256 in flight. The
broker has the gRPC proxy inside its process. Figures are acknowledged messages per second, and CPU
of the client's process per message, medians of the rounds; a ratio is the median of the ratios of
the rounds. Before the first round, each client sends unmeasured. At the end the queues must hold as
many messages as were acknowledged. A client that cannot be installed or run is named with the
reason. `--store` writes the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.peers.clients import IN_FLIGHT
from benchmarks.peers.processes import Failed, Worker, install
from benchmarks.peers.proxied import VERSION, ProxiedCluster
from benchmarks.server_pair import Peer
from downrange.native import path_in_use
from tests.apache.artifacts import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- begin: python -m benchmarks.peers -->\n"
END: Final = "<!-- end: peers -->\n"
WAYS: Final = ("one", "many")
_WARM_UP: Final = 4.0
#: The release of Java's client that pyrocketmq works with: 5.x has renamed what it imports.
_JAVA_CLIENT: Final = "4.9.4"


@dataclass(frozen=True)
class Candidate:
    """A client of the comparison.

    Attributes:
        name: For the table.
        module: In `benchmarks.peers.clients`.
        packages: What is installed; nothing for our own, which is there.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()


CANDIDATES: Final = (
    Candidate("Downrange, asyncio", "downrange_asyncio"),
    Candidate("Downrange, threads", "downrange_threads"),
    Candidate("rocketmq-python-client 5.1.2", "grpc_client", ("rocketmq-python-client==5.1.2",)),
    Candidate("rocketmq 0.4.4", "cpp_client", ("rocketmq==0.4.4",)),
    Candidate(
        "rocketmq-client-python 2.0.0",
        "cpp_client",
        ("rocketmq-client-python==2.0.0", "setuptools"),
    ),
    Candidate("pyrocketmq 0.3.4", "jvm_client", ("pyrocketmq==0.3.4", "JPype1")),
)


@dataclass
class Result:
    """The figures of a client: rates and CPU by way, or the reason why there are none."""

    name: str
    rates: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    costs: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    reason: str = ""

    def rate(self, way: str) -> float:
        """Return the median of messages per second."""
        return statistics.median(self.rates[way])

    def ratio(self, way: str, reference: Result) -> float:
        """Return the median of the ratios of all rounds: other load of the machine hits both."""
        return statistics.median(
            ours / theirs
            for ours, theirs in zip(self.rates[way], reference.rates[way], strict=True)
        )

    def cost(self, way: str) -> float:
        """Return the median of microseconds of CPU per message."""
        return statistics.median(self.costs[way])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, and print or store the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--bytes", type=int, default=1024, help="of each body")
    parser.add_argument("--only", nargs="+", default=[""], help="clients whose names have this")
    parser.add_argument("--store", action="store_true", help=f"write into {PAGE.name}")
    options = parser.parse_args(arguments)
    chosen = [each for each in CANDIDATES if any(text in each.name for text in options.only)]
    results = compare(chosen, options.rounds, options.seconds, options.bytes)
    text = (
        f"{date.today()}: Apache RocketMQ {VERSION}, Python {sys.version.split()[0]}, bodies of "
        f"{options.bytes} bytes, {options.rounds} rounds of {options.seconds:g} s; Downrange runs "
        f"{path_in_use()}. Ratios are to the first line.\n\n"
        f"{table(results)}"
    )
    print(f"\n{text}")
    if options.store:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def compare(
    candidates: Sequence[Candidate], rounds: int, seconds: float, body_bytes: int
) -> list[Result]:
    """Measure all clients in turns; one that fails has a reason instead of figures."""
    results = {each: Result(each.name) for each in candidates}
    pythons: dict[Candidate, Path] = {}
    for each in candidates:
        try:
            pythons[each] = install(each.packages)
        except Failed as error:
            results[each].reason = f"cannot be installed: {error}"
    with ProxiedCluster() as cluster:
        broker = Peer(
            name="apache",
            name_server=cluster.name_server,
            broker=cluster.brokers[0].address,
            pids=[],
        )
        addresses = {
            "name_server": cluster.name_server,
            "proxy": cluster.proxy,
            "jars": resolve(_JAVA_CLIENT).classpath,
        }
        workers: dict[Candidate, Worker] = {}
        try:
            for each, python in pythons.items():
                topic = f"peers-{len(workers)}"
                broker.make_topic(topic)
                workers[each] = Worker(python, each.module, addresses, topic, body_bytes)
            for number in range(-1, rounds):  # the first one is the warm-up
                for each, worker in workers.items():
                    if not results[each].reason:
                        _measure(worker, results[each], seconds, is_warm_up=number < 0)
                        broker.acknowledged[worker.topic] = worker.sent
            for each, worker in workers.items():
                if not results[each].reason:
                    broker.check_count(worker.topic)
        finally:
            for worker in workers.values():
                worker.close()
    return list(results.values())


def _measure(worker: Worker, result: Result, seconds: float, *, is_warm_up: bool) -> None:
    try:
        for way in WAYS:
            sent, taken, cpu = worker.run(way, _WARM_UP if is_warm_up else seconds)
            if not is_warm_up:
                result.rates[way].append(sent / taken)
                result.costs[way].append(1e6 * cpu / max(sent, 1))
                print(f"{result.name:32} {way:5} {sent / taken:>9,.0f}/s", flush=True)
    except Failed as error:
        result.reason = f"cannot be run: {error}"


def table(results: Sequence[Result]) -> str:
    """Return the results as a table of Markdown; ratios are to the first client."""
    lines = [
        "| Client | one at a time, per second | CPU µs | "
        f"{IN_FLIGHT} in flight, per second | CPU µs |",
        "|---|---:|---:|---:|---:|",
    ]
    measured = [each for each in results if not each.reason]
    for each in measured:
        cells: list[str] = []
        for way in WAYS:
            ratio = each.ratio(way, measured[0])
            cells += [f"{each.rate(way):,.0f} ({ratio:.2f}x)", f"{each.cost(way):,.0f}"]
        lines.append(f"| {each.name} | {' | '.join(cells)} |")
    missing = [f"- {each.name} {each.reason}" for each in results if each.reason]
    return "\n".join([*lines, *([""] if missing else []), *missing, ""])


if __name__ == "__main__":
    main()
