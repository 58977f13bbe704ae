"""Batch reads through Spark, from the embedded and the Apache server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from downrange import Admin, Producer
from downrange.model import Message, QueueId
from tests.spark.patience import CLIENT, SENDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.contract.servers import Server

    Load = Callable[..., DataFrame]

BODY = b"compressible " * 1000
KINDS: tuple[Literal["zlib", "lz4", "zstd"], ...] = ("zlib", "lz4", "zstd")
PLAIN = 300


@pytest.fixture
def load(spark: SparkSession, server: Server) -> Load:
    """Return a function that reads a batch; Spark finds the source without registration."""

    def start(schema: str | None = None, name: str = "rocketmq", **options: Any) -> DataFrame:
        reading = spark.read.format(name).option("nameServer", server.name_server)
        if schema is not None:
            reading = reading.schema(schema)
        texts = {option.replace("__", "."): str(text) for option, text in options.items()}
        return reading.options(**texts).load()

    return start


@pytest.fixture(scope="session")
def filled(server: Server) -> str:
    """Return a topic with messages of all kinds; property `number` identifies each."""
    topic = server.topic(2)
    broker = server.route_brokers(topic)[0]

    def message(number: int, body: bytes, **settings: Any) -> Message:
        return Message(topic, body, properties={"number": str(number)}, **settings)

    with Producer(server.name_server, group="filling", **SENDING) as producer:
        queue = QueueId(topic, broker, 0)
        producer.send(message(0, b"first", tags="new", keys=["k-1", "k-2"]), queue=queue)
        producer.send_batch(
            [message(number, b"%d" % number, tags="paid") for number in range(1, PLAIN)],
            queue=queue,
        )
    for number, kind in enumerate(KINDS, PLAIN):
        sending = {**SENDING, "options": replace(SENDING["options"], compression=kind)}
        with Producer(server.name_server, group=f"filling-{kind}", **sending) as producer:
            producer.send(message(number, BODY, tags=kind), queue=QueueId(topic, broker, 1))
    server.read_all(topic, PLAIN + len(KINDS))
    return topic


def places(rows: DataFrame) -> list[tuple[int, int]]:
    found = rows.select("queue_id", "offset").collect()
    return sorted((row.queue_id, row.offset) for row in found)


def test_every_message_is_a_row(load: Load, filled: str, server: Server) -> None:
    rows = load(subscribe=filled, includeMetadata="true", maxRecordsPerPartition=100)
    found = sorted(rows.collect(), key=lambda row: int(row.properties["number"]))
    assert [int(row.properties["number"]) for row in found] == [*range(PLAIN + len(KINDS))]
    assert [row.offset for row in found] == [*range(PLAIN), 0, 1, 2]
    assert [bytes(row.body) for row in found[1:PLAIN]] == [
        b"%d" % number for number in range(1, PLAIN)
    ]
    assert [bytes(row.body) for row in found[PLAIN:]] == [BODY] * 3
    assert [row.tags for row in found[PLAIN:]] == [*KINDS]
    first = found[0]
    assert (first.topic, first.queue_id) == (filled, 0)
    assert (first.keys, first.tags, bytes(first.body)) == ("k-1 k-2", "new", b"first")
    sent = {message.message_id for message in server.read_all(filled, len(found))}
    assert {row.msg_id for row in found} == sent
    assert all(row.store_timestamp is not None and row.born_host for row in found)


def test_a_schema_is_a_projection(load: Load, filled: str) -> None:
    rows = load(schema="offset long, body binary, tags string", subscribe=filled)
    assert rows.columns == ["offset", "body", "tags"]
    assert rows.where("tags = 'paid'").count() == PLAIN - 1
    assert rows.agg(f.max("offset")).collect() == [(PLAIN - 1,)]


def test_filters_of_spark_and_of_brokers_agree(load: Load, filled: str, server: Server) -> None:
    paid = load(subscribe=filled, tags="paid || zlib")
    assert places(paid) == places(load(subscribe=filled).where("tags in ('paid', 'zlib')"))
    both = load(subscribe=filled)
    assert both.where("queue_id = 1").union(both).count() == PLAIN + 2 * len(KINDS)
    if server.is_apache:
        by_sql = load(subscribe=filled, sqlFilter="TAGS = 'zstd' OR number = '7'")
        assert places(by_sql) == [(0, 7), (1, 2)]
        with pytest.raises(PySparkException, match=r"parse|syntax|Encountered|Lexical"):
            load(subscribe=filled, sqlFilter="number >>> nonsense").count()


def test_offsets_and_groups_say_where_to_begin(load: Load, filled: str, server: Server) -> None:
    broker = server.route_brokers(filled)[0]
    queues = {filled: {broker: {"0": 290, "1": -2}}}
    rows = load(subscribe=filled, startingOffsets=json.dumps(queues))
    assert places(rows) == [*((0, offset) for offset in range(290, PLAIN)), (1, 0), (1, 1), (1, 2)]
    with Admin(server.name_server, client_options=CLIENT) as admin:
        admin.create_group("spark-tests")
        admin.set_group_offset("spark-tests", QueueId(filled, broker, 0), 295)
    options = {"startingOffsets": "group", "group": "spark-tests"}
    late = load(subscribe=filled, groupOffsetsFallback="latest", **options)
    assert places(late) == [(0, offset) for offset in range(295, PLAIN)]
    later = load(subscribe=filled, startingTimestamp="2100-01-01T00:00:00Z")
    assert later.count() == 0


def test_the_second_name_is_the_same_source(load: Load, filled: str) -> None:
    assert load(name="downrange", subscribe=filled).count() == PLAIN + len(KINDS)


def test_invalid_options_fail_with_a_hint(load: Load, filled: str) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(subscribe=filled, startingOffset="earliest")
    with pytest.raises(PySparkException, match="exactly one of subscribe"):
        load()
    with pytest.raises(PySparkException, match="the source has no column 'amount'"):
        load(schema="amount long", subscribe=filled).count()
    with pytest.raises(PySparkException, match="'offset' is bigint, not string"):
        load(schema="offset string", subscribe=filled).count()
    with pytest.raises(PySparkException, match="'offset' and its values must be nullable"):
        load(schema="offset long not null", subscribe=filled).count()
    with pytest.raises(PySparkException, match="has no route at") as caught:
        load(
            subscribe="nothing", accessKey="shop", secretKey="sesame", fetchOffset__numRetries=0
        ).count()
    assert "sesame" not in str(caught.value)
