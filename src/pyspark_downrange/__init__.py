"""Registers the data source `downrange`: Spark imports every module named `pyspark_...`."""

from downrange.spark.source import DownrangeDataSource as DefaultSource

__all__ = ["DefaultSource"]
