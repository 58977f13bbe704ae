"""Timed messages: those with a time of delivery wait in rmq_sys_wheel_timer, in no order.

A reader goes through that queue as a consumer would and keeps in memory when each message is due;
what is due is stored where it belongs. Records and properties are Apache's. So TIMER_OUT_MS is the
full second before the asked time, at whose end Apache delivers; we deliver at the asked time, which
the message's own properties still tell.

A message is taken back by a mark in the same queue: a record with TIMER_DEL_UNIQKEY and the same
TIMER_OUT_MS. The log's order makes that as durable as any message. A message that Apache rolled
(it writes far ones again every two days) takes back its older self in the same way.

Rules: nothing is delivered early, nor before the whole queue was read, as the last record may be a
mark. Messages are delivered in the order of their times, so three numbers say what was delivered:
of those before `read`, all up to a time. What waits longest lies at `low` or behind it. They are
saved in a file of ours, which Apache leaves alone.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from downrange.errors import RocketMQError, StoreError
from downrange.server.broker.scheduled.redirect import (
    RETRY_MS,
    TICK_BYTES_MAX,
    TICK_RECORDS_MAX,
    read_number,
    redirect,
    undo_redirect,
)
from downrange.server.outputs import Note, Output, refusal
from downrange.wire.bodies import Body, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.limits import PROPERTIES_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.recall_handles import RecallHandle
from downrange.wire.system_names import TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.server.broker.state import BrokerState
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.command import Command
    from downrange.wire.records import Record

PATH: Final = "config/timerProgress.json"

#: How long Apache's wheel stays at one place.
SLOT_MS: Final = 1_000
#: How many records of the queue are read per tick.
TICK_READS_MAX: Final = 1_000

_TOPIC: Final = TIMER_TOPIC.encode()
_OUT_MS: Final = str(PropertyKey.TIMER_OUT_MS)
_ROLLS: Final = str(PropertyKey.TIMER_ROLL_TIMES)
_RECALLED_KEY: Final = str(PropertyKey.TIMER_DEL_UNIQKEY)
_REAL_TOPIC: Final = str(PropertyKey.REAL_TOPIC)
_UNIQUE_KEY: Final = str(PropertyKey.UNIQUE_KEY)
#: In the order in which they are looked at: the property, its unit in ms, whether it counts from
#: the time of sending.
_TIMES: Final = (
    (str(PropertyKey.TIMER_DELAY_SEC), 1_000, True),
    (str(PropertyKey.TIMER_DELAY_MS), 1, True),
    (str(PropertyKey.TIMER_DELIVER_MS), 1, False),
)

_encode: Final = msgspec.json.Encoder().encode

#: Names a message to those who take it back: time, topic and unique id, as its properties say them.
_Name: TypeAlias = tuple[str | None, str | None, str | None]


class TimerProgressBody(Body):
    """What timerProgress.json holds: of those before `read`, all due until a time are delivered."""

    delivered_until_ms: int = 0
    read: int = 0
    low: int = 0


class TimedMessages:
    """What waits for its time.

    Attributes:
        version: How many changes there were since the start.
    """

    def __init__(self) -> None:
        self.version = 0
        self._read = 0  # the first number of the queue that was not read
        self._waiting: list[tuple[int, int]] = []  # a heap of (due time, number in the queue)
        self._under_way: set[tuple[int, int]] = set()
        #: Messages with this name and a number below are taken back.
        self._recalled: dict[_Name, int] = {}
        self._delivered_until_ms = 0
        self._retry_ms = 0
        self._before = TimerProgressBody()  # what was delivered before the start

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting) + len(self._under_way)

    def count(self, queue: QueueIndex) -> int:
        """Return how many wait, with those that were not read yet."""
        return len(self) + queue.max_offset - self._read

    def next_due_ms(self, state: BrokerState, now_ms: int) -> int | None:
        """Return when `fire_due` has something to do, or None."""
        if self.is_behind(state):
            return now_ms
        if not self._waiting or state.unwritable is not None:
            return None
        return max(self._waiting[0][0], self._retry_ms)

    # ---- reading the queue ----

    def read_new(self, state: BrokerState) -> list[Output]:
        """Learn what came into the queue."""
        queue = _queue(state)
        # Retention may have cut the queue's front, and a crash its end.
        self._read = min(max(self._read, queue.min_offset), queue.max_offset)
        self._before.read = min(self._before.read, queue.max_offset)
        outputs: list[Output] = []
        begun = self._read
        for unit in queue.units(self._read, TICK_READS_MAX):
            try:
                record = state.store.read_record(unit)
                self._add(self._read, record, record.properties())
            except RocketMQError as error:
                outputs.append(_lost(self._read, error))
            self._read += 1
        self.version += self._read - begun
        return outputs

    def is_behind(self, state: BrokerState) -> bool:
        """Whether there are records in the queue that were not read."""
        return self._read < _queue(state).max_offset

    def _add(self, offset: int, record: Record, properties: Mapping[str, str]) -> None:
        due_ms = _due_ms(record, properties)
        before = self._before
        if offset < before.read and due_ms <= before.delivered_until_ms:
            return
        if _RECALLED_KEY in properties or _ROLLS in properties:
            self._recalled[_name_of(properties)] = offset
        heappush(self._waiting, (due_ms, offset))

    # ---- delivering ----

    def take_due(self, now_ms: int) -> tuple[int, int] | None:
        """Return the time and number of the next message to deliver, as under way."""
        if not self._waiting or self._waiting[0][0] > now_ms or now_ms < self._retry_ms:
            return None
        taken = heappop(self._waiting)
        self._under_way.add(taken)
        return taken

    def is_recalled(self, offset: int, properties: Mapping[str, str]) -> bool:
        """Whether a message must not be delivered; a mark is none, and has done its duty now."""
        name = _name_of(properties)
        recalled_before = self._recalled.get(name, 0)
        if recalled_before == offset:
            self._recalled.pop(name, None)
        return offset < recalled_before or _RECALLED_KEY in properties

    def finish(self, taken: tuple[int, int], error: RocketMQError | None, now_ms: int) -> None:
        """Hear whether a message was stored."""
        self._under_way.discard(taken)
        if error is None:
            self.version += 1
        else:
            heappush(self._waiting, taken)
            self._retry_ms = now_ms + RETRY_MS

    def note_time(self, now_ms: int) -> None:
        """Note that the queue is read, and what is due by now leaves `_waiting` first."""
        self._delivered_until_ms = max(self._delivered_until_ms, now_ms)

    # ---- progress ----

    def progress(self) -> TimerProgressBody:
        """Return what is delivered."""
        # Something may wait although it is due: a tick is bounded, and clocks are set back.
        first_ms = min((due_ms for due_ms, _ in (*self._waiting[:1], *self._under_way)), default=0)
        until_ms = self._delivered_until_ms
        return TimerProgressBody(
            delivered_until_ms=min(first_ms - 1, until_ms) if first_ms else until_ms,
            read=max(self._read, self._before.read),
            low=min(
                (offset for _, offset in chain(self._waiting, self._under_way)), default=self._read
            ),
        )

    def start_from(self, progress: TimerProgressBody) -> None:
        """Go on, before anything was read, where somebody has come to."""
        self._before = progress
        self._delivered_until_ms = progress.delivered_until_ms
        self._read = progress.low

    def dump(self) -> bytes:
        """Write the progress. What it counts as delivered must be durable before it is."""
        return _encode(self.progress())

    def load(self, data: bytes) -> None:
        """Read the progress.

        Raises:
            MalformedBody: It cannot be read.
        """
        self.start_from(decode_body(TimerProgressBody, data))


def time_message(
    state: BrokerState, record: Record, properties: dict[str, str], now_ms: int
) -> Command | None:
    """Send a message that has a time of delivery on its detour, or return the refusal.

    A time that has passed is none, and so is any in a message that was timed before.
    """
    if _OUT_MS in properties:
        return None
    try:
        asked_ms = _asked_ms(properties, now_ms)
    except ValueError:
        return _illegal(state)
    if asked_ms is None or (asked_ms <= now_ms and _RECALLED_KEY not in properties):
        return None
    if not 0 < asked_ms - now_ms <= state.options.timer_delay_max * 1_000:
        return _illegal(state)
    limit = state.options.timer_messages_max
    if state.timers.count(_queue(state)) >= limit:
        remark = f"timer message is under flow control: {limit} messages wait for their time"
        return refusal(ResponseCode.SYSTEM_ERROR, remark)
    properties.pop(_ROLLS, None)  # only Apache's timer may say so
    properties[_OUT_MS] = str((asked_ms - 1) // SLOT_MS * SLOT_MS)
    redirect(record, properties, _TOPIC, 0)
    return None


def recall_handle_of(record: Record, broker_name: str) -> str:
    """Return what a producer can take a timed message back with.

    Args:
        record: As it was stored in the timer's topic.
        broker_name: This broker's name.
    """
    properties = record.properties()
    deliver_ms = int(properties[_OUT_MS]) + 1
    handle = RecallHandle(
        properties[_REAL_TOPIC], broker_name, deliver_ms, properties.get(_UNIQUE_KEY, "")
    )
    return str(handle)


def fire_due(state: BrokerState, now_ms: int) -> list[Output]:
    """Have the messages whose time has come stored at the end of this turn.

    It is a bounded number; `TimedMessages.next_due_ms` says whether there are more.
    """
    timers = state.timers
    outputs = timers.read_new(state)
    if timers.is_behind(state) or state.unwritable is not None:
        return outputs
    size = 0
    for _ in range(TICK_RECORDS_MAX):
        taken = timers.take_due(now_ms)
        if taken is None:
            break
        try:
            size += _fire(state, taken, now_ms)
        except RocketMQError as error:
            timers.finish(taken, None, now_ms)
            outputs.append(_lost(taken[1], error))
        if size > TICK_BYTES_MAX:
            break
    timers.note_time(now_ms)
    return outputs


def _fire(state: BrokerState, taken: tuple[int, int], now_ms: int) -> int:
    """Store one message where it belongs, and return its size; 0 if it was taken back."""
    offset, queue = taken[1], _queue(state)
    if offset < queue.min_offset:
        raise StoreError("retention has removed it")
    (unit,) = queue.units(offset, 1)
    record = state.store.read_record(unit)
    properties = record.properties()
    if state.timers.is_recalled(offset, properties):
        state.timers.finish(taken, None, now_ms)
        return 0

    def on_stored(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        is_hopeless = error is not None and not isinstance(error, StoreError)
        state.timers.finish(taken, None if is_hopeless else error, now_ms)
        return [_lost(offset, error)] if is_hopeless and error is not None else ()

    enqueued_ms = record.store_ms // SLOT_MS * SLOT_MS
    _add_properties(record, TIMER_ENQUEUE_MS=enqueued_ms, TIMER_DEQUEUE_MS=now_ms)
    undo_redirect(state, record, properties)
    state.write_queue.add([record], [properties], on_stored)
    return unit.size


def _queue(state: BrokerState) -> QueueIndex:
    return state.store.queue(TIMER_TOPIC, 0)


def _asked_ms(properties: Mapping[str, str], sent_ms: int) -> int | None:
    """Return when a message shall be delivered; None if it does not say.

    Raises:
        ValueError: What it says is no number.
    """
    for key, unit_ms, is_relative in _TIMES:
        text = properties.get(key)
        if text is not None:
            number = read_number(text)
            if number is None:
                raise ValueError(text)
            return number * unit_ms + (sent_ms if is_relative else 0)
    return None


def _due_ms(record: Record, properties: Mapping[str, str]) -> int:
    """Return when a record of the timer's queue is due.

    The asked time lies within the second after TIMER_OUT_MS. A mark stays until that is over.
    """
    out_ms = read_number(properties.get(_OUT_MS, "")) or 0
    try:
        asked_ms = _asked_ms(properties, record.store_ms)
    except ValueError:
        asked_ms = None
    if asked_ms is None or _RECALLED_KEY in properties:
        return out_ms + SLOT_MS
    return min(max(asked_ms, out_ms + 1), out_ms + SLOT_MS)


def _name_of(properties: Mapping[str, str]) -> _Name:
    topic = properties.get(_REAL_TOPIC)
    unique_id = properties.get(_RECALLED_KEY) or properties.get(_UNIQUE_KEY)
    if unique_id is not None:
        # Apache can be told to write the topic before the id.
        unique_id = unique_id.removeprefix(f"{topic}+")
    return properties.get(_OUT_MS), topic, unique_id


def _add_properties(record: Record, **added: int) -> None:
    """Append properties, if there is room: what the message brought along goes first."""
    old = record.property_bytes
    text = "".join([f"{name}\x01{value}\x02" for name, value in added.items()])
    between = b"" if not old or old.endswith(b"\x02") else b"\x02"
    new = b"".join((old, between, text.encode()))
    if len(new) <= PROPERTIES_BYTES_MAX:
        record.property_bytes = new


def _illegal(state: BrokerState) -> Command:
    limit_ms = int(state.options.timer_delay_max * 1_000)
    remark = (
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{limit_ms}ms; or if set del msg, the delay time should be bigger than the current time"
    )
    return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)


def _lost(offset: int, error: RocketMQError) -> Note:
    return Note(f"timed message {offset} is not delivered: {error}", is_warning=True)
