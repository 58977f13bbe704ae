"""How far one trigger reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downrange.model import QueueId
from downrange.spark.read.limits import backlog, limited

QUEUES = [QueueId("orders", "broker-a", number) for number in range(6)]
SPANS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 10_000)), min_size=1, max_size=len(QUEUES)
)


def _positions(spans: list[tuple[int, int]]) -> tuple[dict[QueueId, int], dict[QueueId, int]]:
    start = {queue: begin for queue, (begin, _) in zip(QUEUES, spans, strict=False)}
    end = {queue: sum(span) for queue, span in zip(QUEUES, spans, strict=False)}
    return start, end


@given(SPANS, st.integers(1, 20_000))
def test_a_limit_is_used_up_and_never_passed(spans: list[tuple[int, int]], most: int) -> None:
    start, end = _positions(spans)
    found = limited(start, end, most)
    assert backlog(start, found) == min(most, backlog(start, end))
    assert found.keys() == end.keys()
    assert all(start[queue] <= found[queue] <= end[queue] for queue in end)


@given(SPANS, st.integers(1, 500))
def test_a_limit_gets_everything_in_the_end(spans: list[tuple[int, int]], most: int) -> None:
    start, end = _positions(spans)
    for _ in range(-(-backlog(start, end) // most)):
        start = limited(start, end, most)
    assert start == end


@given(SPANS, st.integers(1, 20_000))
def test_each_queue_gets_its_share_of_the_limit(spans: list[tuple[int, int]], most: int) -> None:
    start, end = _positions(spans)
    total = backlog(start, end)
    found = limited(start, end, most)
    if total > most:
        for queue in end:
            share = most * (end[queue] - start[queue]) / total
            assert abs(found[queue] - start[queue] - share) <= 1


def test_a_queue_that_ends_before_its_start_has_no_backlog() -> None:
    start = {QUEUES[0]: 10, QUEUES[1]: 0}
    end = {QUEUES[0]: 5, QUEUES[1]: 7}
    assert backlog(start, end) == 7
    assert limited(start, end, 3) == {QUEUES[0]: 10, QUEUES[1]: 3}
