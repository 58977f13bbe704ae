"""Every example runs on its own, as a user would run it."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.spark.java import skip_without_java

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


#: The packages of a plain install.
PLAIN = {"msgspec", "lz4", "zstandard"}
#: A warning that Java prints to standard error in any case.
JAVA_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector\n"


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if "spark" not in one.stem], ids=lambda path: path.stem
)
def test_example_runs(example: Path) -> None:
    _run(example, "-W", "error", timeout=240)  # takes a few seconds on an idle machine


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if "spark" in one.stem], ids=lambda path: path.stem
)
def test_spark_example_runs(example: Path) -> None:
    skip_without_java()
    _run(example, timeout=600)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_names_the_packages_that_it_needs(example: Path) -> None:
    """All that a plain install does not bring; extras are named by what they bring."""
    tree = ast.parse(example.read_text())
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    if "downrange.spark" in example.read_text() or "make_session" in example.read_text():
        imported.add("pyspark")
    needed = (imported & set(packages_distributions())) - {"downrange", *PLAIN}
    text = ast.get_docstring(tree) or ""
    assert {package for package in needed if package not in text} == set()


def test_example_says_what_to_install_if_cryptography_is_missing() -> None:
    example = EXAMPLES[0].parent / "access_and_tls.py"
    code = (
        "import runpy, sys; sys.modules['cryptography'] = None; "
        f"runpy.run_path({str(example)!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 1
    assert result.stderr == "This example makes a certificate: pip install cryptography\n"


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
