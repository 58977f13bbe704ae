"""What a pipeline tells: moments while it runs, and a summary at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: How a pipeline came to its end: all was done, or somebody asked it to stop.
Ended: TypeAlias = Literal["finished", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running pipeline is.

    Attributes:
        rows: Handled since it was started.
        batches: Of those that had rows.
        rows_per_second: Lately.
        lag: Messages that wait in the topics; None where nobody knows.
        doing: What it is busy with, in words.
    """

    rows: int = 0
    batches: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    doing: str = ""

    def __str__(self) -> str:
        parts = [f"{self.rows:,} rows", f"{self.rows_per_second:,.0f} rows/s"]
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        return ", ".join(parts) + (f" ({self.doing})" if self.doing else "")


#: The former name of `Progress`, kept for programs that use it.
Moment = Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a pipeline did.

    Attributes:
        pipeline: Which.
        ended: Whether all was done, or somebody asked it to stop.
        rows: Handled in this run. A restart handles the batch again that was cut, and counts it.
        seconds: From the first batch's planning to the end; Spark's own start is not in it.
        batches: Of those that had rows; None for what is done in one go.
        lag: Messages that waited in the topics at the end; None where nobody knows.
        facts: More, by name: places, counts.
    """

    pipeline: str
    ended: Ended
    rows: int
    seconds: float
    batches: int | None = None
    lag: int | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def rows_per_second(self) -> float:
        """Over the whole run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it for a program to read."""
        found: dict[str, Any] = {
            "pipeline": self.pipeline,
            "ended": self.ended,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_per_second, 1),
        }
        if self.batches is not None:
            found["batches"] = self.batches
        if self.lag is not None:
            found["lag"] = self.lag
        return found | self.facts
