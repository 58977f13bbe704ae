"""Progress displays: of `send --lines`, with its rate limit, and of commands that count."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    #: Called after each request with the number of its messages and of their bytes of input.
    OnProgress: TypeAlias = Callable[[int, int], None]

#: Seconds between two lines about the progress, where there is no terminal.
_LINE_INTERVAL: Final = 5.0


class RateLimit:
    """Limits the number of messages per second.

    Args:
        rate: Messages per second; None for no limit.
        now: Returns the time in seconds.
        sleep: Waits this number of seconds.
    """

    def __init__(
        self,
        rate: float | None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._now = now
        self._sleep = sleep
        self._next = now()

    def wait(self, count: int) -> None:
        """Wait until the next `count` messages may be sent."""
        if self._rate is None:
            return
        now = self._now()
        if now < self._next:
            self._sleep(self._next - now)
        # After a slow period there is no burst to catch up.
        self._next = max(self._next, now) + count / self._rate


@contextmanager
def progress_display(is_enabled: bool | None, total: int | None) -> Generator[OnProgress]:
    """Yield a function that shows the progress: as a bar on a terminal, else in lines.

    Args:
        is_enabled: Whether to show it; None for only on a terminal.
        total: Bytes of the input, where they are known.
    """
    is_terminal = sys.stderr.isatty()
    if is_enabled is False or (is_enabled is None and not is_terminal):
        yield lambda count, byte_count: None
    elif is_terminal:
        with _bar(total) as update:
            yield update
    else:
        yield ProgressLines(total)


@contextmanager
def _bar(total: int | None) -> Generator[OnProgress]:
    from rich import progress

    from downrange.cli.output import console

    columns = (
        progress.TextColumn("{task.fields[count]:,} messages"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("send", total=total, count=0)
        done = 0

        def update(count: int, byte_count: int) -> None:
            nonlocal done
            done += count
            bar.update(task, advance=byte_count, count=done)

        yield update


class ProgressLines:
    """Prints the progress as a line every few seconds.

    Args:
        total: Bytes of the input, where they are known.
        now: Returns the time in seconds.
    """

    def __init__(self, total: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._now = now
        self._count = self._bytes = 0
        self._next = now() + _LINE_INTERVAL

    def __call__(self, count: int, byte_count: int) -> None:
        """Add messages that were sent, and their bytes of input."""
        self._count += count
        self._bytes += byte_count
        if self._now() >= self._next:
            self._next = self._now() + _LINE_INTERVAL
            share = f" ({100 * self._bytes / self._total:.0f} %)" if self._total else ""
            click.echo(f"{self._count:,} messages{share}", err=True)


@contextmanager
def counted(verb: str, total: int | None = None) -> Generator[Callable[[int], None]]:
    """Yield a function that counts what is done, as a bar on a terminal; else nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich import progress

    from downrange.cli.output import console

    columns = (
        progress.TextColumn(f"{{task.completed:,.0f}} {verb}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda count: bar.update(task, advance=count)
