"""Counts of rare events."""

from __future__ import annotations

from downrange.server.broker.tables import event_counts
from downrange.server.broker.tables.event_counts import EventCounts


def test_commits_and_rollbacks_are_counted_by_topic() -> None:
    events = EventCounts()
    for open_ms in (-5, 4_999, 70_000):
        events.transaction_ended("t", is_commit=True, open_ms=open_ms)
    events.transaction_ended("t", is_commit=False, open_ms=1)
    assert (events.committed, events.rolled_back) == ({"t": 3}, {"t": 1})
    assert list(events.finish_seconds["t"].cumulative())[:3] == [2, 2, 3]


def test_timers_are_counted_with_their_delays() -> None:
    events = EventCounts()
    events.timer_begun("t", 3_600_000)
    events.timer_begun("t", 61_000)
    events.timer_ended("t")
    assert (events.timers_begun, events.timers_ended) == ({"t": 2}, {"t": 1})
    assert (events.delay_seconds["t"].count, events.delay_seconds["t"].sum) == (2, 3_661)


def test_a_deleted_topic_and_group_are_forgotten() -> None:
    events = EventCounts()
    events.transaction_ended("t", is_commit=True, open_ms=1)
    events.timer_begun("t", 1)
    events.dead_letter("t", "g")
    events.messages_revived("t", "g", 2)
    events.dead_letter("u", "g")
    events.drop_topic("t")
    assert (events.committed, events.finish_seconds, events.timers_begun) == ({}, {}, {})
    assert events.revived == {}
    assert events.dead_letters == {("u", "g"): 1}
    events.drop_group("g")
    assert events.dead_letters == {}


def test_tables_are_limited() -> None:
    events = EventCounts()
    for number in range(event_counts.EVENT_KEYS_MAX + 5):
        events.timer_begun(f"t{number}", 0)
    events.timer_begun("t0", 0)
    assert len(events.timers_begun) == len(events.delay_seconds) == event_counts.EVENT_KEYS_MAX
    assert events.timers_begun["t0"] == 2
