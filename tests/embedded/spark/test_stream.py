"""Stream reads: the batches, as Spark asks for them step by step."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from downrange.embedded import drop, refuse
from downrange.errors import OptionError, RocketMQError
from downrange.model import QueueId
from downrange.spark.read import stream_reader as streaming
from downrange.spark.read.losses import DataLost
from downrange.spark.read.offsets import Positions
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.embedded.spark.stage import (
    ALL,
    QUICK,
    Counting,
    Query,
    numbers,
    read,
    staged,
    unique_name,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange.embedded import Cluster
    from tests.embedded.spark.stage import Stage

METADATA = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
)


class FakeTime:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


# ---- one batch after the other -------------------------------------------------------------------


def test_a_stream_gets_each_message_once(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    assert query.step() == numbers(0, 10)
    assert query.step() == []
    stage.send(topic, numbers(10, 20), broker="broker-b", queue=1)
    stage.send(topic, numbers(20, 25))
    assert query.step() == [*numbers(20, 25), *numbers(10, 20)]
    assert query.step() == []


def test_a_stream_begins_at_latest_by_default(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    query = Query(stage.stream(subscribe=topic))
    stage.send(topic, numbers(10, 12))
    assert query.step() == numbers(10, 12)


def test_where_a_stream_begins_does_not_move(stage: Stage) -> None:
    topic = stage.topic(1)
    reader = stage.stream(subscribe=topic)
    first = reader.initialOffset()
    stage.send(topic, numbers(0, 5))
    assert reader.initialOffset() == first
    assert first["first"] is True


def test_a_first_batch_that_is_repeated_elsewhere_reads_the_same(stage: Stage) -> None:
    """Spark stored only the end of batch 0, which holds the offset of "latest"."""
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    query = Query(stage.stream(subscribe=topic))
    stage.send(topic, numbers(10, 16))
    logged = query.plan()
    stage.send(topic, numbers(16, 30))  # the driver was restarted
    again = stage.stream(subscribe=topic)
    later = again.initialOffset()
    assert later != query.start
    partitions = again.partitions(later, logged)
    assert read(again, partitions)["body"].to_pylist() == numbers(10, 16)
    assert partitions == query.reader.partitions(query.start, logged)
    assert Query(again, logged).step() == numbers(16, 30)


def test_an_empty_first_batch_pins_where_the_stream_begins(stage: Stage) -> None:
    topic = stage.topic(1)
    query = Query(stage.stream(subscribe=topic))
    logged = query.plan()
    assert logged["init"] == logged["q"]
    stage.send(topic, numbers(0, 5))
    again = stage.stream(subscribe=topic)
    assert again.partitions(again.initialOffset(), logged) == []
    assert Query(again, logged).step() == numbers(0, 5)


def test_a_batch_is_planned_from_its_offsets_alone(stage: Stage, cluster: Cluster) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    end = query.plan()
    planned = query.reader.partitions(query.start, end)
    other = stage.stream(subscribe=topic)
    counting = Counting()
    for code in METADATA:
        cluster.intercept(code, counting)
    assert other.partitions(query.start, end) == planned
    assert not counting.codes


def test_an_end_of_the_progress_is_a_start_of_a_new_query(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    query.step()
    stage.send(topic, numbers(10, 15))
    pasted = json.dumps(query.start)
    assert Query(stage.stream(subscribe=topic, startingOffsets=pasted)).step() == numbers(10, 15)
    assert stage.bodies(subscribe=topic, endingOffsets=pasted) == numbers(0, 10)


def test_a_checkpoint_of_a_later_release_is_refused(stage: Stage) -> None:
    query = Query(stage.stream(subscribe=stage.topic(1)))
    query.start["v"] = 2
    with pytest.raises(OptionError, match="later release"):
        query.plan()


def test_a_reader_pickles(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3))
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    end = query.plan()
    partitions = pickle.loads(pickle.dumps(query.reader.partitions(query.start, end)))
    travelled = pickle.loads(pickle.dumps(query.reader))
    assert read(travelled, partitions)["body"].to_pylist() == numbers(0, 3)
    query.reader.commit(end)
    query.reader.stop()


# ---- limits --------------------------------------------------------------------------------------


def test_a_trigger_has_so_many_messages_at_most(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 20))
    stage.send(topic, numbers(20, 30), broker="broker-b")
    reader = stage.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=12)
    assert reader.getDefaultReadLimit() == ReadMaxRows(12)
    query = Query(reader)
    assert [len(query.step()) for _ in range(4)] == [12, 12, 6, 0]
    assert sorted(query.rows) == sorted(numbers(0, 30))
    assert len(query.batches[0]) - query.batches[0].count(b"20") >= 8  # by backlog


def test_a_trigger_once_ignores_the_limit(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 30))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options, maxOffsetsPerTrigger=10))
    assert len(query.step(ALL)) == 30
    patient = Query(stage.stream(**options, minOffsetsPerTrigger=100))
    assert len(patient.step(ALL)) == 30


def test_a_trigger_waits_for_enough_messages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = stage.topic(1)
    clock = FakeTime()
    monkeypatch.setattr(streaming, "time", clock)
    reader = stage.stream(subscribe=topic, minOffsetsPerTrigger=5, maxTriggerDelay="1m")
    assert reader.getDefaultReadLimit() == ReadMinRows(5)
    query = Query(reader)
    stage.send(topic, numbers(0, 4))
    assert query.step() == []
    stage.send(topic, numbers(4, 6))
    assert query.step() == numbers(0, 6)
    stage.send(topic, numbers(6, 8))
    assert query.step() == []
    clock.now += 61
    assert query.step() == numbers(6, 8)
    clock.now += 61
    assert query.step() == []
    assert reader.getDefaultReadLimit() == ReadMinRows(5)


def test_a_minimum_and_a_maximum_go_together(stage: Stage) -> None:
    topic = stage.topic(1)
    options = {"minOffsetsPerTrigger": 3, "maxOffsetsPerTrigger": 4}
    query = Query(stage.stream(subscribe=topic, **options))
    stage.send(topic, numbers(0, 2))
    assert query.step() == []
    stage.send(topic, numbers(2, 9))
    assert [query.step(), query.step(), query.step()] == [numbers(0, 4), numbers(4, 8), []]


def test_a_reader_without_limits_says_so(stage: Stage) -> None:
    assert stage.stream(subscribe="t").getDefaultReadLimit() == ReadAllAvailable()


# ---- available now -------------------------------------------------------------------------------


def test_available_now_ends_at_what_there_was(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 10))
    reader = stage.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    stage.send(topic, numbers(10, 20))
    stage.admin.update_topic(topic, read_queues=3, write_queues=3)
    stage.send(topic, [b"later"], queue=2)
    assert [len(query.step()) for _ in range(4)] == [4, 4, 2, 0]
    assert query.rows == numbers(0, 10)
    again = Query(stage.stream(subscribe=topic), query.start)
    again.reader.prepareForTriggerAvailableNow()
    assert again.step() == [*numbers(10, 20), b"later"]


def test_available_now_does_not_wait_for_more(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3))
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    reader = stage.stream(subscribe=topic, **options)
    reader.prepareForTriggerAvailableNow()
    assert Query(reader).step() == numbers(0, 3)


def test_available_now_may_begin_behind_its_end(stage: Stage) -> None:
    """The offset of "latest" is resolved after the end of the run is fixed."""
    topic = stage.topic(1)
    reader = stage.stream(subscribe=topic)
    reader.prepareForTriggerAvailableNow()
    stage.send(topic, numbers(0, 3))
    query = Query(reader)
    for _ in range(3):
        assert query.step() == []
        assert query.position == {
            QueueId(topic, broker, 0): offset
            for broker, offset in (("broker-a", 3), ("broker-b", 0))
        }


# ---- idle streams --------------------------------------------------------------------------------


def test_an_idle_stream_makes_no_batches_and_asks_seldom(stage: Stage, cluster: Cluster) -> None:
    topic = stage.topic()
    stage.send(topic, numbers(0, 3))
    query = Query(
        stage.stream(
            subscribe=topic,
            startingOffsets="earliest",
            metadataIntervalMs=60_000,
            routeIntervalMs=60_000,
        )
    )
    query.step()
    counting = Counting()
    for code in METADATA:
        cluster.intercept(code, counting)
    before = json.dumps(query.start)
    for _ in range(50):
        assert json.dumps(query.plan()) == before
        assert query.reader.reportLatestOffset() is not None
    assert not counting.codes


def test_an_idle_stream_asks_seldom_about_queues_that_are_new_and_empty(
    stage: Stage, cluster: Cluster
) -> None:
    topic = stage.topic(1)
    query = Query(stage.stream(subscribe=topic))
    query.step()
    stage.admin.update_topic(topic, read_queues=2, write_queues=2)
    assert query.step() == []
    counting = Counting()
    cluster.intercept(RequestCode.GET_MIN_OFFSET, counting)
    before = json.dumps(query.start)
    for _ in range(10):
        assert json.dumps(query.plan()) == before
    assert not counting.codes


# ---- queues come and go --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "wanted"), [("earliest", numbers(0, 5)), ("latest", numbers(3, 5))]
)
def test_new_queues_begin_where_the_option_says(
    stage: Stage, start: str, wanted: list[bytes]
) -> None:
    topic = stage.topic(1)
    query = Query(stage.stream(subscribe=topic, newQueueStart=start))
    query.step()
    stage.admin.update_topic(topic, read_queues=2, write_queues=2)
    stage.send(topic, numbers(0, 3), queue=1)
    found = query.step()
    logged = query.start
    stage.send(topic, numbers(3, 5), queue=1)
    assert found + query.step() == wanted
    assert query.position[QueueId(topic, "broker-a", 1)] == 5
    # In another process, the first batch with the queue reads the same.
    again = Query(stage.stream(subscribe=topic, newQueueStart=start), logged)
    assert again.step() == numbers(3, 5)


def test_a_new_queue_that_waits_for_more_messages_is_not_skipped(stage: Stage) -> None:
    topic = stage.topic(1)
    options = {"newQueueStart": "latest", "minOffsetsPerTrigger": 4}
    query = Query(stage.stream(subscribe=topic, **options))
    query.step()
    stage.admin.update_topic(topic, read_queues=2, write_queues=2)
    assert query.step() == []
    stage.send(topic, numbers(0, 3), queue=1)
    assert query.step() == []
    stage.send(topic, numbers(3, 5), queue=1)
    assert query.step() == numbers(0, 5)


def test_new_topics_and_brokers_that_a_pattern_takes_are_read(stage: Stage) -> None:
    first = stage.topic(1)
    prefix = first[:-2]
    query = Query(stage.stream(subscribePattern=f"{prefix}.*"))
    query.step()
    second = stage.topic(1, name=f"{prefix}-more")
    stage.send(second, numbers(0, 3), broker="broker-b")
    assert query.step() == numbers(0, 3)
    assert {queue.topic for queue in query.position} >= {first, second}


def test_a_broker_that_gets_the_topic_later_is_read(stage: Stage) -> None:
    topic = unique_name("topic")
    fields = stage.server.topic_fields(topic, 1, 6)
    create = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert probe.call(stage.server.brokers[0], create, fields).code == 0
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a"])
    query = Query(stage.stream(subscribe=topic))
    query.step()
    assert probe.call(stage.server.brokers[1], create, fields).code == 0
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a", "broker-b"])
    stage.send(topic, numbers(0, 3), broker="broker-b")
    assert query.step() == numbers(0, 3)


def test_a_pattern_that_nothing_is_like_yet_waits(stage: Stage) -> None:
    query = Query(stage.stream(subscribePattern="afterwards.*"))
    assert query.step() == []
    assert query.reader.reportLatestOffset() is None
    stage.send(stage.topic(1, name="afterwards-1"), numbers(0, 2))
    assert query.step() == numbers(0, 2)


def test_the_route_is_cached_for_a_while(stage: Stage) -> None:
    topic = stage.topic(1)
    query = Query(stage.stream(subscribe=topic, routeIntervalMs=60_000))
    query.step()
    stage.admin.update_topic(topic, read_queues=2, write_queues=2)
    stage.send(topic, numbers(0, 3), queue=1)
    assert query.step() == []
    assert Query(stage.stream(subscribe=topic), query.start).step() == numbers(0, 3)


def test_a_queue_that_was_read_may_be_closed(stage: Stage) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3), broker="broker-b")
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    query.step()
    stage.admin.update_topic(topic, permission=2, brokers=["broker-b"])
    stage.send(topic, numbers(3, 5))
    assert query.step() == numbers(3, 5)
    assert query.position[QueueId(topic, "broker-b", 0)] == 3


def test_a_queue_that_was_not_read_may_not_be_closed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    topic = stage.topic(1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    query.step()
    stage.send(topic, numbers(0, 3), broker="broker-b")
    stage.admin.update_topic(topic, permission=2, brokers=["broker-b"])
    with pytest.raises(DataLost, match=r"wanted offsets 0 to 2, .*: the queue was removed"):
        query.step()
    brave = Query(stage.stream(**options, failOnDataLoss="false"), query.start)
    stage.send(topic, numbers(3, 5))
    assert brave.step() == numbers(3, 5)
    assert brave.step() == []
    assert caplog.text.count("messages are lost, reading continues") == 1
    # After the queue is writable again, reading continues at its offset.
    stage.admin.update_topic(topic, permission=6, brokers=["broker-b"])
    assert brave.step() == numbers(0, 3)


def test_a_queue_that_is_removed_is_a_loss(stage: Stage) -> None:
    topic = stage.topic(2)
    stage.send(topic, numbers(0, 3), queue=1)
    query = Query(stage.stream(subscribe=topic, startingOffsets="earliest"))
    query.step()
    stage.admin.update_topic(topic, read_queues=1, write_queues=1)
    with pytest.raises(DataLost, match="queue 1"):
        query.step()


# ---- topics that are deleted ---------------------------------------------------------------------


def test_a_topic_that_is_deleted_is_a_loss(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    topic, other = stage.topic(1), stage.topic(1)
    stage.send(topic, numbers(0, 3))
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    brave = Query(stage.stream(**options, failOnDataLoss="false"))
    assert query.step() == brave.step() == numbers(0, 3)
    stage.admin.delete_topic(topic)
    with pytest.raises(DataLost, match=r"failOnDataLoss=false") as caught:
        query.step()
    assert caught.value.queue.topic == topic
    stage.send(other, numbers(3, 5))
    assert brave.step() == numbers(3, 5)
    assert brave.step() == []
    assert caplog.text.count("messages are lost, reading continues") == 1
    # The same after a restart.
    with pytest.raises(DataLost):
        Query(stage.stream(**options), query.start).plan()
    for is_now in (False, True):
        reader = stage.stream(**options, failOnDataLoss="false")
        if is_now:
            reader.prepareForTriggerAvailableNow()
        again = Query(reader, brave.start)
        assert again.step() == []
        assert again.position[QueueId(topic, "broker-a", 0)] == 3


@pytest.mark.parametrize("is_now", [False, True], ids=["on-and-on", "available-now"])
def test_a_re_created_topic_is_read_from_its_beginning(stage: Stage, is_now: bool) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 10))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    query.step()
    stage.admin.delete_topic(topic)
    stage.topic(1, name=topic)
    stage.send(topic, numbers(10, 13))

    def restarted(**more: str) -> Query:
        reader = stage.stream(**options, **more)
        if is_now:
            reader.prepareForTriggerAvailableNow()
        return Query(reader, query.start)

    with pytest.raises(DataLost, match="it was re-created") as caught:
        restarted().step()
    assert (caught.value.wanted[0], caught.value.available) == (10, (0, 3))
    brave = restarted(failOnDataLoss="false")
    assert brave.step() == numbers(10, 13)
    assert brave.step() == []


# ---- brokers that are down -----------------------------------------------------------------------


@pytest.fixture
def pair() -> Any:
    """Yield a cluster whose brokers a test may kill."""
    with staged(brokers=2) as found:
        yield found


def test_a_broker_that_comes_back_goes_on_where_it_was(pair: tuple[Stage, Cluster]) -> None:
    stage, cluster = pair
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 5), broker="broker-b")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options, failOnDataLoss="false"))
    strict = Query(stage.stream(**options))
    assert query.step() == strict.step() == numbers(0, 5)
    away = QueueId(topic, "broker-b", 0)
    cluster.stop_broker(1)
    with pytest.raises(RocketMQError, match="broker-b"):
        strict.step()
    stage.send(topic, numbers(5, 7))
    assert query.step() == numbers(5, 7)
    assert query.position[away] == 5
    cluster.restart_broker(1)
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a", "broker-b"])
    assert strict.step() == numbers(5, 7)
    stage.send(topic, numbers(7, 9), broker="broker-b")
    assert wait_until(lambda: query.step()) == numbers(7, 9)
    assert strict.step() == numbers(7, 9)
    assert query.position[away] == 7


def test_a_broker_that_is_away_is_not_passed_over_by_available_now(
    pair: tuple[Stage, Cluster],
) -> None:
    stage, cluster = pair
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 5), broker="broker-b")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stage.stream(**options))
    query.step()
    stage.send(topic, numbers(5, 6), broker="broker-b")
    cluster.kill_broker(1)
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a"])
    reader = stage.stream(**options)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(RocketMQError, match="broker-b"):
        Query(reader, query.start).plan()
    late = stage.stream(**options)
    late.prepareForTriggerAvailableNow()
    cluster.restart_broker(1)
    wait_until(lambda: stage.server.route_brokers(topic) == ["broker-a", "broker-b"])
    assert Query(late, query.start).step() == numbers(5, 6)


def test_a_broker_that_is_killed_between_batches_is_asked_again(
    pair: tuple[Stage, Cluster],
) -> None:
    stage, cluster = pair
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 5), broker="broker-b")
    query = Query(
        stage.stream(
            subscribe=topic,
            startingOffsets="earliest",
            routeIntervalMs=60_000,
            fetchOffset__numRetries=500,
        )
    )
    assert query.step() == numbers(0, 5)
    cluster.kill_broker(1)
    cluster.restart_broker(1)
    stage.send(topic, numbers(5, 7), broker="broker-b")
    assert query.step() == numbers(5, 7)


def test_a_name_server_that_goes_away_does_not_end_a_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with staged() as (stage, cluster):
        topic = stage.topic(1)
        query = Query(stage.stream(subscribe=topic, callTimeoutMs=5000))
        query.step()
        stage.send(topic, numbers(0, 3))
        cluster._run(cluster.server.name_server.stop())
        assert query.step() == numbers(0, 3)
        assert "using the last known queues" in caplog.text
        with pytest.raises(RocketMQError, match=r"no name server answered.*127\.0\.0\.1"):
            Query(stage.stream(subscribe=topic, callTimeoutMs=5000))
        cluster.stop()
        with pytest.raises(RocketMQError, match=r"127\.0\.0\.1"):
            query.plan()


def test_failed_requests_are_repeated(stage: Stage, cluster: Cluster) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3))
    options = {"subscribe": topic, "startingOffsets": "earliest", "callTimeoutMs": "3000"}
    busy = refuse(2, "busy")
    counting = Counting(busy, drop(), busy)
    cluster.intercept(RequestCode.GET_MAX_OFFSET, counting, broker=0)
    assert Query(stage.stream(**options, fetchOffset__numRetries=3)).step() == numbers(0, 3)
    assert counting.codes[RequestCode.GET_MAX_OFFSET] == 4
    cluster.intercept(RequestCode.GET_MAX_OFFSET, busy, broker=0)
    with pytest.raises(RocketMQError, match="busy") as caught:
        Query(stage.stream(**options)).step()
    assert f"Asked 3 times about queues of {topic}; fetchOffset" in caught.value.__notes__[0]


# ---- progress ------------------------------------------------------------------------------------


def test_the_progress_says_where_queues_end(stage: Stage) -> None:
    topic = stage.topic(1)
    reader = stage.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert reader.reportLatestOffset() is None
    stage.send(topic, numbers(0, 5))
    query = Query(reader)
    query.step()
    reported = reader.reportLatestOffset()
    assert reported is not None
    latest = Positions.from_json(reported)
    assert latest[QueueId(topic, "broker-a", 0)] == 5
    assert query.position[QueueId(topic, "broker-a", 0)] == 2
    stage.admin.update_topic(topic, read_queues=2, write_queues=2)
    query.step()
    assert len(Positions.from_json(reader.reportLatestOffset() or {})) == 4


def test_group_offsets_follow_the_stream(
    stage: Stage, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset is that of the next message; it is committed for the last batch, too."""
    topic = stage.topic(1)
    queue = QueueId(topic, "broker-a", 0)
    stage.admin.create_group("watched")
    stage.send(topic, numbers(0, 10))
    options = {"subscribe": topic, "startingOffsets": "earliest", "group": "watched"}
    clock = FakeTime()
    monkeypatch.setattr(streaming, "time", clock)
    reader = stage.stream(**options, commitGroupOffsets="true", maxOffsetsPerTrigger=4)
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    query.step()
    assert stage.admin.group_offset("watched", queue) is None  # nothing is finished yet
    query.step()
    assert stage.admin.group_offset("watched", queue) == 4
    query.step()
    assert stage.admin.group_offset("watched", queue) == 4  # not more than once a second
    counting = Counting()
    cluster.intercept(RequestCode.UPDATE_CONSUMER_OFFSET, counting)
    assert query.step() == []
    assert stage.admin.group_offset("watched", queue) == 10
    assert query.step() == []
    assert counting.codes[RequestCode.UPDATE_CONSUMER_OFFSET] == 1
    silent = Query(stage.stream(**options))
    silent.step()
    stage.send(topic, numbers(10, 12))
    silent.step()
    silent.step()
    assert stage.admin.group_offset("watched", queue) == 10


def test_a_commit_that_fails_is_only_logged(
    stage: Stage, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = stage.topic(1)
    stage.send(topic, numbers(0, 3))
    cluster.intercept(RequestCode.UPDATE_CONSUMER_OFFSET, refuse(1, "not now"))
    caplog.set_level(logging.WARNING, "downrange.spark")
    query = Query(
        stage.stream(
            subscribe=topic, startingOffsets="earliest", group="unlucky", commitGroupOffsets="yes"
        )
    )
    assert query.step() == numbers(0, 3)
    assert query.step() == []
    assert "not committed for unlucky" in caplog.text
    stage.send(topic, numbers(3, 4))
    assert query.step() == numbers(3, 4)


def test_quick_options_are_those_of_every_reader_here(stage: Stage) -> None:
    """So that a typo in them is found."""
    assert stage.source(subscribe="t").options.keys() >= QUICK.keys()
