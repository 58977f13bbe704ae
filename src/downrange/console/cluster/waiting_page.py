"""Delayed messages, timed messages and halves of transactions.

Brokers keep them in topics of their own, whose offsets can be read. How many of them still wait is
told by some releases only; the notes of the page say what is missing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from downrange.console.cluster.bodies import preview_of
from downrange.console.cluster.message_search import Budget
from downrange.console.cluster.pages.common import Missing, Note
from downrange.console.cluster.pages.waiting import (
    DelayedMessageRow,
    DelayLevel,
    HalfMessageRow,
    HalfRow,
    TimedTopic,
    TimerRow,
    WaitingPage,
)
from downrange.console.cluster.scan import read_end
from downrange.console.cluster.topic_states import read_states
from downrange.console.cluster.waiting_messages import (
    EndedHalves,
    by_due_time,
    delayed_messages,
    read_ends,
    timed_messages,
)
from downrange.errors import RocketMQError, RouteNotFound
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import HALF_DONE_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange import AsyncAdmin, QueueState, ReceivedMessage
    from downrange.client.flows.admin.clusters import ClusterFacts

#: The newest halves that are shown, of each broker.
_HALVES_SHOWN: Final = 20
_DELAY: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


async def waiting_page(admin: AsyncAdmin, facts: ClusterFacts) -> WaitingPage:
    """Return what waits in the brokers.

    Raises:
        RocketMQError: No server answered.
    """
    notes: list[Note] = []
    missing: list[Missing] = []
    settings: dict[str, dict[str, str]] = {}
    figures: dict[str, dict[str, str]] = {}
    for broker in facts.brokers:
        try:
            settings |= await admin.broker_settings(broker.name)
            figures |= await admin.broker_figures(broker.name)
        except RocketMQError as error:
            address = broker.addresses.get(0, "")
            missing.append(Missing(broker=broker.name, address=address, problem=error.brief))
    halves, newest = await _halves(admin, notes)
    delay_states = await _states(admin, SCHEDULE_TOPIC)
    timer_states = await _states(admin, TIMER_TOPIC) or []
    levels = await _levels(admin, delay_states, settings, notes)
    timers, timed = await _timers(admin, timer_states, figures, notes)
    delayed = await _delayed(admin, levels, delay_states or [], timer_states, notes)
    return WaitingPage(
        levels=levels,
        timers=timers,
        timed=timed,
        delayed=delayed,
        halves=halves,
        newest_halves=newest,
        missing=tuple(missing),
        notes=tuple(notes),
    )


async def _states(admin: AsyncAdmin, topic: str) -> list[QueueState] | None:
    """Return the queues of a topic of the brokers; None where no broker has it."""
    try:
        return (await read_states(admin, topic))[0]
    except RouteNotFound:
        return None


def _note(code: str, text: str, **values: str) -> Note:
    return Note(code=code, text=text, values=dict(values))


def _by_broker(states: Iterable[QueueState]) -> dict[str, list[QueueState]]:
    found: dict[str, list[QueueState]] = {}
    for state in states:
        found.setdefault(state.queue.broker, []).append(state)
    return found


def _last(states: Iterable[QueueState]) -> datetime | None:
    return max((state.stored_at for state in states if state.stored_at), default=None)


# ---- delay levels --------------------------------------------------------------------------------


async def _levels(
    admin: AsyncAdmin,
    states: list[QueueState] | None,
    settings: Mapping[str, Mapping[str, str]],
    notes: list[Note],
) -> tuple[DelayLevel, ...]:
    if states is None:
        notes.append(_note("delay-levels-not-told", "no broker has messages with a delay level"))
        return ()
    delivered: dict[str, dict[int, int]] = {}
    try:
        delivered = await admin.delay_offsets()
    except RocketMQError as error:
        text = f"how many delayed messages were delivered is not known: {error.brief}"
        notes.append(_note("delay-offsets-not-told", text, problem=error.brief))
    delays = {
        broker: delays_of(table.get("messageDelayLevel", "")) for broker, table in settings.items()
    }
    levels = (_level(state, delivered, delays) for state in states)
    return tuple(level for level in levels if level.stored or level.waiting)


def _level(
    state: QueueState,
    delivered: Mapping[str, Mapping[int, int]],
    delays: Mapping[str, Mapping[int, float]],
) -> DelayLevel:
    broker, level = state.queue.broker, state.queue.number + 1
    offset: int | None = None
    if broker in delivered:
        # A level from which nothing was delivered yet has no offset.
        offset = delivered[broker].get(level, 0)
    waiting = None if offset is None else max(state.max_offset - max(offset, state.min_offset), 0)
    return DelayLevel(
        broker=broker,
        level=level,
        delay=delays.get(broker, {}).get(level),
        stored=state.count,
        delivered=offset,
        waiting=waiting,
        last_stored_at=state.stored_at,
    )


def delays_of(text: str) -> dict[int, float]:
    """Read a broker's setting of delay levels, such as "1s 5s 10s": level -> seconds."""
    found: dict[int, float] = {}
    for level, word in enumerate(text.split(), start=1):
        if (parts := _DELAY.fullmatch(word)) is not None:
            found[level] = float(int(parts[1]) * _SECONDS[parts[2]])
    return found


# ---- timed messages ------------------------------------------------------------------------------


async def _timers(
    admin: AsyncAdmin,
    states: list[QueueState],
    figures: Mapping[str, Mapping[str, str]],
    notes: list[Note],
) -> tuple[tuple[TimerRow, ...], tuple[TimedTopic, ...]]:
    try:
        waiting = await admin.timed_messages()
    except RocketMQError as error:
        waiting = {}
        text = f"how many timed messages wait is not known: {error.brief}"
        notes.append(_note("timers-not-told", text, problem=error.brief))
    old = sorted(figures.keys() - waiting.keys())
    if old:
        text = f"{', '.join(old)}: brokers of 4.9 have no timed messages, only delay levels"
        notes.append(_note("timers-too-old", text, brokers=", ".join(old)))
    stored = _by_broker(states)
    timers = tuple(
        TimerRow(
            broker=broker,
            waiting=sum(each.waiting for each in topics),
            read_behind=_number(figures.get(broker, {}).get("timerReadBehind")),
            unread=_whole(figures.get(broker, {}).get("timerOffsetBehind")),
            stored=sum(state.count for state in stored.get(broker, ())),
            last_stored_at=_last(stored.get(broker, ())),
        )
        for broker, topics in sorted(waiting.items())
    )
    timed = [
        TimedTopic(
            broker=broker, topic=each.topic, waiting=each.waiting, changed_at=each.changed_at
        )
        for broker, topics in waiting.items()
        for each in topics
        if each.waiting
    ]
    return timers, tuple(sorted(timed, key=lambda each: (-each.waiting, each.topic)))


async def _delayed(
    admin: AsyncAdmin,
    levels: tuple[DelayLevel, ...],
    delay_states: list[QueueState],
    timer_states: list[QueueState],
    notes: list[Note],
) -> tuple[DelayedMessageRow, ...]:
    try:
        rows = await delayed_messages(admin, levels, delay_states)
        rows += await timed_messages(admin, timer_states, datetime.now(UTC))
    except RocketMQError as error:
        text = f"delayed messages cannot be read: {error.brief}"
        notes.append(_note("delayed-not-read", text, problem=error.brief))
        return ()
    return by_due_time(rows)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else max(float(text), 0.0)
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


# ---- halves of transactions ----------------------------------------------------------------------


async def _halves(
    admin: AsyncAdmin, notes: list[Note]
) -> tuple[tuple[HalfRow, ...], tuple[HalfMessageRow, ...]]:
    states = await _states(admin, HALF_TOPIC)
    if states is None:
        notes.append(_note("halves-not-told", "no broker has had a transaction"))
        return (), ()
    ends = await _states(admin, HALF_DONE_TOPIC)
    if ends is None:
        text = "brokers of 4.9 do not register the topic of ends, so these cannot be counted"
        notes.append(_note("half-ends-not-told", text))
    by_broker = _by_broker(states)
    ended = _by_broker(ends or ())
    rows = tuple(
        HalfRow(
            broker=broker,
            stored=sum(state.count for state in queues),
            ended=None if ends is None else sum(state.count for state in ended.get(broker, ())),
            last_stored_at=_last(queues),
        )
        for broker, queues in sorted(by_broker.items())
    )
    ended_halves = EndedHalves((), {})
    try:
        messages, _ = await read_end(admin, states, _HALVES_SHOWN, Budget())
        if ends is not None:
            ended_halves = await read_ends(admin, ends)
    except RocketMQError as error:
        text = f"halves cannot be read: {error.brief}"
        notes.append(_note("halves-not-read", text, problem=error.brief))
        messages = []
    # A half that is checked is stored once more; the newest record has the number of checks.
    newest = {message.message_id: message for message in messages}
    shown = sorted(newest.values(), key=lambda message: -message.stored_at_ms)
    halves = tuple(_half(message, ended_halves.has_ended(message)) for message in shown)
    if any(half.is_ended is None for half in halves):
        text = "whether a half has ended is not known of all; it stays in the log after its end"
        notes.append(_note("half-state-not-told", text))
    return rows, halves


def _half(message: ReceivedMessage, is_ended: bool | None) -> HalfMessageRow:
    properties = message.properties
    return HalfMessageRow(
        broker=message.queue.broker,
        offset=message.offset,
        topic=properties.get(PropertyKey.REAL_TOPIC, ""),
        group=properties.get(PropertyKey.PRODUCER_GROUP, ""),
        message_id=message.message_id,
        stored_at=message.stored_at,
        checks=_whole(properties.get(PropertyKey.TRANSACTION_CHECK_TIMES)) or 0,
        is_ended=is_ended,
        preview=preview_of(message),
    )
