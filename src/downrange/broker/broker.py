"""A whole broker without a socket, a thread or a clock: requests and time in, outputs out.

One rule: a reply that promises something leaves only when it holds. A message is in the log and
both indexes before its acknowledgement, and durable under "sync"; a new topic or group is saved
and announced. Replies that must wait are kept here, in order, until `log_flushed` or `published`
says that their time has come.

The driver in `server` calls, in one thread: `handle` per request, `commit` at the end of a turn,
`tick` a few times per second, and the two above after work it did elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.broker.delays import deliver_due
from downrange.broker.half_checks import check_half_messages
from downrange.broker.handlers import (
    administration,
    clients,
    consulting,
    groups,
    offsets,
    pulling,
    queries,
    recalling,
    replying,
    returning,
    sending,
    topics,
    transactions,
)
from downrange.broker.timers import fire_due
from downrange.errors import RocketMQError, WireError
from downrange.handling import LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.broker.handlers.answers import Handler
    from downrange.broker.intake import Arrival
    from downrange.broker.state import BrokerState
    from downrange.wire.command import Command
    from downrange.wire.records import Record

HANDLERS: Final[dict[int, Handler]] = {
    **sending.HANDLERS,
    **pulling.HANDLERS,
    **offsets.HANDLERS,
    **queries.HANDLERS,
    **transactions.HANDLERS,
    **returning.HANDLERS,
    **recalling.HANDLERS,
    **replying.HANDLERS,
    **clients.HANDLERS,
    **consulting.HANDLERS,
    **topics.HANDLERS,
    **groups.HANDLERS,
    **administration.HANDLERS,
}
#: Requests whose records are gathered; every other one sees what arrived before it as stored.
_GATHERED: Final = frozenset(map(int, sending.HANDLERS))
_ROUNDS_MAX: Final = 100


class _Held(NamedTuple):
    """Outputs that wait: for the log up to a position, for the tables up to a version."""

    log_position: int
    version: int
    since_ms: int
    outputs: list[Output]


class Broker:
    """Feeds requests, time and finished work to the handlers.

    Args:
        state: The broker, loaded and prepared.
    """

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._held: deque[_Held] = deque()
        self._flushed = state.store.log.end
        self._published = self._version()

    @property
    def has_arrivals(self) -> bool:
        """Whether `commit` has something to do."""
        return bool(self.state.intake)

    @property
    def awaits_flush(self) -> bool:
        """Whether somebody waits for the log to be durable."""
        return any(held.log_position > self._flushed for held in self._held)

    @property
    def version(self) -> int:
        """How many changes of topics and groups there were; `published` says which are saved."""
        return self._version()

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or take it in for the end of this turn."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"  # the leading blank is Apache's
            return [Reply(refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))]
        outputs: list[Output] = []
        if self.state.intake and request.code not in _GATHERED:
            outputs = self.commit(now_ms)
        version = self._version()
        try:
            answer = handler(self.state, request, peer, now_ms)
        except WireError as error:
            return [*outputs, Reply(refusal(ResponseCode.SYSTEM_ERROR, str(error)))]
        if self._version() != version:
            answer = self._until_published(request, peer, answer, now_ms)
        return [*outputs, *answer] if outputs else answer

    def lose(self, peer: Peer, now_ms: int) -> list[Output]:
        """Hear that a connection ended."""
        self.state.parked.lose(peer.number)
        return clients.lose_peer(self.state, peer, now_ms)

    def commit(self, now_ms: int) -> list[Output]:
        """Store what arrived in this turn, answer those who sent it, wake those who wait for it."""
        outputs: list[Output] = []
        for _ in range(_ROUNDS_MAX):  # finishing may bring new records, such as a half's end
            arrivals = self.state.intake.take()
            if not arrivals:
                break
            self._store(arrivals, now_ms, outputs)
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        """Do what time demands."""
        state = self.state
        outputs = [
            *deliver_due(state, now_ms),
            *fire_due(state, now_ms),
            *check_half_messages(state, now_ms),
        ]
        outputs += pulling.answer_parked(state, now_ms)
        outputs += clients.expire(state, now_ms)
        outputs += self.commit(now_ms)
        outputs += self._give_up_waiting(now_ms)
        state.statistics.sample(now_ms)
        return outputs

    def close(self, now_ms: int) -> list[Output]:
        """Store what is left of this turn and answer the pulls that wait."""
        outputs = self.commit(now_ms)
        outputs += pulling.answer_everyone(self.state, now_ms)
        return outputs

    def log_flushed(self, position: int) -> list[Output]:
        """Hear that the log is durable up to a position; return what waited for it."""
        self._flushed = max(self._flushed, position)
        return self._release()

    def published(self, version: int) -> list[Output]:
        """Hear that tables are saved and announced; return what waited for it."""
        self._published = max(self._published, version)
        return self._release()

    # ---- inside ----

    def _store(self, arrivals: list[Arrival], now_ms: int, outputs: list[Output]) -> None:
        store = self.state.store
        if len(arrivals) == 1:
            records, properties = arrivals[0].records, arrivals[0].properties
        else:
            records = [record for arrival in arrivals for record in arrival.records]
            properties = [parsed for arrival in arrivals for parsed in arrival.properties]
        try:
            store.append(records, now_ms, properties)
        except RocketMQError as error:
            if len(arrivals) == 1:
                outputs += arrivals[0].finish(error, now_ms)
                return
            for arrival in arrivals:  # find the one that cannot be stored; the others can
                self._store([arrival], now_ms, outputs)
            return
        is_sync = self.state.options.flush == "sync"
        end, version = store.log.end, self._version()
        is_published = version <= self._published
        for arrival in arrivals:
            finished = arrival.finish(None, now_ms)
            is_awaited = is_sync and arrival.is_flush_awaited
            if is_published and not is_awaited and not self._held:
                outputs += finished
            else:
                position = end if is_awaited else 0
                self._held.append(_Held(position, version, now_ms, list(finished)))
        self._wake(records, outputs, now_ms)

    def _wake(self, records: list[Record], outputs: list[Output], now_ms: int) -> None:
        if not len(self.state.parked):
            return
        seen: set[tuple[bytes, int]] = set()
        for record in records:
            queue = (record.topic_bytes, record.queue_id)
            if queue not in seen:
                seen.add(queue)
                outputs += pulling.wake(self.state, record, now_ms)

    def _until_published(
        self, request: Command, peer: Peer, answer: Iterable[Output], now_ms: int
    ) -> list[Output]:
        """Keep a reply until the change that it confirms is saved and announced."""
        now: list[Output] = []
        for output in answer:
            if isinstance(output, Reply):
                late = LateReply(peer.number, request, output.command)
                self._held.append(_Held(0, self._version(), now_ms, [late]))
            else:
                now.append(output)
        return now

    def _release(self) -> list[Output]:
        outputs: list[Output] = []
        while self._held:
            held = self._held[0]
            if held.log_position > self._flushed or held.version > self._published:
                break
            outputs += held.outputs
            self._held.popleft()
        return outputs

    def _give_up_waiting(self, now_ms: int) -> list[Output]:
        """Answer sends whose flush takes too long: they are stored, but not known to be durable."""
        limit_ms = self.state.options.flush_timeout * 1000
        late: list[Output] = []
        while self._held:
            held = self._held[0]
            is_flush_awaited = held.log_position > self._flushed
            if not is_flush_awaited or now_ms - held.since_ms < limit_ms:
                break
            for output in held.outputs:
                if isinstance(output, LateReply) and output.command.code == ResponseCode.SUCCESS:
                    output.command.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            late += held.outputs
            self._held.popleft()
        return late

    def _version(self) -> int:
        return self.state.topics.version + self.state.groups.version
