"""Writes a run into the page of the docs, between two comments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.matrix.charts import picture
from benchmarks.matrix.tables import cell_rows, markdown, origin, probe_rows, target_rows

if TYPE_CHECKING:
    from benchmarks.matrix.results import Run

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- begin: python -m benchmarks --store -->\n"
END: Final = "<!-- end: matrix -->\n"


def text(run: Run) -> str:
    """Return the part of the page: ratios first, then the figures of all cells."""
    parts = [
        "### Ratios\n",
        picture(run) + "\n",
        markdown(target_rows(run)),
        "### Figures of all cells\n",
        origin(run) + "\n",
    ]
    for rows in [*cell_rows(run), *([probe_rows(run)] if run.probes else [])]:
        parts += [f"#### {rows.title}\n", markdown(rows)]
    parts += [f"Failed: {failure}\n" for failure in run.failures]
    return "\n".join(parts)


def write(run: Run, page: Path = PAGE) -> None:
    """Replace the figures on the page.

    Raises:
        ValueError: The page lacks the two comments.
    """
    before, begin_mark, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end_mark, after = rest.partition(END)
    if not begin_mark or not end_mark:
        raise ValueError(f"{page} lacks the comments that mark the figures")
    page.write_text(f"{before}{BEGIN}\n{text(run)}\n{END}{after}", encoding="utf-8")
