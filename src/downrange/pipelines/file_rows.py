"""Files as a stream of rows, each with its file and its position in it.

Three columns are added:

    _file   the path of the file
    _row    the number of the row, from 1; in a large text file counted from `_block` on
    _block  the byte at which the piece of the file begins that holds the row

They are the same in every run: how a file is split depends on its size only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from downrange.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The column for the text of a row that Spark cannot parse.
CORRUPT: Final = "_corrupt_record"
PLACE_COLUMNS: Final = ("_file", "_row", "_block")
_PIECE_BYTES: Final = 128 * 1024 * 1024
_ROW_BITS: Final = (1 << 33) - 1
#: A file is split into pieces of this size on every machine, and each piece is a task of its own,
#: because the cost of opening a file fills a task. So rows can be numbered within a task.
SETTINGS: Final = {
    "spark.sql.files.maxPartitionBytes": str(_PIECE_BYTES),
    "spark.sql.files.openCostInBytes": str(_PIECE_BYTES),
    # Rows are parsed whole, so that a bad row is found whichever columns are used.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """Files to read.

    Attributes:
        path: A file, a folder or a pattern.
        format: The format of the files.
        columns: The columns as DDL; inferred from the files if None.
        header: Whether CSV files begin with column names.
        delimiter: The separator of CSV values.
        batch_files_max: Files of one batch, at most.
    """

    path: str
    format: Literal["parquet", "csv", "json"]
    columns: str | None
    header: bool
    delimiter: str
    batch_files_max: int

    def data_columns(self, spark: SparkSession) -> list[str]:
        """Return the names of the columns in the files."""
        return [name for name in self._schema(spark).names if name != CORRUPT]

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a stream.

        Raises:
            OptionError: The columns are not given, and there are no files yet.
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
                    f"cannot infer the columns of {self.path}: {_first_line(error)}; give columns"
                ) from error
        taken = set(PLACE_COLUMNS) & set(schema.names)
        if taken:
            raise OptionError(f"column name {taken.pop()!r} is reserved; rename the column")
        if self.format != "parquet" and CORRUPT not in schema.names:
            schema = StructType([*schema.fields]).add(CORRUPT, StringType())
        return schema

    def _options(self) -> dict[str, str]:
        if self.format == "csv":
            return {
                "header": str(self.header).lower(),
                "sep": self.delimiter,
                # Column names are checked, so that another order of columns is an error.
                "enforceSchema": str(not self.header).lower(),
                "columnNameOfCorruptRecord": CORRUPT,
            }
        if self.format == "json":
            return {"columnNameOfCorruptRecord": CORRUPT}
        return {}


def with_places(rows: DataFrame, kind: str) -> DataFrame:
    """Add the position columns; `numbered` fills `_row` where the format has no numbers."""
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
    """Number the rows of a batch if the file format does not.

    A partition is one piece of one file, see `SETTINGS`. The upper bits of Spark's id are the
    number of the partition, the lower bits the number of the row in it.
    """
    from pyspark.sql import functions as F

    counted = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_BITS)) + 1
    return batch.withColumn("_row", F.coalesce("_row", counted))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
