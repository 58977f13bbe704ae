"""Measure values that must not grow, print them, and store them if requested."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine
from benchmarks.growth import charts, report
from benchmarks.growth.measures import Connections, Log, Part, Topics
from benchmarks.growth.plans import FULL, QUICK, Plan
from benchmarks.growth.report import Run
from benchmarks.growth.servers import APACHE_VERSION
from tests.apache.artifacts import ApacheUnavailable, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.growth.servers import Side

_ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = _ROOT / "benchmarks" / "results" / "growth.json"
PAGE: Final = _ROOT / "docs" / "benchmarks.md"
PARTS: Final[dict[str, Callable[[Plan], Part]]] = {
    "topics": Topics,
    "log": Log,
    "connections": Connections,
}

_WIDTH: Final = 110  # of the table, if the output is not a terminal
_GB: Final = 1_000_000_000


def without_apache(plan: Plan) -> Plan:
    """Return the plan with our side only."""
    ours: Side = "downrange"
    return replace(
        plan,
        topics={ours: plan.topics[ours]},
        levels={ours: plan.levels[ours]},
        restarts={ours: plan.restarts[ours]},
        connections={ours: plan.connections[ours]},
    )


def fit(plan: Plan, free_bytes: float) -> tuple[Plan, list[str]]:
    """Return a plan whose stores fit on the disk, and the sizes that were left out."""
    # Half of the disk stays free; only one side has a store at a time.
    most = free_bytes / 2 / _GB
    left_out = sorted({each for levels in plan.levels.values() for each in levels if each > most})
    levels = {side: tuple(x for x in sizes if x <= most) for side, sizes in plan.levels.items()}
    fitting = replace(plan, levels=levels)
    return fitting, [f"{size:g} GB, because the disk is too full" for size in left_out]


def prepare(is_quick: bool) -> tuple[Plan, str, list[str]]:
    """Return the plan for this machine, the version of Java, and what is left out."""
    plan, left_out = fit(QUICK if is_quick else FULL, shutil.disk_usage(tempfile.gettempdir()).free)
    try:
        java = resolve(APACHE_VERSION).java
    except ApacheUnavailable as error:
        return without_apache(plan), "none", [*left_out, f"Apache {APACHE_VERSION}: {error}"]
    done = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=True)
    if is_quick:
        left_out.append(f"Apache {APACHE_VERSION}, 10,000 topics and 3 GB, to save time")
    return plan, done.stderr.split('"')[1], left_out


def measure(plan: Plan, names: list[str], console: Console) -> list[report.Axis]:
    """Run the selected parts and show a progress bar."""
    axes: list[report.Axis] = []
    columns = (TextColumn("{task.description:42}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        parts = [PARTS[name](plan) for name in names]
        task = progress.add_task("", total=sum(len(list(part.steps())) for part in parts))
        for part in parts:
            try:
                for step in part.steps():
                    progress.update(task, description=step.what)
                    step.act()
                    progress.advance(task)
            finally:
                part.close()
            axes += part.axes()
    return axes


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only our server, in less than a minute"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--store", action="store_true", help="write figures and plots into docs/")
    arguments = parser.parse_args()
    started = time.monotonic()
    plan, java, left_out = prepare(arguments.quick)
    axes = measure(plan, arguments.only, Console(stderr=True))
    run = Run(
        is_quick=arguments.quick,
        seconds=time.monotonic() - started,
        machine={**machine.facts(java), "Apache RocketMQ": APACHE_VERSION},
        left_out=left_out,
        axes=axes,
    )
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(report.table(run))
    for note in left_out:
        print(f"left out: {note}")
    encoded = msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    if arguments.json is not None:
        arguments.json.write_bytes(encoded)
    if arguments.store:
        RESULTS.write_bytes(encoded)
        charts.draw(RESULTS)
        report.write_into(PAGE, f"{report.markdown(run)}\n{charts.pictures(run)}")


if __name__ == "__main__":
    main()
