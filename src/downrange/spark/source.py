"""The data source behind `format("rocketmq")`.

    spark.read.format("rocketmq").option("nameServer", …).option("subscribe", "orders").load()

Spark prefers a Java source to a Python source of the same short name. Where an old jar has the name
"rocketmq", use "downrange": it is the same source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from downrange.spark.option_reader import OptionReader
from downrange.spark.read.batch_reader import RocketMQReader, check_batch_only
from downrange.spark.read.read_options import SELECTIONS, ReadOptions, parse_read
from downrange.spark.read.stream_reader import RocketMQStreamReader, check_stream_only
from downrange.spark.schema import check_projection, spark_schema
from downrange.spark.write.write_options import WRITE_NAMES, parse_write

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

    from downrange.spark.write.writers import RocketMQStreamWriter, RocketMQWriter


class RocketMQDataSource(DataSource):
    """Topics as tables: batch and stream, read and write.

    Args:
        options: The options as Spark gives them; docs/guides/spark.md lists them.

    Raises:
        OptionError: An option is unknown, missing or wrong, so that `load` fails at once.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark does not say whether this is a read or a write; the options show it.
        reader = OptionReader(self.options)
        if any(map(reader.has, SELECTIONS)):
            parse_read(self.options)
        elif any(map(reader.has, WRITE_NAMES)):
            parse_write(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the columns of a read for which the user gives no schema."""
        return spark_schema(include_metadata=self._reading().include_metadata)

    def reader(self, schema: StructType) -> RocketMQReader:
        """Return the batch reader."""
        options = self._reading()
        check_batch_only(options)
        return RocketMQReader(options, check_projection(schema))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802
        """Return the stream reader."""
        options = self._reading()
        check_stream_only(options)
        return RocketMQStreamReader(options, check_projection(schema))

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Return the batch writer."""
        from downrange.spark.write.writers import RocketMQWriter  # not needed to read

        return RocketMQWriter(parse_write(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802
        """Return the stream writer."""
        from downrange.spark.write.writers import RocketMQStreamWriter

        return RocketMQStreamWriter(parse_write(self.options), schema, overwrite=overwrite)

    def _reading(self) -> ReadOptions:
        return parse_read(self.options)


class DownrangeDataSource(RocketMQDataSource):
    """The same source under a name that no old jar has."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "downrange"
