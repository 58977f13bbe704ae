"""The columns, and the check of a user's schema."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from downrange.errors import OptionError
from downrange.spark.schema import (
    COLUMNS,
    METADATA_COLUMNS,
    arrow_schema,
    check_projection,
    spark_schema,
)


def test_a_read_has_eleven_columns_and_five_more_on_request() -> None:
    assert (len(COLUMNS), len(METADATA_COLUMNS)) == (11, 5)
    assert spark_schema(include_metadata=False).names == [*COLUMNS]
    assert spark_schema(include_metadata=True).names == [*COLUMNS, *METADATA_COLUMNS]


def test_arrow_types_are_those_that_spark_expects() -> None:
    """Spark compares them exactly, and only in the first batch."""
    schema = spark_schema(include_metadata=True)
    assert arrow_schema(schema.names).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_schema_chooses_columns_in_any_order() -> None:
    chosen = StructType(
        [spark_schema(include_metadata=True)[name] for name in ("sys_flag", "body")]
    )
    assert check_projection(chosen) == ("sys_flag", "body")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([], "no column; choose some of topic"),
        ([StructField("amount", LongType())], "the source has no column 'amount'"),
        ([StructField("offset", StringType())], "'offset' is bigint, not string; cast it"),
        ([StructField("topic", StringType())] * 2, "'topic' occurs twice"),
        (
            [StructField("properties", MapType(StringType(), StringType(), False))],
            "must be nullable",
        ),
        ([StructField("topic", StringType(), False)], "must be nullable"),
    ],
)
def test_an_invalid_schema_is_rejected(fields: list[StructField], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_projection(StructType(fields))
    assert problem in str(caught.value)
