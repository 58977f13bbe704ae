"""Topics: the list, and one topic in detail.

A page costs two requests to the name server for all names, one to each broker for all lags (both
shared by all viewers), and for each topic that it shows: its offsets, its rate, and the store time
of the first message of each queue that is not empty.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from downrange import TopicName
from downrange.console.cluster import limits
from downrange.console.cluster.listing import page_of
from downrange.console.cluster.pages.common import Note
from downrange.console.cluster.pages.topics import (
    TopicDetail,
    TopicGroup,
    TopicQueue,
    TopicRoute,
    TopicRow,
    TopicSettingsRow,
    TopicsPage,
)
from downrange.console.cluster.poller import missing_notes
from downrange.console.cluster.topic_states import missing_text, read_states
from downrange.errors import RocketMQError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from downrange import AsyncAdmin, QueueState, Route, TopicProgress, TopicSettings
    from downrange.console.cluster.pages.common import ListRequest
    from downrange.console.cluster.poller import Poller
    from downrange.console.cluster.topic_figures import TopicFigures

#: Columns that only the sweep knows for all topics.
_SWEPT: Final = ("messages", "sent_rate", "last_stored_at")
_LETTERS: Final = {"r": 4, "w": 2}


# ---- the list ------------------------------------------------------------------------------------


async def topics_page(poller: Poller, request: ListRequest) -> TopicsPage:
    """Return a page of the topics.

    Raises:
        OptionError: The request is wrong.
        RocketMQError: A server did not answer.
    """
    topics = await poller.topics.get()
    progress = await poller.progress.get()
    groups = groups_by_topic(progress.topics)
    shown = [topic for topic in topics if request.with_system or topic.kind == "normal"]
    chosen, paging = page_of(
        shown, request, _columns(groups, poller.figures), lambda topic: (topic.name,)
    )
    gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)

    async def read(topic: TopicName) -> TopicRow:
        async with gate:
            return await _row(poller, topic, groups.get(topic.name, ()))

    rows = await asyncio.gather(*map(read, chosen))
    return TopicsPage(
        paging=paging,
        rows=tuple(rows),
        notes=(
            *missing_notes(progress),
            *_notes(poller, request, shown),
            *_span_notes(rows),
            *_size_notes(rows),
        ),
    )


def groups_by_topic(progress: Iterable[TopicProgress]) -> dict[str, tuple[TopicGroup, ...]]:
    """Return the groups of each topic, the largest lag first."""
    found: dict[str, list[TopicGroup]] = {}
    for each in progress:
        found.setdefault(each.topic, []).append(
            TopicGroup(group=each.group, lag=each.lag, rate=each.rate, consumed_at=each.consumed_at)
        )
    return {
        topic: tuple(sorted(groups, key=lambda each: (-(each.lag or 0), each.group)))
        for topic, groups in found.items()
    }


def _columns(
    groups: Mapping[str, tuple[TopicGroup, ...]], figures: TopicFigures
) -> dict[str, Callable[[TopicName], object]]:
    def swept(name: str) -> Callable[[TopicName], object]:
        field = "rate" if name == "sent_rate" else name
        return lambda topic: getattr(figures.get(topic.name), field, None)

    return {
        "name": lambda topic: topic.name,
        "lag": lambda topic: _largest_lag(groups.get(topic.name, ())),
        "groups": lambda topic: len(groups.get(topic.name, ())),
        **{name: swept(name) for name in _SWEPT},
    }


def _largest_lag(groups: Iterable[TopicGroup]) -> int:
    return max((each.lag or 0 for each in groups), default=0)


def _notes(poller: Poller, request: ListRequest, shown: list[TopicName]) -> tuple[Note, ...]:
    """Say how old the figures are that the order goes by."""
    if request.sort not in _SWEPT:
        return ()
    normal = [topic.name for topic in shown if topic.kind == "normal"]
    known = sum(poller.figures.get(name) is not None for name in normal)
    oldest = poller.figures.oldest(normal)
    age = None if oldest is None else max(int(time.time() - oldest), 0)
    when = "are still being read" if age is None else f"are up to {age} s old"
    text = (
        f"brokers tell {request.sort!r} topic by topic; the figures that this order goes by "
        f"{when} ({known} of {len(normal)} topics are known)"
    )
    values: dict[str, str | int | float] = {"known": known, "topics": len(normal)}
    if age is not None:
        values["age"] = age
    return (Note(code="order-by-sweep", text=text, values=values),)


def _span_notes(rows: Iterable[TopicRow]) -> tuple[Note, ...]:
    """Say for which topics the oldest message was not looked for in all queues."""
    wide = [row.topic for row in rows if (row.queues or 0) > limits.ROW_QUEUES_MAX]
    if not wide:
        return ()
    text = (
        f"the oldest message of {', '.join(wide[:5])} was looked for in {limits.ROW_QUEUES_MAX} "
        "queues only; the page of the topic has all"
    )
    values: dict[str, str | int | float] = {"topics": len(wide), "queues": limits.ROW_QUEUES_MAX}
    return (Note(code="span-limited", text=text, values=values),)


def _size_notes(rows: Iterable[TopicRow]) -> tuple[Note, ...]:
    """Say what sizes are, if there is one."""
    if not any(row.stored_bytes for row in rows):
        return ()
    text = (
        "sizes are estimates: messages by the mean size of those of the last 24 hours, or of the "
        "newest ones; brokers do not tell the bytes of a topic"
    )
    return (Note(code="sizes-estimated", text=text, values={}),)


async def _row(poller: Poller, topic: TopicName, groups: tuple[TopicGroup, ...]) -> TopicRow:
    """Return the line of a topic; the line names brokers that do not answer."""
    kept = groups[: limits.TOPIC_GROUPS_MAX]
    lag = _largest_lag(groups)
    try:
        queues, missing = await read_states(poller.admin, topic.name)
        if not missing:
            poller.figures.note(topic.name, queues, time.time())
        full = [queue for queue in queues if queue.count > 0]
        first = await _first_stored(poller.admin, full[: limits.ROW_QUEUES_MAX])
        (sent, *_) = await poller.admin.topic_traffic(
            topic.name, with_groups=False, with_sizes=True
        )
        mean = await poller.sizes.mean(poller.admin, queues, sent)
    except RocketMQError as error:
        return TopicRow(
            topic=topic.name, kind=topic.kind, groups=kept, lag=lag, problem=error.brief
        )
    last = max((queue.stored_at for queue in queues if queue.stored_at), default=None)
    earliest = min((at for at in first.values() if at is not None), default=None)
    messages = sum(queue.count for queue in queues)
    # Brokers take a sample every hour, so their figure of the day may lack the last hour.
    since = datetime.now(UTC) - timedelta(seconds=limits.DAY_SECONDS)
    is_of_a_day = len(first) == len(full) and earliest is not None and earliest > since
    return TopicRow(
        topic=topic.name,
        kind=topic.kind,
        queues=len(queues),
        messages=messages,
        stored_bytes=0.0 if messages == 0 else None if mean is None else messages * mean,
        sent_rate=sent.rate,
        sent_day=max(sent.day, messages if is_of_a_day else 0),
        first_stored_at=earliest,
        last_stored_at=last if earliest is not None else None,
        span=_span(earliest, last),
        groups=kept,
        lag=lag,
        problem=missing_text(missing),
    )


async def _first_stored(
    admin: AsyncAdmin, queues: Iterable[QueueState]
) -> dict[tuple[str, int], datetime | None]:
    """Return when the first message of each queue was stored; empty queues are not asked."""
    full = [queue.queue for queue in queues if queue.count > 0]
    times = await asyncio.gather(*(admin.earliest_store_time(queue) for queue in full))
    return {(queue.broker, queue.number): at for queue, at in zip(full, times, strict=True)}


def _place(state: QueueState) -> tuple[str, int]:
    return (state.queue.broker, state.queue.number)


def _span(first: datetime | None, last: datetime | None) -> float | None:
    return None if first is None or last is None else max((last - first).total_seconds(), 0.0)


# ---- one topic -----------------------------------------------------------------------------------


async def topic_detail(poller: Poller, topic: str) -> TopicDetail:
    """Return one topic.

    Raises:
        RouteNotFound: It does not exist.
        RocketMQError: A server did not answer.
    """
    admin = poller.admin
    route = await admin.topic_route(topic)
    name = next((each for each in await poller.topics.get() if each.name == topic), None)
    if name is None:  # created a moment ago
        poller.topics.forget()
        name = next((each for each in await poller.topics.get() if each.name == topic), None)
    groups = await _groups(poller, topic)
    row = await _row(poller, name or TopicName(topic), groups)
    states, missing = await read_states(admin, topic)
    first = await _first_stored(admin, states[: limits.QUEUE_ROWS_MAX])
    queues = tuple(_queue(state, first.get(_place(state))) for state in states)
    return TopicDetail(
        row=row,
        queues=queues[: limits.QUEUE_ROWS_MAX],
        route=_route(route),
        settings=await _settings(admin, topic),
        groups=groups,
        missing=missing,
        notes=(*_cut(queues), *_size_notes((row,))),
    )


async def _groups(poller: Poller, topic: str) -> tuple[TopicGroup, ...]:
    """Return all groups that read a topic; those without an offset, too."""
    known = groups_by_topic((await poller.progress.get()).topics).get(topic, ())
    names = {each.group for each in known}
    try:
        others = [name for name in await poller.admin.topic_groups(topic) if name not in names]
    except TransportError:
        others = []  # a broker is down; those with offsets on the others are known
    return (*known, *(TopicGroup(group=name, lag=None, rate=None) for name in others))


def _queue(state: QueueState, first: datetime | None) -> TopicQueue:
    last = state.stored_at if state.count else None
    return TopicQueue(
        broker=state.queue.broker,
        queue=state.queue.number,
        first=state.min_offset,
        end=state.max_offset,
        messages=state.count,
        first_stored_at=first,
        last_stored_at=last,
        span=_span(first, last),
    )


async def _settings(admin: AsyncAdmin, topic: str) -> tuple[TopicSettingsRow, ...]:
    """Return the settings on each broker; none while a broker is down."""
    try:
        found: dict[str, TopicSettings] = await admin.topic_settings(topic)
    except TransportError:
        return ()
    return tuple(
        TopicSettingsRow(
            broker=broker,
            read_queues=each.read_queues,
            write_queues=each.write_queues,
            permission=permission_text(each.permission),
            is_ordered=each.is_ordered,
            attributes=each.attributes,
        )
        for broker, each in sorted(found.items())
    )


def _route(route: Route) -> tuple[TopicRoute, ...]:
    clusters = {each.broker_name: each.cluster or "" for each in route.body.broker_datas}
    return tuple(
        TopicRoute(
            broker=part.broker_name,
            cluster=clusters.get(part.broker_name, ""),
            addresses=dict(route.brokers.get(part.broker_name, {})),
            read_queues=part.read_queue_nums,
            write_queues=part.write_queue_nums,
            permission=permission_text(part.perm),
        )
        for part in sorted(route.body.queue_datas, key=lambda part: part.broker_name)
    )


def permission_text(permission: int) -> str:
    """Return a permission as letters: "rw", "r", "w" or ""."""
    return "".join(letter for letter, bit in _LETTERS.items() if permission & bit)


def _cut(queues: tuple[TopicQueue, ...]) -> tuple[Note, ...]:
    if len(queues) <= limits.QUEUE_ROWS_MAX:
        return ()
    text = f"the first {limits.QUEUE_ROWS_MAX} of {len(queues)} queues are shown"
    values: dict[str, str | int | float] = {
        "shown": limits.QUEUE_ROWS_MAX,
        "queues": len(queues),
    }
    return (Note(code="queues-cut", text=text, values=values),)
