"""The commands of the README run as printed; its Python is run by `test_guides`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.wire.records import Record, encode_record

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = [line for line in README.splitlines() if line.startswith("downrange decode")]


def test_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("line", COMMANDS)
def test_command_of_the_readme_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = tmp_path / "store/commitlog/00000000000000000000"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(encode_record(Record(topic_bytes=b"orders", body=b"1")))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    assert "GET_BROKER_CLUSTER_INFO" in result.output or "orders" in result.output
