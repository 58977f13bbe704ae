"""The demo from begin to end: a cluster, a day of the shop, Spark, and a check that all agrees."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.demo.audit import check_topic, read_stored
from downrange.demo.servers import Servers
from downrange.demo.shop_day import Trading
from downrange.demo.spark_jobs import (
    LAKE,
    land,
    landed_in,
    report,
    run_apart,
    running_spark,
    why_not,
)
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.demo.audit import Found, TopicCheck
    from downrange.demo.consumers import Reading
    from downrange.demo.progress import Show
    from downrange.demo.spark_jobs import TraceReport
    from downrange.pipelines.stream_run import StopRequest

#: Says that a folder is a demo's, so that the next one may take its place.
MARK: Final = ".downrange-demo"
SECONDS_MIN: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo runs.

    Attributes:
        output: Folder of what it leaves behind.
        seconds: How long the shop is open.
        is_spark_wanted: Whether to run the pipelines.
        seed: The same seed, the same orders.
    """

    output: Path
    seconds: float = 12.0
    is_spark_wanted: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option and its value.
        """
        if not self.seconds >= SECONDS_MIN:
            raise OptionError(
                f"seconds={self.seconds} is too short for a broker to die and come back; give "
                f"{SECONDS_MIN:.0f} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What the demo found.

    Attributes:
        checks: Each topic, from sending to landing.
        readings: What the readers did.
        left_out: What did not run, and why; None when everything did.
        traces: The report of the traces; None when Spark did not run.
        output: Folder of everything that was left behind.
        elapsed: How long it took, in seconds.
    """

    checks: tuple[TopicCheck, ...]
    readings: tuple[Reading, ...]
    left_out: str | None
    traces: TraceReport | None
    output: Path
    elapsed: float

    @property
    def agrees(self) -> bool:
        """Whether what was acknowledged, stored and landed is the same."""
        return not any(check.problems for check in self.checks)


def run_demo(
    options: DemoOptions,
    show: Show,
    *,
    before_stop: Callable[[DemoOutcome, str], None] = lambda outcome, name_server: None,
) -> DemoOutcome:
    """Run the demo.

    Args:
        options: How.
        show: Where to show how it goes.
        before_stop: Called at the end with the name server's address; the cluster stops when it
            returns.

    Raises:
        OptionError: The output folder is somebody else's.
        RocketMQError: A server does not start, or messages do not appear.
    """
    began = time.monotonic()
    prepare(options.output)
    left_out = why_not() if options.is_spark_wanted else "--no-spark was given"
    with ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="downrange-demo-"))
        servers = Servers(Path(store), options.output / "logs")
        with show.stage("Start a name server and two brokers, each a process of its own") as stage:
            stage.bar("servers")
            stack.enter_context(servers)
            brokers = ", ".join(f"{name} {address}" for name, address in servers.brokers.items())
            stage.done(f"name server {servers.name_server}, {brokers}")
        trading, stored = _trade(servers, options, show)
        landed, later, traces = None, stored, None
        if left_out is None:
            name_server, output = servers.name_server, options.output
            landed, later, traces = run_apart(
                lambda stop: _analyse(name_server, stored, output, show, stop), show.say
            )
        outcome = DemoOutcome(
            checks=tuple(
                check_topic(
                    account,
                    stored[topic],
                    landed[topic] if landed is not None else None,
                    later[topic],
                )
                for topic, account in trading.accounts.items()
            ),
            readings=trading.readings,
            left_out=left_out,
            traces=traces,
            output=options.output,
            elapsed=time.monotonic() - began,
        )
        _write_summary(outcome)
        before_stop(outcome, servers.name_server)
    return outcome


def _trade(
    servers: Servers, options: DemoOptions, show: Show
) -> tuple[Trading, Mapping[str, Found]]:
    """Let the shop work; return what it was told, and what is stored."""
    with Trading(servers, seconds=options.seconds, seed=options.seed) as trading:
        with show.stage(f"Trade for {options.seconds:g} s, in every way to send") as stage:
            trading.trade(stage, victim=trading.open())
            sent = sum(account.tally().acknowledged for account in trading.accounts.values())
            stage.done(f"{sent:,} messages were acknowledged")
        with show.stage("Wait for what is delayed or undecided, and read everything back") as stage:
            stored = trading.settle(stage)
            count = sum(len(found.ids) for found in stored.values())
            stage.done(f"{count:,} messages are stored, every acknowledged one among them")
        servers.check()
    return trading, stored


def _analyse(
    name_server: str, stored: Mapping[str, Found], output: Path, show: Show, stop: StopRequest
) -> tuple[Mapping[str, Found], Mapping[str, Found], TraceReport]:
    """Run the pipelines; return what landed, what is stored by then, and the report."""
    with ExitStack() as stack:
        with show.stage("Start Spark") as stage:
            stage.bar("Spark")
            spark = stack.enter_context(running_spark(stop))
            cores = spark.sparkContext.defaultParallelism
            stage.done(f"Spark {spark.version}, {cores} tasks at once")
        with show.stage("Lake: all topics to Parquet, exactly once") as stage:
            bar = stage.bar("rows")
            land(spark, name_server, stored, output / LAKE, bar=bar, stop=stop)
            landed = landed_in(output / LAKE, stored)
            count = sum(len(found.ids) for found in landed.values())
            stage.done(f"{count:,} rows landed")
        later = stored
        if any(landed[topic].ids.keys() != stored[topic].ids.keys() for topic in stored):
            later = read_stored(name_server, stored)
        with show.stage("Traces: tables, and a report to look at") as stage:
            bar = stage.bar("report")
            found = report(spark, name_server, stored, output, bar=bar, stop=stop)
            stage.done(
                f"traces of {found.sends:,} sends and {found.deliveries:,} deliveries; "
                f"{found.unconsumed:,} messages were never consumed"
            )
    return landed, later, found


def prepare(output: Path) -> None:
    """Make the folder, in place of the one that a demo before left there.

    Raises:
        OptionError: There is something else in it, or it cannot be made.
    """
    try:
        if output.is_dir() and any(output.iterdir()):
            if not (output / MARK).exists():
                raise OptionError(
                    f"output={str(output)!r} holds files that are no demo's; name another folder"
                )
            shutil.rmtree(output)
        output.mkdir(parents=True, exist_ok=True)
        (output / MARK).write_text("Made by `downrange demo`, which may replace this folder.\n")
    except OSError as error:
        raise OptionError(f"output={str(output)!r} cannot be used: {error}") from error


def _write_summary(outcome: DemoOutcome) -> None:
    """Leave the numbers as JSON, for programs."""
    summary = {
        "agrees": outcome.agrees,
        "elapsed": round(outcome.elapsed, 1),
        "left_out": outcome.left_out,
        "traces": outcome.traces and asdict(outcome.traces),
        "topics": [asdict(check) for check in outcome.checks],
        "groups": [
            {
                "group": reading.reader.group,
                "topic": reading.reader.topic,
                "handled": reading.handled,
                "tried_again": reading.tried_again,
            }
            for reading in outcome.readings
        ],
    }
    (outcome.output / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n")
