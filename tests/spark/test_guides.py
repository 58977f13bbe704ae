"""The Spark code of the guides runs as printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import downrange as mq
from downrange.embedded import Cluster
from tests.examples.pages import ADDRESS, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGES = [page for page in sorted(GUIDES.glob("*.md")) if blocks_of(page, "spark")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_spark_of_the_page_runs(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    names = {"spark": spark, "folder": str(tmp_path)}
    with Cluster() as cluster, mq.Producer(cluster.name_server, group="guide") as producer:
        producer.send_batch(mq.Message("orders", f"order {number}") for number in range(100))
        for line, text in blocks_of(page, "spark"):
            padded = "\n" * line + text.replace(ADDRESS, cluster.name_server)
            exec(compile(padded, str(page), "exec", dont_inherit=True), names)


def test_there_are_pages() -> None:
    assert PAGES
