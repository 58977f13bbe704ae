"""What a pipeline reports: its progress while it runs, and a summary at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: How a pipeline ended: everything is done, or a stop was requested.
Ended: TypeAlias = Literal["finished", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a running pipeline.

    Attributes:
        rows: Rows processed since the start.
        batches: Batches with rows.
        rows_per_second: The current speed.
        lag: Waiting messages of the topics; None if unknown.
        doing: The current step, in words.
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
        pipeline: Its name.
        ended: How it ended.
        rows: Rows processed in this run. After a restart an interrupted batch counts again.
        seconds: From the planning of the first batch to the end, without the start of Spark.
        batches: Batches with rows; None if the pipeline runs as one batch.
        lag: Waiting messages of the topics at the end; None if unknown.
        facts: More results by name: paths, counts.
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
        """The speed over the whole run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the summary for programs."""
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
