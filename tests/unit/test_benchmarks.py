from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from benchmarks import report
from benchmarks.report import Row, Run, Sample, Unit
from benchmarks.sends import BATCH, BODY, Batches, Sends
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import SendRequestV2
from downrange.wire.properties import decode_properties
from downrange.wire.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


def commands(data: bytes) -> list[Command]:
    splitter = FrameSplitter()
    splitter.receive(data)
    found: list[Command] = []
    while (frame := splitter.next_frame()) is not None:
        found.append(decode(frame))
    assert splitter.is_idle
    return found


def header_of(command: Command) -> SendRequestV2:
    return SendRequestV2.from_fields(command.fields)


def key_of(properties: str | None) -> str:
    return decode_properties(properties or "")["UNIQ_KEY"]


def row(unit: Unit, ours: Sequence[float], apache: Sequence[float], target: float = 3.0) -> Row:
    return Row(
        name="single",
        title="one in flight",
        unit=unit,
        target=target,
        ours=[Sample(value=value, latencies_us=(value, 9 * value)) for value in ours],
        apache=[Sample(value=value, latencies_us=(value, 9 * value)) for value in apache],
    )


def test_sends_go_round_the_queues_with_keys_and_ids_of_their_own() -> None:
    sends = Sends("orders", 4)
    found = commands(sends.take(3) + sends.take(2))
    assert [header_of(each).queue_id for each in found] == [0, 1, 2, 3, 0]
    assert {each.code for each in found} == {RequestCode.SEND_MESSAGE_V2}
    assert {each.body for each in found} == {BODY}
    assert len({each.request_id for each in found}) == 5
    assert len({key_of(header_of(each).properties) for each in found}) == 5


def test_batches_hold_messages_with_keys_of_their_own() -> None:
    found = commands(Batches("orders", 4).take(2))
    items = [item for each in found for item in decode_batch(each.body)]
    assert [header_of(each).queue_id for each in found] == [0, 1]
    assert {each.code for each in found} == {RequestCode.SEND_BATCH_MESSAGE}
    assert all(header_of(each).batch for each in found)
    assert [item.body for item in items] == [BODY] * 2 * BATCH
    assert len({key_of(item.property_bytes.decode()) for item in items}) == 2 * BATCH


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert row("messages/s", [40, 100, 30], [10, 10, 15]).ratio == 4


def test_ratio_turns_round_where_less_is_better() -> None:
    assert row("s", [0.5], [10]).ratio == 20


def test_ratio_is_endless_when_ours_takes_nothing() -> None:
    assert row("% of a core", [0], [10]).ratio == float("inf")


@pytest.mark.parametrize(("ours", "is_met"), [(30, True), (29, False)])
def test_target_is_met_from_the_ratio_on(ours: float, is_met: bool) -> None:
    assert row("messages/s", [ours], [10]).is_met is is_met


def test_latencies_become_rows_in_which_less_is_better() -> None:
    median, tail = report.latency_rows(row("messages/s", [20], [60]))
    assert (median.ours[0].value, tail.ours[0].value) == (20, 180)
    assert (median.ratio, tail.ratio) == (3, 3)


def test_figures_on_the_page_are_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- begin: python -m benchmarks.server -->\nold\n<!-- end -->\nafter\n"
    )
    run = Run(is_quick=False, seconds=60, machine={}, rows=[row("messages/s", [40, 44], [10, 10])])
    report.write_into(page, run)
    report.write_into(page, run)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert text.count("| one in flight | 4.2x | 3x | 42.0 ±5% | 10.0 |") == 1


def test_page_shows_the_stored_run_and_no_other() -> None:
    stored = ROOT / "benchmarks" / "results" / "server.json"
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shown = page.partition("benchmarks.server -->\n")[2].partition("<!-- end -->")[0]
    if not stored.exists():
        assert shown == ""
        return
    run = msgspec.json.decode(stored.read_bytes(), type=Run)
    assert shown.strip() == report.markdown(run).strip()
