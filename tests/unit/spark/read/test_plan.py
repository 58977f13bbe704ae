"""From two positions to tasks: complete, without duplicates, and always the same."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from downrange.model import QueueId
from downrange.spark.read.plan import Range, ReadPartition, plan
from downrange.spark.read.read_options import ReadOptions, parse_read

QUEUES = st.builds(
    QueueId,
    topic=st.sampled_from(["orders", "returns"]),
    broker=st.sampled_from(["broker-a", "broker-b"]),
    number=st.integers(0, 20),
)
SPANS = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 10**6), st.integers(-5, 3000)), max_size=20
)


@st.composite
def all_options(draw: st.DrawFn) -> ReadOptions:
    fewest = draw(st.none() | st.integers(1, 40))
    most = draw(st.none() | st.integers(fewest or 1, 60))
    longest = draw(st.integers(1, 5000))
    given_options: dict[str, Any] = {
        "minPartitions": fewest,
        "maxPartitions": most,
        "maxRecordsPerPartition": longest,
        "minRecordsPerPartition": draw(st.integers(1, 5000)),
        "orderBy": "queue" if fewest is None and draw(st.booleans()) else None,
    }
    return options(**given_options)


def options(**given_options: Any) -> ReadOptions:
    texts = {name: str(value) for name, value in given_options.items() if value is not None}
    return parse_read({"nameServer": "127.0.0.1:9876", "subscribe": "orders", **texts})


def _ends(
    spans: dict[QueueId, tuple[int, int]],
) -> tuple[dict[QueueId, int], dict[QueueId, int]]:
    start = {queue: begin for queue, (begin, _) in spans.items()}
    return start, {queue: sum(span) for queue, span in spans.items()}


def _ranges(partitions: list[ReadPartition]) -> list[Range]:
    return [each for partition in partitions for each in partition.ranges]


@given(SPANS, all_options())
def test_a_plan_covers_each_queue_exactly_and_in_order(
    spans: dict[QueueId, tuple[int, int]], chosen: ReadOptions
) -> None:
    start, end = _ends(spans)
    ranges = _ranges(plan(start, end, chosen))
    assert ranges == sorted(ranges)
    for queue in spans:
        own = [each for each in ranges if each.queue == queue]
        if end[queue] <= start[queue]:
            assert own == []
            continue
        assert (own[0].begin, own[-1].end) == (start[queue], end[queue])
        assert all(one.end == other.begin for one, other in pairwise(own))
        assert all(each.length > 0 for each in own)


@given(SPANS, all_options(), st.randoms(use_true_random=False))
def test_a_plan_is_the_same_whenever_it_is_made(
    spans: dict[QueueId, tuple[int, int]], chosen: ReadOptions, chance: Any
) -> None:
    start, end = _ends(spans)
    items = [*end.items()]
    chance.shuffle(items)
    once = plan(start, end, chosen)
    assert plan(start, dict(items), chosen) == once
    assert pickle.loads(pickle.dumps(once)) == once
    assert {*once} == {*plan(start, end, chosen)}


@given(SPANS, all_options())
def test_a_plan_keeps_to_the_numbers_of_tasks(
    spans: dict[QueueId, tuple[int, int]], chosen: ReadOptions
) -> None:
    start, end = _ends(spans)
    partitions = plan(start, end, chosen)
    assert all(partition.ranges for partition in partitions)
    total = sum(each.length for each in _ranges(partitions))
    if chosen.partitions_max is not None:
        assert len(partitions) <= chosen.partitions_max
    if chosen.partitions_min is not None:
        assert len(partitions) >= min(chosen.partitions_min, total)


@given(SPANS, all_options())
def test_a_task_has_no_more_messages_than_allowed(
    spans: dict[QueueId, tuple[int, int]], chosen: ReadOptions
) -> None:
    start, end = _ends(spans)
    if chosen.partitions_max is not None:
        return  # maxPartitions is stronger than maxRecordsPerPartition
    for partition in plan(start, end, chosen):
        length = sum(each.length for each in partition.ranges)
        assert length <= chosen.partition_records_max or len(partition.ranges) == 1
        assert length <= chosen.partition_records_max or not chosen.is_split


@given(SPANS, all_options())
def test_a_queue_whose_order_counts_is_never_split(
    spans: dict[QueueId, tuple[int, int]], chosen: ReadOptions
) -> None:
    queues = [each.queue for each in _ranges(plan(*_ends(spans), chosen))]
    if not chosen.is_split:
        assert len(queues) == len(set(queues))


def test_short_queues_share_a_task() -> None:
    queues = [QueueId("orders", "broker-a", number) for number in range(64)]
    start, end = dict.fromkeys(queues, 0), dict.fromkeys(queues, 10)
    assert len(plan(start, end, options())) == 1
    assert len(plan(start, end, options(minPartitions=4))) == 4
    assert len(plan(start, end, options(minRecordsPerPartition=100))) == 7
    assert len(plan(start, end, options(minRecordsPerPartition=1))) == 64
    assert len(plan(start, end, options(minRecordsPerPartition=1, maxPartitions=3))) == 3


def test_tasks_are_about_as_long_as_each_other() -> None:
    queues = [QueueId("orders", "broker-a", number) for number in range(8)]
    start, end = dict.fromkeys(queues, 0), dict.fromkeys(queues, 30_000)
    partitions = plan(start, end, options(minPartitions=3, maxPartitions=3))
    lengths = [sum(each.length for each in partition.ranges) for partition in partitions]
    assert sum(lengths) == 240_000
    assert max(lengths) <= 90_000


def test_a_long_queue_is_split_by_its_share_of_the_messages() -> None:
    long, short = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
    start, end = {long: 0, short: 0}, {long: 900, short: 100}
    partitions = plan(start, end, options(minPartitions=10))
    assert len(partitions) == 10
    assert sum(partition.ranges[0].queue == long for partition in partitions) == 9


def test_nothing_to_read_needs_no_task() -> None:
    assert plan({}, {}, options()) == []
    partition = ReadPartition([])
    assert partition != "something else"
    assert "ReadPartition" in repr(partition)
