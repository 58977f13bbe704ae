"""Registers the data source `rocketmq`: Spark imports every module named `pyspark_...`."""

from downrange.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
