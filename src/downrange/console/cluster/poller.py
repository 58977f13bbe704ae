"""The one poller for all viewers: asks the cluster again and again, and notices when it is gone.

Two loops. The fast one reads the figures of all brokers; it alone decides whether the cluster is
up. It is up if any broker answers, even with an error. The slow one reads what costs more: topics,
lags, dead letters, and some topics of the sweep. Each loop goes on after any error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from downrange import GroupSummary
from downrange.console.cluster import limits
from downrange.console.cluster.broker_rows import BrokerRows, has_answered
from downrange.console.cluster.client_page import list_clients
from downrange.console.cluster.dead_letter_counts import count_dead_letters
from downrange.console.cluster.history import History
from downrange.console.cluster.pages.common import ClusterState, Note
from downrange.console.cluster.pages.overview import LagRow, Overview
from downrange.console.cluster.problems import TooManyViewers
from downrange.console.cluster.shared_answer import SharedAnswer
from downrange.console.cluster.topic_figures import TopicFigures
from downrange.console.cluster.topic_sizes import TopicSizes
from downrange.errors import RocketMQError, TransportError
from downrange.wire.system_names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from downrange import AllProgress, AsyncAdmin, TopicName
    from downrange.client.flows.admin.clusters import ClusterFacts
    from downrange.client.flows.admin.reports import TopicProgress
    from downrange.console.cluster.pages.clients import ClientRow
    from downrange.console.cluster.pages.overview import DeadLetterCount

_log: Final = logging.getLogger("downrange.console")


class Poller:
    """Polls a cluster, and keeps the answers that pages share.

    Args:
        admin: Asks the cluster; started.
        name_servers: Its addresses.
        poll_seconds: Seconds between two fast polls.
        now: Returns the time in Unix seconds.

    Attributes:
        admin: The same.
        topics: All topics.
        progress: How far all groups are behind.
        groups: All groups.
        dead_letters: Dead letters of all groups, most of the last hour first.
        clients: All connected clients, and what is not known of them.
        figures: What the sweep knows of each topic.
        sizes: How large the messages of each topic are.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        name_servers: tuple[str, ...],
        *,
        poll_seconds: float = limits.POLL_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.admin = admin
        self._poll_seconds = poll_seconds
        self._now = now
        self.topics: SharedAnswer[list[TopicName]] = SharedAnswer(admin.list_topics)
        self.progress: SharedAnswer[AllProgress] = SharedAnswer(self._ask_progress)
        self.groups: SharedAnswer[list[GroupSummary]] = SharedAnswer(self._list_groups)
        self.dead_letters: SharedAnswer[list[DeadLetterCount]] = SharedAnswer(
            self._count_dead_letters, limits.SLOW_POLL_SECONDS
        )
        self.clients: SharedAnswer[tuple[list[ClientRow], tuple[Note, ...]]] = SharedAnswer(
            self._list_clients
        )
        self.figures = TopicFigures()
        self.sizes = TopicSizes()
        self._brokers = BrokerRows()
        self._history = History(poll_seconds)
        self._state = ClusterState(
            name_servers=name_servers, is_up=False, since=None, checked_at=None
        )
        self._facts: ClusterFacts | None = None
        self._read_at: datetime | None = None
        self._polling = asyncio.Lock()
        self._polled = asyncio.Event()
        self._shown: Overview | None = None
        self._viewers = 0
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life cycle --------------------------------------------------------------------------

    def start(self) -> None:
        """Start both loops."""
        self._tasks = [
            asyncio.create_task(self._repeat(self.poll, self._poll_seconds), name="console poll"),
            asyncio.create_task(
                self._repeat(self.poll_slowly, limits.SLOW_POLL_SECONDS), name="console slow poll"
            ),
        ]

    async def close(self) -> None:
        """End both loops, and all viewers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._announce()

    async def _repeat(self, poll: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            began = time.monotonic()
            try:
                await poll()
            except Exception:  # the console must go on, whatever a server answers
                _log.exception("a poll of the cluster failed")
            await asyncio.sleep(max(seconds - (time.monotonic() - began), seconds / 2))

    # ---- the fast poll -----------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """Whether the cluster answered the last poll."""
        return self._state

    @property
    def facts(self) -> ClusterFacts | None:
        """The clusters and brokers of the last poll; None before the first answer."""
        return self._facts

    @property
    def old_brokers(self) -> frozenset[str]:
        """The names of brokers of 4.9, which tell less."""
        old = (row for row in self._brokers.rows if (row.version or "").startswith("4."))
        return frozenset(row.name for row in old)

    async def first_poll(self) -> None:
        """Wait until the cluster was asked once."""
        if self._state.checked_at is None:
            await self.poll()

    async def poll(self) -> None:
        """Read the figures of all brokers; note whether the cluster is up."""
        before = self._state.checked_at
        async with self._polling:
            if self._state.checked_at == before:  # no other call has just done it
                await self._poll()

    async def _poll(self) -> None:
        try:
            facts = await self.admin.cluster_facts(timeout=limits.POLL_TIMEOUT)
        except RocketMQError as error:
            self._note_gone(error.brief)
            return
        answers = await asyncio.gather(*(self._ask_figures(each.name) for each in facts.brokers))
        self._facts = facts
        by_name = {broker.name: broker for broker in facts.brokers}
        self._brokers.update(by_name, dict(zip(by_name, answers, strict=True)), self._now())
        errors = [answer for answer in answers if isinstance(answer, RocketMQError)]
        refusals = [error for error in errors if has_answered(error)]
        if len(errors) < len(answers):
            self._note_up()
        elif refusals:
            self._note_up(f"no broker tells its figures: {refusals[0].brief}")
        elif errors:
            self._note_gone(f"no broker answers: {errors[0].brief}")
        else:
            self._note_gone("no broker is registered at the name server")

    async def _ask_figures(self, broker: str) -> dict[str, str] | RocketMQError:
        """Return the figures of a broker, or the error that asking it raised."""
        try:
            return (await self.admin.broker_figures(broker, timeout=limits.POLL_TIMEOUT))[broker]
        except RocketMQError as error:
            return error

    def _note_up(self, problem: str | None = None) -> None:
        addresses = ", ".join(self._state.name_servers)
        if not self._state.is_up and self._state.problem is not None:
            _log.info("the cluster at %s answers again", addresses)
        if problem is None:
            self._read_at = self._time()
        elif problem != self._state.problem:
            _log.warning("the cluster at %s answers, but %s", addresses, problem)
        self._change(is_up=True, problem=problem)
        self._remember()
        self._announce()

    def _note_gone(self, problem: str) -> None:
        if self._state.is_up or self._state.checked_at is None:
            addresses = ", ".join(self._state.name_servers)
            _log.warning("the cluster at %s does not answer: %s", addresses, problem)
        self._brokers.gone(problem, self._now())
        self._change(is_up=False, problem=problem)
        self._history.add(self._now(), {})
        self._announce()

    def _change(self, *, is_up: bool, problem: str | None) -> None:
        is_new = self._state.is_up != is_up or self._state.since is None
        self._state = replace(
            self._state,
            is_up=is_up,
            since=self._time() if is_new else self._state.since,
            checked_at=self._time(),
            problem=problem,
        )

    def _remember(self) -> None:
        rows = self._brokers.rows
        self._history.add(
            self._now(),
            {
                "sent": _sum(row.sent_rate for row in rows if row.is_up),
                "received": _sum(row.received_rate for row in rows if row.is_up),
                "stored": _sum(row.stored_bytes for row in rows if row.is_up),
                "lag": None if self.progress.last is None else float(self._lag() or 0),
            },
        )

    def _announce(self) -> None:
        """Wake all viewers, and show them what is new."""
        self._shown = None
        self._polled.set()
        self._polled = asyncio.Event()

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)

    # ---- the slow poll -----------------------------------------------------------------------

    async def poll_slowly(self) -> None:
        """Read what costs more; errors are those of the fast poll, which reports them."""
        await self.first_poll()
        if not self._state.is_up:
            return
        for get in (self.topics.get, self.progress.get, self.dead_letters.get):
            with contextlib.suppress(RocketMQError):
                await get()
        self._shown = None
        await self._sweep()

    async def _sweep(self) -> None:
        """Read the next topics, as many as fit the time; at most all of them once."""
        names = [topic.name for topic in self.topics.last or () if topic.kind == "normal"]
        until = time.monotonic() + limits.SWEEP_SECONDS
        for _ in range(0, max(len(names), 1), limits.SWEEP_TOPICS):
            await self.figures.sweep(self.admin, names, limits.SWEEP_TOPICS, self._now())
            if time.monotonic() >= until:
                return

    async def _ask_progress(self) -> AllProgress:
        return await self.admin.list_progress(timeout=limits.PAGE_SECONDS)

    async def _list_groups(self) -> list[GroupSummary]:
        """Return all groups; while a broker is down, those that have offsets on the others."""
        try:
            return await self.admin.list_groups()
        except TransportError:
            progress = await self.progress.get()
            known = {group.group: group for group in self.groups.last or ()}
            for each in progress.topics:
                known.setdefault(each.group, GroupSummary(group=each.group))
            return [known[name] for name in sorted(known)]

    async def _count_dead_letters(self) -> list[DeadLetterCount]:
        topics = await self.topics.get()
        names = [topic.name for topic in topics if topic.kind == "dead-letter"]
        chosen = names[: limits.DEAD_LETTER_TOPICS_MAX]
        return await count_dead_letters(self.admin, chosen, self._time(), self.old_brokers)

    async def _list_clients(self) -> tuple[list[ClientRow], tuple[Note, ...]]:
        return await list_clients(self.admin, await self.groups.get())

    def forget(self) -> None:
        """Ask again for everything that an action may have changed."""
        self.topics.forget()
        self.progress.forget()
        self.groups.forget()
        self.dead_letters.forget()
        self.clients.forget()

    # ---- viewers -----------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Return the overview of the last poll; the same object for all viewers of a poll."""
        if self._shown is None:
            self._shown = self._make_overview()
        return self._shown

    def _make_overview(self) -> Overview:
        rows = self._brokers.rows
        up = [row for row in rows if row.is_up]
        topics, progress, dead = self.topics.last, self.progress.last, self.dead_letters.last
        lags = [] if progress is None else sorted(_of_users(progress), key=lambda each: -each.lag)
        recent_dead = [each for each in dead or () if each.last_hour]
        return Overview(
            state=self._state,
            at=self._read_at,
            poll_seconds=self._poll_seconds,
            sent_rate=_sum(row.sent_rate for row in up),
            received_rate=_sum(row.received_rate for row in up),
            stored_bytes=_whole(_sum(row.stored_bytes for row in up)),
            disk_used=max((row.disk_used for row in up if row.disk_used is not None), default=None),
            brokers_up=len(up),
            brokers=rows,
            topic_count=(
                None if topics is None else sum(topic.kind == "normal" for topic in topics)
            ),
            group_count=None
            if progress is None
            else len({each.group for each in _of_users(progress)}),
            lag=self._lag(),
            largest_lags=tuple(
                LagRow(
                    group=each.group,
                    topic=each.topic,
                    messages=each.lag,
                    rate=each.rate,
                    consumed_at=each.consumed_at,
                )
                for each in lags[: limits.TOP_ROWS]
                if each.lag
            ),
            dead_letters=tuple(recent_dead[: limits.TOP_ROWS]),
            dead_letters_last_hour=(None if dead is None else sum(each.last_hour for each in dead)),
            recent=self._history.recent(),
            day=self._history.day(),
            notes=self._notes(),
        )

    def _lag(self) -> int | None:
        progress = self.progress.last
        return None if progress is None else sum(each.lag for each in _of_users(progress))

    def _notes(self) -> tuple[Note, ...]:
        notes = list(missing_notes(self.progress.last))
        count = sum(topic.kind == "dead-letter" for topic in self.topics.last or ())
        if count > limits.DEAD_LETTER_TOPICS_MAX:
            counted = limits.DEAD_LETTER_TOPICS_MAX
            text = f"dead letters are counted for {counted} of {count} groups only"
            values: dict[str, str | int | float] = {"counted": counted, "groups": count}
            notes.append(Note(code="dead-letters-limited", text=text, values=values))
        return tuple(notes)

    async def overviews(self) -> AsyncIterator[Overview]:
        """Yield the overview now and after each poll.

        Raises:
            TooManyViewers: There are `limits.VIEWERS_MAX` already.
        """
        if self._viewers >= limits.VIEWERS_MAX:
            raise TooManyViewers(
                f"{self._viewers} viewers follow the overview, which is the most; close one"
            )
        self._viewers += 1
        try:
            await self.first_poll()
            while True:
                polled = self._polled
                yield self.overview()
                await polled.wait()
                if not self._tasks:
                    return  # the console is closed
        finally:
            self._viewers -= 1


def missing_notes(progress: AllProgress | None) -> tuple[Note, ...]:
    """Say which brokers are missing from lags."""
    return tuple(
        Note(
            code="lags-incomplete",
            text=f"lags of broker {each.broker} are missing: {each.problem}",
            values={"broker": each.broker, "problem": each.problem},
        )
        for each in (progress.unanswered if progress is not None else ())
    )


def _of_users(progress: AllProgress) -> list[TopicProgress]:
    """Return the progress of groups that are not the servers' own."""
    return [
        each
        for each in progress.topics
        if not (each.group in SYSTEM_GROUPS or each.group.startswith(SYSTEM_GROUP_PREFIX))
    ]


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the figures that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
