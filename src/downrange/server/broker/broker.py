"""A whole broker without a socket, a thread or a clock: requests and time in, outputs out.

One rule: a reply is sent only when everything that it confirms holds. A message is in the log and
in both indexes before its acknowledgement, and durable in sync mode; a new topic or group is saved
and announced. The broker keeps replies that must wait until `log_flushed` or `published` reports
that the condition holds, and for `flush_timeout` at most: after that they report what does not
hold. A request waits only for the guarantees it asked for: neither for a flush that it did not ask
for nor for a change made by another request.

Handlers declare both conditions with outputs. `StorePending`: records are in the write queue.
`FlushAwaited`: records are in the log. `TablesChanged`: the reply waits for this version of topics
and groups. `_act` carries them out.

The driver in `server/run` calls, in one thread: `handle` per request, `on_reply` per reply to a
`Call`, `commit` at the end of a turn if `awaits_commit`, `tick` some times per second, and
`log_flushed` and `published` after work that it did elsewhere.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import DiskFull, RocketMQError
from downrange.server.broker.handlers import (
    ack,
    assignments,
    broker_admin,
    clients,
    consumer_admin,
    end_transaction,
    groups,
    offsets,
    pop,
    pop_polls,
    pop_queries,
    pull,
    queries,
    recall,
    reply,
    send,
    send_back,
    topics,
)
from downrange.server.broker.pop.dead_letters_in_order import move_dead_heads
from downrange.server.broker.pop.handover import store_open_again
from downrange.server.broker.pop.revival import next_due_ms, revive_due
from downrange.server.broker.scheduled.delayed_delivery import deliver_due
from downrange.server.broker.scheduled.timed_delivery import fire_due
from downrange.server.broker.state import DISK_FULL
from downrange.server.broker.transactions.half_checks import check_half_messages
from downrange.server.outputs import (
    STORE_PENDING,
    FlushAwaited,
    LateReplies,
    LateReply,
    Note,
    Output,
    Peer,
    Reply,
    StorePending,
    TablesChanged,
    refusal,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import PendingWrite
    from downrange.server.outputs import OnReply
    from downrange.wire.batches import RecordRun
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

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
    **assignments.HANDLERS,
    **consumer_admin.HANDLERS,
    **topics.HANDLERS,
    **groups.HANDLERS,
    **broker_admin.HANDLERS,
    **pop.HANDLERS,
    **pop_queries.HANDLERS,
    **ack.HANDLERS,
}
_SENDS: Final = frozenset(map(int, send.HANDLERS))
#: Requests whose records are committed as a group. Before every other request the write queue is
#: stored, so that the request sees all earlier sends. The end of a transaction belongs to a half
#: message that was answered, and so stored, in an earlier turn.
_GROUPED: Final = _SENDS | {int(RequestCode.END_TRANSACTION)}
#: How often a commit goes on when callbacks add records; the next tick stores the rest.
_ROUNDS_MAX: Final = 100
#: The work of a tick, in this order.
_TICK_STEPS: Final[tuple[Callable[[BrokerState, int], Iterable[Output]], ...]] = (
    deliver_due,
    fire_due,
    revive_due,
    check_half_messages,
    move_dead_heads,
    pull.answer_held,
    pop_polls.answer_held,
    clients.expire,
)
#: The minimum interval between two warnings that the same step fails.
_REPORT_INTERVAL_MS: Final = 10_000
#: The types of outputs that `_hold_back` acts on.
_FOR_BROKER: Final = frozenset({TablesChanged, StorePending, FlushAwaited})
_UNSAVED: Final = "the change is in force, but it could not be saved"


class _WaitingOutputs(NamedTuple):
    """Outputs that wait for a flush, for saved tables, or for both.

    Attributes:
        log_position: Up to where the log must be durable; 0 for no flush.
        tables_version: Up to which version the tables must be saved and announced.
        since_ms: When the wait began.
        outputs: What is sent then.
        is_confirmed: See `TablesChanged`.
    """

    log_position: int
    tables_version: int
    since_ms: int
    outputs: list[Output]
    is_confirmed: bool = False


class Broker:
    """Passes requests, time and finished work to the handlers, and keeps replies that must wait.

    Args:
        state: The broker's state, loaded and prepared.

    Attributes:
        awaits_commit: Whether the driver has to call `commit` at the end of this turn.
    """

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self.awaits_commit = False
        # In the order of waiting, which is that of release, or nearly so: only the first entry is
        # examined, and the entries behind it wait a moment longer at worst.
        self._unflushed: deque[_WaitingOutputs] = deque()
        self._unpublished: deque[_WaitingOutputs] = deque()
        self._flushed = state.store.log.end
        self._published = state.tables_version
        self._ready: list[Output] = []  # for the end of this turn
        self._woken: list[Output] = []  # for the end of this turn, before the others
        self._reported_ms: dict[str, int] = {}
        self._is_full = False

    @property
    def awaits_flush(self) -> bool:
        """Whether a reply waits for the log to be durable."""
        return bool(self._unflushed)

    @property
    def awaits_publication(self) -> bool:
        """Whether a reply waits for tables to be saved and announced."""
        return bool(self._unpublished)

    @property
    def tables_version(self) -> int:
        """See `BrokerState.tables_version`; `published` takes it once the tables are saved."""
        return self.state.tables_version

    # ---- inputs ----

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Answer a request, or begin what answers it later."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            remark = topics.REFUSED.get(request.code)
            if remark is None:  # Apache's words, with their leading blank
                remark = f" request type {request.code} not supported"
            return [Reply(refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))]
        state, code = self.state, request.code
        queue = state.write_queue
        if queue and code not in _GROUPED:
            self._store_all(now_ms)
        try:
            outputs = handler(state, request, peer, now_ms)
        except RocketMQError as error:
            return [Reply(refusal(ResponseCode.SYSTEM_ERROR, str(error)))]
        if outputs is STORE_PENDING:  # every plain send
            self.awaits_commit = True
            return ()
        for output in outputs:
            if type(output) in _FOR_BROKER:
                return self._act(outputs, request, peer, now_ms)
        return outputs

    def handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        """Add plain sends of one read to the write queue; False: `handle` each of them instead."""
        is_added = send.add_run(self.state, run, peer)
        if is_added:
            self.awaits_commit = True
        return is_added

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> list[Output]:
        """Continue after the reply to a `Call`, or after its timeout.

        Args:
            callback: The call's `on_reply`.
            reply: None if no reply came in time or the connection ended.
            now_ms: The time.
        """
        outputs = list(callback(reply, now_ms))
        if STORE_PENDING[0] in outputs:
            self.awaits_commit = True
            outputs.remove(STORE_PENDING[0])
        return outputs

    def on_disconnect(self, peer: Peer, now_ms: int) -> list[Output]:
        """Forget a connection that ended."""
        self.state.held_pulls.drop_connection(peer.number)
        self.state.held_pops.drop_connection(peer.number)
        return clients.on_disconnect(self.state, peer, now_ms)

    def commit(self, now_ms: int) -> list[Output]:
        """Store the writes of this turn; return answers of pulls that they wake, then replies."""
        return [*self.commit_first(now_ms), *self.take_ready()]

    def commit_first(self, now_ms: int) -> list[Output]:
        """Store the writes of this turn; return the answers of pulls and pops that they wake.

        `take_ready` has the rest. The answers go first: a consumer waits for them, and a sender
        that gets its reply first keeps a small machine, or its own event loop, busy meanwhile.
        """
        self._store_all(now_ms)
        self.awaits_commit = False
        woken, self._woken = self._woken, []
        return woken

    def take_ready(self) -> list[Output]:
        """Return the replies to the writes that were stored, and what else is due."""
        ready, self._ready = self._ready, []
        return ready

    def tick(self, now_ms: int) -> list[Output]:
        """Do the work that depends on the time, then commit."""
        # Pending writes come first: a recall, for example, must be stored before its time passes.
        outputs = self.commit(now_ms)
        for step in _TICK_STEPS:
            try:
                outputs += self._hold_back(step(self.state, now_ms), now_ms)
            except Exception as error:  # a fault in one step must not stop the others
                outputs += self._report_failure(step.__name__, error, now_ms)
        outputs += self.commit(now_ms)
        outputs += self._time_out(now_ms)
        outputs += self._report_full_disk()  # a pop may have found it
        self.state.statistics.sample(now_ms)
        return outputs

    def is_behind(self, now_ms: int) -> bool:
        """Whether the last tick could not do all that was due."""
        state = self.state
        if state.held_pops.is_behind(now_ms):
            return True
        store, is_writable = state.store, state.unwritable is None
        due = (
            state.delays.next_due_ms(store, now_ms, is_writable=is_writable),
            state.timers.next_due_ms(store, now_ms, is_writable=is_writable),
            next_due_ms(state, now_ms),
        )
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def close(self, now_ms: int) -> list[Output]:
        """Store the pending writes and open checkpoints, and answer all held pulls and pops."""
        outputs = self.commit(now_ms)  # first: it may hold acknowledgements
        if self.state.is_pop_loaded and len(self.state.checkpoints):
            failure = store_open_again(self.state, now_ms)
            outputs += () if failure is None else (failure,)
        outputs += pull.answer_all_held(self.state, now_ms)
        outputs += pop_polls.answer_all_held(self.state, now_ms)
        return outputs

    def log_flushed(self, position: int) -> list[Output]:
        """Note that the log is durable up to a position; return the outputs that waited for it."""
        self._flushed = max(self._flushed, position)
        outputs: list[Output] = []
        unflushed = self._unflushed
        while unflushed and unflushed[0].log_position <= self._flushed:
            waiting = unflushed.popleft()
            if waiting.tables_version > self._published:  # its topic is not announced yet
                self._unpublished.append(waiting)
            else:
                outputs += waiting.outputs
        return outputs

    def published(self, version: int) -> list[Output]:
        """Note that tables are saved and announced; return the outputs that waited for it."""
        self._published = max(self._published, version)
        outputs: list[Output] = []
        unpublished = self._unpublished
        while unpublished and unpublished[0].tables_version <= self._published:
            outputs += unpublished.popleft().outputs
        return outputs

    def time_out_all(self) -> list[Output]:
        """Send all replies that still wait, as after their timeout."""
        outputs: list[Output] = []
        for waiting in (self._unflushed, self._unpublished):
            while waiting:
                outputs += _as_timed_out(waiting.popleft())
        return outputs

    # ---- storing ----

    def _store_all(self, now_ms: int) -> None:
        queue = self.state.write_queue
        for _ in range(_ROUNDS_MAX):  # a callback may add records, as for the end of a half
            writes = queue.take()
            if writes:
                self._store(writes, now_ms)
            if not queue:
                break

    def _store(self, writes: list[PendingWrite], now_ms: int) -> None:
        """Store writes together, or each on its own."""
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
        self.state.statistics.stored(records)
        is_sync = self.state.options.flush == "sync"
        end, ready = self.state.store.log.end, self._ready
        for write in writes:
            outputs = write.on_stored(None, now_ms)
            position = end if is_sync and write.is_flush_awaited else 0
            if position or write.tables_version > self._published:
                version = write.tables_version
                self._wait(_WaitingOutputs(position, version, now_ms, list(outputs)))
            else:
                ready += outputs
        if len(self.state.held_pulls) or len(self.state.held_pops):
            self._wake(records, now_ms)

    def _store_apart(
        self, writes: list[PendingWrite], error: RocketMQError | OSError, now_ms: int
    ) -> None:
        """Store each write on its own after all of them together failed."""
        if isinstance(error, DiskFull):
            self.state.unwritable = DISK_FULL  # the driver resets it when there is space
            self._ready += self._report_full_disk()
        writes = [
            each for write in writes for each in ([write] if write.apart is None else write.apart())
        ]
        if isinstance(error, OSError):
            error = RocketMQError(f"the log cannot be written: {error}")
        if len(writes) == 1 or isinstance(error, DiskFull):
            for write in writes:
                self._ready += write.on_stored(error, now_ms)
            return
        for write in writes:
            self._store([write], now_ms)

    def _wake(self, records: Sequence[Record | RecordRun], now_ms: int) -> None:
        """Answer held pulls and pops of the queues that got records."""
        firsts: dict[tuple[bytes, int], Record] = {}
        for entry in records:
            for record in (entry,) if isinstance(entry, Record) else _first_records(entry):
                firsts.setdefault((record.topic_bytes, record.queue_id), record)
        for record in firsts.values():
            self._woken += pull.wake(self.state, record, now_ms)
            self._woken += self._hold_back(pop_polls.wake(self.state, record, now_ms), now_ms)

    # ---- waiting ----

    def _act(
        self, outputs: Sequence[Output], request: Command, peer: Peer, now_ms: int
    ) -> list[Output]:
        """Act on a handler's outputs that are for the broker; return those for the listener."""
        return self._hold_back(outputs, now_ms, partial(LateReply, peer.number, request))

    def _hold_back(
        self,
        outputs: Iterable[Output],
        now_ms: int,
        late_reply: Callable[[Command], LateReply] | None = None,
    ) -> list[Output]:
        """Act on outputs that are for the broker; return those that need not wait.

        Args:
            outputs: Of a handler, of a step of a tick, or of requests that were held.
            now_ms: The time.
            late_reply: Makes a late reply of the `Reply` of a handler.
        """
        change: TablesChanged | None = None
        position = 0
        rest: list[Output] = []
        for output in outputs:
            if type(output) is TablesChanged:
                change = output if output.version > self._published else None
            elif type(output) is StorePending:
                self.awaits_commit = True
                last = self.state.write_queue.last
                if change is not None and last is not None:
                    last.tables_version = change.version
            elif type(output) is FlushAwaited:
                position = self.state.store.log.end
            elif (change is not None or position) and isinstance(output, Reply | LateReply):
                if late_reply is not None and type(output) is Reply:
                    output = late_reply(output.command)
                version, is_confirmed = (
                    (0, False) if change is None else (change.version, change.is_confirmed)
                )
                self._wait(_WaitingOutputs(position, version, now_ms, [output], is_confirmed))
                position = 0
            else:
                rest.append(output)
        return rest

    def _wait(self, waiting: _WaitingOutputs) -> None:
        """Keep outputs until their conditions hold; a one-way request has none."""
        if not waiting.outputs:
            return
        if waiting.log_position > self._flushed:
            self._unflushed.append(waiting)
        elif waiting.tables_version > self._published:
            self._unpublished.append(waiting)
        else:
            self._ready += waiting.outputs

    def _time_out(self, now_ms: int) -> list[Output]:
        """Return the outputs that waited for too long, changed to what holds."""
        begun_ms = now_ms - self.state.options.flush_timeout * 1000
        outputs: list[Output] = []
        for waiting in (self._unflushed, self._unpublished):
            while waiting and waiting[0].since_ms <= begun_ms:
                outputs += _as_timed_out(waiting.popleft())
        return outputs

    def _report_full_disk(self) -> list[Output]:
        """Return a warning, once, if the disk is full."""
        was_full, self._is_full = self._is_full, self.state.unwritable == DISK_FULL
        if was_full or not self._is_full:
            return []
        return [Note(f"sends are refused: {DISK_FULL}", is_warning=True)]

    def _report_failure(self, step: str, error: Exception, now_ms: int) -> list[Output]:
        if now_ms - self._reported_ms.get(step, 0) < _REPORT_INTERVAL_MS:
            return []
        self._reported_ms[step] = now_ms
        return [Note(f"{step} failed: {type(error).__name__}: {error}", is_warning=True)]


def _first_records(run: RecordRun) -> list[Record]:
    """Return the first record of each queue of a run, with what names it."""
    return [
        Record(topic_bytes=topic, queue_id=queue_id, queue_offset=offset)
        for (topic, queue_id), offset in zip(run.queues, run.queue_offsets, strict=True)
    ]


def _as_timed_out(waiting: _WaitingOutputs) -> list[Output]:
    """Replace confirmations by what holds: stored but maybe not durable, changed but not saved.

    Replies that confirm neither, such as that to the first pull of a group, stay as they are.
    """
    for late in waiting.outputs:
        if isinstance(late, LateReplies):
            late.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
        elif isinstance(late, LateReply) and late.command.code == ResponseCode.SUCCESS:
            if late.request.code in _SENDS:
                late.command.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            elif waiting.log_position or waiting.is_confirmed:
                late.command = refusal(ResponseCode.SYSTEM_ERROR, _UNSAVED)
    return waiting.outputs
