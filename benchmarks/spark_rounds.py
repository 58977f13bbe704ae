"""The rounds of `benchmarks.spark`: every job on every side, in turns, in one Spark session.

A round runs a job once on each side, one after the other, so that other load on the machine affects
all sides. The first rounds are the warm-up: the JVM compiles, and Python workers start, which end
after a minute without work. They are not measured. Rows are checked before the measurement, and
written rows at the end: a rate with lost rows is a failure.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, length
from pyspark.sql.functions import sum as sum_of

from benchmarks.spark_costs import Costs, Meter
from benchmarks.spark_report import Sample, Series
from benchmarks.spark_sides import BODY_COLUMN
from benchmarks.spark_sources import BODY_BYTES, COMMON, PrebuiltDataSource, write_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from benchmarks.spark_sides import Side

Job: TypeAlias = Literal["read", "all", "parquet", "parquet-all", "write", "trigger"]
JOBS: Final[dict[Job, str]] = {
    "read": "read",
    "all": "read, all columns",
    "parquet": "to Parquet",
    "parquet-all": "to Parquet, all columns",
    "write": "write",
    "trigger": "small trigger",
}
QUEUES: Final = 4
#: Rows of a small trigger per queue.
TRIGGER_ROWS: Final = 10
_TRIGGERS_BEFORE: Final = 3
_TRIGGER_TIMEOUT: Final = 120.0
_POLL_INTERVAL: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure.

    Attributes:
        rounds: Measured rounds.
        warm_up: Rounds of a job before the measured ones.
        first_warm_up: Additional rounds before the first job, so that the JVM compiles the code
            that all jobs use; Kafka's path is all Java and needs it most.
        rows: Rows of a job, in all queues together.
        triggers: Triggers of a stream in one round.
    """

    rounds: int
    warm_up: int
    first_warm_up: int
    rows: int
    triggers: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One job on one side: the function to run, and the processes to measure."""

    job: Job
    side: str
    title: str
    run: Callable[[], float | None]
    broker: Side | None = None


@dataclass(slots=True)
class Rounds:
    """Runs all jobs.

    Attributes:
        spark: The session.
        sides: Connectors with their brokers.
        folder: For temporary files.
        plan: How much to measure.
        show: Called with the current step.
    """

    spark: SparkSession
    sides: Sequence[Side]
    folder: Path
    plan: Plan
    show: Callable[[str], object]
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _written: dict[str, int] = field(default_factory=dict[str, int])

    def run(self, jobs: Sequence[Job]) -> list[Series]:
        """Fill the brokers, check them, and measure all jobs."""
        self._prepare()
        for turn in self._turns(jobs[0]) * self.plan.first_warm_up:
            self.show(f"{turn.title}, warm-up")
            self._measure(turn)
        series = [each for job in jobs for each in self._compare(self._turns(job))]
        for side in self.sides:
            side.resume()
            side.check_written(self._written.get(side.name, 0))
        return series

    def _compare(self, turns: Sequence[Turn]) -> list[Series]:
        """Run one job on all sides, round by round."""
        found: list[list[Sample]] = [[] for _ in turns]
        for number in range(self.plan.warm_up + self.plan.rounds):
            for turn, samples in zip(turns, found, strict=True):
                kind = "warm-up" if number < self.plan.warm_up else "round"
                self.show(f"{turn.title}, {kind} {number + 1}")
                sample = self._measure(turn)
                if number >= self.plan.warm_up:
                    samples.append(sample)
        return [
            Series(
                job=turn.job,
                side=turn.side,
                title=turn.title,
                unit="ms" if turn.job == "trigger" else "rows/s",
                samples=samples,
            )
            for turn, samples in zip(turns, found, strict=True)
        ]

    def _prepare(self) -> None:
        self.show("generating messages")
        self.spark.dataSource.register(PrebuiltDataSource)
        rows = self.plan.rows // QUEUES
        write_messages(self._messages, QUEUES, rows)
        for side in self.sides:
            self.show(f"filling {side.name}")
            side.fill(self.spark.read.parquet(str(self._messages)), rows)
            self._check(side, rows * QUEUES)
            side.pause()
        os.sync()

    def _check(self, side: Side, expected: int) -> None:
        """Check that all rows and all bytes of the bodies arrive."""
        table = side.read_common()
        body = table.columns[BODY_COLUMN]
        found = table.agg(count("*"), sum_of(length(body))).collect()[0]
        if tuple(found) != (expected, expected * BODY_BYTES):
            raise RuntimeError(
                f"{side.name} returned {tuple(found)} rows and bytes, not {expected}"
            )

    @property
    def _messages(self) -> Path:
        return self.folder / "messages"

    def _turns(self, job: Job) -> list[Turn]:
        """Return a job on every side, then on the ceilings."""
        turns = [self._turn(job, side) for side in self.sides]
        tables = {"prebuilt Arrow": self._prebuilt, "Parquet file": self._file}
        for name, table in tables.items() if job in ("read", "all") else ():
            turns.append(self._ceiling(job, name, _drain, table))
        if job in ("parquet", "parquet-all"):
            turns.append(self._ceiling(job, "prebuilt Arrow", self._to_parquet, self._prebuilt))
        return turns

    def _turn(self, job: Job, side: Side) -> Turn:
        runs: dict[Job, Callable[[], float | None]] = {
            "read": lambda: _drain(side.read_common()),
            "all": lambda: _drain(side.read()),
            "parquet": lambda: self._to_parquet(side.read_common()),
            "parquet-all": lambda: self._to_parquet(side.read()),
            "write": lambda: self._write(side),
            "trigger": lambda: self._trigger(side),
        }
        return Turn(job, side.name, f"{side.name}: {JOBS[job]}", runs[job], side)

    def _ceiling(
        self,
        job: Job,
        name: str,
        use: Callable[[DataFrame], None],
        table: Callable[[str | None], DataFrame],
    ) -> Turn:
        schema = None if job in ("all", "parquet-all") else COMMON
        return Turn(job, name, f"{name}: {JOBS[job]}", lambda: use(table(schema)))

    def _measure(self, turn: Turn) -> Sample:
        if turn.broker is not None:
            turn.broker.resume()
        meter = Meter(jvm_pid(self.spark), turn.broker.pids if turn.broker else [])
        milliseconds = turn.run()
        costs = meter.costs()
        if turn.broker is not None:
            turn.broker.pause()
        if turn.job in ("write", "parquet", "parquet-all"):
            os.sync()  # pending writes must not slow the next turn
        rows = self.plan.rows // QUEUES * QUEUES
        if milliseconds is not None:
            return _sample(milliseconds, costs, QUEUES * TRIGGER_ROWS * self.plan.triggers)
        return _sample(rows / costs.seconds, costs, rows)

    def _prebuilt(self, schema: str | None = None) -> DataFrame:
        options = {"tasks": str(QUEUES), "rows": str(self.plan.rows // QUEUES)}
        reader = self.spark.read.format("prebuilt").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def _file(self, schema: str | None = None) -> DataFrame:
        table = self.spark.read.parquet(str(self._messages))
        return table.select(*(part.split()[0] for part in schema.split(", "))) if schema else table

    def _to_parquet(self, table: DataFrame) -> None:
        target = self.folder / "out"
        table.write.mode("overwrite").parquet(str(target))

    def _write(self, side: Side) -> None:
        side.write(self._file())
        self._written[side.name] = self._written.get(side.name, 0) + (
            self.plan.rows // QUEUES * QUEUES
        )

    def _trigger(self, side: Side) -> float:
        """Follow the topic for some triggers and return their median duration in ms."""
        checkpoint = self.folder / f"checkpoint-{next(self._numbers)}"
        writer = side.follow(QUEUES * TRIGGER_ROWS).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            expected = _TRIGGERS_BEFORE + self.plan.triggers
            deadline = time.monotonic() + _TRIGGER_TIMEOUT
            while len(query.recentProgress) < expected and time.monotonic() < deadline:
                if (error := query.exception()) is not None:
                    raise error
                time.sleep(_POLL_INTERVAL)
            progress = query.recentProgress[_TRIGGERS_BEFORE:expected]
        finally:
            query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
        if not progress or any(each.numInputRows != QUEUES * TRIGGER_ROWS for each in progress):
            raise RuntimeError(f"{side.name} had triggers of another size")
        return median(each.durationMs["triggerExecution"] for each in progress)


def _drain(table: DataFrame) -> None:
    """Compute every column of every row and discard them."""
    table.write.format("noop").mode("overwrite").save()


def _sample(value: float, costs: Costs, rows: int) -> Sample:
    return Sample(
        value=value,
        broker_us=costs.broker / rows * 1e6,
        jvm_us=costs.jvm / rows * 1e6,
        python_us=costs.python / rows * 1e6,
        worker_peak_mb=costs.worker_peak_bytes / 2**20,
    )


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the session's JVM."""
    jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    return int(jvm.java.lang.ProcessHandle.current().pid())


def start_session(jars: Path | None, folder: Path) -> SparkSession:
    """Start Spark with two local cores and the settings of our guide."""
    builder = (
        SparkSession.Builder()
        .master("local[2]")
        .appName("downrange-benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    if jars is not None:
        builder = builder.config("spark.driver.extraClassPath", f"{jars}/*")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
