"""Every example runs alone, as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        capture_output=True,
        text=True,
        timeout=60,  # none takes more than a few seconds on a machine that does nothing else
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert result.stderr == ""
