"""`demo`: a shop on a cluster of two brokers, one of which dies, seen through Spark."""

import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from downrange.cli.outcomes import FAILED, complain, telling_errors

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from downrange.demo.running import DemoOutcome

#: Where it leaves its files, below the working directory.
OUTPUT: Final = Path("downrange-demo")
_TERMINATED: Final = 143


def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for report, Parquet files and logs; one of an earlier demo is replaced.",
            show_default=f"./{OUTPUT}, or a temporary folder where that cannot be written",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long messages are sent.")] = 12.0,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Leave out the part that needs Spark and Java.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running at the end, until Ctrl-C.")
    ] = False,
) -> None:
    """See all of it at work: two brokers, every way to send, a crash, Spark, a report.

    A small shop sends orders, payments, clicks and more to a cluster of its own, while one broker
    is killed and comes back. Spark then lands all topics in Parquet and makes a report of the
    traces. What was acknowledged, stored and landed must be the same: exit code 1 when it is not.
    """
    with telling_errors(), _ended_by_sigterm():
        from downrange.cli.printing import console
        from downrange.demo.running import DemoOptions, run_demo
        from downrange.demo.showing import Show

        out = console()
        options = DemoOptions(
            output=(output or _default_output()).resolve(),
            seconds=seconds,
            is_spark_wanted=not no_spark,
        )

        def finish(outcome: "DemoOutcome", name_server: str) -> None:
            show_outcome(outcome)
            if keep:
                _stay(name_server)

        outcome = run_demo(options, Show(out), before_stop=finish)
    if not outcome.agrees:
        raise typer.Exit(FAILED)


def _default_output() -> Path:
    try:
        OUTPUT.mkdir(exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="downrange-demo-"))
    return OUTPUT


@contextmanager
def _ended_by_sigterm() -> "Generator[None]":
    """Clean up after SIGTERM as after Ctrl-C."""

    def end(number: int, frame: "FrameType | None") -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stay(name_server: str) -> None:
    """Leave the cluster to the person in front of it."""
    typer.echo(f"\nThe cluster goes on until Ctrl-C. Name server: {name_server}")
    typer.echo(f"  downrange topic list -n {name_server}")
    typer.echo(f"  downrange tail orders --from earliest --max 5 -n {name_server}")
    try:
        signal.pause()
    except KeyboardInterrupt:
        typer.echo()


# ---- the outcome ---------------------------------------------------------------------------------


def show_outcome(outcome: "DemoOutcome") -> None:
    """Print what was found: tables, what was left out, where things are, and the verdict."""
    _show_topics(outcome)
    _show_brokers(outcome)
    _show_groups(outcome)
    if outcome.left_out is not None:
        typer.echo(f"Left out: the lake and the trace report, which need Spark. {outcome.left_out}")
    for check in outcome.checks:
        for problem in check.problems:
            complain(f"{check.topic}: {problem}")
    _show_places(outcome)


def _show_topics(outcome: "DemoOutcome") -> None:
    from downrange.cli.printing import print_table

    counts = ("acknowledged", "one-way", "retried", "failed", "withdrawn", "stored", "copies")
    with_landed = outcome.left_out is None
    numbers = (*counts, "landed") if with_landed else counts
    rows = [
        [
            check.topic,
            check.mode,
            *(
                _count(number)
                for number in (
                    check.sent.acknowledged,
                    check.sent.oneway,
                    check.sent.retried,
                    check.sent.failed,
                    check.sent.withdrawn,
                    check.stored,
                    check.copies,
                )
            ),
            *([_count(check.landed)] if with_landed else []),
            "no" if check.problems else "yes",
        ]
        for check in outcome.checks
    ]
    print_table(
        ("topic", "sent by", *numbers, "agrees"),
        rows,
        title="\nSent, stored" + (" and landed in Parquet" if with_landed else ""),
        numbers=numbers,
    )


def _show_brokers(outcome: "DemoOutcome") -> None:
    from downrange.cli.printing import print_table

    brokers = sorted({broker for check in outcome.checks for broker in check.brokers})
    print_table(
        ("topic", *brokers),
        [
            (check.topic, *(_count(check.brokers.get(broker, 0)) for broker in brokers))
            for check in outcome.checks
        ],
        title="Where messages lie; coupons was created the Apache way, on one broker",
        numbers=brokers,
    )


def _show_groups(outcome: "DemoOutcome") -> None:
    from downrange.cli.printing import print_table

    stored = {check.topic: check.stored for check in outcome.checks}
    print_table(
        ("group", "topic", "handled", "at the second try", "left"),
        [
            (
                reading.reader.group,
                reading.reader.topic,
                _count(reading.handled),
                _count(reading.tried_again),
                _count(max(0, stored[reading.reader.topic] - reading.handled)),
            )
            for reading in outcome.readings
        ],
        title="Who read what; the rest was left on purpose",
        numbers=("handled", "at the second try", "left"),
    )


def _show_places(outcome: "DemoOutcome") -> None:
    from rich.text import Text

    from downrange.cli.printing import console

    out = console()
    if outcome.agrees:
        what = "acknowledged, stored and landed" if outcome.report else "acknowledged and stored"
        out.print(Text(f"All agrees: every message that was {what} is the same.", "bold green"))
    else:
        out.print(Text("It does not agree; see above.", "bold red"))
    out.print(f"{outcome.elapsed:.0f} s in all. In {outcome.output}:", soft_wrap=True)
    for name, what in _LEFT_BEHIND.items():
        if (outcome.output / name).exists():
            out.print(f"  {name:13} {what}")
    if outcome.report is not None:
        out.print("\nThe report, for any browser:")
        out.print(f"  {outcome.report.as_uri()}", soft_wrap=True)


_LEFT_BEHIND: Final = {
    "report.html": "what the traces tell",
    "lake": "all topics as Parquet",
    "trace": "the tables behind the report, as Parquet",
    "summary.json": "these numbers, for programs",
    "logs": "what the servers logged",
}


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
