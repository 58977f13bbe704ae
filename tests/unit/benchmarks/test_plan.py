from __future__ import annotations

import pytest

from benchmarks.matrix.cells import BODIES, CLIENTS, PUSHES, Cell, all_cells, size_title
from benchmarks.matrix.plan import FULL, QUICK, left_out
from benchmarks.matrix.rounds import phases, round_order, warm_up_cells
from benchmarks.matrix.targets import PROBE_TARGETS, needed_cells
from tests.unit.benchmarks.runs import JAVA


def test_matrix_has_every_combination() -> None:
    cells = all_cells()
    usual = [cell for cell in cells if cell.flush == "async" and cell.client in CLIENTS]
    pushed = [cell for cell in usual if cell.work in PUSHES]
    assert len(usual) - len(pushed) == 3 * 2 * (8 + 8 + 4)  # four works with large bodies
    assert {(cell.work, cell.body_bytes) for cell in pushed} == {
        *(("push", 100), ("push", 1024), ("push-one", 1024), ("push-paced", 1024)),
    }
    assert len(pushed) == 3 * 2 * 4
    assert len(set(cells)) == len(cells)
    assert {cell.body_bytes for cell in cells} == set(BODIES)
    flushed = [cell for cell in cells if cell.flush == "sync"]
    assert {(cell.client, cell.server) for cell in flushed} == {
        (client, server)
        for client in ("java", "threads", "asyncio", "generator")
        for server in ("downrange", "apache")
    }


def test_quick_plan_measures_what_every_target_needs() -> None:
    assert needed_cells() == set(QUICK.cells) < set(FULL.cells)
    assert {target.probe for target in PROBE_TARGETS} < set(QUICK.probes) == set(FULL.probes)


def test_plan_is_narrowed_by_parts_of_names_and_by_patterns() -> None:
    by_part = FULL.narrowed(["transactions"])
    assert {cell.work for cell in by_part.cells} == {"transactions"}
    assert by_part.probes == ()
    by_pattern = FULL.narrowed(["java/apache/*/1024/async-flush", "start"])
    assert {(cell.client, cell.server, cell.body_bytes) for cell in by_pattern.cells} == {
        ("java", "apache", 1024)
    }
    assert by_pattern.probes == ("start",)
    assert FULL.narrowed([]) is FULL
    with pytest.raises(ValueError, match="kafka"):
        FULL.narrowed(["kafka"])


def test_large_bodies_are_sent_for_a_shorter_time() -> None:
    large = Cell(client="java", server="apache", work="sync-1", body_bytes=16_384)
    assert FULL.seconds_of(large) < FULL.seconds_of(JAVA) == FULL.seconds


def test_quick_plan_lists_what_it_leaves_out() -> None:
    assert left_out(FULL) == []
    lines = left_out(QUICK)
    assert "bodies of 16 KB" in lines
    small, java = [line for line in lines if line.startswith("Java: ")]
    assert "sync-1" in small
    assert "push" not in small
    assert "one-way" in java
    assert "sync-64 to downrange" in java
    assert "batch" not in java


def test_transactions_come_last_of_what_one_pair_of_servers_does() -> None:
    found = phases(FULL.cells)
    assert [phase.flush for phase in found] == ["async", "async", "sync"]
    assert {cell.work for cell in found[1].cells} == {"transactions"}
    assert all(cell.work != "transactions" for cell in found[0].cells)
    assert sum(len(phase.cells) for phase in found) == len(FULL.cells)


def test_jvms_are_warmed_up_whenever_they_are_new() -> None:
    first, transactions, flushed = (phase.warm_up_parts() for phase in phases(FULL.cells))
    assert first == {"downrange": 1.0, "apache": 1.0}
    assert set(transactions) == {"downrange", "apache"}
    assert transactions["apache"] < 1.0
    assert flushed["downrange"] < flushed["apache"] == 1.0


def test_warm_up_covers_every_work_by_the_java_client_where_it_does_it() -> None:
    (phase, *_) = phases(FULL.cells)
    found = warm_up_cells(phase.cells, "apache")
    assert {cell.work for cell in found} == {cell.work for cell in phase.cells}
    assert {cell.body_bytes for cell in found} == {1024}
    others = {cell.work: cell.client for cell in found if cell.client != "java"}
    assert others == {"pull-commit": "generator", "pop-ack": "generator"}
    assert {cell.client for cell in warm_up_cells(phase.cells, "downrange")} == {"java"}


def test_servers_in_java_are_warmed_up_without_a_client_in_java() -> None:
    (phase,) = phases(FULL.narrowed(["*/pull/1024/*"]).cells)
    ours = [cell for cell in phase.cells if cell.client != "java"]
    assert [cell.server for cell in warm_up_cells(ours, "apache")] == ["apache"]
    assert warm_up_cells(ours, "downrange") == []


def test_rounds_keep_together_what_is_compared_and_take_turns() -> None:
    cells = FULL.narrowed(["*/sync-1/1024/*", "*/pull/1024/*"]).cells
    first, second = round_order(cells, 1), round_order(cells, 2)
    works = [cell.work for cell in first]
    assert works == sorted(works, key=("sync-1", "pull").index)
    assert [cell.server for cell in first[:10]] == ["downrange"] * 5 + ["apache"] * 5
    assert [cell.server for cell in second[:10]] == ["apache"] * 5 + ["downrange"] * 5
    assert first[0].client == second[4].client == "java"
    assert set(first) == set(second) == set(cells)


@pytest.mark.parametrize(("size", "title"), [(100, "100 B"), (1024, "1 KB"), (16_384, "16 KB")])
def test_sizes_have_the_largest_whole_unit(size: int, title: str) -> None:
    assert size_title(size) == title
