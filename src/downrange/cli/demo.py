"""`demo`: a shop on a cluster of two brokers, one of which dies, seen through Spark."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from downrange.cli.exit_codes import FAILED, complain, telling_errors
from downrange.cli.parameters import PATH, command

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from types import FrameType

    from downrange.demo.run import DemoOutcome

#: Where it leaves its files, below the working directory.
OUTPUT: Final = Path("downrange-demo")
_TERMINATED: Final = 143
_AUTO_CREATED_NOTE: Final = (
    "coupons was created the Apache way, by its first message: on one broker alone."
)
_COPIES_NOTE: Final = (
    "copies: a retry after a lost answer, and a broker that was killed, may store a message twice, "
    "with\nthe same id; nothing is lost, and consumers can tell."
)
_LEFT_BEHIND: Final = {
    "report.html": "what the traces tell",
    "lake": "all topics as Parquet",
    "trace": "the tables behind the report, as Parquet",
    "summary.json": "these numbers, for programs",
    "logs": "what the servers logged",
}
#: Columns of words; all others hold numbers.
_WORDS: Final = ("topic", "sent by", "group", "ok")


@command()
@click.option(
    "--output",
    type=PATH,
    metavar="DIR",
    show_default=f"./{OUTPUT}, or a temporary folder where that cannot be written",
    help="Folder for report, Parquet files and logs; one of an earlier demo is replaced.",
)
@click.option("--seconds", default=12.0, help="How long messages are sent.")
@click.option("--no-spark", is_flag=True, help="Leave out the part that needs Spark and Java.")
@click.option("--keep", is_flag=True, help="Leave the cluster running at the end, until Ctrl-C.")
def demo(output: Path | None, seconds: float, no_spark: bool, keep: bool) -> None:
    """See all of it at work: two brokers, every way to send, a crash, Spark, a report.

    A small shop sends orders, payments, clicks and more to a cluster of its own, while one broker
    is killed and comes back. Spark then lands all topics in Parquet and makes a report of the
    traces. What was acknowledged, stored and landed must be the same: exit code 1 when it is not.
    """
    with telling_errors(), _ended_by_sigterm():
        from downrange.cli.output import console
        from downrange.demo.progress import Show
        from downrange.demo.run import DemoOptions, run_demo

        out = console()
        options = DemoOptions(
            output=(output or _default_output()).resolve(),
            seconds=seconds,
            is_spark_wanted=not no_spark,
        )

        def finish(outcome: DemoOutcome, name_server: str) -> None:
            show_outcome(outcome)
            if keep:
                _stay(name_server)

        outcome = run_demo(options, Show(out), before_stop=finish)
    if not outcome.agrees:
        raise click.exceptions.Exit(FAILED)


def _default_output() -> Path:
    try:
        OUTPUT.mkdir(exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="downrange-demo-"))
    return OUTPUT


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Clean up after SIGTERM as after Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stay(name_server: str) -> None:
    """Leave the cluster to the person in front of it."""
    click.echo(f"\nThe cluster goes on until Ctrl-C. Name server: {name_server}")
    click.echo(f"  downrange topic list -n {name_server}")
    click.echo(f"  downrange tail orders --from earliest --max 5 -n {name_server}")
    try:
        signal.pause()
    except KeyboardInterrupt:
        click.echo()


# ---- the outcome ---------------------------------------------------------------------------------


def show_outcome(outcome: DemoOutcome) -> None:
    """Print what was found: tables, what was left out, where things are, and the verdict."""
    _show_sending(outcome)
    _show_groups(outcome)
    _show_agreement(outcome)
    if outcome.left_out is not None:
        click.echo(f"Left out: the Parquet files and the report, made by Spark. {outcome.left_out}")
    for check in outcome.checks:
        for problem in check.problems:
            complain(f"{check.topic}: {problem}")
    _show_places(outcome)


def _show_sending(outcome: DemoOutcome) -> None:
    brokers = sorted({broker for check in outcome.checks for broker in check.brokers})
    numbers = ("retried", "failed", "undone", *brokers)
    _print_table(
        "How it went: retries while a broker was away, and where messages lie",
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
    title = "What was sent and stored"
    if outcome.left_out is None:
        title = "What was sent, stored, and landed in Parquet"
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
    """Print a table; counts of nothing are left empty, and numbers stand to the right."""
    from rich.text import Text

    from downrange.cli.output import console, print_table

    shown = [
        [value if isinstance(value, str) else f"{value:,}" if value else "" for value in row]
        for row in rows
    ]
    console().print(Text(f"\n{title}", "bold"))
    print_table(columns, shown, numbers=[name for name in columns if name not in _WORDS])


def _show_groups(outcome: DemoOutcome) -> None:
    stored = {check.topic: check.stored for check in outcome.checks}
    _print_table(
        "Who read what; the rest was left on purpose",
        ("group", "topic", "handled", "at the second try", "left"),
        [
            (
                reading.reader.group,
                reading.reader.topic,
                reading.handled,
                reading.tried_again,
                max(0, stored[reading.reader.topic] - reading.handled),
            )
            for reading in outcome.readings
        ],
    )


def _show_places(outcome: DemoOutcome) -> None:
    from rich.text import Text

    from downrange.cli.output import console

    out = console()
    if outcome.agrees:
        count = sum(check.sent.acknowledged for check in outcome.checks)
        where = "stored and landed in Parquet" if outcome.left_out is None else "stored"
        out.print(
            Text(f"It agrees: all {count:,} acknowledged messages are {where}.", "bold green")
        )
    else:
        out.print(Text("It does NOT agree; what is wrong is said above.", "bold red"))
    out.print(f"{outcome.elapsed:.0f} s in all. In {outcome.output}:", soft_wrap=True)
    for name, what in _LEFT_BEHIND.items():
        if (outcome.output / name).exists():
            out.print(f"  {name:13} {what}")
    if outcome.traces is not None:
        out.print("\nThe report, for any browser:")
        out.print(f"  {outcome.traces.page.as_uri()}", soft_wrap=True)
