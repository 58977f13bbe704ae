"""Lets Spark find the data source by itself: it looks for modules whose names begin so."""

from downrange.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
