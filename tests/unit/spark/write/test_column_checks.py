"""Columns and options of a write, rejected on the driver with a hint."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from downrange.errors import OptionError
from downrange.spark.schema import spark_schema
from downrange.spark.write.write_options import WriteOptions, parse_write
from downrange.spark.write.writers import RocketMQStreamWriter, RocketMQWriter

STRING = StringType()
ALL: dict[str, Any] = {
    "body": BinaryType(),
    "topic": STRING,
    "keys": ArrayType(STRING),
    "tags": STRING,
    "properties": MapType(STRING, STRING),
    "queue_id": IntegerType(),
    "broker_name": STRING,
    "sharding_key": STRING,
    "delay_time_ms": LongType(),
}


def options(**given: str) -> WriteOptions:
    return parse_write({"nameServer": "127.0.0.1:1", **given})


def schema(columns: dict[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def writer(columns: dict[str, Any], **given: str) -> RocketMQWriter:
    return RocketMQWriter(options(**given), schema(columns), overwrite=False)


def test_all_columns_are_accepted_and_the_writer_pickles() -> None:
    for one in (
        writer(ALL),
        writer(ALL | {"msg_id": STRING}, dedup="column"),
        writer({"body": STRING, "keys": STRING}, topic="orders"),
        RocketMQStreamWriter(options(), schema(ALL), overwrite=False),
    ):
        assert vars(pickle.loads(pickle.dumps(one))) == vars(one)


def test_every_write_has_a_job_of_its_own() -> None:
    assert vars(writer(ALL)) != vars(writer(ALL))


@pytest.mark.parametrize(
    ("columns", "given", "problem"),
    [
        ({"topic": STRING}, {}, r"column 'body' is missing; the columns are: topic; .*to_json"),
        ({}, {"topic": "orders"}, "column 'body' is missing; the columns are: none"),
        ({"body": STRING}, {}, "set the option topic, or add a column 'topic'"),
        (ALL | {"colour": STRING}, {}, "'colour' cannot be written.* drop it, or put it"),
        (ALL | {"tag": STRING}, {}, "did you mean 'tags'"),
        ({"value": STRING}, {}, "'value' is called 'body' here; rename it with alias"),
        (ALL | {"key": STRING}, {}, "'key' is called 'keys', to look messages up by, or 'shard"),
        (ALL | {"partition": IntegerType()}, {}, "'partition' is called 'queue_id' here"),
        (ALL | {"Body": STRING}, {}, "did you mean 'body'"),
        (ALL | {"body": TimestampType()}, {}, r"'body' is timestamp, .*cast\(\"string\"\)"),
        (ALL | {"keys": ArrayType(LongType())}, {}, "not string or array<string>"),
        (ALL | {"properties": MapType(STRING, LongType())}, {}, r"map<string,bigint>, not map<st"),
        (ALL | {"properties": STRING}, {}, "not map<string,string>"),
        (ALL | {"queue_id": STRING}, {}, r"'queue_id' is string, not int; cast it"),
        (ALL | {"tags": LongType()}, {}, r"col\(\"tags\"\).cast\(\"string\"\), or drop it"),
        ({"body": STRING, "broker_name": STRING}, {"topic": "t"}, "needs column 'queue_id'"),
        (ALL | {"msg_id": STRING}, {}, "dedup=key generates the ids; set dedup=column"),
        (ALL | {"msg_id": STRING}, {"dedup": "none"}, "dedup=none generates the ids"),
        (ALL, {"dedup": "column"}, "takes ids from the column 'msg_id', which is missing"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(
    columns: dict[str, Any], given: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        writer(columns, **given)


def test_a_column_that_is_there_twice_is_named() -> None:
    twice = StructType([*schema(ALL).fields, StructField("body", STRING)])
    with pytest.raises(OptionError, match="'body' occurs twice"):
        RocketMQWriter(options(), twice, overwrite=False)


@pytest.mark.parametrize("include_metadata", [False, True])
def test_what_was_read_is_not_written_back_as_it_is(include_metadata: bool) -> None:
    """Where rows go must not depend on columns that were left in by accident."""
    with pytest.raises(OptionError, match=r"'offset' comes from a read .*df.select\(\"topic\""):
        RocketMQWriter(
            options(dedup="column"),
            spark_schema(include_metadata=include_metadata),
            overwrite=False,
        )


def test_topics_are_not_overwritten() -> None:
    with pytest.raises(OptionError, match="cannot be replaced"):
        RocketMQWriter(options(), schema(ALL), overwrite=True)
    with pytest.raises(OptionError, match='"complete" is not supported'):
        RocketMQStreamWriter(options(), schema(ALL), overwrite=True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topik": "orders"}, "unknown option 'topik'; did you mean topic"),
        ({"topic": "a b"}, "topic 'a b' contains"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "reserved for brokers"),
        ({"orderBy": "key"}, "not one of none, queue"),
        ({"dedup": "yes"}, "not one of key, column, none"),
        ({"inFlight": "0"}, "less than 1"),
        ({"maxBatchBytes": "10"}, "less than 1024"),
        (
            {"maxBatchBytes": str(16 << 20)},
            "maxBatchBytes=16777216 is more than the 15 MiB of a request",
        ),
        ({"maxMessageBytes": str(16 << 20)}, "maxMessageBytes=16777216 is more"),
        ({"compression": "snappy"}, "not one of zlib, lz4, zstd"),
        ({"producerGroup": "DEFAULT_PRODUCER"}, "placeholder for a missing name"),
        ({"autoCreate": "on"}, "not one of off, balanced"),
        ({"sendTimeoutMs": "0"}, "less than 1"),
    ],
)
def test_an_invalid_option_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        options(**given)


def test_options_are_case_insensitive_and_those_of_spark_are_ignored() -> None:
    assert options(
        TOPIC="orders",
        orderby="queue",
        Dedup="none",
        inflight="3",
        maxbatchbytes="2048",
        maxMessageBytes="100",
        compressOver="50",
        compression="zstd",
        producerGroup="mine",
        sendTimeoutMs="1500",
        autoCreate="balanced",
        checkpointLocation="/tmp/x",
        queryName="q",
    ) == WriteOptions(
        connection=options().connection,
        topic="orders",
        is_ordered=True,
        dedup="none",
        in_flight=3,
        batch_bytes_max=2048,
        message_bytes_max=100,
        compress_over_bytes=50,
        compression="zstd",
        group="mine",
        timeout=1.5,
        auto_create="balanced",
    )
