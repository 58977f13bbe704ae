from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.demo.run import MARKER, DemoOptions, prepare_output
from downrange.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path


def test_folder_of_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "a" / "demo"
    prepare_output(output)
    (output / "report.html").write_text("old")
    prepare_output(output)
    assert [path.name for path in output.iterdir()] == [MARKER]


def test_empty_folder_is_used(tmp_path: Path) -> None:
    prepare_output(tmp_path)
    assert (tmp_path / MARKER).exists()


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(OptionError, match="name another folder"):
        prepare_output(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(OptionError, match="cannot be used"):
        prepare_output(tmp_path / "demo")


@pytest.mark.parametrize("seconds", [0.0, 1.9, float("nan")])
def test_too_short_a_run_is_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(OptionError, match="seconds="):
        DemoOptions(output=tmp_path, seconds=seconds)
