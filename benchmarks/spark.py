"""Our `rocketmq` data source beside Spark's own `kafka` one, and beside what Spark can do at all.

One session, 1 KB bodies, four queues, two cores, brokers on the same machine: `downrange serve`,
Apache RocketMQ 5.5.0, and Kafka. The connector for Kafka is not published for every Spark, so this
runs in an environment of its own with a release that has one; the first run makes it. Nothing else
should run meanwhile.

    python -m benchmarks.spark [--quick] [--only JOB] [--side NAME] [--json FILE] [--store]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec
from rich.console import Console

from benchmarks import kafka, machine, peers, spark_report
from benchmarks.spark_rounds import JOBS, QUEUES, Plan, Rounds, start_session
from benchmarks.spark_sides import KafkaSide, RocketMQSide
from downrange.spark import register
from tests.apache.artifacts import ApacheUnavailable, find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.spark_rounds import Job
    from benchmarks.spark_sides import Side

_ROOT: Final = Path(__file__).parents[1]
_ENVIRONMENT: Final = _ROOT / "build" / f"spark-{kafka.SPARK_VERSION}"
RESULTS: Final = _ROOT / "benchmarks" / "results" / "spark.json"
PAGE: Final = _ROOT / "docs" / "benchmarks.md"
SIDES: Final = ("downrange", "apache", "kafka")
FULL: Final = Plan(rounds=5, warm_up=2, first_warm_up=4, rows=400_000, triggers=40)
QUICK: Final = Plan(rounds=2, warm_up=1, first_warm_up=4, rows=100_000, triggers=15)
_WIDTH: Final = 110  # of the tables, where they go to a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says; `options` are given to our source when it reads."""

    plan: Plan
    is_quick: bool = False
    jobs: Sequence[Job] = tuple(JOBS)
    sides: Sequence[str] = SIDES
    options: dict[str, str] = field(default_factory=dict[str, str])
    files: Sequence[Path] = ()
    is_stored: bool = False


def enter_environment() -> None:
    """Go on under the Spark that has a Kafka connector, in an environment made for it.

    Does not return where another Spark is installed: this process becomes that one.
    """
    if version("pyspark") == kafka.SPARK_VERSION:
        return
    python = _ENVIRONMENT / "bin" / "python"
    ready = _ENVIRONMENT / "ready"
    # What it needs may have changed since it was made.
    if not ready.exists() or ready.stat().st_mtime < (_ROOT / "pyproject.toml").stat().st_mtime:
        uv = [sys.executable, "-m", "uv"]
        make = ["venv", "--quiet", "--clear", "--python", sys.executable, str(_ENVIRONMENT)]
        subprocess.run([*uv, *make], check=True)
        wanted = [f"{name}=={version(name)}" for name in ("pyarrow", "numpy", "rich", "msgspec")]
        wanted += [f"pyspark=={kafka.SPARK_VERSION}", "--editable", f"{_ROOT}[server,cli,spark]"]
        install = ["pip", "install", "--quiet", "--python", str(python)]
        subprocess.run([*uv, *install, *wanted], check=True)
        ready.touch()
    os.chdir(_ROOT)
    os.execv(python, [str(python), "-m", "benchmarks.spark", *sys.argv[1:]])


def start_sides(
    spark: SparkSession, asked: Asked, stack: contextlib.ExitStack
) -> tuple[list[Side], list[str]]:
    """Start the brokers that can be had; return their sides, and what had to be left out."""
    sides: list[Side] = []
    left_out: list[str] = []
    for name in asked.sides:
        try:
            if name == "kafka":
                broker = stack.enter_context(kafka.start_kafka(partitions=QUEUES))
                sides.append(KafkaSide(spark, broker))
            else:
                peer = stack.enter_context(peers.start(cast("peers.Name", name)))
                sides.append(RocketMQSide(spark, peer, name, asked.options))
        except (ApacheUnavailable, kafka.KafkaUnavailable) as error:
            left_out.append(f"{name} ({error})")
    return sides, left_out


def measure(asked: Asked, say: Callable[[str], object]) -> spark_report.Run:
    """Run all rounds."""
    begun = time.monotonic()
    # Workers import the benchmarks' own source.
    os.environ["PYTHONPATH"] = str(_ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="downrange-spark-")))
        say("starting Spark")
        spark = start_session(_connector(asked.sides), folder)
        stack.callback(spark.stop)
        register(spark)
        say("starting brokers")
        sides, left_out = start_sides(spark, asked, stack)
        series = Rounds(spark, sides, folder, asked.plan, say).run(asked.jobs)
    return spark_report.Run(
        is_quick=asked.is_quick,
        seconds=time.monotonic() - begun,
        rows=asked.plan.rows,
        facts=_facts(),
        series=series,
        results=spark_report.compare(series),
        left_out=left_out,
    )


def _connector(sides: Sequence[str]) -> Path | None:
    """Return the jars for Spark; without them `start_sides` leaves Kafka out and says why."""
    with contextlib.suppress(kafka.KafkaUnavailable):
        return kafka.connector_jars() if "kafka" in sides else None
    return None


def _facts() -> dict[str, str]:
    java = [str(find_java()), "-version"]
    told = subprocess.run(java, capture_output=True, text=True, check=True)
    facts = machine.facts(told.stderr.split('"')[1])
    packages = {name: version(name) for name in ("pyspark", "pyarrow", "numpy")}
    servers = {"Kafka": kafka.KAFKA_VERSION, "Apache RocketMQ": peers.APACHE_VERSION}
    # What else ran here: a busy machine shows in the rates, much less in the CPU per row.
    load = {"load average": f"{os.getloadavg()[2]:.0f}"}
    return {**facts, **packages, **servers, **load}


def ask() -> Asked:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some minutes instead of twenty")
    parser.add_argument("--only", action="append", choices=list(JOBS), help="measure this job")
    parser.add_argument("--side", action="append", choices=SIDES, help="measure this side")
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--rows", type=int, help="rows of a job, over all queues")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option for our source when it reads",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to a file")
    parser.add_argument(
        "--store", action="store_true", help="make this run the one that the docs show"
    )
    found = parser.parse_args()
    plan = QUICK if found.quick else FULL
    changes = {"rounds": found.rounds, "rows": found.rows}
    return Asked(
        plan=replace(plan, **{name: value for name, value in changes.items() if value}),
        is_quick=found.quick,
        jobs=found.only or tuple(JOBS),
        sides=found.side or SIDES,
        options=dict(option.split("=", 1) for option in found.option),
        files=[path for path in (found.json, RESULTS if found.store else None) if path],
        is_stored=found.store,
    )


def main() -> None:
    asked = ask()
    enter_environment()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with console.status("") as status:

        def say(text: str) -> None:
            status.update(text) if console.is_terminal else console.print(text, style="dim")

        run = measure(asked, say)
    for table in spark_report.tables(run):
        console.print(table)
    for reason in run.left_out:
        console.print(f"left out: {reason}", style="yellow")
    text = msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    for path in asked.files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    if asked.is_stored:
        spark_report.write_into(PAGE, run)


if __name__ == "__main__":
    main()
