"""Shows the progress of the demo: bars on a terminal, plain lines everywhere else."""

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
        """Update the bar.

        Args:
            completed: How much is done.
            note: Text beside the bar.
        """
        ...


class Stage(Protocol):
    """One part of the demo."""

    def bar(self, name: str, total: int | None = None) -> Bar:
        """Add a bar.

        Args:
            name: Label of the bar.
            total: How much there is to do; None when it is unknown.
        """
        ...

    def log(self, text: str) -> None:
        """Print an event that happens during the stage."""
        ...

    def done(self, text: str) -> None:
        """End the stage with a result."""
        ...


class ProgressDisplay:
    """Prints the stages of the demo.

    Args:
        console: Output; a terminal gets bars, anything else gets lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, title: str) -> Generator[Stage]:
        """Show one stage, from its title to its result."""
        if not self._console.is_terminal:
            self._console.print(title)
            yield _PlainStage(self._console)
            return
        self._console.print(title, style="bold")
        with _progress(self._console) as progress:
            bars = _TerminalStage(progress)
            yield bars
        if bars.result is not None:
            self._console.print(f"  {bars.result}")

    def log(self, text: str, style: str | None = None) -> None:
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


class _TerminalStage:
    """A stage on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: list[_Bar] = []
        self.result: str | None = None

    def bar(self, name: str, total: int | None = None) -> Bar:
        bar = _Bar(self._progress, self._progress.add_task(name, total=total, note=""))
        self._bars.append(bar)
        return bar

    def log(self, text: str) -> None:
        self._progress.console.print(f"  {text}")

    def done(self, text: str) -> None:
        for bar in self._bars:
            bar.finish()
        self.result = text  # printed after the bars, when they have stopped


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._completed = 0

    def update(self, completed: int, note: str = "") -> None:
        self._completed = completed
        self._progress.update(self._task, completed=completed, note=note)

    def finish(self) -> None:
        """Show the bar as complete, whatever its total was."""
        done = max(1, self._completed)
        self._progress.update(self._task, completed=done, total=done)


class _PlainStage:
    """A stage without a terminal: prints events, the result, and how long it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def bar(self, name: str, total: int | None = None) -> Bar:
        return _HiddenBar()

    def log(self, text: str) -> None:
        self._console.print(f"  {text}")

    def done(self, text: str) -> None:
        self.log(f"{text} ({time.monotonic() - self._started:.1f} s)")


class _HiddenBar:
    def update(self, completed: int, note: str = "") -> None:
        pass
