"""Files as a stream of rows, each with its file and its place there.

Three columns are added to those of the files:

    _file   where the row is from
    _row    its number there: 1 is the first; of a large text file, counted from `_block` on
    _block  the byte at which the piece of the file begins that the row was read in

These are the same in every run, whoever reads: how a file is cut depends on its size alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from downrange.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Where Spark puts the text of a row that it cannot read.
CORRUPT: Final = "_corrupt_record"
PLACE_COLUMNS: Final = ("_file", "_row", "_block")
_PIECE_BYTES: Final = 128 * 1024 * 1024
_ROW_BITS: Final = (1 << 33) - 1
#: A file is cut into pieces of this size, whatever the machine and the other files are, and each
#: piece is a task of its own, as even an empty one would fill it. So rows can be counted.
SETTINGS: Final = {
    "spark.sql.files.maxPartitionBytes": str(_PIECE_BYTES),
    "spark.sql.files.openCostInBytes": str(_PIECE_BYTES),
    # Rows are looked at whole, so that a bad one is bad whichever columns are used.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """Files to read.

    Attributes:
        path: A file, a folder or a pattern.
        format: Of the files.
        columns: Their columns as DDL; found in the files if None.
        header: Whether CSV begins with the names of columns.
        delimiter: Between values of CSV.
        batch_files_max: The most files of one batch.
    """

    path: str
    format: Literal["parquet", "csv", "json"]
    columns: str | None
    header: bool
    delimiter: str
    batch_files_max: int

    def data_columns(self, spark: SparkSession) -> list[str]:
        """Return the names of the files' own columns."""
        return [name for name in self._schema(spark).names if name != CORRUPT]

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a stream.

        Raises:
            OptionError: There are no files yet to tell the columns.
        """
        rows = (
            spark.readStream.format(self.format)
            .options(**self._options())
            .option("maxFilesPerTrigger", str(self.batch_files_max))
            .schema(self._schema(spark))
            .load(self.path)
        )
        return with_places(rows, self.format)

    def _schema(self, spark: SparkSession) -> StructType:
        from pyspark.errors import AnalysisException
        from pyspark.sql.types import StringType, StructType

        if self.columns is not None:
            schema = cast("StructType", StructType.fromDDL(self.columns))
        else:
            files = spark.read.format(self.format).options(**self._options())
            try:
                schema = files.load(self.path).schema
            except AnalysisException as error:
                raise OptionError(
                    f"the columns of {self.path} cannot be told: {_first_line(error)}; give columns"
                ) from error
        taken = set(PLACE_COLUMNS) & set(schema.names)
        if taken:
            raise OptionError(f"a column is called {taken.pop()!r}, a name that is used here")
        if self.format != "parquet" and CORRUPT not in schema.names:
            schema = StructType([*schema.fields]).add(CORRUPT, StringType())
        return schema

    def _options(self) -> dict[str, str]:
        if self.format == "csv":
            return {
                "header": str(self.header).lower(),
                "sep": self.delimiter,
                # Names are compared, so that another order of columns is not taken for ours.
                "enforceSchema": str(not self.header).lower(),
                "columnNameOfCorruptRecord": CORRUPT,
            }
        if self.format == "json":
            return {"columnNameOfCorruptRecord": CORRUPT}
        return {}


def with_places(rows: DataFrame, kind: str) -> DataFrame:
    """Add the columns that say where a row is from; `numbered` makes `_row` whole."""
    from pyspark.sql import functions as F

    is_parquet = kind == "parquet"
    number = F.col("_metadata.row_index") + 1 if is_parquet else F.lit(None)
    block = F.lit(0) if is_parquet else F.col("_metadata.file_block_start")
    return rows.select(
        "*",
        F.col("_metadata.file_path").alias("_file"),
        number.cast("bigint").alias("_row"),
        block.cast("bigint").alias("_block"),
    )


def numbered(batch: DataFrame) -> DataFrame:
    """Number the rows of a batch where the files do not: count them.

    A partition is one piece of one file then, see `SETTINGS`. The upper bits of Spark's id are the
    number of the partition, the lower ones that of the row in it.
    """
    from pyspark.sql import functions as F

    counted = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_BITS)) + 1
    return batch.withColumn("_row", F.coalesce("_row", counted))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
