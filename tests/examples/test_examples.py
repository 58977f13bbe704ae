"""Every example runs on its own, as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.java import skip_without_java

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


#: A warning that Java prints to standard error in any case.
JAVA_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector\n"


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if "spark" not in one.stem], ids=lambda path: path.stem
)
def test_example_runs(example: Path) -> None:
    _run(example, "-W", "error", timeout=60)  # takes a few seconds on an idle machine


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if "spark" in one.stem], ids=lambda path: path.stem
)
def test_spark_example_runs(example: Path) -> None:
    skip_without_java()
    _run(example, timeout=240)


def _run(example: Path, *flags: str, timeout: float) -> None:
    result = subprocess.run(
        [sys.executable, *flags, str(example)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert result.stderr.replace(JAVA_WARNING, "") == ""
