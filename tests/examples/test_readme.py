"""The commands of the README run as printed; its Python is run by `test_guides`."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.wire.records import Record, encode_record

if TYPE_CHECKING:
    from importlib.metadata import PackagePath

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for line in README.splitlines() if line.startswith("downrange decode")]


def test_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) < 150


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="sizes differ by platform"
)
def test_size_of_a_plain_install_is_true() -> None:
    """The figures were measured: `du -sb` of a new environment before and after `pip install .`.

    This counts the same files without bytecode, which is about a tenth of the whole.
    """
    [whole, largest] = [int(text) for text in re.findall(r"(\d+) MB", README)]
    sizes = {
        name: sum(Path(str(file.locate())).stat().st_size for file in _files_of(name)) / 1e6
        for name in ("msgspec", "lz4", "zstandard")
    }
    source = sum(path.stat().st_size for path in (ROOT / "src").rglob("*") if _is_source(path))
    assert 0.75 * whole <= sum(sizes.values()) + source / 1e6 <= whole
    assert largest == pytest.approx(sizes["zstandard"], rel=0.1)


def _files_of(name: str) -> list[PackagePath]:
    return [file for file in files(name) or () if file.suffix != ".pyc"]


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


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
