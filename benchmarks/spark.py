"""Compare our `rocketmq` data source with Spark's `kafka` source and with Spark's own limits.

One session, 1 KB bodies, four queues, two cores, brokers on the same machine: `downrange serve`,
Apache RocketMQ 5.5.0, and Kafka. The Kafka connector is not published for every Spark release, so
this runs in a separate environment with a release that has one; the first run creates it. Nothing
else should run at the same time.

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

from benchmarks import kafka, machine, server_pair, spark_report
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
_WIDTH: Final = 110  # of the tables, if the output is not a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of the command; `options` are passed to our source when it reads."""

    plan: Plan
    is_quick: bool = False
    jobs: Sequence[Job] = tuple(JOBS)
    sides: Sequence[str] = SIDES
    options: dict[str, str] = field(default_factory=dict[str, str])
    files: Sequence[Path] = ()
    is_stored: bool = False


def enter_environment() -> None:
    """Switch to an environment with a Spark release that has a Kafka connector.

    If another Spark is installed, it does not return: it replaces this process by one there.
    """
    if version("pyspark") == kafka.SPARK_VERSION:
        return
    python = _ENVIRONMENT / "bin" / "python"
    ready = _ENVIRONMENT / "ready"
    # The requirements may have changed since the environment was created.
    if not ready.exists() or ready.stat().st_mtime < (_ROOT / "pyproject.toml").stat().st_mtime:
        uv = [sys.executable, "-m", "uv"]
        make = ["venv", "--quiet", "--clear", "--python", sys.executable, str(_ENVIRONMENT)]
        subprocess.run([*uv, *make], check=True)
        requirements = [
            f"{name}=={version(name)}" for name in ("pyarrow", "numpy", "rich", "msgspec")
        ]
        requirements += [
            f"pyspark=={kafka.SPARK_VERSION}",
            "--editable",
            f"{_ROOT}[server,cli,spark]",
        ]
        install = ["pip", "install", "--quiet", "--python", str(python)]
        subprocess.run([*uv, *install, *requirements], check=True)
        ready.touch()
    os.chdir(_ROOT)
    os.execv(python, [str(python), "-m", "benchmarks.spark", *sys.argv[1:]])


def start_sides(
    spark: SparkSession, arguments: Arguments, stack: contextlib.ExitStack
) -> tuple[list[Side], list[str]]:
    """Start the available brokers; return their sides, and what was left out with the reason."""
    sides: list[Side] = []
    left_out: list[str] = []
    for name in arguments.sides:
        try:
            if name == "kafka":
                broker = stack.enter_context(kafka.start_kafka(partitions=QUEUES))
                sides.append(KafkaSide(spark, broker))
            else:
                peer = stack.enter_context(server_pair.start(cast("server_pair.Name", name)))
                sides.append(RocketMQSide(spark, peer, name, arguments.options))
        except (ApacheUnavailable, kafka.KafkaUnavailable) as error:
            left_out.append(f"{name} ({error})")
    return sides, left_out


def measure(arguments: Arguments, show: Callable[[str], object]) -> spark_report.Run:
    """Run all rounds."""
    started = time.monotonic()
    # Python workers import the data source of the benchmarks.
    os.environ["PYTHONPATH"] = str(_ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="downrange-spark-")))
        show("starting Spark")
        spark = start_session(_connector(arguments.sides), folder)
        stack.callback(spark.stop)
        register(spark)
        show("starting brokers")
        sides, left_out = start_sides(spark, arguments, stack)
        series = Rounds(spark, sides, folder, arguments.plan, show).run(arguments.jobs)
    return spark_report.Run(
        is_quick=arguments.is_quick,
        seconds=time.monotonic() - started,
        rows=arguments.plan.rows,
        facts=_facts(),
        series=series,
        results=spark_report.compare(series),
        left_out=left_out,
    )


def _connector(sides: Sequence[str]) -> Path | None:
    """Return the jars for Spark; without them `start_sides` leaves Kafka out."""
    with contextlib.suppress(kafka.KafkaUnavailable):
        return kafka.connector_jars() if "kafka" in sides else None
    return None


def _facts() -> dict[str, str]:
    java = [str(find_java()), "-version"]
    done = subprocess.run(java, capture_output=True, text=True, check=True)
    facts = machine.facts(done.stderr.split('"')[1])
    packages = {name: version(name) for name in ("pyspark", "pyarrow", "numpy")}
    servers = {"Kafka": kafka.KAFKA_VERSION, "Apache RocketMQ": server_pair.APACHE_VERSION}
    # Other load on the machine changes the rates, and much less the CPU per row.
    load = {"load average": f"{os.getloadavg()[2]:.0f}"}
    return {**facts, **packages, **servers, **load}


def parse_arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of twenty")
    parser.add_argument("--only", action="append", choices=list(JOBS), help="measure this job")
    parser.add_argument("--side", action="append", choices=SIDES, help="measure this side")
    parser.add_argument("--rounds", type=int, help="measured rounds")
    parser.add_argument("--rows", type=int, help="rows of a job, in all queues together")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of our source for reading",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to a file")
    parser.add_argument("--store", action="store_true", help="write this run into the docs")
    found = parser.parse_args()
    plan = QUICK if found.quick else FULL
    changes = {"rounds": found.rounds, "rows": found.rows}
    return Arguments(
        plan=replace(plan, **{name: value for name, value in changes.items() if value}),
        is_quick=found.quick,
        jobs=found.only or tuple(JOBS),
        sides=found.side or SIDES,
        options=dict(option.split("=", 1) for option in found.option),
        files=[path for path in (found.json, RESULTS if found.store else None) if path],
        is_stored=found.store,
    )


def main() -> None:
    arguments = parse_arguments()
    enter_environment()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with console.status("") as status:

        def show(text: str) -> None:
            status.update(text) if console.is_terminal else console.print(text, style="dim")

        run = measure(arguments, show)
    for table in spark_report.tables(run):
        console.print(table)
    for reason in run.left_out:
        console.print(f"left out: {reason}", style="yellow")
    text = msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"
    for path in arguments.files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    if arguments.is_stored:
        spark_report.write_into(PAGE, run)


if __name__ == "__main__":
    main()
