"""`ClusterView`: what the console shows of a cluster, and does to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from downrange import ClientOptions
from downrange.client.client_base import addresses_of
from downrange.console.cluster import (
    broker_pages,
    client_page,
    dead_letter_pages,
    group_pages,
    limits,
    message_page,
    message_search,
    topic_pages,
)
from downrange.console.cluster.message_ids import find_message
from downrange.console.cluster.pages.common import ListRequest
from downrange.console.cluster.poller import Poller
from downrange.console.cluster.problems import (
    ActionTooSlow,
    ClusterGone,
    PageTooSlow,
    TooManyViewers,
)
from downrange.console.cluster.sending_admin import SendingAdmin
from downrange.console.cluster.tail import Tail
from downrange.console.cluster.trace_report import trace_report
from downrange.console.cluster.waiting_page import waiting_page
from downrange.errors import OptionError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Self

    from downrange import TLS, AsyncAdmin, Credentials
    from downrange.console.cluster.actions.action import Action, ActionResult, ResettingAction
    from downrange.console.cluster.pages.brokers import BrokerDetail, BrokersPage
    from downrange.console.cluster.pages.clients import ClientsPage
    from downrange.console.cluster.pages.common import ClusterState
    from downrange.console.cluster.pages.dead_letters import DeadLetterGroups, DeadLettersPage
    from downrange.console.cluster.pages.groups import GroupDetail, GroupsPage, ResetPreview
    from downrange.console.cluster.pages.messages import (
        MessageDetail,
        SearchResult,
        TailBatch,
        TailRequest,
    )
    from downrange.console.cluster.pages.overview import Overview
    from downrange.console.cluster.pages.topics import TopicDetail, TopicsPage
    from downrange.console.cluster.pages.traces import TraceReport
    from downrange.console.cluster.pages.waiting import WaitingPage

_ALL = ListRequest()
ResultT = TypeVar("ResultT")


class ClusterView:
    """What the console shows of a cluster. One for all viewers.

    It starts also when the cluster does not answer. Its poller goes on and notices when it is back.
    Every method raises `ClusterGone` when no server answers, and `OptionError` for wrong input.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list.
        client_options: Options of its client.
        credentials: Keys that it signs requests with.
        tls: TLS settings.
        poll_seconds: Seconds between two polls.
        trace_report: The address of a report that `downrange pipeline trace` writes.

    Raises:
        OptionError: An address or a setting is invalid.
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        *,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        poll_seconds: float | None = None,
        trace_report: str | None = None,
    ) -> None:
        seconds = limits.POLL_SECONDS if poll_seconds is None else poll_seconds
        if not limits.POLL_SECONDS_MIN <= seconds <= limits.POLL_SECONDS_MAX:
            raise OptionError(
                f"poll_seconds={seconds!r} is not between {limits.POLL_SECONDS_MIN:g} and "
                f"{limits.POLL_SECONDS_MAX:g}"
            )
        addresses = tuple(addresses_of(servers))
        options = replace(client_options or ClientOptions(), connect_on_start=False)
        self._admin = SendingAdmin(
            addresses, client_options=options, credentials=credentials, tls=tls
        )
        self._name_servers = ";".join(addresses)
        self._report = trace_report
        self._poller = Poller(self._admin, addresses, poll_seconds=seconds)
        self._tails = 0

    async def start(self) -> Self:
        """Start the client and the poller; does not wait for the cluster."""
        await self._admin.start()
        self._poller.start()
        return self

    async def close(self) -> None:
        """Stop the poller and all tails, and close the client."""
        await self._poller.close()
        await self._admin.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def admin(self) -> AsyncAdmin:
        """The admin that asks the cluster; for actions."""
        return self._admin

    @property
    def name_servers(self) -> str:
        """The addresses of the name servers, for a command line."""
        return self._name_servers

    @property
    def state(self) -> ClusterState:
        """Whether the cluster answered the last poll."""
        return self._poller.state

    def offered_topics(self) -> tuple[str, ...]:
        """Return all topics that are known, to choose from; none if they are too many."""
        names = [topic.name for topic in self._poller.topics.last or () if topic.kind != "system"]
        return tuple(sorted(names)) if len(names) <= limits.TOPICS_OFFERED_MAX else ()

    def forget(self) -> None:
        """Ask the cluster again for what viewers share: lists, lags, clients."""
        self._poller.forget()

    # ---- pages -------------------------------------------------------------------------------

    async def overview(self) -> Overview:
        """Return the overview of the last poll; never raises `ClusterGone`."""
        await self._poller.first_poll()
        return self._poller.overview()

    def overviews(self) -> AsyncIterator[Overview]:
        """Yield the overview now and after each poll; one poll serves all viewers.

        Raises:
            TooManyViewers: There are `limits.VIEWERS_MAX` already.
        """
        return self._poller.overviews()

    async def topics(self, request: ListRequest = _ALL) -> TopicsPage:
        """Return a page of the topics. `with_system` adds retry, dead-letter and system topics."""
        return await self._ask(topic_pages.topics_page(self._poller, request))

    async def topic(self, topic: str) -> TopicDetail:
        """Return one topic.

        Raises:
            RouteNotFound: It does not exist.
        """
        return await self._ask(topic_pages.topic_detail(self._poller, topic))

    async def search(self, topic: str, text: str = "", *, rows: int = 50) -> SearchResult:
        """Find messages of a topic by one text.

        Args:
            topic: The topic.
            text: A message id or offset id; a time such as 2026-01-31T12:00, or an age such as
                15m; "queue:offset" such as 3:1200 or broker-a:3:1200; otherwise a key. A prefix
                "id=", "key=", "time=" or "offset=" says which one is meant. Empty for the newest.
            rows: The most messages, at most `limits.SEARCH_ROWS_MAX`.

        Raises:
            RouteNotFound: The topic does not exist.
        """
        return await self._ask(message_search.search(self._admin, topic, text, rows))

    async def message(self, topic: str, message_id: str) -> MessageDetail:
        """Return one message by either id.

        Raises:
            NotFound: It does not exist.
            RouteNotFound: The topic does not exist.
        """
        return await self._ask(
            message_page.message_detail(self._admin, topic, message_id, self._name_servers)
        )

    async def body(self, topic: str, message_id: str) -> bytes:
        """Return the whole body of a message, decompressed; for a download."""
        found = await self._ask(find_message(self._admin, topic, message_id))
        return found.body

    def tail(self, request: TailRequest) -> AsyncIterator[TailBatch]:
        """Follow a topic: yields a batch at least every second, until a limit or the caller ends.

        Raises:
            TooManyViewers: There are `limits.TAILS_MAX` tails already.
            InvalidSql: The filter is not SQL92.
            RouteNotFound: The topic does not exist.
        """
        return self._run_tail(Tail(self._admin, request))

    async def groups(self, request: ListRequest = _ALL) -> GroupsPage:
        """Return a page of the consumer groups. `with_system` adds groups of the servers."""
        return await self._ask(group_pages.groups_page(self._poller, request))

    async def group(self, group: str) -> GroupDetail:
        """Return one consumer group.

        Raises:
            GroupNotFound: No broker has it.
        """
        return await self._ask(group_pages.group_detail(self._poller, group))

    async def dead_letter_groups(self, request: ListRequest = _ALL) -> DeadLetterGroups:
        """Return a page of the groups that have a dead-letter topic."""
        return await self._ask(dead_letter_pages.dead_letter_groups(self._poller, request))

    async def dead_letters(
        self,
        group: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        next: str | None = None,
        size: int = 50,
    ) -> DeadLettersPage:
        """Return some dead letters of a group.

        Args:
            group: The group.
            begin: Only those that died at this time or later.
            end: Only those that died at this time or earlier.
            next: `next` of the page before.
            size: The most rows, at most `limits.PAGE_ROWS_MAX`.

        Raises:
            GroupNotFound: No broker has the group.
        """
        page = dead_letter_pages.dead_letters_page(
            self._admin, group, begin=begin, end=end, next=next, size=size
        )
        return await self._ask(page)

    def export_dead_letters(
        self,
        group: str,
        form: Literal["csv", "jsonl"],
        *,
        ids: Iterable[str] = (),
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield dead letters as a file, piece by piece.

        Errors come before the first piece, except that a server fails later, or that there are
        more than `limits.EXPORT_MAX`: then the file is not complete.

        Args:
            group: The group.
            form: "csv" with a header line, or "jsonl": the lines of `downrange dlq export`.
            ids: Only these dead letters, by `DeadLetterRow.id`.
            begin: Only those that died at this time or later.
            end: Only those that died at this time or earlier.
        """
        return self._export(
            dead_letter_pages.export_dead_letters(
                self._admin, group, form, ids=frozenset(ids), begin=begin, end=end
            )
        )

    async def waiting(self) -> WaitingPage:
        """Return delayed and timed messages, and halves of transactions."""
        return await self._ask(self._waiting())

    async def clients(self, request: ListRequest = _ALL) -> ClientsPage:
        """Return a page of the connected clients; `search` looks at id, group and address."""
        return await self._ask(client_page.clients_page(self._poller, request))

    async def brokers(self) -> BrokersPage:
        """Return all brokers and name servers."""
        return await self._ask(broker_pages.brokers_page(self._poller))

    async def broker(self, name: str) -> BrokerDetail:
        """Return one broker.

        Raises:
            NoSuchBroker: There is no such broker.
        """
        return await self._ask(broker_pages.broker_detail(self._poller, name))

    async def trace_report(self) -> TraceReport:
        """Return what the newest trace records say."""
        return await self._ask(trace_report(self._admin, self._name_servers, self._report))

    # ---- actions -----------------------------------------------------------------------------

    async def preview(self, action: ResettingAction) -> ResetPreview:
        """Return what a reset, skip or clone would change; nothing is changed."""
        return await self._ask(action.preview(self._admin), seconds=limits.ACTION_SECONDS)

    async def do(self, action: Action) -> ActionResult:
        """Do an action.

        Raises:
            OptionError: A value is wrong; nothing was changed.
            PartlyDone: Some brokers did it, others failed; names both.
            ActionTooSlow: It took too long; a part of it may have been done.
            RocketMQError: A server did not answer, or refused.
        """
        try:
            return await self._ask(action.run(self._admin), seconds=limits.ACTION_SECONDS)
        except PageTooSlow as error:
            raise ActionTooSlow(error.seconds) from error
        finally:
            self._poller.forget()

    # ---- asking ------------------------------------------------------------------------------

    async def _waiting(self) -> WaitingPage:
        facts = self._poller.facts
        assert facts is not None  # the cluster was up at the last poll
        return await waiting_page(self._admin, facts)

    async def _export(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        await self._poller.first_poll()
        if not self._poller.state.is_up:
            raise self._gone()
        async for piece in pieces:
            yield piece

    async def _run_tail(self, tail: Tail) -> AsyncIterator[TailBatch]:
        if self._tails >= limits.TAILS_MAX:
            raise TooManyViewers(f"{self._tails} tails are running, which is the most; close one")
        self._tails += 1
        try:
            await self._ask(tail.start())
            async for batch in tail.batches():
                yield batch
        finally:
            self._tails -= 1

    async def _ask(
        self, answer: Coroutine[Any, Any, ResultT], seconds: float = limits.PAGE_SECONDS
    ) -> ResultT:
        """Return an answer of the cluster, within a time.

        Raises:
            ClusterGone: The cluster does not answer. When the last poll said so, nothing is asked.
            PageTooSlow: It took too long.
        """
        try:
            await self._poller.first_poll()
            if not self._poller.state.is_up:
                raise self._gone()
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            if isinstance(error, TransportError):
                await self._check(error)
                raise
            raise PageTooSlow(seconds) from error
        except TransportError as error:
            await self._check(error)
            raise
        finally:
            answer.close()  # it may not have begun

    async def _check(self, error: TransportError) -> None:
        """Find out whether an error of one server means that the whole cluster is gone."""
        await self._poller.poll()
        if not self._poller.state.is_up:
            raise self._gone() from error

    def _gone(self) -> ClusterGone:
        state = self._poller.state
        return ClusterGone(state.name_servers, state.since, state.problem or "it was not asked yet")
