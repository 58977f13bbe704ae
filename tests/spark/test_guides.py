"""The Spark code of the guides runs as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from tests.examples.pages import ADDRESS, blocks_of
from tests.spark.java import skip_without_java

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
#: This one makes its session itself.
ALONE = GUIDES / "spark.md"
PAGES = [page for page in sorted(GUIDES.glob("*.md")) if blocks_of(page, "spark") and page != ALONE]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_spark_of_the_page_runs(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    names = {"spark": spark, "folder": str(tmp_path)}
    with Cluster() as cluster:
        for line, text in blocks_of(page, "spark"):
            padded = "\n" * line + text.replace(ADDRESS, cluster.name_server)
            exec(compile(padded, str(page), "exec", dont_inherit=True), names)


def test_there_are_pages() -> None:
    assert PAGES


def test_spark_guide_can_be_typed_from_the_top(tmp_path: Path) -> None:
    """Its command starts the cluster, and its code needs no name and no folder from elsewhere."""
    skip_without_java()
    [command] = re.findall(r"^downrange serve [^#\n]*", ALONE.read_text(), re.MULTILINE)
    with _serve(command, tmp_path) as address:
        result = subprocess.run(
            [sys.executable, "-m", "tests.examples.pages", str(ALONE), "spark", address],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert result.returncode == 0, result.stderr
    # The page sends 1,000 messages and reads them; later it writes 1,000 more.
    assert "1000 rows" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"store", "lake"}


@contextmanager
def _serve(command: str, folder: Path) -> Generator[str]:
    """Run the page's command, on free ports, and yield the address of the name server."""
    words = [*shlex.split(command)[1:], "--nameserver-port", "0", "--broker-port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "downrange", *words, "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        yield re.findall(r"nameserver=(\S+)", ready)[0]
    finally:
        server.terminate()
        server.communicate(timeout=90)
