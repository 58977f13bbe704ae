"""Which queue each row goes to.

| The row has | Its queue |
|---|---|
| `queue_id` and `broker_name` | this one |
| `queue_id` alone | one of this number; if several brokers have one, the number modulo these \
brokers decides, so equal numbers go to the same queue |
| `sharding_key` | the one that a Java producer chooses by the hash of the key |
| neither | any, the next one for each request |
| neither, orderBy=queue | one for all rows of a Spark partition, which keeps their order |

Rows of the first three kinds never go to another queue: if the broker is unreachable, they wait.
Queues are those of the route at the start of the task. If a row names a broker that is not in the
route, the task waits for it up to sendTimeoutMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from downrange.client.flows.routing.selectors import by_hash
from downrange.wire.limits import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from downrange.model import QueueId
    from downrange.spark.write.row_encoder import EncodedRows
    from downrange.spark.write.rows import Rows

#: Its functions are created at import, so type checkers do not see them.
pc: Final[Any] = pyarrow.compute
_ANY_QUEUE: Final = -1


class Destination(NamedTuple):
    """Where rows go: a queue, or any queue of a topic."""

    topic: str
    queue: QueueId | None


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """Chooses queues for the rows of one task.

    Attributes:
        queues_of: Takes a topic and broker names; returns the topic's writable queues, at least
            one. Waits for the named brokers if they are missing.
        partition: The number of the Spark partition.
        is_ordered: Whether rows of the partition stay in order.
    """

    queues_of: Callable[[str, Collection[str]], Sequence[QueueId]]
    partition: int
    is_ordered: bool

    def choose(self, encoded: EncodedRows) -> tuple[list[Destination], NDArray[np.int64]]:
        """Return the destinations, and for each row the index of its destination.

        Raises:
            InvalidMessage: A row names a queue that does not exist.
            RocketMQError: A topic does not exist, or no server answers.
        """
        rows = encoded.rows
        keys = _keys(rows)
        numbers = _numbers(rows)
        codes = np.zeros(len(encoded), np.int64)
        destinations: list[Destination] = []
        for topic_code, topic in enumerate(encoded.topics):
            members = np.flatnonzero(encoded.topic_codes == topic_code)
            queues = self.queues_of(topic, _brokers(rows, numbers, members))
            start = self.partition % len(queues) if self.is_ordered else _ANY_QUEUE
            picks = np.full(len(members), start, np.int64)
            if keys is not None:
                _pick_by_key(keys, members, queues, picks)
            if numbers is not None:
                _pick_by_number(rows, numbers, members, topic, queues, picks)
            codes[members] = len(destinations) + 1 + picks
            destinations.append(Destination(topic, None))
            destinations += [Destination(topic, queue) for queue in queues]
        return destinations, codes


def _keys(rows: Rows) -> Any:
    """Return the sharding keys, dictionary-encoded; None without any. "" counts as null."""
    column = rows.column("sharding_key")
    if column is None or column.null_count == len(column):
        return None
    is_empty = pc.equal(pc.binary_length(column), 0)
    return pc.if_else(is_empty, pa.scalar(None, pa.string()), column).dictionary_encode()


def _numbers(rows: Rows) -> NDArray[np.int64] | None:
    """Return the number of each row's queue, `_ANY_QUEUE` if the row names none."""
    column = rows.column("queue_id")
    if column is None or column.null_count == len(column):
        return None
    column = column.cast(pa.int64())
    rows.reject_first(
        pc.or_(pc.less(column, 0), pc.greater(column, INT32_MAX)).fill_null(False),
        lambda index: f"queue_id is {column[index]}; queues are numbered from 0, null means any",
    )
    numbers: NDArray[np.int64] = column.fill_null(_ANY_QUEUE).to_numpy(zero_copy_only=False)
    return numbers


def _brokers(
    rows: Rows, numbers: NDArray[np.int64] | None, members: NDArray[np.intp]
) -> Collection[str]:
    """Return the brokers that rows name together with a queue."""
    column = rows.column("broker_name")
    if column is None or numbers is None:
        return ()
    named = members[numbers[members] >= 0]
    return {name for name in column.take(pa.array(named)).unique().to_pylist() if name is not None}


def _pick_by_key(
    coded: Any, members: NDArray[np.intp], queues: Sequence[QueueId], picks: NDArray[np.int64]
) -> None:
    codes = coded.indices.fill_null(_ANY_QUEUE).to_numpy(zero_copy_only=False)[members]
    hashes = [abs(by_hash(key).hash_code) % len(queues) for key in coded.dictionary.to_pylist()]
    has_key = codes >= 0
    picks[has_key] = np.array(hashes, np.int64)[codes[has_key]]


def _pick_by_number(
    rows: Rows,
    numbers: NDArray[np.int64],
    members: NDArray[np.intp],
    topic: str,
    queues: Sequence[QueueId],
    picks: NDArray[np.int64],
) -> None:
    named = np.flatnonzero(numbers[members] >= 0)
    if not len(named):
        return
    brokers = rows.column("broker_name")
    broker_names: list[str] = []
    broker_codes = np.full(len(named), _ANY_QUEUE, np.int64)
    if brokers is not None:
        coded = brokers.dictionary_encode()
        broker_names = coded.dictionary.to_pylist()
        indices = coded.indices.fill_null(_ANY_QUEUE).to_numpy(zero_copy_only=False)
        broker_codes = indices[members[named]].astype(np.int64)
    # Each pair of broker and number is looked up once.
    pairs = (broker_codes + 1) << 32 | numbers[members[named]]
    unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    found: list[int] = []
    for pair, at in zip(unique.tolist(), first.tolist(), strict=True):
        broker_code, number = divmod(pair, 1 << 32)
        broker = broker_names[broker_code - 1] if broker_code else None
        index = _index_of(queues, broker, number)
        if index is None:
            where = "" if broker is None else f" on broker {broker!r}"
            rows.reject(
                int(members[named[at]]),
                f"topic {topic!r} has no queue {number}{where} that can be written to; it has "
                f"{_describe(queues)}",
            )
        found.append(index)
    picks[named] = np.array(found, np.int64)[inverse]


def _index_of(queues: Sequence[QueueId], broker: str | None, number: int) -> int | None:
    fitting = [
        index
        for index, queue in enumerate(queues)
        if queue.number == number and broker in (None, queue.broker)
    ]
    return fitting[number % len(fitting)] if fitting else None


def _describe(queues: Sequence[QueueId]) -> str:
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return ", ".join(f"{count} on {broker!r}" for broker, count in counts.items())
