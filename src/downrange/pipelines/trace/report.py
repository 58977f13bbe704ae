"""The report: one HTML file that needs only a browser.

Style, script and drawings are inside. A content security policy forbids the page to load or run
anything else, so that even a topic with a hostile name stays text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from downrange.pipelines.trace import formats, sections
from downrange.pipelines.trace.figures import collect_figures
from downrange.pipelines.trace.measures import trace_measures
from downrange.pipelines.trace.table_files import read_tables
from downrange.pipelines.trace.tables import TraceTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downrange.pipelines.trace.figures import Figures
    from downrange.pipelines.trace.measures import TraceMeasures

TITLE: Final = "Message traces"
_HERE: Final = Path(__file__).parent


def build_report(
    source: TraceTables | str | Path,
    path: str | Path,
    *,
    title: str = TITLE,
    measures: TraceMeasures | None = None,
    spark: SparkSession | None = None,
) -> Path:
    """Write a report as one HTML file; replace an existing one.

    Args:
        source: The tables, or the folder that `write_tables` wrote them to.
        path: The file.
        title: The title of the report.
        measures: The measures of the tables, if they exist already.
        spark: The session that reads a folder; the running one if None.

    Returns:
        The path of the file.
    """
    if not isinstance(source, TraceTables):
        from pyspark.sql import SparkSession as Session

        source = read_tables(spark or Session.builder.getOrCreate(), source)
    figures = collect_figures(source, measures or trace_measures(source))
    return write_page(render(figures, title=title), path)


def write_page(page: str, path: str | Path) -> Path:
    """Write the file atomically: a reader sees the old one or the new one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    beside.write_text(page, encoding="utf-8")
    beside.replace(target)
    return target


def render(figures: Figures, *, title: str = TITLE, made_at: datetime | None = None) -> str:
    """Return the page.

    Args:
        figures: The data of the page.
        title: The title; any text.
        made_at: The time of creation; now if None.
    """
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    now = made_at or datetime.now(UTC)
    return Template((_HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=formats.safe(title),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=f"sha256-{digest}",
        range=_range(figures),
        made_at=formats.timestamp(round(now.timestamp() * 1000)),
        cards=sections.cards(figures),
        findings=sections.findings(figures),
        sends=sections.sends(figures),
        brokers=sections.brokers(figures),
        balance=sections.balance(figures),
        consumptions=sections.consumptions(figures),
        unconsumed=sections.unconsumed(figures),
        transactions=sections.transactions(figures),
        errors=sections.errors(figures),
        slowest=sections.slowest(figures),
    )


def _range(figures: Figures) -> str:
    if figures.span is None:
        return "no traces in this time"
    length = formats.duration(figures.last_ms - figures.first_ms)
    return (
        f"{formats.timestamp(figures.first_ms)} to {formats.timestamp(figures.last_ms)} UTC "
        f"<span>({length})</span>"
    )
