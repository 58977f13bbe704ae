"""The live tail: reads new messages of a topic and filters them here.

Each turn asks for the ends of the queues (one request per broker) and reads only queues that grew.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.bodies import message_row
from downrange.console.cluster.message_filters import filter_of
from downrange.console.cluster.message_search import by_time
from downrange.console.cluster.pages.messages import TailBatch
from downrange.console.cluster.topic_states import read_states
from downrange.errors import RocketMQError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from downrange import AsyncAdmin, QueueId, ReceivedMessage
    from downrange.console.cluster.pages.messages import MessageRow, TailRequest

#: Seconds between two turns.
TURN_SECONDS: Final = 0.5
_PULL_COUNT: Final = 32
#: Messages that one turn reads of a queue, so that each turn ends soon.
_TURN_COUNT: Final = 320
_REASONS: Final = {
    "scanned": f"the limit of {limits.TAIL_SCAN_MAX} messages was reached",
    "deadline": f"the tail ran for {limits.TAIL_SECONDS / 60:g} minutes",
}


class _Turn:
    """What one turn has found: only the newest rows are kept, and no bodies.

    Args:
        queues: How many queues it reads. They share its bytes, so that none of them waits for ever.
    """

    def __init__(self, queues: int) -> None:
        self.bytes_of_one = limits.TAIL_TURN_BYTES // max(queues, 1)
        self.gate = asyncio.Semaphore(limits.QUEUES_AT_ONCE)
        self.rows: list[MessageRow] = []
        self.dropped = 0

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Take messages that are wanted."""
        rows = sorted([*self.rows, *map(message_row, messages)], key=by_time)
        self.rows = rows[-limits.TAIL_BATCH_ROWS :]
        self.dropped += len(rows) - len(self.rows)


class Tail:
    """Follows a topic for one viewer.

    Args:
        admin: Asks the cluster.
        request: What to follow.
        turn_seconds: Seconds between two turns.

    Raises:
        InvalidSql: The filter is not SQL92.
        OptionError: The filter is wrong.
    """

    def __init__(
        self, admin: AsyncAdmin, request: TailRequest, turn_seconds: float = TURN_SECONDS
    ) -> None:
        self._admin = admin
        self._request = request
        self._turn_seconds = turn_seconds
        self._matches: Callable[[ReceivedMessage], bool] = filter_of(request)
        self._offsets: dict[QueueId, int] = {}
        self._scanned = 0
        self._matched = 0

    async def start(self) -> None:
        """Find out where to begin.

        Raises:
            RouteNotFound: The topic does not exist.
            RocketMQError: A server did not answer.
        """
        states, _ = await read_states(self._admin, self._request.topic)
        for state in states:
            is_end = self._request.start == "latest"
            self._offsets[state.queue] = state.max_offset if is_end else state.min_offset

    async def batches(self) -> AsyncIterator[TailBatch]:
        """Yield a batch per turn, until a limit is reached or the cluster is gone."""
        until = time.monotonic() + limits.TAIL_SECONDS
        while True:
            try:
                found = await self._read_turn()
            except RocketMQError as error:
                reason = "gone" if isinstance(error, TransportError) else "failed"
                yield self._batch(_Turn(0), reason, str(error))
                return
            stop = self._limit(until)
            yield self._batch(found, stop, None if stop is None else _REASONS[stop])
            if stop is not None:
                return
            await asyncio.sleep(self._turn_seconds)

    def _limit(self, until: float) -> str | None:
        if self._scanned >= limits.TAIL_SCAN_MAX:
            return "scanned"
        return "deadline" if time.monotonic() >= until else None

    def _batch(self, turn: _Turn, stopped: str | None, problem: str | None) -> TailBatch:
        """Return the newest messages of a turn, in the order of storing."""
        return TailBatch(
            messages=tuple(turn.rows),
            scanned=self._scanned,
            matched=self._matched,
            dropped=turn.dropped,
            stopped=stopped,
            problem=problem,
        )

    async def _read_turn(self) -> _Turn:
        states, _ = await read_states(self._admin, self._request.topic)
        grown: list[tuple[QueueId, int]] = []
        for state in states:
            # A queue that was added while the tail runs is new from its first message on.
            offset = max(self._offsets.setdefault(state.queue, state.min_offset), state.min_offset)
            self._offsets[state.queue] = offset
            if state.max_offset > offset:
                grown.append((state.queue, min(state.max_offset, offset + _TURN_COUNT)))
        turn = _Turn(len(grown))
        await asyncio.gather(*(self._read(turn, queue, end) for queue, end in grown))
        return turn

    async def _read(self, turn: _Turn, queue: QueueId, end: int) -> None:
        """Read a queue, batch by batch, up to an offset or the queue's part of the turn's bytes."""
        offset = self._offsets[queue]
        byte_count = 0
        while offset < end and byte_count <= turn.bytes_of_one:
            async with turn.gate:
                batch = await self._admin.read_queue(
                    queue, offset, max_count=min(end - offset, _PULL_COUNT), decode_body=False
                )
                byte_count += sum(len(message.body) for message in batch.messages)
                self._take(turn, batch.messages)
            if batch.next <= offset:
                break  # nothing can be read here yet
            offset = batch.next
        self._offsets[queue] = offset

    def _take(self, turn: _Turn, messages: tuple[ReceivedMessage, ...]) -> None:
        wanted = [message for message in messages if self._matches(message)]
        self._scanned += len(messages)
        self._matched += len(wanted)
        turn.add(wanted)
