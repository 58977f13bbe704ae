"""`--watch`: read figures again and again and show them, until Ctrl-C.

On a terminal the table is drawn in place. Otherwise each reading is one line, so that the output
can be stored or piped.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, TypeVar

import click

from downrange.cli.exit_codes import print_error
from downrange.cli.standard_streams import check_reader
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

ResultT = TypeVar("ResultT")

WATCH: Final = click.option(
    "--watch",
    "-w",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Read again every so many seconds, until Ctrl-C.",
)


def show_or_watch(
    seconds: float | None,
    read: Callable[[], ResultT],
    draw: Callable[[ResultT], RenderableType],
    print_once: Callable[[ResultT], None],
) -> None:
    """Print figures once, or again and again until Ctrl-C.

    An error of the first reading ends the command. Later ones are printed, and the next reading
    follows.

    Args:
        seconds: Pause between two readings; None for one reading.
        read: Reads the figures.
        draw: Returns what a terminal shows.
        print_once: Prints them, where there is no terminal, or without a pause.
    """
    first = read()
    if seconds is None:
        print_once(first)
    elif sys.stdout.isatty():
        _draw(first, _readings(seconds, read), draw)
    else:
        print_once(first)
        for value in _readings(seconds, read):
            print_once(value)


def _draw(
    first: ResultT, values: Iterator[ResultT], draw: Callable[[ResultT], RenderableType]
) -> None:
    from rich.live import Live

    from downrange.cli.output import console

    with Live(draw(first), console=console(), auto_refresh=False) as live:
        for value in values:
            live.update(draw(value), refresh=True)


def _readings(seconds: float, read: Callable[[], ResultT]) -> Iterator[ResultT]:
    """Yield readings without end."""
    while True:
        time.sleep(seconds)
        check_reader()
        try:
            value = read()
        except RocketMQError as error:
            print_error(error)
        else:
            yield value
