"""Runs the whole demo: a cluster, the services of the shop, Spark, and a comparison at the end."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.demo.audit import FoundMessages, check_group, check_topic, read_stored
from downrange.demo.servers import Servers
from downrange.demo.shop_day import ShopDay
from downrange.demo.spark_jobs import (
    LAKE,
    missing_for_spark,
    read_lake,
    run_in_thread,
    spark_session,
    write_lake,
    write_report,
)
from downrange.errors import OptionError
from downrange.wire.system_names import DEAD_LETTER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from downrange.demo.audit import TopicCheck
    from downrange.demo.consumers import ConsumerProgress
    from downrange.demo.progress import ProgressDisplay
    from downrange.demo.spark_jobs import TraceReport
    from downrange.pipelines.stream_run import StopRequest

#: File that marks a folder as the output of a demo, which the next demo may replace.
MARKER: Final = ".downrange-demo"
SECONDS_MIN: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo runs.

    Attributes:
        output: Folder for the results.
        seconds: How long the services send.
        is_spark_enabled: Whether to run the pipelines.
        seed: The same seed gives the same messages.
    """

    output: Path
    seconds: float = 12.0
    is_spark_enabled: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the duration.

        Raises:
            OptionError: The duration is too short.
        """
        if not self.seconds >= SECONDS_MIN:
            raise OptionError(
                f"seconds={self.seconds} is too short for a broker to crash and restart; give "
                f"{SECONDS_MIN:.0f} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The results of the demo.

    Attributes:
        checks: The comparison for each topic.
        consumers: What each consumer group did.
        missed: What groups have missed; empty when they handled everything.
        left_out: Why the part with Spark did not run; None when it ran.
        traces: The report of the traces; None when Spark did not run.
        output: Folder of the results.
        elapsed: Duration in seconds.
    """

    checks: tuple[TopicCheck, ...]
    consumers: tuple[ConsumerProgress, ...]
    missed: tuple[str, ...]
    left_out: str | None
    traces: TraceReport | None
    output: Path
    elapsed: float

    @property
    def agrees(self) -> bool:
        """Whether the acknowledged, stored, landed and handled messages agree."""
        return not self.missed and not any(check.problems for check in self.checks)


def run_demo(
    options: DemoOptions,
    show: ProgressDisplay,
    *,
    before_stop: Callable[[DemoOutcome, str], None] = lambda outcome, name_server: None,
) -> DemoOutcome:
    """Run the demo.

    Args:
        options: Duration, output and seed.
        show: Where to show the progress.
        before_stop: Called at the end with the name server's address; the cluster stops when it
            returns.

    Raises:
        OptionError: The output folder holds files that are not from a demo.
        RocketMQError: A server does not start, or acknowledged messages are missing.
    """
    started = time.monotonic()
    prepare_output(options.output)
    left_out = missing_for_spark() if options.is_spark_enabled else "--no-spark was given"
    with ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="downrange-demo-"))
        servers = Servers(Path(store), options.output / "logs")
        with show.stage("Start a name server and two brokers, each in its own process") as stage:
            stage.bar("servers")
            stack.enter_context(servers)
            brokers = ", ".join(f"{name} {address}" for name, address in servers.brokers.items())
            stage.done(f"name server {servers.name_server}, {brokers}")
        stack.enter_context(_client_log(options.output / "logs" / "clients.log"))
        day, stored = _run_shop(servers, options, show)
        landed, later, traces = None, stored, None
        if left_out is None:
            name_server, output = servers.name_server, options.output
            landed, later, traces = run_in_thread(
                lambda stop: _analyse(name_server, stored, output, show, stop), show.log
            )
            from downrange.demo.group_section import add_groups  # needs the extra of Spark

            add_groups(traces.page, day.consumers)
        outcome = DemoOutcome(
            checks=tuple(
                check_topic(
                    send_log,
                    stored[topic],
                    landed[topic] if landed is not None else None,
                    later[topic],
                )
                for topic, send_log in day.send_logs.items()
            ),
            consumers=day.consumers,
            missed=_missed(day, stored, servers.name_server),
            left_out=left_out,
            traces=traces,
            output=options.output,
            elapsed=time.monotonic() - started,
        )
        _write_summary(outcome)
        before_stop(outcome, servers.name_server)
    return outcome


@contextmanager
def _client_log(path: Path) -> Generator[None]:
    """Write the warnings of clients to a file: a broker is killed on purpose."""
    log = logging.getLogger("downrange")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def _run_shop(
    servers: Servers, options: DemoOptions, show: ProgressDisplay
) -> tuple[ShopDay, Mapping[str, FoundMessages]]:
    """Run the services and the consumers; return their logs, and the stored messages."""
    with ShopDay(servers, seconds=options.seconds, seed=options.seed) as day:
        with show.stage(f"Send for {options.seconds:g} s, in every way") as stage:
            day.run_services(stage, broker_to_kill=day.create_topics())
            sent = sum(send_log.counts().acknowledged for send_log in day.send_logs.values())
            stage.done(f"{sent:,} messages were acknowledged")
        with show.stage(
            "Wait for delayed messages and open transactions, and read everything back"
        ) as stage:
            stored = day.read_back(stage)
            count = sum(len(found.ids) for found in stored.values())
            stage.done(f"{count:,} messages are stored, all acknowledged ones included")
        servers.check()
    return day, stored


def _missed(day: ShopDay, stored: Mapping[str, FoundMessages], name_server: str) -> tuple[str, ...]:
    """Return what the groups have missed, by the send logs and the dead-letter topics."""
    topics = [f"{DEAD_LETTER_PREFIX}{one.plan.group}" for one in day.consumers if one.dead]
    dead = read_stored(name_server, topics) if topics else {}
    return tuple(
        problem
        for one in day.consumers
        for problem in check_group(
            one,
            day.send_logs[one.plan.topic],
            stored[one.plan.topic],
            dead.get(f"{DEAD_LETTER_PREFIX}{one.plan.group}", FoundMessages()).unique(),
        )
    )


def _analyse(
    name_server: str,
    stored: Mapping[str, FoundMessages],
    output: Path,
    show: ProgressDisplay,
    stop: StopRequest,
) -> tuple[Mapping[str, FoundMessages], Mapping[str, FoundMessages], TraceReport]:
    """Run the pipelines; return the rows in Parquet, what is stored by then, and the report."""
    with ExitStack() as stack:
        with show.stage("Start Spark") as stage:
            stage.bar("Spark")
            spark = stack.enter_context(spark_session(stop))
            cores = spark.sparkContext.defaultParallelism
            stage.done(f"Spark {spark.version}, {cores} tasks at once")
        with show.stage("Lake: all topics to Parquet, exactly once") as stage:
            bar = stage.bar("rows")
            write_lake(spark, name_server, stored, output / LAKE, bar=bar, stop=stop)
            landed = read_lake(output / LAKE, stored)
            count = sum(len(found.ids) for found in landed.values())
            stage.done(f"{count:,} rows landed")
        later = stored
        if any(landed[topic].ids.keys() != stored[topic].ids.keys() for topic in stored):
            later = read_stored(name_server, stored)
        with show.stage("Traces: tables and a report") as stage:
            bar = stage.bar("report")
            found = write_report(spark, name_server, stored, output, bar=bar, stop=stop)
            stage.done(
                f"traces of {found.sends:,} sends and {found.deliveries:,} deliveries; "
                f"{found.unconsumed:,} messages were never consumed"
            )
    return landed, later, found


def prepare_output(output: Path) -> None:
    """Create the output folder; replace the output of an earlier demo.

    Raises:
        OptionError: The folder holds other files, or cannot be created.
    """
    try:
        if output.is_dir() and any(output.iterdir()):
            if not (output / MARKER).exists():
                raise OptionError(
                    f"output={str(output)!r} holds files that are not from a demo; name another "
                    "folder"
                )
            shutil.rmtree(output)
        output.mkdir(parents=True, exist_ok=True)
        (output / MARKER).write_text("Made by `downrange demo`, which may replace this folder.\n")
    except OSError as error:
        raise OptionError(f"output={str(output)!r} cannot be used: {error}") from error


def _write_summary(outcome: DemoOutcome) -> None:
    """Write the numbers as JSON, for programs."""
    summary = {
        "agrees": outcome.agrees,
        "elapsed": round(outcome.elapsed, 1),
        "left_out": outcome.left_out,
        "traces": outcome.traces and asdict(outcome.traces),
        "topics": [asdict(check) for check in outcome.checks],
        "missed": outcome.missed,
        "groups": [
            {
                "group": consumer.plan.group,
                "topic": consumer.plan.topic,
                "members": consumer.plan.members,
                "handled": len(consumer.handled),
                "retried": consumer.retried,
                "repeated": consumer.repeated,
                "dead_letters": len(consumer.dead),
                "rebalances": consumer.rebalances,
            }
            for consumer in outcome.consumers
        ],
    }
    (outcome.output / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n")
