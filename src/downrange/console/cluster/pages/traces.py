"""Traces: a report on the newest trace records, and the report of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.common import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """What trace records say about one topic and group.

    Attributes:
        topic: The topic.
        step: "send", "receive" or "process".
        group: The group of the clients.
        count: Messages.
        failed: Messages that failed.
        mean: Mean seconds of a step; None without one.
        p95: 95 of 100 steps took less, in seconds.
        max: The longest one, in seconds.
        clients: How many client addresses took part.
    """

    topic: str
    step: str
    group: str
    count: int
    failed: int
    mean: float | None
    p95: float | None
    max: float | None
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What the newest trace records say.

    Attributes:
        is_on: Whether the cluster has a trace topic. If not, nothing else is known.
        topic: The trace topic.
        stored: Messages with trace records that the topic holds.
        begin: The time of the first record that was read.
        end: The time of the last one.
        records: Records that were read.
        stopped: As in `SearchResult`.
        rows: By topic, step and group.
        report: The address of the report that `downrange pipeline trace` wrote, if the console
            was told of one.
        command: A command line that writes the full report.
        notes: What is not known.
    """

    is_on: bool
    topic: str
    stored: int
    begin: datetime | None
    end: datetime | None
    records: int
    stopped: str
    rows: tuple[TraceRow, ...]
    report: str | None
    command: str
    notes: tuple[Note, ...] = ()
