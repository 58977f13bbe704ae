"""`demo`: a small shop on a cluster of two brokers, a broker crash, and Spark jobs."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from downrange import extras
from downrange.cli.exit_codes import FAILED, exit_on_error, print_error
from downrange.cli.parameters import PATH, command

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from types import FrameType

    from downrange.demo.run import DemoOutcome

#: Default output folder, in the working directory.
OUTPUT: Final = Path("downrange-demo")
_TERMINATED: Final = 143
_AUTO_CREATED_NOTE: Final = (
    "coupons was auto-created by its first message, so it exists on one broker only."
)
_COPIES_NOTE: Final = (
    "copies: a retry after a lost reply, or a broker crash, may store a message twice, with the "
    "same\nid. Nothing is lost, and consumers can recognise a copy by its id."
)
_GROUP_COLUMNS: Final = ("group", "topic", "members", "handled", "by a retry", "dead letters")
_GROUPS_NOTE: Final = (
    "packing: orders without a postcode are delivered again, and become dead letters if they still"
    "\nhave none. Its second member comes, leaves and comes back, so queues are divided anew."
)
_OUTPUT_FILES: Final = {
    "report.html": "report of the traces",
    "lake": "all topics as Parquet",
    "trace": "the tables behind the report, as Parquet",
    "summary.json": "these numbers, for programs",
    "logs": "logs of servers and clients",
}
#: Columns with text; all others hold numbers.
_TEXT_COLUMNS: Final = ("topic", "sent by", "group", "ok")


@command()
@click.option(
    "--output",
    type=PATH,
    metavar="DIR",
    show_default=f"./{OUTPUT}, or a temporary folder if that is not writable",
    help="Folder for report, Parquet files and logs; the output of an earlier demo is replaced.",
)
@click.option("--seconds", default=12.0, help="How long messages are sent.")
@click.option("--no-spark", is_flag=True, help="Skip the part that needs Spark and Java.")
@click.option("--keep", is_flag=True, help="Keep the cluster running at the end, until Ctrl-C.")
@click.option(
    "--console",
    "has_console",
    is_flag=True,
    help="Keep it running, and run the console for browsers, too.",
)
def demo(
    output: Path | None, seconds: float, no_spark: bool, keep: bool, has_console: bool
) -> None:
    """Run a demo: two brokers, every way to send, a broker crash, Spark, and a report.

    The services of a small shop send orders, payments, clicks and more to a cluster of their own,
    while one broker is killed and restarted, and consumer groups handle them. Spark then writes all
    topics to Parquet and makes a report of the traces. The acknowledged messages, the stored
    messages, the rows in Parquet and the handled messages must agree; otherwise the exit code is 1.
    """
    with exit_on_error(), _exit_on_sigterm():
        from downrange.cli.output import console
        from downrange.demo.progress import ProgressDisplay
        from downrange.demo.run import DemoOptions, run_demo

        if has_console:
            extras.check("the console", "console")
        out = console()
        options = DemoOptions(
            output=(output or _default_output()).resolve(),
            seconds=seconds,
            is_spark_enabled=not no_spark,
        )

        def finish(outcome: DemoOutcome, name_server: str) -> None:
            show_outcome(outcome)
            if has_console:
                _keep_with_console(name_server, options.output)
            elif keep:
                _keep_running(name_server)

        outcome = run_demo(options, ProgressDisplay(out), before_stop=finish)
    if not outcome.agrees:
        raise click.exceptions.Exit(FAILED)


def _default_output() -> Path:
    try:
        OUTPUT.mkdir(exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="downrange-demo-"))
    return OUTPUT


@contextmanager
def _exit_on_sigterm() -> Generator[None]:
    """Exit on SIGTERM with the same cleanup as on Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _keep_running(name_server: str) -> None:
    """Print how to use the cluster, then wait for Ctrl-C."""
    click.echo(f"\nThe cluster runs until Ctrl-C. Name server: {name_server}")
    click.echo(f"  downrange topic list -n {name_server}")
    click.echo(f"  downrange tail orders --from earliest --max 5 -n {name_server}")
    try:
        signal.pause()
    except KeyboardInterrupt:
        click.echo()


def _keep_with_console(name_server: str, output: Path) -> None:
    """Run a console until Ctrl-C; its address is the last line."""
    from downrange.cli.console_process import ConsoleProcess

    audit = str(output / "console-audit.jsonl")
    arguments = ["--port", "0", "--audit", audit, "--log-level", "warning", name_server]
    with ConsoleProcess(arguments) as process:
        address = process.wait_until_ready()
        click.echo(f"\nThe cluster runs until Ctrl-C. Name server: {name_server}")
        click.echo("Open the console in a browser:")
        click.echo(f"  {address}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            click.echo()


# ---- results -------------------------------------------------------------------------------------


def show_outcome(outcome: DemoOutcome) -> None:
    """Print the tables, what was left out, the problems, the verdict and the files."""
    _show_sending(outcome)
    _show_groups(outcome)
    _show_agreement(outcome)
    if outcome.left_out is not None:
        click.echo(f"Left out: the Parquet files and the report, made by Spark. {outcome.left_out}")
    for check in outcome.checks:
        for problem in check.problems:
            print_error(f"{check.topic}: {problem}")
    for problem in outcome.missed:
        print_error(problem)
    _show_result(outcome)


def _show_sending(outcome: DemoOutcome) -> None:
    brokers = sorted({broker for check in outcome.checks for broker in check.brokers})
    numbers = ("retried", "failed", "undone", *brokers)
    _print_table(
        "Sends: retries while a broker was down, and messages per broker",
        ("topic", "sent by", *numbers),
        [
            (
                check.topic,
                check.mode,
                check.sent.retried,
                check.sent.failed,
                check.sent.withdrawn,
                *(check.brokers.get(broker, 0) for broker in brokers),
            )
            for check in outcome.checks
        ],
    )
    click.echo(_AUTO_CREATED_NOTE)


def _show_agreement(outcome: DemoOutcome) -> None:
    checks = outcome.checks
    rows: list[list[str | int]] = [
        [check.topic, check.sent.acknowledged, check.sent.oneway, check.stored, check.copies]
        for check in checks
    ]
    columns = ["topic", "acknowledged", "one-way", "stored", "copies"]
    title = "Messages sent and stored"
    if outcome.left_out is None:
        title = "Messages sent, stored, and landed in Parquet"
        columns.append("landed")
        for row, check in zip(rows, checks, strict=True):
            row.append(check.landed or 0)
    columns.append("ok")
    for row, check in zip(rows, checks, strict=True):
        row.append("no" if check.problems else "yes")
    _print_table(title, columns, rows)
    if any(check.copies for check in checks):
        click.echo(_COPIES_NOTE)


def _print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Print a table; zeros are left empty, and numbers are aligned to the right."""
    from rich.text import Text

    from downrange.cli.output import console, print_table

    shown = [
        [value if isinstance(value, str) else f"{value:,}" if value else "" for value in row]
        for row in rows
    ]
    console().print(Text(f"\n{title}", "bold"))
    print_table(columns, shown, numbers=[name for name in columns if name not in _TEXT_COLUMNS])


def _show_groups(outcome: DemoOutcome) -> None:
    stored = {check.topic: check.stored for check in outcome.checks}
    _print_table(
        "Messages per consumer group; the rest was left unread on purpose",
        (*_GROUP_COLUMNS, "rebalances", "left"),
        [
            (
                consumer.plan.group,
                consumer.plan.topic,
                consumer.plan.members,
                len(consumer.handled),
                consumer.retried,
                len(consumer.dead),
                consumer.rebalances,
                max(0, stored[consumer.plan.topic] - len(consumer.handled) - len(consumer.dead)),
            )
            for consumer in outcome.consumers
        ],
    )
    click.echo(_GROUPS_NOTE)


def _show_result(outcome: DemoOutcome) -> None:
    from rich.text import Text

    from downrange.cli.output import console

    out = console()
    if outcome.agrees:
        count = sum(check.sent.acknowledged for check in outcome.checks)
        where = "stored and landed in Parquet" if outcome.left_out is None else "stored"
        out.print(
            Text(
                f"The numbers agree: all {count:,} acknowledged messages are {where}, and no group "
                "missed any of its messages.",
                "bold green",
            )
        )
    else:
        out.print(Text("The numbers do NOT agree; see the problems above.", "bold red"))
    out.print(f"{outcome.elapsed:.0f} s in total. Files in {outcome.output}:", soft_wrap=True)
    for name, what in _OUTPUT_FILES.items():
        if (outcome.output / name).exists():
            out.print(f"  {name:13} {what}")
    if outcome.traces is not None:
        out.print("\nOpen the report in a browser:")
        out.print(f"  {outcome.traces.page.as_uri()}", soft_wrap=True)
