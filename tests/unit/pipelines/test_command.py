"""`downrange pipeline …`: flags become options, summaries are printed; without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.cli.pipeline import PlainProgress
from downrange.pipelines import compact, lake, load, mirror, replay
from downrange.pipelines.stream_run import PipelineFailed
from downrange.pipelines.summary import Progress, Summary

if TYPE_CHECKING:
    from pathlib import Path

run = CliRunner().invoke


class Calls:
    """Replaces the functions that run pipelines."""

    def __init__(self) -> None:
        self.options: list[Any] = []
        self.error: Exception | None = None

    def __call__(self, options: Any, *, show: Any) -> Summary:
        self.options.append(options)
        show(Progress(rows=5, rows_per_second=2.5, lag=1))
        if self.error is not None:
            raise self.error
        facts = {"output": "there"}
        return Summary(
            pipeline="lake", ended="finished", rows=12345, seconds=2.0, lag=0, facts=facts
        )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    pytest.importorskip("pyspark")
    for name in ("NAMESRV_ADDR", "DOWNRANGE_ACCESS_KEY", "DOWNRANGE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    calls = Calls()
    for module, name in (
        (lake, "run_lake"),
        (compact, "run_compact"),
        (load, "run_load"),
        (mirror, "run_mirror"),
        (replay, "run_replay"),
    ):
        monkeypatch.setattr(module, name, calls)
    return calls


def test_flags_become_options(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOWNRANGE_SECRET_KEY", "hush")
    words = "lake orders payments -o out -n ns:1 --access-key me --once --body text --conf a=b"
    result = run(app, ["pipeline", *words.split(), "--read-option", "batchRows=9", "--json"])
    assert result.exit_code == 0, result.output
    (options,) = calls.options
    assert (options.topics, options.output, options.body) == (("orders", "payments"), "out", "text")
    assert (options.cluster.name_server, options.cluster.secret) == ("ns:1", "hush")
    assert (options.run.once, options.spark.conf, options.read) == (
        True,
        {"a": "b"},
        {"batchRows": "9"},
    )
    assert json.loads(result.stdout) == {
        "pipeline": "lake",
        "ended": "finished",
        "rows": 12345,
        "seconds": 2.0,
        "rows_per_second": 6172.5,
        "lag": 0,
        "output": "there",
    }
    assert "lake: 5 rows, 2 rows/s, lag 1" in result.stderr
    assert "hush" not in result.output


def test_flags_of_the_others_become_options(calls: Calls, tmp_path: Path) -> None:
    words = "compact out --target-mib 5 --before 2026-02-01 --grace 0"
    assert run(app, ["pipeline", *words.split()]).exit_code == 0
    words = "load in.csv --topic t --body x --keys a,b --property p=q --checkpoint c --no-header"
    assert run(app, ["pipeline", *words.split()]).exit_code == 0
    words = "mirror a --target-name-server far:1 --target-tls --checkpoint c --create"
    assert run(app, ["pipeline", *words.split()]).exit_code == 0
    words = "replay a --target-topic b --from 2026-01-01T00:00:00Z --key k1 --key k2 --dry-run"
    assert run(app, ["pipeline", *words.split()]).exit_code == 0
    compact, loaded, mirrored, replayed = calls.options
    assert (compact.target_mib, str(compact.before)) == (5, "2026-02-01")
    assert (loaded.properties, loaded.header, loaded.mapping().keys) == (
        {"p": "q"},
        False,
        ("a", "b"),
    )
    assert (mirrored.target.name_server, mirrored.target.uses_tls, mirrored.create) == (
        "far:1",
        True,
        True,
    )
    assert not mirrored.cluster.uses_tls
    assert (replayed.keys, replayed.dry_run, replayed.from_ms) == (
        ("k1", "k2"),
        True,
        1767225600000,
    )


def test_summary_is_a_table_for_people(calls: Calls) -> None:
    result = run(app, ["pipeline", "lake", "orders", "-o", "out"])
    assert result.stdout.startswith("lake: finished")
    assert "12,345" in result.stdout
    assert "6,172" in result.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("lake orders", "output is missing: give it, or write it into [lake]"),
        ("lake -o out", "topics is missing"),
        ("lake a -o out --once --every 5", "once and every exclude each other"),
        ("lake a -o out --conf x", "does not have the form NAME=VALUE"),
        ("compact out --before soon", "--before 'soon'"),
        ("mirror a --checkpoint c", "would be copied to"),
    ],
)
def test_wrong_use_ends_with_code_2(calls: Calls, words: str, problem: str) -> None:
    result = run(app, ["pipeline", *words.split()], terminal_width=300)
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())
    assert calls.options == []


def test_failure_is_printed_without_a_traceback(calls: Calls) -> None:
    calls.error = PipelineFailed("the broker is gone")
    result = run(app, ["pipeline", "lake", "orders", "-o", "out"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "downrange: the broker is gone" in result.stderr


def test_help_needs_no_spark() -> None:
    check = (
        "import sys\nfrom downrange.cli import app\n"
        "try: app(['pipeline', 'lake', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert result.returncode == 0, result.stderr
    assert "Folder of the Parquet files" in result.stdout


def test_lines_come_not_too_often(capsys: pytest.CaptureFixture[str]) -> None:
    show = PlainProgress("lake")
    for rows in range(1000):
        show(Progress(rows=rows))
    assert capsys.readouterr().err.splitlines()[0] == "lake: 0 rows, 0 rows/s"
