"""Counters and rates."""

from __future__ import annotations

from datetime import datetime

import pytest

from downrange.server.broker.tables.statistics import Statistics
from downrange.wire.batches import RecordBatch
from downrange.wire.records import Record


def record(topic: str = "T", size: int = 10) -> Record:
    return Record(topic_bytes=topic.encode(), size=size)


def summed(statistics: Statistics, name: str, key: str) -> int | None:
    counts = statistics.counts(name, key, "cluster")
    return None if counts is None else counts.stats_minute.sum


def test_rates_are_the_growth_per_second_over_each_span() -> None:
    statistics = Statistics(0)
    for second in range(1, 101):
        statistics.stored([record(size=5)] * (2 if second > 90 else 1))
        statistics.sample(second * 1000)
    assert statistics.rates("messages_stored") == [2.0, 70 / 60, 110 / 100]
    assert statistics.rates("bytes_stored")[0] == 10.0


def test_a_run_is_counted_like_its_records() -> None:
    topic = "rmq_sys_wheel_timer"
    one_by_one, together = Statistics(0), Statistics(0)
    for _ in range(2):
        one_by_one.stored([record(topic), record(topic)])
        together.stored_run(topic.encode(), 2, 20)
    for statistics in (one_by_one, together):
        statistics.sample(60_000)
    assert together.totals(1) == one_by_one.totals(1)
    for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
        assert together.counts(name, topic, "c") == one_by_one.counts(name, topic, "c")


def test_rates_are_zero_before_the_first_sample() -> None:
    statistics = Statistics(500)
    statistics.consumed("G", "T", 3, 30)
    statistics.sample(600)
    assert statistics.rates("messages_pulled") == [0.0, 0.0, 0.0]
    assert (statistics.messages_pulled, statistics.bytes_pulled) == (3, 30)
    assert (statistics.pulls_found, statistics.pulls_missed) == (1, 0)


def test_totals_of_midnight_move_on_each_day() -> None:
    noon = int(datetime(2030, 1, 1, 12).timestamp() * 1000)
    day_ms = 86_400_000
    statistics = Statistics(noon)
    for day in range(3):
        statistics.stored([record()] * 10)
        statistics.sample(noon + 1000 + day * day_ms)
    assert statistics.yesterday.messages_stored == 20
    assert statistics.today.messages_stored == 30


def test_messages_of_system_topics_are_told_apart() -> None:
    statistics = Statistics(0)
    statistics.stored([record(), record("SCHEDULE_TOPIC_XXXX")])
    statistics.consumed("G", "rmq_sys_wheel_timer", 4, 40)
    statistics.consumed("G", "T", 1, 10)
    totals = statistics.totals(0)
    assert (totals.messages_stored, totals.user_messages_stored) == (2, 1)
    assert (totals.messages_pulled, totals.user_messages_pulled) == (5, 1)
    statistics.sample(10_000)
    found = {
        name: summed(statistics, name, "cluster")
        for name in (
            "BROKER_PUT_NUMS",
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
            "BROKER_GET_NUMS",
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
        )
    }
    assert list(found.values()) == [2, 1, 5, 1]
    assert summed(statistics, "BROKER_PUT_NUMS", "another cluster") is None


def test_counters_of_topics_and_groups_are_found_by_javas_names() -> None:
    statistics = Statistics(0)
    batch = RecordBatch(
        shared=record(), data=b"", spans=[(0, 0, 0, 0)] * 2, properties=[], sizes=[3, 4]
    )
    statistics.stored([record(), batch])
    statistics.consumed("G", "T", 2, 20)
    statistics.sent_back("G", "T")
    assert summed(statistics, "TOPIC_PUT_NUMS", "T") == 0
    statistics.sample(10_000)
    assert summed(statistics, "TOPIC_PUT_NUMS", "T") == 3
    assert summed(statistics, "TOPIC_PUT_SIZE", "T") == 17
    assert summed(statistics, "GROUP_GET_NUMS", "T@G") == 2
    assert summed(statistics, "GROUP_GET_SIZE", "T@G") == 20
    assert summed(statistics, "SNDBCK_PUT_NUMS", "T@G") == 1
    counts = statistics.counts("TOPIC_PUT_NUMS", "T", "")
    assert counts is not None
    assert counts.stats_minute.avgpt == 1.5  # a batch is one request
    assert statistics.stored_rate("T") == 0.3
    assert statistics.consumed_rate("G", "T") == 0.2


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "none"),
        ("GROUP_GET_NUMS", "T@none"),
        ("GROUP_GET_NUMS", "T"),
        ("SNDBCK_PUT_NUMS", "T@G"),
        ("GROUP_GET_LATENCY", "0@T@G"),
        ("TOPIC_PUT_NUMS", "\ud800"),
    ],
)
def test_a_counter_that_was_never_used_does_not_exist(name: str, key: str) -> None:
    statistics = Statistics(0)
    statistics.stored([record()])
    statistics.consumed("G", "T", 1, 1)
    assert statistics.counts(name, key, "cluster") is None
    assert statistics.stored_rate("none") == statistics.consumed_rate("G", "none") == 0.0


def test_the_offset_behind_the_last_message_is_kept_if_given() -> None:
    statistics = Statistics(0)
    statistics.consumed("G", "T", 1, 1, 2, 17)
    statistics.consumed("G", "T", 1, 1)
    assert statistics.next_offset("G", "T", 2) == 17
    assert statistics.next_offset("G", "T", 0) == statistics.next_offset("H", "T", 0) == 0


def test_counters_of_deleted_topics_and_groups_are_dropped() -> None:
    statistics = Statistics(0)
    statistics.stored([record("T"), record("U")])
    for topic in ("T", "U"):
        for group in ("G", "H"):
            statistics.consumed(group, topic, 1, 1)
            statistics.sent_back(group, topic)
    statistics.drop_topic("T")
    statistics.drop_group("G")
    left = [
        (name, key)
        for name, keys in (
            ("TOPIC_PUT_NUMS", ("T", "U")),
            ("GROUP_GET_NUMS", ("T@G", "T@H", "U@G", "U@H")),
            ("SNDBCK_PUT_NUMS", ("T@G", "T@H", "U@G", "U@H")),
        )
        for key in keys
        if statistics.counts(name, key, "") is not None
    ]
    assert left == [("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_NUMS", "U@H"), ("SNDBCK_PUT_NUMS", "U@H")]
