"""The data source: its names, errors at `load`, and imports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import downrange.spark
import pyspark_downrange
import pyspark_rocketmq
from downrange.errors import OptionError
from downrange.spark.read.batch_reader import RocketMQReader
from downrange.spark.read.stream_reader import RocketMQStreamReader
from downrange.spark.source import DownrangeDataSource, RocketMQDataSource

BASE = {"nameServer": "127.0.0.1:1", "subscribe": "orders"}


def source(**options: str) -> RocketMQDataSource:
    return RocketMQDataSource({**BASE, **options})


def test_there_are_two_names_which_spark_finds_by_itself() -> None:
    assert RocketMQDataSource.name() == "rocketmq"
    assert DownrangeDataSource.name() == "downrange"
    assert pyspark_rocketmq.DefaultSource is RocketMQDataSource
    assert pyspark_downrange.DefaultSource is DownrangeDataSource


def test_both_are_registered_by_one_call() -> None:
    registered: list[object] = []

    class FakeSession:
        class dataSource:  # noqa: N801
            register = staticmethod(registered.append)

    downrange.spark.register(FakeSession)  # type: ignore[arg-type]
    assert registered == [RocketMQDataSource, DownrangeDataSource]


def test_nothing_connects_before_it_is_read() -> None:
    """There is no server at this address."""
    own = pickle.loads(pickle.dumps(source(includeMetadata="true")))
    schema = own.schema()
    assert len(schema.names) == 16
    for reader in (own.reader(schema), own.streamReader(schema)):
        assert isinstance(pickle.loads(pickle.dumps(reader)), RocketMQReader | RocketMQStreamReader)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "orders"}, "nameServer is missing"),
        ({**BASE, "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({**BASE, "assign": '{"orders": [0]}'}, "given: subscribe and assign"),
        ({"nameServer": "127.0.0.1:1", "topic": "orders", "dedupe": "key"}, "did you mean dedup?"),
    ],
)
def test_invalid_options_fail_at_once(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        RocketMQDataSource(dict(options))
    assert problem in str(caught.value)


def test_a_read_that_names_no_topic_says_so() -> None:
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern, assign"):
        RocketMQDataSource({"nameServer": "127.0.0.1:1"}).schema()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streams"),
        ({"commitGroupOffsets": "true", "group": "g"}, "commitGroupOffsets is for streams"),
        ({"startingOffsets": "latest"}, "has nothing to read"),
        ({"startingOffsets": '{"orders": {"b": {"0": -1}}}'}, "has nothing to read"),
    ],
)
def test_a_batch_rejects_options_of_streams(options: dict[str, str], problem: str) -> None:
    own = source(**options)
    with pytest.raises(OptionError, match=problem):
        own.reader(own.schema())


@pytest.mark.parametrize(
    "options", [{"endingOffsets": "latest"}, {"endingTimestamp": "5"}], ids=["offsets", "time"]
)
def test_a_stream_refuses_an_end(options: dict[str, str]) -> None:
    own = source(**options)
    with pytest.raises(OptionError, match="are for batches"):
        own.streamReader(own.schema())


@pytest.mark.parametrize("make", ["writer", "streamWriter"])
def test_a_write_is_planned_without_a_connection_as_well(make: str) -> None:
    own = RocketMQDataSource({"nameServer": "127.0.0.1:1", "topic": "orders"})
    schema = StructType([StructField("body", StringType())])
    assert "Writer" in type(getattr(own, make)(schema, overwrite=False)).__name__


@pytest.mark.parametrize("make", ["reader", "streamReader"])
def test_a_schema_with_an_unknown_column_is_rejected(make: str) -> None:
    wrong = StructType([StructField("amount", LongType())])
    with pytest.raises(OptionError, match="the source has no column 'amount'"):
        getattr(source(), make)(wrong)


def _modules_after(code: str) -> set[str]:
    listing = f"{code}\nimport sys\nprint(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, timeout=60, check=True
    )
    return {*found.stdout.split()}


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    loaded = _modules_after("import downrange.spark; downrange.spark.register")
    assert loaded & {"pyspark", "pyarrow", "numpy", "downrange.client"} == set()


def test_spark_imports_no_more_than_a_read_needs_to_find_the_source() -> None:
    loaded = _modules_after("import pyspark_rocketmq")
    assert loaded & {"pandas", "downrange.spark.write.writers", "downrange.embedded"} == set()


def test_an_unknown_name_is_an_error() -> None:
    unknown: Any = downrange.spark
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        unknown.nothing  # noqa: B018
    assert downrange.spark.LagListener.__name__ == "LagListener"
    assert downrange.spark.DataLost.__name__ == "DataLost"
