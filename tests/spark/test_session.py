"""The session of pipelines and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.pipelines.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_is_quiet_and_keeps_to_utc(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.ui.showConsoleProgress") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(10).selectExpr("sum(id) AS total").collect()[0].total == 45


def test_session_of_the_process_is_used_again(spark: SparkSession) -> None:
    assert make_session("another") is spark
