"""Groups: the list, and one group in detail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from downrange.console.cluster import limits
from downrange.console.cluster.listing import page_of
from downrange.console.cluster.pages.common import Missing, Note
from downrange.console.cluster.pages.groups import (
    GroupDetail,
    GroupQueue,
    GroupRow,
    GroupSettingsRow,
    GroupsPage,
    MemberRow,
    SubscriptionRow,
)
from downrange.console.cluster.poller import missing_notes
from downrange.console.cluster.topic_states import read_states
from downrange.errors import RocketMQError, RouteNotFound, TransportError
from downrange.wire.system_names import RETRY_PREFIX, dead_letter_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import AsyncAdmin, GroupLag, GroupMembers, GroupSummary, TopicProgress
    from downrange.console.cluster.pages.common import ListRequest
    from downrange.console.cluster.poller import Poller


# ---- the list ------------------------------------------------------------------------------------


async def groups_page(poller: Poller, request: ListRequest) -> GroupsPage:
    """Return a page of the consumer groups; members are asked for the rows that are shown.

    Raises:
        OptionError: The request is wrong.
        RocketMQError: A server did not answer.
    """
    groups = await poller.groups.get()
    progress: dict[str, list[TopicProgress]] = {}
    behind = await poller.progress.get()
    for each in behind.topics:
        progress.setdefault(each.group, []).append(each)
    rows = [
        _row(group, progress.get(group.group, ()))
        for group in groups
        if request.with_system or group.kind == "normal"
    ]
    chosen, paging = page_of(
        rows,
        request,
        {
            "name": lambda row: row.group,
            "lag": lambda row: row.lag,
            "rate": lambda row: row.rate,
            "topics": lambda row: row.topics,
            "consumed_at": lambda row: row.consumed_at,
        },
        lambda row: (row.group,),
    )
    gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)

    async def read(row: GroupRow) -> GroupRow:
        async with gate:
            return await _with_members(poller.admin, row)

    return GroupsPage(
        paging=paging,
        rows=tuple(await asyncio.gather(*map(read, chosen))),
        notes=missing_notes(behind),
    )


def _row(group: GroupSummary, progress: Iterable[TopicProgress]) -> GroupRow:
    known = list(progress)
    return GroupRow(
        group=group.group,
        kind=group.kind,
        topics=len(known),
        members=None,
        mode=None,
        model=None,
        lag=sum(each.lag for each in known),
        rate=sum(each.rate for each in known),
        consumed_at=max((each.consumed_at for each in known if each.consumed_at), default=None),
        brokers=group.brokers,
    )


async def _with_members(admin: AsyncAdmin, row: GroupRow) -> GroupRow:
    try:
        found = await admin.group_members(row.group)
    except RocketMQError as error:
        return replace(row, problem=error.brief)
    return replace(row, members=len(found.members), mode=found.mode, model=found.model)


# ---- one group -----------------------------------------------------------------------------------


async def group_detail(poller: Poller, group: str) -> GroupDetail:
    """Return one consumer group.

    Raises:
        GroupNotFound: No broker has it.
        RocketMQError: No broker answered.
    """
    admin = poller.admin
    settings = await _settings(admin, group)
    members = await admin.group_members(group)
    is_asked = len(members.members) <= limits.MEMBERS_ASKED_MAX
    if is_asked and members.members:
        members = await admin.group_members(group, with_filters=True)
    lag = await admin.group_lag(group, with_owners=is_asked)
    owned = [queue.owner for queue in lag.queues]
    topics = {queue.queue.topic for queue in lag.queues}
    return GroupDetail(
        group=group,
        settings=settings,
        mode=members.mode,
        model=members.model,
        start=members.start,
        members=tuple(
            MemberRow(
                client_id=each.client_id,
                address=each.address,
                language=each.language,
                version=each.version,
                brokers=each.brokers,
                reads=(
                    None
                    if each.filters is None
                    else {one.topic: _expression(one.kind, one.expression) for one in each.filters}
                ),
                queues=None if each.filters is None else owned.count(each.client_id),
            )
            for each in members.members
        ),
        subscriptions=subscriptions_of(members),
        queues=_queues(lag)[: limits.QUEUE_ROWS_MAX],
        topics=tuple(sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX))),
        lag=lag.messages,
        age=None if lag.age is None else lag.age.total_seconds(),
        rate=lag.rate,
        dead_letters=await _dead_letters(admin, group),
        missing=tuple(
            Missing(broker=each.broker, address=each.address, problem=each.problem)
            for each in {*members.unanswered, *lag.unanswered}
        ),
        notes=_notes(members, lag, is_asked),
    )


async def _settings(admin: AsyncAdmin, group: str) -> tuple[GroupSettingsRow, ...]:
    """Return the settings on each broker; none while a broker is down."""
    try:
        found = await admin.group_settings(group)
    except TransportError:
        return ()
    return tuple(
        GroupSettingsRow(
            broker=broker,
            is_enabled=each.is_enabled,
            can_broadcast=each.can_broadcast,
            retries=each.retries,
            retry_queues=each.retry_queues,
            is_ordered=each.is_ordered,
            attributes=each.attributes,
        )
        for broker, each in sorted(found.items())
    )


def _expression(kind: str, expression: str) -> str:
    return expression if kind == "TAG" else f"{kind}: {expression}"


def subscriptions_of(members: GroupMembers) -> tuple[SubscriptionRow, ...]:
    """Return what the members read, topic by topic; those that differ first."""
    tables = {
        member.client_id: {
            each.topic: _expression(each.kind, each.expression) for each in member.filters
        }
        for member in members.members
        if member.filters is not None
    }
    known = {each.topic: _expression(each.kind, each.expression) for each in members.filters}
    different = {each.topic for each in members.differences}
    topics = {topic for table in tables.values() for topic in table} | known.keys()
    rows = [
        SubscriptionRow(
            topic=topic,
            expressions={client: table.get(topic) for client, table in tables.items()},
            is_same=topic not in different,
            known=known.get(topic),
        )
        for topic in sorted(topics)
    ]
    return tuple(sorted(rows, key=lambda row: row.is_same))


def _queues(lag: GroupLag) -> tuple[GroupQueue, ...]:
    return tuple(
        GroupQueue(
            topic=each.queue.topic,
            broker=each.queue.broker,
            queue=each.queue.number,
            committed=each.committed,
            end=each.end,
            lag=each.messages,
            in_flight=each.in_flight,
            age=None if each.age is None else each.age.total_seconds(),
            consumed_at=each.consumed_at,
            owner=each.owner,
        )
        for each in lag.queues
    )


async def _dead_letters(admin: AsyncAdmin, group: str) -> int | None:
    try:
        states, _ = await read_states(admin, dead_letter_topic(group))
    except RouteNotFound:
        return 0  # the topic is made with the first dead letter
    except TransportError:
        return None
    return sum(state.count for state in states)


def _notes(members: GroupMembers, lag: GroupLag, is_asked: bool) -> tuple[Note, ...]:
    notes: list[Note] = []
    silent = [each.client_id for each in members.members if each.filters is None]
    if not is_asked:
        text = (
            f"the group has {len(members.members)} members, more than "
            f"{limits.MEMBERS_ASKED_MAX}, so they are not asked what they read"
        )
        values: dict[str, str | int | float] = {"members": len(members.members)}
        notes.append(Note(code="members-not-asked", text=text, values=values))
    elif silent:
        text = f"{len(silent)} members do not say what they read: {', '.join(silent[:5])}"
        notes.append(Note(code="members-silent", text=text, values={"members": len(silent)}))
    if any(each.in_flight is None for each in lag.queues):
        text = "brokers of 4.9 do not tell how many messages members have read and not committed"
        notes.append(Note(code="in-flight-not-told", text=text, values={}))
    if lag.queues:
        text = "brokers keep no time of a commit; the store time of the last committed message is"
        notes.append(Note(code="commit-time-not-told", text=f"{text} shown instead", values={}))
    if len(lag.queues) > limits.QUEUE_ROWS_MAX:
        text = f"the first {limits.QUEUE_ROWS_MAX} of {len(lag.queues)} queues are shown"
        notes.append(Note(code="queues-cut", text=text, values={"queues": len(lag.queues)}))
    return tuple(notes)
