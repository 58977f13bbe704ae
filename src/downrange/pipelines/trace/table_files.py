"""Write tables and measures to a folder, one Parquet folder each, and read them back."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from downrange.errors import OptionError
from downrange.pipelines.trace.measures import TraceMeasures
from downrange.pipelines.trace.tables import TraceTables, assemble

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_MEASURES: Final = "measures"


def write_tables(
    tables: TraceTables, folder: str | Path, *, keep_records: bool = True
) -> TraceTables:
    """Write each table to a folder of its name; replace an existing one.

    Bodies are decoded once: `records` is written first, and the others are derived from its files.

    Args:
        tables: The result of `trace_tables`.
        folder: The folder, a path or URL that Spark can write to.
        keep_records: Whether to write `records`; not needed if they come from files.

    Returns:
        The same tables, read from the files.

    Raises:
        OptionError: The tables were read from files without `records`.
    """
    if tables.records is None:
        raise OptionError("these tables have no records to derive the others from")

    def keep(name: str, table: DataFrame) -> DataFrame:
        if name == "records" and not keep_records:
            return table
        return _rewritten(table, f"{folder}/{name}")

    return assemble(tables.records, tables.stored, tables.begin, tables.end, keep)


def read_tables(
    spark: SparkSession,
    folder: str | Path,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> TraceTables:
    """Read the tables that `write_tables` wrote.

    Args:
        spark: The session.
        folder: The folder.
        begin: The start of the time range that the tables were made for, if one was given.
        end: Its end.

    Raises:
        OptionError: A table is missing.
    """
    found = {
        field.name: _read(spark, f"{folder}/{field.name}")
        for field in fields(TraceTables)
        if field.name not in ("begin", "end")
    }
    for name, table in found.items():
        if table is None and name not in ("stored", "records"):
            raise OptionError(
                f"{folder} has no table {name!r}; write the tables there first, for example with "
                "`downrange pipeline trace`"
            )
    tables: dict[str, Any] = found
    return TraceTables(**tables, begin=begin, end=end)


def write_measures(measures: TraceMeasures, folder: str | Path) -> TraceMeasures:
    """Write each measure to a folder of its name below `measures`; replace an existing one.

    Returns:
        The same measures, read from the files.
    """
    kept = {
        field.name: _rewritten(getattr(measures, field.name), f"{folder}/{_MEASURES}/{field.name}")
        for field in fields(measures)
    }
    return TraceMeasures(**kept)


def _rewritten(table: DataFrame, path: str) -> DataFrame:
    table.write.mode("overwrite").parquet(path)
    return table.sparkSession.read.schema(table.schema).parquet(path)


def _read(spark: SparkSession, path: str) -> DataFrame | None:
    try:
        table = spark.read.parquet(path)
        table.schema  # noqa: B018  # Spark Connect looks for the files only now
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return None
    return table
