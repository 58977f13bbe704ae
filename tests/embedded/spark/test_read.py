"""Batch reads: which queues, from where to where, which messages, which columns."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from downrange.errors import OptionError, RouteNotFound
from downrange.model import Message, QueueId
from downrange.spark.read.losses import DataLost
from downrange.spark.read.plan import ReadPartition
from downrange.spark.schema import spark_schema
from tests.embedded.spark.stage import numbers, read
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.embedded.spark.stage import Stage


@pytest.fixture(scope="module")
def filled(both: tuple[Stage, Any]) -> str:
    """Return a topic: 0-9 and 10-19 on broker-a, 20-29 in queue 1 of broker-b."""
    stage = both[0]
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    stage.send(topic, numbers(10, 20), queue=1)
    stage.send(topic, numbers(20, 30), broker="broker-b", queue=1)
    return topic


# ---- which queues --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"subscribe": "{}"}, numbers(0, 30)),
        ({"subscribePattern": ".*{}"}, numbers(0, 30)),
        ({"subscribePattern": "no such.*"}, []),
        ({"assign": '{{"{}": [1]}}'}, numbers(10, 30)),
        ({"assign": '{{"{}": {{"broker-a": [0, 1], "broker-b": [0]}}}}'}, numbers(0, 20)),
        ({"subscribe": "{}", "queueIds": "0"}, numbers(0, 10)),
        ({"subscribe": "{}", "brokers": "broker-b"}, numbers(20, 30)),
        ({"subscribe": "{}", "brokers": "broker-b,broker-a", "queueIds": "1,0"}, numbers(0, 30)),
    ],
)
def test_a_selection_is_read(
    stage: Stage, filled: str, options: dict[str, str], wanted: list[bytes]
) -> None:
    texts = {name: text.format(filled) for name, text in options.items()}
    assert stage.bodies(**texts) == wanted


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"subscribe": "{}", "queueIds": "0,7"},
            "not found: queueIds 7; existing queues: {}/broker-a/0",
        ),
        ({"subscribe": "{}", "brokers": "broker-a,brokr"}, "not found: brokers brokr"),
        ({"assign": '{{"{}": [0, 2]}}'}, "not found: queue 2 of {}"),
        ({"assign": '{{"{}": {{"broker-c": [0]}}}}'}, "queue 0 of {} on broker-c"),
        ({"assign": '{{"{}": [0]}}', "queueIds": "1"}, "match none of the queues"),
    ],
)
def test_a_selection_of_what_is_not_there_is_refused(
    stage: Stage, filled: str, options: dict[str, str], problem: str
) -> None:
    texts = {name: text.format(filled) for name, text in options.items()}
    with pytest.raises(OptionError) as caught:
        stage.batch(**texts).partitions()
    assert problem.format(filled) in str(caught.value)


def test_a_topic_that_does_not_exist_is_named(stage: Stage) -> None:
    with pytest.raises(RouteNotFound, match=r"'nothing' has no route.*\n.*topic create nothing"):
        stage.batch(subscribe="nothing").partitions()


def test_several_topics_are_read_in_order(stage: Stage) -> None:
    first, second = sorted((stage.topic(1), stage.topic(1)))
    stage.send(second, [b"b"])
    stage.send(first, [b"a"])
    table = stage.table(subscribe=f"{second},{first}")
    assert table["body"].to_pylist() == [b"a", b"b"]
    assert table["topic"].to_pylist() == [first, second]
    assert set(table["broker_name"].to_pylist()) == {"broker-a"}


# ---- from where to where -------------------------------------------------------------------------


def queues(topic: str, **offsets: int) -> str:
    """Return offsets as JSON: a0=5 is queue 0 of broker-a."""
    table: dict[str, dict[str, int]] = {}
    for name, offset in offsets.items():
        table.setdefault(f"broker-{name[0]}", {})[name[1:]] = offset
    return json.dumps({topic: table})


def test_offsets_say_where_to_begin_and_to_end(stage: Stage, filled: str) -> None:
    starting = queues(filled, a0=4, a1=-2, b1=0)
    ending = queues(filled, a0=6, a1=3, b1=-1)
    found = stage.bodies(subscribe=filled, startingOffsets=starting, endingOffsets=ending)
    assert found == [*numbers(4, 6), *numbers(10, 13), *numbers(20, 30)]


def test_queues_that_offsets_do_not_name_are_read_wholly(stage: Stage, filled: str) -> None:
    assert stage.bodies(subscribe=filled, startingOffsets=queues(filled, a0=9)) == numbers(9, 30)
    ending = queues(filled, a0=1)
    found = stage.bodies(subscribe=filled, endingOffsets=ending)
    assert found == [*numbers(0, 1), *numbers(10, 30)]
    later = stage.bodies(
        subscribe=filled, startingOffsets=queues(filled, a0=9), newQueueStart="latest"
    )
    assert later == numbers(9, 10)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_of_queues_that_are_not_read_are_refused(
    stage: Stage, filled: str, name: str
) -> None:
    options = {"subscribe": filled, name: queues(filled, a7=1)}
    with pytest.raises(OptionError, match=f"given for {filled}/broker-a/7, which is not read"):
        stage.batch(**options).partitions()
    by_time = {"subscribe": filled, f"{name}ByTimestamp": '{"typo": 5}'}
    with pytest.raises(OptionError, match="given for typo, which is not read"):
        stage.batch(**by_time).partitions()


def test_times_say_where_to_begin_and_to_end(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 5))
    time.sleep(0.05)
    middle = datetime.now(UTC)
    middle_ms = int(middle.timestamp() * 1000)
    time.sleep(0.05)
    stage.send(topic, numbers(5, 10))
    assert stage.bodies(subscribe=topic, startingTimestamp=middle_ms) == numbers(5, 10)
    assert stage.bodies(subscribe=topic, endingTimestamp=middle.isoformat()) == numbers(0, 5)
    by_topic = json.dumps({topic: middle_ms})
    assert stage.bodies(subscribe=topic, startingOffsetsByTimestamp=by_topic) == numbers(5, 10)
    assert stage.bodies(subscribe=topic, endingOffsetsByTimestamp=by_topic) == numbers(0, 5)
    by_queue = json.dumps({topic: {"broker-a": {"0": middle.isoformat()}}})
    assert stage.bodies(subscribe=topic, startingOffsetsByTimestamp=by_queue) == numbers(5, 10)
    soon = middle_ms + 3_600_000
    assert stage.bodies(subscribe=topic, startingTimestamp=soon) == []
    assert stage.bodies(subscribe=topic, startingTimestamp=0) == numbers(0, 10)
    reader = stage.batch(
        subscribe=topic, startingTimestamp=middle_ms, endingOffsets=queues(topic, a0=1)
    )
    assert reader.partitions() == []


def test_a_group_says_where_to_begin_and_else_its_fallback(stage: Stage, filled: str) -> None:
    stage.admin.create_group("readers")
    stage.admin.set_group_offset("readers", QueueId(filled, "broker-a", 0), 7)
    options = {"subscribe": filled, "startingOffsets": "group", "group": "readers"}
    assert stage.bodies(**options) == numbers(7, 30)
    assert stage.bodies(**options, groupOffsetsFallback="latest") == numbers(7, 10)


def test_a_read_is_a_snapshot(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3))
    reader = stage.batch(subscribe=topic)
    partitions = reader.partitions()
    stage.send(topic, numbers(3, 6))
    assert read(reader, partitions)["body"].to_pylist() == numbers(0, 3)
    assert len(stage.bodies(subscribe=topic)) == 6


def test_offsets_that_a_queue_does_not_have_are_losses(stage: Stage, filled: str) -> None:
    behind = {"subscribe": filled, "startingOffsets": queues(filled, a0=11)}
    with pytest.raises(DataLost, match=r"queue 0: .* the start is behind the last") as caught:
        stage.batch(**behind).partitions()
    assert caught.value.queue == QueueId(filled, "broker-a", 0)
    assert caught.value.available == (0, 10)
    assert stage.bodies(**behind, failOnDataLoss="false") == numbers(10, 30)
    beyond = {"subscribe": filled, "endingOffsets": queues(filled, a1=15)}
    with pytest.raises(
        DataLost, match=r"wanted offsets 0 to 14, it has offsets 0 to 9: the queue ends"
    ):
        stage.batch(**beyond).partitions()
    assert stage.bodies(**beyond, failOnDataLoss="false") == numbers(0, 30)


# ---- tasks ---------------------------------------------------------------------------------------


def test_tasks_are_as_many_as_configured(stage: Stage, filled: str) -> None:
    def lengths(**options: Any) -> list[list[int]]:
        partitions = stage.batch(subscribe=filled, **options).partitions()
        return [
            [each.length for each in partition.ranges]
            for partition in partitions
            if isinstance(partition, ReadPartition)
        ]

    assert lengths() == [[10, 10, 10]]
    assert lengths(minRecordsPerPartition=10) == [[10], [10], [10]]
    assert lengths(minPartitions=6) == [[5]] * 6
    assert lengths(maxRecordsPerPartition=4) == [[3], [3], [4]] * 3
    assert lengths(maxRecordsPerPartition=4, orderBy="queue") == [[10]] * 3
    assert lengths(minRecordsPerPartition=1, maxPartitions=2) in (
        [[10, 10], [10]],
        [[10], [10, 10]],
    )
    whole = stage.bodies(subscribe=filled, maxRecordsPerPartition=4)
    assert whole == numbers(0, 30)


def test_nothing_to_read_gives_no_task_and_the_empty_one_of_spark_is_harmless(stage: Stage) -> None:
    reader = stage.batch(subscribe=stage.topic())
    assert reader.partitions() == []
    nothing: Any = None
    assert [*reader.read(nothing)] == []


# ---- filters -------------------------------------------------------------------------------------


def test_tags_are_compared_as_texts(stage: Stage) -> None:
    """A broker compares hashes only, and "Aa" and "BB" have the same hash."""
    topic = stage.topic(1)
    for number, tag in enumerate(("Aa", "BB", "other", "Aa")):
        stage.send(topic, [b"%d" % number], tags=tag)
    stage.send(topic, [b"4"])
    assert stage.bodies(subscribe=topic, tags="Aa") == [b"0", b"3"]
    assert stage.bodies(subscribe=topic, tags="BB || other") == [b"1", b"2"]
    assert stage.bodies(subscribe=topic, tags="nothing") == []
    assert stage.bodies(subscribe=topic, tags="*") == numbers(0, 5)


def test_few_matches_in_a_long_queue_are_found(stage: Stage) -> None:
    topic = stage.topic(1)
    for first in range(0, 20_000, 5000):
        stage.send(topic, numbers(first, first + 5000), tags="many")
    stage.send(topic, [b"last"], tags="few")
    assert stage.bodies(subscribe=topic, tags="few") == [b"last"]
    some = stage.batch(subscribe=topic, tags="many", batchRows=1000, batchBytes=65536)
    batches = [*some.read(some.partitions()[0])]
    assert sum(batch.num_rows for batch in batches) == 20_000
    assert max(batch.num_rows for batch in batches) <= 1000


def test_rows_are_those_that_match_the_sql_filter(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, [b"a", b"b"], tags="red")
    stage.send(topic, [b"c"], tags="blue")
    assert stage.bodies(subscribe=topic, sqlFilter="TAGS = 'red'") == [b"a", b"b"]


def test_sql_that_cannot_be_read_is_rejected_at_the_start(stage: Stage) -> None:
    with pytest.raises(OptionError, match="amount !> 5"):
        stage.batch(subscribe=stage.topic(1), sqlFilter="amount !> 5")


# ---- columns -------------------------------------------------------------------------------------


def test_a_message_becomes_a_row(stage: Stage) -> None:
    topic = stage.topic(1)
    message = Message(
        topic, b"body", tags="new", keys=["o-1", "o-2"], properties={"city": "Köln"}, flag=7
    )
    receipt = stage.producer.send(message, queue=QueueId(topic, "broker-a", 0))
    (row,) = stage.table(subscribe=topic, includeMetadata="true").to_pylist()
    assert row["topic"] == topic
    assert (row["broker_name"], row["queue_id"], row["offset"]) == ("broker-a", 0, 0)
    assert row["msg_id"] == receipt.message_id
    assert (row["keys"], row["tags"], row["body"]) == ("o-1 o-2", "new", b"body")
    assert dict(row["properties"])["city"] == "Köln"
    assert abs(row["born_timestamp"].timestamp() - time.time()) < 3600
    assert row["store_timestamp"] >= row["born_timestamp"].replace(microsecond=0)
    assert row["born_host"].startswith("127.0.0.1:")
    assert row["store_host"] == stage.server.brokers[0]
    assert (row["reconsume_times"], row["flag"]) == (0, 7)
    assert isinstance(row["sys_flag"], int)


def test_a_schema_chooses_columns_in_any_order(stage: Stage, filled: str) -> None:
    everything = spark_schema(include_metadata=True)
    chosen = StructType([everything[name] for name in ("body", "flag", "offset")])
    reader = stage.source(subscribe=filled, queueIds="0").reader(chosen)
    table = read(reader, reader.partitions())
    assert table.column_names == ["body", "flag", "offset"]
    assert table["offset"].to_pylist() == [*range(10)]


def test_a_namespace_is_added_and_removed(stage: Stage) -> None:
    topic = stage.topic(1, name="shop%25orders".replace("25", ""))
    stage.send(topic, [b"1"])
    table = stage.table(subscribe="orders", namespace="shop")
    assert table["body"].to_pylist() == [b"1"]
    assert table["topic"].to_pylist() == ["orders"]
    assert stage.bodies(subscribePattern="ord.*", namespace="shop") == [b"1"]
    assert stage.bodies(subscribePattern="shop.*", namespace="shop") == []


def test_what_is_sent_in_many_ways_is_read_alike(stage: Stage) -> None:
    topic = stage.topic(1)
    queue = QueueId(topic, "broker-a", 0)
    large = b"compressible " * 1000
    stage.producer.send(Message(topic, large), queue=queue)
    stage.producer.send_batch([Message(topic, b"%d" % number) for number in range(3)], queue=queue)
    stage.producer.send(Message(topic, b"last"), queue=queue)
    wait_until(lambda: len(stage.bodies(subscribe=topic)) == 5)
    assert stage.bodies(subscribe=topic) == [large, b"0", b"1", b"2", b"last"]
