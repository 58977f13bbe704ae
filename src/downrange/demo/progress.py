"""What a person sees while the demo runs: bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console
    from rich.progress import TaskID


class Bar(Protocol):
    """One bar of a stage."""

    def update(self, completed: int, note: str = "") -> None:
        """Move it.

        Args:
            completed: How much is done.
            note: What else there is to say.
        """
        ...


class Stage(Protocol):
    """A part of the demo that takes a while."""

    def bar(self, name: str, total: int | None = None) -> Bar:
        """Add a bar.

        Args:
            name: What it is about.
            total: How much there is to do; None when nobody knows.
        """
        ...

    def say(self, text: str) -> None:
        """Tell of something that happens meanwhile."""
        ...

    def done(self, text: str) -> None:
        """Say how it ended."""
        ...


class Show:
    """Shows stages.

    Args:
        console: Where; a terminal gets bars that move, anything else gets lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, title: str) -> Generator[Stage]:
        """Show one stage, from its title to how it ended."""
        if not self._console.is_terminal:
            self._console.print(title)
            yield _Lines(self._console)
            return
        self._console.print(title, style="bold")
        with _progress(self._console) as progress:
            bars = _Bars(progress)
            yield bars
        if bars.end is not None:
            self._console.print(f"  {bars.end}")

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line."""
        self._console.print(text, style=style)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn(" "),
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", table_column=Column(min_width=22, no_wrap=True)),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim", table_column=Column(no_wrap=True)),
        console=console,
    )


class _Bars:
    """A stage on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: list[_Bar] = []
        self.end: str | None = None

    def bar(self, name: str, total: int | None = None) -> Bar:
        bar = _Bar(self._progress, self._progress.add_task(name, total=total, note=""))
        self._bars.append(bar)
        return bar

    def say(self, text: str) -> None:
        self._progress.console.print(f"  {text}")

    def done(self, text: str) -> None:
        for bar in self._bars:
            bar.finish()
        self.end = text  # printed when the bars stand still


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._completed = 0

    def update(self, completed: int, note: str = "") -> None:
        self._completed = completed
        self._progress.update(self._task, completed=completed, note=note)

    def finish(self) -> None:
        """Show what was done as all there was."""
        done = max(1, self._completed)
        self._progress.update(self._task, completed=done, total=done)


class _Lines:
    """A stage where nobody can see bars: it says what happens, and how long it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def bar(self, name: str, total: int | None = None) -> Bar:
        return _NoBar()

    def say(self, text: str) -> None:
        self._console.print(f"  {text}")

    def done(self, text: str) -> None:
        self.say(f"{text} ({time.monotonic() - self._began:.1f} s)")


class _NoBar:
    def update(self, completed: int, note: str = "") -> None:
        pass
