"""RocketMQ as a Spark data source, without a jar.

    import downrange.spark

    downrange.spark.register(spark)  # not needed where Spark finds the installed package
    orders = (
        spark.readStream.format("rocketmq")
        .option("nameServer", "127.0.0.1:9876")
        .option("subscribe", "orders")
        .load()
    )

The import itself does not need Spark; the use of any name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from downrange.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downrange.spark.read.lag import LagListener
    from downrange.spark.read.losses import DataLost
    from downrange.spark.source import DownrangeDataSource, RocketMQDataSource
    from downrange.spark.write.deduplicate import drop_duplicates

__all__ = [
    "DataLost",
    "DownrangeDataSource",
    "LagListener",
    "RocketMQDataSource",
    "drop_duplicates",
    "register",
]

_MODULES: Final = {
    "DataLost": "read.losses",
    "DownrangeDataSource": "source",
    "LagListener": "read.lag",
    "RocketMQDataSource": "source",
    "drop_duplicates": "write.deduplicate",
}


def register(spark: SparkSession) -> None:
    """Register the sources `rocketmq` and `downrange` with a session.

    The second name is for sessions where an old jar already has the first one. Spark finds both
    names without this call if the package is installed for the driver's Python; a package that is
    shipped with the job must be registered.

    Raises:
        MissingExtra: PySpark, PyArrow or NumPy is not installed.
    """
    require("the Spark data source", "spark")
    from downrange.spark.source import DownrangeDataSource, RocketMQDataSource

    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(DownrangeDataSource)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("the Spark data source", "spark")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
