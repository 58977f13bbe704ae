from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.matrix import charts, page, tables
from benchmarks.matrix.cells import Cell
from benchmarks.matrix.results import STORED, Probe, Series, load, store
from benchmarks.matrix.targets import (
    LIMITS,
    PROBE_TARGETS,
    TARGETS,
    Verdict,
    needed_cells,
    verdicts,
)
from tests.unit.benchmarks.runs import JAVA, OURS, a_run, sample, series

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.matrix.results import Run

BROKEN = Cell(client="threads", server="apache", work="sync-64")
START = Probe(name="start", title="start to first send", unit="s", downrange=[0.4], apache=[8])


def small_run() -> Run:
    broken = Series(cell=BROKEN, failures=["lost 3 messages"])
    return a_run(
        series(JAVA, [1000, 1100, 900]), series(OURS, [2500, 2200, 1800]), broken, probes=[START]
    )


@pytest.mark.parametrize(("rate", "is_met"), [(1200, True), (1199, False)])
def test_target_is_met_from_the_ratio_on(rate: float, is_met: bool) -> None:
    (sync,) = verdicts(a_run(series(JAVA, [1000]), series(OURS, [rate])))
    assert sync.comparison == "threads → Apache vs. Java → Apache"
    assert sync.title == "one sender"
    assert sync.is_met is is_met


def test_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    assert verdicts(a_run()) == []
    assert verdicts(a_run(series(JAVA, [1000]), Series(cell=OURS, failures=["lost"]))) == []


def test_every_target_is_judged_when_everything_was_measured() -> None:
    cells = {cell: series(cell, [1000]) for cell in needed_cells()}
    memory = Probe(name="idle-memory", title="", unit="MB", downrange=[1], apache=[10])
    found = verdicts(a_run(*cells.values(), probes=[START, memory]))
    latencies = [target for target in TARGETS if target.figure in ("p50_us", "p99_us")]
    assert len(found) == len(TARGETS) - len(latencies) + len(LIMITS) + len(PROBE_TARGETS)


def test_probe_has_a_target() -> None:
    (start,) = verdicts(a_run(probes=[START]))
    assert (start.title, start.figure, start.is_met) == ("start to first send", 20, True)


@pytest.mark.parametrize(("us", "is_met"), [(20.0, True), (20.1, False)])
def test_limit_is_met_up_to_the_figure(us: float, is_met: bool) -> None:
    (limit,) = LIMITS
    measured = Series(cell=limit.ours, samples=[sample(1, 1000, us=us)])  # 2 µs of server for one
    run = a_run(measured)
    (found,) = verdicts(run)
    assert (found.figure, found.target, found.is_met) == (2 * us, 40, is_met)
    assert found.title == "transactions, server's CPU per message"
    assert tables.target_rows(run).texts[0][2:4] == [f"{2 * us:.1f} µs", "≤ 40 µs"]


def test_every_target_has_its_own_title() -> None:
    titles = [(target.comparison, target.title) for target in TARGETS]
    assert len(set(titles)) == len(titles)


def test_cells_show_the_median_and_the_spread_of_rounds() -> None:
    (rows,) = tables.cell_rows(small_run())
    assert rows.title == "Bodies of 1 KB"
    java, ours, broken = rows.texts
    assert java[:4] == ["one sender", "Java → Apache", "", "1,000 ±10%"]
    assert ours[:4] == ["one sender", "threads → Apache", "2.00x", "2,200 ±18%"]
    assert ours[4:] == ["", "", "10.0", "20.0", "20.0", "60.0"]
    assert broken[:3] == ["64 senders", "threads → Apache", "failed"]
    assert all(len(row) == len(rows.headings) for row in rows.texts)


def test_terminal_shows_targets_first() -> None:
    console = Console(file=io.StringIO(), width=130)
    for rows in tables.all_rows(small_run()):
        console.print(tables.terminal_table(rows))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.index("≥ 1.2x") < text.index("Bodies of 1 KB") < text.index("before any load")


@pytest.mark.parametrize(
    ("value", "text"), [(0.456, "0.46x"), (9.94, "9.94x"), (12.34, "12.3x"), (123.4, "123x")]
)
def test_ratios_have_three_digits(value: float, text: str) -> None:
    assert tables.ratio_text(value) == text


def test_origin_names_an_interrupted_run() -> None:
    assert "interrupted" not in tables.origin(small_run())
    assert "interrupted" in tables.origin(a_run(is_complete=False))


def test_figures_on_the_page_are_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{page.BEGIN}\nold\n{page.END}after\n")
    page.write(small_run(), file)
    page.write(small_run(), file)
    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{page.END}after\n")
    assert "old" not in text
    assert (
        text.count("| threads → Apache vs. Java → Apache | one sender | 2.00x | ≥ 1.2x | met |")
        == 1
    )
    assert text.index("### Ratios") < text.index("### Figures of all cells")
    assert f"Failed: {BROKEN.name}: lost 3 messages\n" in text


def test_page_without_the_comments_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("nothing here\n")
    with pytest.raises(ValueError, match="lacks the comments"):
        page.write(small_run(), file)


def test_page_shows_the_stored_run() -> None:
    shown = page.PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[2].partition(page.END)[0]
    assert shown.strip() == (page.text(load()).strip() if STORED.exists() else "")


def test_bars_lie_closer_together_within_one_comparison() -> None:
    shown = [
        Verdict(comparison=comparison, title="", figure=1.0, target=1.0)
        for comparison in ("ours", "ours", "theirs")
    ]
    first, second, third = charts.bar_positions(shown)
    assert first > second > third
    assert second - third > first - second


def test_chart_is_drawn_for_light_and_dark_pages(tmp_path: Path) -> None:
    limited = series(LIMITS[0].ours, [1000])
    store(a_run(*small_run().series, limited), tmp_path / "run.json")
    charts.draw(tmp_path / "run.json", tmp_path)
    light = (tmp_path / f"{charts.NAME}.svg").read_text(encoding="utf-8")
    assert "2.00x" in light
    assert "one sender" in light
    assert "transactions" not in light  # bars are ratios
    assert (tmp_path / f"{charts.NAME}-dark.svg").exists()
    assert charts.NAME in charts.picture(small_run())
