"""Pulls in flight, with a fake broker: all rows, once, in order."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.consuming.pull import PullStatus, RawPull
from downrange.errors import CallTimeout, ConnectionLost, RocketMQError, ServerError, SystemBusy
from downrange.model import QueueId
from downrange.spark.read import fetch
from downrange.spark.read.fetch import read_partition
from downrange.spark.read.losses import DataLost
from downrange.spark.read.plan import Range, ReadPartition
from downrange.spark.read.read_options import ReadOptions, parse_read
from tests.unit.spark.read.replies import encoded, inner_batch, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.wire.records import Record

QUEUE = QueueId("orders", "broker-a", 3)
COLUMNS = ("offset", "body")


@dataclass
class Asked:
    """The request of a pull."""

    begin: int
    max_count: int


@dataclass
class FakeFuture:
    """A future that gets its answer when `result` is called."""

    broker: FakeBroker
    asked: Asked

    def result(self, timeout: float) -> RawPull:
        assert timeout > 0
        self.broker.waiting.remove(self)
        return self.broker.answer(self.asked)

    def cancel(self) -> bool:
        self.broker.waiting.remove(self)
        self.broker.cancelled += 1
        return True


@dataclass
class FakeBroker:
    """A queue of records; an answer has `count_max` units, or as many as `sizes` gives."""

    units: list[Record]
    sizes: Iterator[int] | None = None
    count_max: int = 32
    min_offset: int = 0
    faults: list[Any] = field(default_factory=list[Any])
    asked: list[Asked] = field(default_factory=list[Asked])
    waiting: list[FakeFuture] = field(default_factory=list[FakeFuture])
    cancelled: int = 0
    most_waiting: int = 0

    @property
    def max_offset(self) -> int:
        last = self.units[-1]
        return last.queue_offset + int(last.properties().get("INNER_NUM", "1"))

    def submit(self, asked: Asked) -> FakeFuture:
        self.asked.append(asked)
        future = FakeFuture(self, asked)
        self.waiting.append(future)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return future

    def answer(self, asked: Asked) -> RawPull:
        if self.faults and (fault := self.faults.pop(0)) is not None:
            if isinstance(fault, RocketMQError):
                raise fault
            return fault  # type: ignore[no-any-return]
        begin = asked.begin
        if begin < self.min_offset:
            return self._reply(PullStatus.MOVED, b"", self.min_offset)
        if begin >= self.max_offset:
            status = PullStatus.NO_NEW if begin == self.max_offset else PullStatus.MOVED
            return self._reply(status, b"", self.max_offset)
        bases = [unit.queue_offset for unit in self.units]
        first = bisect_right(bases, begin) - 1
        limit = next(self.sizes, 1) if self.sizes is not None else self.count_max
        found: list[Record] = []
        next_offset = begin
        for unit in self.units[first:]:
            if len(found) >= limit or next_offset - begin >= asked.max_count:
                break
            found.append(unit)
            next_offset = unit.queue_offset + int(unit.properties().get("INNER_NUM", "1"))
        return self._reply(PullStatus.FOUND, encoded(*found), next_offset)

    def _reply(self, status: PullStatus, body: bytes, next_offset: int) -> RawPull:
        return RawPull(status, body, next_offset, self.min_offset, self.max_offset)


class FakeClient:
    """The part of a client that a reader uses."""

    class core:  # noqa: N801
        class clock:  # noqa: N801
            @staticmethod
            def now() -> float:
                return 0.0

    class options:  # noqa: N801
        namespace = None
        call_timeout = 1.0

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.refreshed = 0

    def submit(self, asked: Asked) -> FakeFuture:
        return self._broker.submit(asked)

    def run(self, _flow: object) -> None:
        self.refreshed += 1


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pulls by their requests."""

    def pull(_core: object, queue: QueueId, begin: int, *, max_count: int, **_: object) -> Asked:
        assert queue == QUEUE
        return Asked(begin, max_count)

    monkeypatch.setattr(fetch, "pull_raw", pull)
    monkeypatch.setattr(fetch, "refresh_route", lambda *_: None)
    monkeypatch.setattr(fetch, "client_for", lambda client: client)


def options(broker: FakeBroker, **texts: Any) -> ReadOptions:
    given_texts = {name.replace("__", "."): str(text) for name, text in texts.items()}
    parsed = parse_read(
        {
            "nameServer": "a:1",
            "subscribe": "orders",
            "fetchOffset.retryIntervalMs": "0",
            **given_texts,
        }
    )
    client: Any = FakeClient(broker)
    return replace(parsed, connection=client)


def offsets(broker: FakeBroker, begin: int, end: int, **texts: Any) -> list[int]:
    partition = ReadPartition([Range(QUEUE, begin, end)])
    batches = read_partition(partition, COLUMNS, options(broker, **texts))
    found: list[int] = []
    for batch in batches:
        assert batch.num_rows > 0
        found += batch.column("offset").to_pylist()
    assert broker.waiting == []
    return found


def plain(count: int) -> list[Record]:
    return [record(offset) for offset in range(count)]


# ---- all rows, once, in order --------------------------------------------------------------------


@st.composite
def queues(draw: st.DrawFn) -> list[Record]:
    """Draw a queue of single messages and inner batches."""
    units: list[Record] = []
    offset = 0
    for size in draw(st.lists(st.sampled_from((1, 1, 1, 2, 5)), min_size=1, max_size=60)):
        units.append(record(offset) if size == 1 else inner_batch(offset, size))
        offset += size
    return units


@given(
    units=queues(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    concurrency=st.integers(1, 5),
    count=st.integers(1, 50),
    rows=st.integers(1, 30),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    faults=st.lists(st.booleans(), max_size=20),
)
def test_a_range_is_read_wholly_whatever_the_answers_are(
    units: list[Record],
    sizes: list[int],
    concurrency: int,
    count: int,
    rows: int,
    cut: tuple[float, float],
    faults: list[bool],
) -> None:
    end_of_queue = FakeBroker(units).max_offset
    begin, end = sorted(round(part * end_of_queue) for part in cut)
    lost = ConnectionLost("a:1", "cut")
    broker = FakeBroker(
        units,
        sizes=iter(sizes * 200),
        faults=[lost if is_fault else None for is_fault in faults],
    )
    found = offsets(
        broker,
        begin,
        end,
        pullConcurrency=concurrency,
        pullBatchSize=count,
        batchRows=rows,
        fetchOffset__numRetries=21,
    )
    assert found == [*range(begin, end)]
    assert broker.most_waiting <= concurrency


def test_several_pulls_are_in_flight() -> None:
    broker = FakeBroker(plain(1000), count_max=1000)
    assert offsets(broker, 0, 1000, pullBatchSize=50, pullConcurrency=4) == [*range(1000)]
    assert broker.most_waiting == 4
    assert [asked.begin for asked in broker.asked] == [*range(0, 1000, 50)]


def test_strides_become_as_long_as_the_answers_are() -> None:
    """An Apache broker gives at most 32 messages per pull."""
    broker = FakeBroker(plain(4000))
    assert offsets(broker, 0, 4000, pullConcurrency=4) == [*range(4000)]
    assert broker.most_waiting == 4
    assert len(broker.asked) < 4000 / 32 * 1.1
    assert sum(asked.max_count == 32 for asked in broker.asked) > 100


def test_strides_stay_below_answers_that_vary() -> None:
    """Otherwise each answer would leave a few messages, which cost an extra pull."""
    sizes = [size for size in (40, 38, 41, 39, 37, 42, 40, 38) for _ in range(1)] * 100
    broker = FakeBroker(plain(4000), sizes=iter(sizes))
    assert offsets(broker, 0, 4000, pullConcurrency=4) == [*range(4000)]
    assert len(broker.asked) < 4000 / 35 * 1.15


def test_strides_grow_again() -> None:
    sizes = [2] * 20 + [1000] * 500
    broker = FakeBroker(plain(5000), sizes=iter(sizes))
    assert offsets(broker, 0, 5000, pullBatchSize=64) == [*range(5000)]
    assert max(asked.max_count for asked in broker.asked[-20:]) == 64


def test_stride_size_of_one_queue_is_used_for_the_next() -> None:
    broker = FakeBroker(plain(128))
    ranges = [Range(QUEUE, 0, 64), Range(QUEUE, 64, 128)]
    batches = [*read_partition(ReadPartition(ranges), COLUMNS, options(broker))]
    assert sum(batch.num_rows for batch in batches) == 128
    assert [(asked.begin, asked.max_count) for asked in broker.asked] == [
        *((0, 64), (32, 32), (64, 32), (96, 32)),
    ]


def test_a_batch_on_the_border_of_two_strides_is_read_once() -> None:
    broker = FakeBroker([inner_batch(offset, 5) for offset in range(0, 50, 5)], count_max=100)
    found = offsets(broker, 3, 48, pullBatchSize=7, batchRows=1000)
    assert found == [*range(3, 48)]


def test_batches_keep_to_rows_and_bytes() -> None:
    broker = FakeBroker(plain(500))

    def lengths(**texts: Any) -> list[int]:
        partition = ReadPartition([Range(QUEUE, 0, 500)])
        batches = read_partition(partition, COLUMNS, options(broker, **texts))
        return [batch.num_rows for batch in batches]

    assert max(lengths(batchRows=10)) == 10
    assert lengths() == [500]
    size = len(encoded(*plain(32)))
    assert max(lengths(batchBytes=2 * size + 100)) == 64
    assert max(lengths(batchBytes=1024)) == 32  # an answer is never split


def test_a_reader_that_is_closed_leaves_nothing_in_flight() -> None:
    broker = FakeBroker(plain(1000), count_max=100)
    partition = ReadPartition([Range(QUEUE, 0, 1000)])
    batches: Any = read_partition(
        partition, COLUMNS, options(broker, pullBatchSize=100, batchRows=100)
    )
    next(batches)
    assert len(broker.waiting) > 1
    batches.close()
    assert broker.waiting == []


# ---- missing answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [ConnectionLost("a:1", "cut"), CallTimeout("a:1", 3.0), SystemBusy(2, "busy", "a:1")]
)
def test_a_pull_is_repeated_when_that_may_help(fault: RocketMQError) -> None:
    broker = FakeBroker(plain(10), faults=[fault, fault, None])
    assert offsets(broker, 0, 10, fetchOffset__numRetries=2) == [*range(10)]
    always = FakeBroker(plain(10), faults=[fault] * 3)
    with pytest.raises(type(fault)) as caught:
        offsets(always, 0, 10, fetchOffset__numRetries=2)
    (note,) = caught.value.__notes__
    assert note.startswith(
        "Asked 3 times for topic 'orders', broker 'broker-a', queue 3, offsets 0 to 9; fetchOffset"
    )


def test_a_pull_is_not_repeated_when_that_is_no_use() -> None:
    broker = FakeBroker(plain(10), faults=[ServerError(16, "forbidden", "a:1")])
    with pytest.raises(ServerError, match="forbidden"):
        offsets(broker, 0, 10)
    assert len(broker.asked) == 1


def test_attempts_are_counted_per_stride() -> None:
    lost = ConnectionLost("a:1", "cut")
    broker = FakeBroker(plain(320), faults=[lost, lost, None] * 20)
    assert offsets(broker, 0, 320, pullConcurrency=1, fetchOffset__numRetries=2) == [*range(320)]


# ---- lost messages -------------------------------------------------------------------------------


def answer(status: PullStatus, next_offset: int, first: int = 0, last: int = 100) -> RawPull:
    return RawPull(status, b"", next_offset, first, last)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (answer(PullStatus.NO_NEW, 0, last=0), "shorter than it was"),
        (answer(PullStatus.MOVED, 0, last=0), "shorter than it was"),
        (answer(PullStatus.FOUND, 0), "does not deliver them"),
        (answer(PullStatus.NO_MATCH, 0), "does not deliver them"),
        (answer(PullStatus.NO_MATCH, 10), "are being deleted"),
    ],
)
def test_an_answer_that_does_not_advance_is_requested_again_and_then_a_loss(
    fault: RawPull, problem: str
) -> None:
    broker = FakeBroker(plain(10), faults=[fault, fault])
    assert offsets(broker, 0, 10, fetchOffset__numRetries=2) == [*range(10)]
    always = FakeBroker(plain(10), faults=[fault] * 3)
    with pytest.raises(DataLost, match=problem):
        offsets(always, 0, 10, fetchOffset__numRetries=2)
    brave = FakeBroker(plain(10), faults=[fault] * 3)
    assert offsets(brave, 0, 10, fetchOffset__numRetries=2, failOnDataLoss="false") == []


def test_what_was_deleted_is_named_and_the_rest_is_read() -> None:
    broker = FakeBroker(plain(100), min_offset=40)
    with pytest.raises(
        DataLost, match="wanted offsets 10 to 39, it has offsets 40 to 99"
    ) as caught:
        offsets(broker, 10, 80)
    assert (caught.value.wanted, caught.value.available) == ((10, 40), (40, 100))
    assert "failOnDataLoss=false" in str(caught.value)
    brave = FakeBroker(plain(100), min_offset=40)
    found = offsets(brave, 10, 80, failOnDataLoss="false", pullBatchSize=7)
    assert found == [*range(40, 80)]


def test_a_range_that_was_deleted_wholly_has_no_rows() -> None:
    broker = FakeBroker(plain(100), min_offset=90)
    assert offsets(broker, 10, 80, failOnDataLoss="false") == []


def test_messages_that_answers_leave_out_are_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that deletes a file skips its messages and delivers those of the next file."""
    gone = [each for each in plain(100) if not 20 <= each.queue_offset < 30]
    with pytest.raises(DataLost, match="broker's answers lack 10 of them"):
        offsets(FakeBroker(gone), 0, 100)
    found = offsets(FakeBroker(gone), 0, 100, failOnDataLoss="false")
    assert found == [each.queue_offset for each in gone]
    assert "10 of them" in caplog.text
