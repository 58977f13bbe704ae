"""Compare clients and servers: ours, Java's and Apache's, in interleaved rounds.

    python -m benchmarks [--quick] [--only NAME …] [--rounds N] [--seconds S]
        [--json FILE] [--store]

A NAME is a part of a cell's name, such as "java", "apache", "async-256" or "1024", or a glob
pattern for the whole name, such as "*/apache/sync-1/1024/*"; "start", "idle-memory" and "idle-cpu"
are names, too. Nothing else should run at the same time. Ctrl-C ends the run and prints the results
so far.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import machine, server_pair
from benchmarks.matrix import charts, page, results, tables
from benchmarks.matrix.plan import FULL, QUICK, Plan, left_out
from benchmarks.matrix.rounds import Matrix
from tests.apache.artifacts import ApacheUnavailable, resolve

_WIDTH: Final = 130  # of the tables, if the output is not a terminal


class Bar:
    """A progress bar that counts seconds."""

    def __init__(self, progress: Progress) -> None:
        """Add the bar to a progress display."""
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._kind = ""

    def expect(self, seconds: float) -> None:
        """Set the estimated total time."""
        self._progress.update(self._task, total=seconds)

    def show(self, text: str) -> None:
        """Show the next step; without a terminal, print its kind when that changes."""
        self._progress.update(self._task, description=text)
        kind = text.partition(":")[0]
        if kind != self._kind and not self._progress.console.is_terminal:
            self._progress.console.print(kind, style="dim")
        self._kind = kind

    def advance(self, seconds: float) -> None:
        """Advance the bar."""
        self._progress.advance(self._task, seconds)


def measure(plan: Plan, console: Console, *, is_quick: bool) -> results.Run:
    """Run a plan; if it is interrupted, return the results so far."""
    columns = (
        TextColumn("{task.description:<44}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    started, is_complete = time.monotonic(), False
    load = f"{os.getloadavg()[0]:.1f}"
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300.0) as shown:
        bar = Bar(shown)
        matrix = Matrix(plan, bar)
        bar.expect(matrix.estimated_seconds)
        try:
            matrix.run()
            is_complete = True
        except KeyboardInterrupt:
            pass
        except ApacheUnavailable:
            raise
        except Exception:
            # Keep the results of half an hour, even if a server does not start again.
            console.print_exception()
    return results.Run(
        is_quick=is_quick,
        is_complete=is_complete,
        seconds=time.monotonic() - started,
        rounds=plan.rounds,
        round_seconds=plan.seconds,
        machine={
            **machine.facts(_java_version()),
            "downrange": machine.version_of("downrange"),
            "Apache RocketMQ": server_pair.APACHE_VERSION,
            "load average before": load,
        },
        series=list(matrix.series.values()),
        probes=matrix.probes,
    )


def show(run: results.Run, console: Console) -> None:
    """Print a run: targets, cells, the machine, and failures."""
    for rows in tables.all_rows(run):
        console.print(tables.terminal_table(rows))
    console.print(
        "µs: CPU time per message. ratio: rate relative to Java → Apache."
        " ±: distance of the farthest round from the median.",
        style="dim",
    )
    console.print(tables.origin(run), style="dim")
    for line in run.left_out:
        console.print(f"left out: {line}", style="dim")
    for failure in run.failures:
        console.print(f"failed: {failure}", style="red", markup=False)


def _java_version() -> str:
    command = [str(resolve(server_pair.APACHE_VERSION).java), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.split('"')[1]


def _ask() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="only cells with a target, in five minutes"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure only these")
    parser.add_argument("--rounds", type=int, help="rounds per cell")
    parser.add_argument("--seconds", type=float, help="seconds per round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to a file")
    parser.add_argument("--store", action="store_true", help="write this run into the docs")
    return parser.parse_args()


def main() -> None:
    asked = _ask()
    plan = QUICK if asked.quick else FULL
    plan = replace(plan, rounds=asked.rounds or plan.rounds, seconds=asked.seconds or plan.seconds)
    try:
        plan = plan.narrowed(asked.only)
    except ValueError as error:
        sys.exit(str(error))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # same end as with Ctrl-C
    try:
        run = measure(plan, console, is_quick=asked.quick)
    except ApacheUnavailable as error:
        sys.exit(f"Apache RocketMQ is not available for the comparison: {error}")
    if asked.quick and not asked.only:
        run.left_out = left_out(plan)
    show(run, console)
    if asked.json is not None:
        results.store(run, asked.json)
    if asked.store and run.is_complete:
        results.store(run, results.STORED)
        charts.draw()
        page.write(run)
    sys.exit(130 if not run.is_complete else 1 if run.failures else 0)


if __name__ == "__main__":
    main()
