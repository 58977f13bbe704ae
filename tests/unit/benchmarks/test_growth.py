from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from benchmarks.growth import __main__ as command
from benchmarks.growth import charts, report
from benchmarks.growth.loader import TOPIC, TopicSends
from benchmarks.growth.measures import Connections, Log, Samples, Topics, ends_first
from benchmarks.growth.plans import FULL, QUICK, Plan
from benchmarks.growth.report import BEGIN, END, Axis, Curve, Point, Run, Sample
from benchmarks.load import percentiles_us
from benchmarks.plots import style
from benchmarks.sends import BODY
from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import SendRequestV2
from downrange.wire.properties import decode_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.growth.report import Name
    from benchmarks.growth.servers import Side

ROOT = Path(__file__).parents[3]


def commands(data: bytes) -> list[Command]:
    splitter = FrameSplitter()
    splitter.receive(data)
    found: list[Command] = []
    while (frame := splitter.next_frame()) is not None:
        found.append(decode(frame))
    assert splitter.is_idle
    return found


def headers(found: Sequence[Command]) -> list[SendRequestV2]:
    return [SendRequestV2.from_fields(each.fields) for each in found]


def curve(side: Side, *points: tuple[float, Sequence[tuple[float, float]]]) -> Curve:
    return Curve(
        side=side,
        points=[
            Point(size=size, samples=[Sample(value=value, base=base) for value, base in samples])
            for size, samples in points
        ],
    )


def axis(name: Name = "topics", target: float | None = 1.2) -> Axis:
    ours = curve("downrange", (1, [(20, 20), (40, 40)]), (10_000, [(22, 20), (48, 40)]))
    apache = curve("apache", (1, [(30, 30)]), (10_000, [(90, 30)]))
    return Axis(
        name=name, figure="CPU", unit="µs", grows="topics", target=target, curves=[ours, apache]
    )


def a_run() -> Run:
    return Run(
        is_quick=True,
        seconds=30,
        machine={"cores": "2"},
        left_out=["3 GB"],
        axes=[axis(), axis("restart", None)],
    )


def test_sends_go_round_the_topics_and_then_to_the_next_queue() -> None:
    sends = TopicSends(topics=3, queues=2)
    found = commands(sends.take(2) + sends.take(5))
    assert [(each.topic, each.queue_id) for each in headers(found)] == [
        *((TOPIC % number, 0) for number in range(3)),
        *((TOPIC % number, 1) for number in range(3)),
        (TOPIC % 0, 0),
    ]
    assert {each.body for each in found} == {BODY}


def test_sends_have_keys_and_ids_of_their_own() -> None:
    found = commands(TopicSends(topics=10_000, queues=1).take(20_000))
    keys = {decode_properties(each.properties or "")["UNIQ_KEY"] for each in headers(found)}
    assert len(keys) == len({each.request_id for each in found}) == 20_000


def test_percentiles_are_of_the_sorted_times() -> None:
    times = [number / 1e6 for number in range(100, 0, -1)]
    assert percentiles_us(times) == pytest.approx((51, 100))


def test_ratio_of_a_point_is_the_median_of_its_rounds() -> None:
    point = curve("downrange", (3, [(10, 10), (30, 20), (90, 30)])).points[0]
    assert point.ratio == 1.5
    assert point.middle == 30
    assert point.spread == 2


def test_target_is_about_the_last_point_of_ours() -> None:
    met = axis(target=1.2)
    assert met.curves[0].points[-1].ratio == pytest.approx(1.15)
    assert met.is_met is True
    assert axis(target=1.1).is_met is False
    assert axis(target=None).is_met is None


def test_samples_become_curves_in_the_order_of_sizes() -> None:
    samples = Samples()
    for size in (1, 10_000, 100):
        samples.add("downrange", size, Sample(value=size, base=1))
    samples.add("apache", 1, Sample(value=5, base=5))
    found = samples.curves()
    assert [each.side for each in found] == ["downrange", "apache"]
    assert [point.size for point in found[0].points] == [1, 100, 10_000]


def test_compared_sizes_are_adjacent() -> None:
    assert ends_first((1, 10, 100, 1000)) == (1, 1000, 10, 100)
    assert ends_first((1, 10)) == (1, 10)


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_each_round_begins_with_the_base_of_the_ratios(plan: Plan) -> None:
    for part, sizes, noun in (
        (Topics(plan), plan.topics, "topics"),
        (Connections(plan), plan.connections, "connections"),
    ):
        for side, counts in sizes.items():
            name = f"{noun}, round 1"
            firsts = [step.what for step in part.steps() if step.what.endswith(name)]
            ours = [what for what in firsts if what.startswith(side)]
            assert len(ours) == len(counts)
            assert ours[0] == f"{side}: {counts[0]} {name}"


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_crashes_happen_at_levels_that_are_filled(plan: Plan) -> None:
    for side, levels in plan.levels.items():
        assert list(levels) == sorted(levels)
        assert set(plan.restarts[side]) <= set(levels)
    crashes = [step.what for step in Log(plan).steps() if "crash" in step.what]
    expected = plan.crashes * sum(len(levels) for levels in plan.restarts.values())
    assert len(crashes) == expected


def test_plan_leaves_out_what_the_disk_cannot_hold() -> None:
    plan, left_out = command.fit(FULL, free_bytes=5e9)
    assert plan.levels == {"downrange": (1.0,), "apache": ()}
    assert left_out == ["3 GB, because the disk is too full"]
    assert command.fit(FULL, free_bytes=1e12) == (FULL, [])


def test_plan_without_apache_has_one_side() -> None:
    plan = command.without_apache(FULL)
    for sizes in (plan.topics, plan.levels, plan.restarts, plan.connections):
        assert list(sizes) == ["downrange"]


def test_page_keeps_the_text_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n\n{BEGIN}old\n{END}\nbelow\n", encoding="utf-8")
    for _ in range(2):
        report.write_into(page, report.markdown(a_run()))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"above\n\n{BEGIN}\n| ")
    assert text.endswith(f"\n{END}\nbelow\n")
    assert "old" not in text
    assert "| 10,000 topics: CPU, µs | 1.15x | ≤ 1.2x | 35.0 ±37% | 3.00x | 90.0 |" in text
    assert "Left out: 3 GB." in text


def test_page_without_the_comments_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the comments"):
        report.write_into(page, "figures")


def test_run_survives_being_stored() -> None:
    run = a_run()
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_plots_are_the_same_bytes_each_time_and_keep_text_as_text(tmp_path: Path) -> None:
    stored = tmp_path / "growth.json"
    stored.write_bytes(msgspec.json.encode(a_run()))
    for folder in ("first", "second"):
        charts.draw(stored, tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == [
        f"growth-{name}{look.suffix}.svg"
        for name in ("restart", "topics")
        for look in (style.DARK, style.LIGHT)
    ]
    for name in names:
        text = (tmp_path / "first" / name).read_text(encoding="utf-8")
        assert text == (tmp_path / "second" / name).read_text(encoding="utf-8")
        assert ">Apache 5.5.0</text>" in text
        assert "<dc:date>" not in text


def test_pictures_name_the_files_that_are_drawn() -> None:
    shown = charts.pictures(a_run())
    for name in ("topics", "restart"):
        assert f'srcset="images/growth-{name}-dark.svg"' in shown
        assert f'src="images/growth-{name}.svg"' in shown


def test_stored_plots_are_those_of_the_stored_run(tmp_path: Path) -> None:
    if not command.RESULTS.exists():
        pytest.skip("no run is stored")
    charts.draw(command.RESULTS, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (style.IMAGES / path.name).read_bytes(), path.name
