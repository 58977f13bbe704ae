"""A whole broker without a socket, a thread or a clock: requests and time in, outputs out.

One rule: a reply that promises something leaves only when it holds. A message is in the log and
both indexes before its acknowledgement, and durable under "sync"; a new topic or group is saved
and announced. Replies that must wait are kept here until `log_flushed` or `published` says that
their time has come, and no longer than `flush_timeout`: then they say what does not hold. Nobody
waits for what he did not ask for: not for a flush, and not for the change of somebody else.

The driver in `server` calls, in one thread: `handle` per request, `commit` at the end of a turn,
`tick` a few times per second, and the two above after work it did elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import DiskFull, RocketMQError
from downrange.server.broker.handlers import (
    broker_admin,
    clients,
    consumer_admin,
    end_transaction,
    groups,
    offsets,
    pull,
    queries,
    recall,
    reply,
    send,
    send_back,
    topics,
)
from downrange.server.broker.scheduled.delay_levels import deliver_due
from downrange.server.broker.scheduled.timed_messages import fire_due
from downrange.server.broker.state import DISK_FULL
from downrange.server.broker.transactions.half_checks import check_half_messages
from downrange.server.outputs import LateReply, Note, Output, Peer, Reply, refusal
from downrange.wire.batches import RecordBatch
from downrange.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import PendingWrite
    from downrange.wire.command import Command
    from downrange.wire.records import Record

HANDLERS: Final[dict[int, Handler]] = {
    **send.HANDLERS,
    **pull.HANDLERS,
    **offsets.HANDLERS,
    **queries.HANDLERS,
    **end_transaction.HANDLERS,
    **send_back.HANDLERS,
    **recall.HANDLERS,
    **reply.HANDLERS,
    **clients.HANDLERS,
    **consumer_admin.HANDLERS,
    **topics.HANDLERS,
    **groups.HANDLERS,
    **broker_admin.HANDLERS,
}
#: Requests whose records are gathered; every other one sees what arrived before it as stored.
_SENDS: Final = frozenset(map(int, send.HANDLERS))
#: Requests that promise what the tables say. Who repeats one, as its first answer was lost, waits
#: like the first time: what he wants is in force then, but maybe not saved.
_AWAIT_PUBLICATION: Final = frozenset(
    {
        int(RequestCode.UPDATE_AND_CREATE_TOPIC),
        int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST),
        int(RequestCode.DELETE_TOPIC_IN_BROKER),
        int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
        int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
        int(RequestCode.DELETE_SUBSCRIPTIONGROUP),
    }
)
_ROUNDS_MAX: Final = 100
#: What time demands, in this order.
_TICK_STEPS: Final[tuple[Callable[[BrokerState, int], Iterable[Output]], ...]] = (
    deliver_due,
    fire_due,
    check_half_messages,
    pull.answer_held,
    clients.expire,
)
#: How often the operator is told that a duty fails.
_REPORT_INTERVAL_MS: Final = 10_000
_UNSAVED: Final = "the change is in force, but it could not be saved"


class _WaitingOutputs(NamedTuple):
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
        # In the order of waiting, which is that of release, or nearly so: only the front is looked
        # at, and those behind it wait for a moment longer at worst.
        self._unflushed: deque[_WaitingOutputs] = deque()
        self._unpublished: deque[_WaitingOutputs] = deque()
        self._flushed = state.store.log.end
        self._published = self.version
        self._ready: list[Output] = []  # for the end of this turn
        self._reported_ms: dict[str, int] = {}

    @property
    def awaits_flush(self) -> bool:
        """Whether somebody waits for the log to be durable."""
        return bool(self._unflushed)

    @property
    def awaits_publication(self) -> bool:
        """Whether somebody waits for tables to be saved and announced."""
        return bool(self._unpublished)

    @property
    def version(self) -> int:
        """How many changes of topics and groups there were; `published` says which are saved."""
        return self.state.topics.version + self.state.groups.version

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or take it in for the end of this turn."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"  # the leading blank is Apache's
            return [Reply(refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))]
        state = self.state
        is_send = request.code in _SENDS
        if state.write_queue and not is_send:
            self._store_all(now_ms)
        topics, groups = state.topics, state.groups
        version = topics.version + groups.version
        try:
            answer = handler(state, request, peer, now_ms)
        except RocketMQError as error:
            return [Reply(refusal(ResponseCode.SYSTEM_ERROR, str(error)))]
        if topics.version + groups.version != version:
            if not (is_send and answer):  # else it refused, and the last one is somebody else's
                state.write_queue.hold_last(self.version)
            return self._until_published(request, peer, answer, now_ms)
        if request.code in _AWAIT_PUBLICATION and version > self._published:
            return self._until_published(request, peer, answer, now_ms)
        return answer

    def on_disconnect(self, peer: Peer, now_ms: int) -> list[Output]:
        """Hear that a connection ended."""
        self.state.held_pulls.drop_connection(peer.number)
        return clients.on_disconnect(self.state, peer, now_ms)

    def commit(self, now_ms: int) -> list[Output]:
        """Store what arrived in this turn, answer those who sent it, wake those who wait for it."""
        self._store_all(now_ms)
        outputs, self._ready = self._ready, []
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        """Do what time demands."""
        # What was answered for must be stored before time goes on: a recall, for example.
        outputs = self.commit(now_ms)
        for step in _TICK_STEPS:
            try:
                outputs += step(self.state, now_ms)
            except Exception as error:  # a fault in one duty must not end the others
                outputs += self._report_failure(step.__name__, error, now_ms)
        outputs += self.commit(now_ms)
        outputs += self._time_out(now_ms)
        self.state.statistics.sample(now_ms)
        return outputs

    def is_behind(self, now_ms: int) -> bool:
        """Whether messages are due that the last tick did not get to."""
        state = self.state
        due = (
            state.delays.next_due_ms(state, now_ms),
            state.timers.next_due_ms(state, now_ms),
        )
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def close(self, now_ms: int) -> list[Output]:
        """Store what is left of this turn and answer the pulls that wait."""
        outputs = self.commit(now_ms)
        outputs += pull.answer_all_held(self.state, now_ms)
        return outputs

    def log_flushed(self, position: int) -> list[Output]:
        """Hear that the log is durable up to a position; return what waited for it."""
        self._flushed = max(self._flushed, position)
        outputs: list[Output] = []
        unflushed = self._unflushed
        while unflushed and unflushed[0].log_position <= self._flushed:
            waiting = unflushed.popleft()
            if waiting.version > self._published:  # its topic is not known everywhere yet
                self._unpublished.append(waiting)
            else:
                outputs += waiting.outputs
        return outputs

    def published(self, version: int) -> list[Output]:
        """Hear that tables are saved and announced; return what waited for it."""
        self._published = max(self._published, version)
        outputs: list[Output] = []
        unpublished = self._unpublished
        while unpublished and unpublished[0].version <= self._published:
            outputs += unpublished.popleft().outputs
        return outputs

    def time_out_all(self) -> list[Output]:
        """Answer everyone who still waits, and say what does not hold."""
        outputs: list[Output] = []
        for waiting in (self._unflushed, self._unpublished):
            while waiting:
                outputs += _as_timed_out(waiting.popleft())
        return outputs

    # ---- storing ----

    def _store_all(self, now_ms: int) -> None:
        for _ in range(_ROUNDS_MAX):  # finishing may bring new records, such as a half's end
            writes = self.state.write_queue.take()
            if not writes:
                break
            self._store(writes, now_ms)

    def _store(self, writes: list[PendingWrite], now_ms: int) -> None:
        if len(writes) == 1:
            records, properties = writes[0].records, writes[0].properties
        else:
            records = [record for write in writes for record in write.records]
            properties = [parsed for write in writes for parsed in write.properties]
        try:
            self.state.store.append(records, now_ms, properties)
        except (RocketMQError, OSError) as error:
            self._store_apart(writes, error, now_ms)
            return
        is_sync = self.state.options.flush == "sync"
        end, ready = self.state.store.log.end, self._ready
        for write in writes:
            outputs = write.on_stored(None, now_ms)
            position = end if is_sync and write.is_flush_awaited else 0
            if position or write.version > self._published:
                self._wait(_WaitingOutputs(position, write.version, now_ms, list(outputs)))
            else:
                ready += outputs
        if len(self.state.held_pulls):
            self._wake(records, now_ms)

    def _store_apart(
        self, writes: list[PendingWrite], error: RocketMQError | OSError, now_ms: int
    ) -> None:
        """Store those that can be, when together they cannot."""
        if isinstance(error, DiskFull):
            self.state.unwritable = DISK_FULL  # until there is space again, nobody need try
            self._ready.append(Note(f"sends are refused: {DISK_FULL}", is_warning=True))
        if len(writes) > 1 and not isinstance(error, DiskFull):
            for write in writes:
                self._store([write], now_ms)
            return
        if isinstance(error, OSError):
            error = RocketMQError(f"the log cannot be written: {error}")
        for write in writes:
            self._ready += write.on_stored(error, now_ms)

    def _wake(self, records: Sequence[Record | RecordBatch], now_ms: int) -> None:
        seen: set[tuple[bytes, int]] = set()
        for entry in records:
            record = entry.shared if isinstance(entry, RecordBatch) else entry
            queue = (record.topic_bytes, record.queue_id)
            if queue not in seen:
                seen.add(queue)
                self._ready += pull.wake(self.state, record, now_ms)

    # ---- waiting ----

    def _until_published(
        self, request: Command, peer: Peer, answer: Iterable[Output], now_ms: int
    ) -> list[Output]:
        """Keep a reply until the change that it confirms is saved and announced."""
        now: list[Output] = []
        for output in answer:
            if isinstance(output, Reply):
                late = LateReply(peer.number, request, output.command)
                self._wait(_WaitingOutputs(0, self.version, now_ms, [late]))
            else:
                now.append(output)
        return now

    def _wait(self, waiting: _WaitingOutputs) -> None:
        """Keep outputs until what they promise holds; those of a one-way request are none."""
        if not waiting.outputs:
            return
        if waiting.log_position > self._flushed:
            self._unflushed.append(waiting)
        elif waiting.version > self._published:
            self._unpublished.append(waiting)
        else:
            self._ready += waiting.outputs

    def _time_out(self, now_ms: int) -> list[Output]:
        """Answer those who waited too long, and say what does not hold."""
        begun_ms = now_ms - self.state.options.flush_timeout * 1000
        outputs: list[Output] = []
        for waiting in (self._unflushed, self._unpublished):
            while waiting and waiting[0].since_ms <= begun_ms:
                outputs += _as_timed_out(waiting.popleft())
        return outputs

    def _report_failure(self, step: str, error: Exception, now_ms: int) -> list[Output]:
        if now_ms - self._reported_ms.get(step, 0) < _REPORT_INTERVAL_MS:
            return []
        self._reported_ms[step] = now_ms
        return [Note(f"{step} failed: {type(error).__name__}: {error}", is_warning=True)]


def _as_timed_out(waiting: _WaitingOutputs) -> list[Output]:
    """Turn promises into what is true: stored, maybe not durably; changed, but not saved.

    Others promise nothing, such as the first pull of a group, and are answered as they are.
    """
    for late in waiting.outputs:
        if isinstance(late, LateReply) and late.command.code == ResponseCode.SUCCESS:
            if late.request.code in _SENDS:
                late.command.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            elif waiting.log_position or late.request.code in _AWAIT_PUBLICATION:
                late.command = refusal(ResponseCode.SYSTEM_ERROR, _UNSAVED)
    return waiting.outputs
