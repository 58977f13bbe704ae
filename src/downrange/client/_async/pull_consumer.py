"""`AsyncPullConsumer`: reads queues at the program's own pace.

    async with AsyncPullConsumer("127.0.0.1:9876", group="audit") as consumer:
        await consumer.assign("orders", start="earliest")
        messages = await consumer.poll(timeout=1.0)

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from downrange.checks import (
    check_count,
    check_name,
    check_text,
    check_type,
    check_wait,
    iterated,
)
from downrange.client._async.client_user import AsyncClientUser
from downrange.client.client_base import CLOSE_TIMEOUT, check_setting
from downrange.client.flows.consuming.consumer_core import ConsumerCore
from downrange.client.flows.consuming.offsets import check_start, group_offset
from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql, by_tags
from downrange.client.flows.validation import check_group, check_queue
from downrange.errors import ClientClosed, ClientStateError, OptionError, RocketMQError
from downrange.filters.sql import Sql
from downrange.model import QueueId
from downrange.options import PullOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from downrange.client._async.client import AsyncClient
    from downrange.client.client_base import Servers
    from downrange.client.flows.consuming.offsets import Start
    from downrange.model import QueueOffset, ReceivedMessage
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")
#: Seconds of one poll while `messages` waits without an end.
_LONG_WAIT: Final = 5.0


class AsyncPullConsumer(AsyncClientUser):
    """Reads assigned queues, from any number of tasks of one event loop.

    The program decides which queues it reads and when it commits: queues are not divided among the
    members of a group, and nothing is committed automatically.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or an `AsyncClient` to share.
        group: The consumer group that it reads and commits for.
        options: Sizes of pulls and buffers, waiting times.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        async with AsyncPullConsumer("127.0.0.1:9876", group="audit") as consumer:
            await consumer.assign("orders", start="earliest")
            for message in await consumer.poll(timeout=1.0):
                print(message.body)
            await consumer.commit()
        ```
    """

    def __init__(
        self,
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        options: PullOptions | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        check_group(group)
        check_setting("options", options, PullOptions)
        self._group = group
        self._options = options or PullOptions()
        self._core: ConsumerCore | None = None
        super().__init__(
            servers,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
        )

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def options(self) -> PullOptions:
        """The consumer's options."""
        return self._options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} group={self._group!r} {self._state}>"

    # ---- life cycle --------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the consumer, and its own client; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            ClientClosed: The consumer was closed.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        if self._state == "new":
            await self._client.start()
            self._core = self._make_core()
            self._state = "running"
        else:
            await self._client.start()  # raises in a forked process
        return self

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Stop to fetch, close; may be called again. Does not commit.

        Args:
            timeout: How long its own client may take.
        """
        check_wait("timeout", timeout)
        if self._state == "running":  # no sync
            self._client.check_loop(repr(self))  # no sync
        was_running, self._state = self._state == "running", "closed"
        if was_running and self._core is not None and self._client.state == "running":
            with suppress(ClientStateError):  # the client was closed meanwhile, or before a fork
                self._client.step(self._core.close)
        if self._owns_client:
            await self._client.close(timeout)

    # ---- assignment --------------------------------------------------------------------------

    async def assign(
        self,
        what: str | QueueId | Iterable[str | QueueId],
        *,
        start: Start = "committed",
        tags: str | Sql = "*",
        sql: str | Sql | None = None,
        timeout: float | None = None,
    ) -> None:
        """Read these topics and queues from now on, and no others.

        Queues that are added to a topic later are read as well, from their beginning.

        Args:
            what: A topic, a queue, or several of them.
            start: Where to begin. "committed": at the committed offset, or at the first message
                without one; "earliest": at the first message; "latest": at the next message to be
                stored; a datetime: at the first message stored then or later (a 4.9 broker may
                return an older one); an int: at this offset.
            tags: Only messages with one of these tags, such as "new || paid"; or an `Sql`.
            sql: Only messages whose properties match this SQL92 expression, such as
                "amount > 100"; the same as an `Sql` for `tags`.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: An argument is invalid.
            InvalidSql: The SQL92 expression is wrong, or the broker is too old for it.
            SqlNotSupported: The broker has SQL92 filters switched off.
            RouteNotFound: A topic does not exist.
            RocketMQError: No broker answered.
        """
        _, deadline = self._deadline(timeout)
        message_filter = _filter_of(tags, sql)
        names = _names_of(what)
        check_start("start", start)
        core = self._running_core()
        await self._client.run(
            core.assign(names, start=start, message_filter=message_filter, deadline=deadline)
        )

    async def seek(self, queue: QueueId, to: Start, *, timeout: float | None = None) -> None:
        """Continue at another offset of a queue; messages in its buffer are dropped.

        Args:
            queue: An assigned queue.
            to: An offset, a datetime, "earliest", "latest" or "committed".
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: The queue is not assigned, or `to` is invalid.
            RocketMQError: The broker did not answer.
        """
        _, deadline = self._deadline(timeout)
        check_queue(queue)
        check_start("to", to)
        await self._client.run(self._running_core().seek(queue, to, deadline=deadline))

    def queues(self) -> list[QueueId]:
        """Return the assigned queues."""
        return list(self._client.step(self._running_core().positions))

    # ---- reading -----------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, max_count: int = 500) -> list[ReceivedMessage]:
        """Return messages as soon as there are any; an empty list at the timeout.

        Messages are fetched in the background, so an unreachable broker delays only its own queues.

        Args:
            timeout: How long to wait for the first message; 0 returns what has arrived already.
            max_count: How many messages at most.

        Raises:
            OptionError: Nothing is assigned, or an argument is invalid.
            RocketMQError: No queue can be read now; the consumer keeps trying, so call again.
        """
        core = self._running_core()
        check_wait("timeout", timeout)
        check_count(1, "max_count", max_count)
        return await self._client.run(core.poll(max_count, core.core.clock.now() + timeout))

    def messages(self, *, idle_timeout: float | None = None) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages one by one, without an end or until none has arrived for a while.

        A `commit` in the loop covers the last message that was returned, and no later one.

        Args:
            idle_timeout: End after so many seconds without a message.

        Raises:
            OptionError: `idle_timeout` is not a number from 0 on.
            RocketMQError: As `poll`. Without an `idle_timeout`, unreachable brokers are waited for.
        """
        if idle_timeout is not None:
            check_wait("idle_timeout", idle_timeout)
        return self._messages(idle_timeout)

    async def _messages(self, idle_timeout: float | None) -> AsyncIterator[ReceivedMessage]:
        wait = _LONG_WAIT if idle_timeout is None else idle_timeout
        while True:
            try:
                found = await self.poll(wait, max_count=1)
            except RocketMQError as error:
                if idle_timeout is not None or not error.retryable:
                    raise
                continue  # no broker can be reached; fetching continues in the background
            if found:
                yield found[0]
            elif idle_timeout is not None:
                return

    def failures(self) -> dict[QueueId, RocketMQError]:
        """Return the queues that cannot be read now, and why; the consumer keeps trying them."""
        return self._client.step(self._running_core().failures)

    # ---- offsets -----------------------------------------------------------------------------

    async def commit(self, *, timeout: float | None = None) -> dict[QueueId, QueueOffset]:
        """Commit the offsets after the messages that were returned.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Returns:
            The committed offsets, without queues whose position has not changed.

        Raises:
            RocketMQError: A broker failed; others may have stored their offsets.
        """
        _, deadline = self._deadline(timeout)
        return await self._client.run(self._running_core().commit(deadline=deadline))

    async def committed(
        self, queue: QueueId, *, timeout: float | None = None
    ) -> QueueOffset | None:
        """Return the committed offset of the group in a queue; None when it has none.

        Args:
            queue: Any queue.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            RouteNotFound: No route names the queue's broker.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        check_queue(queue)
        return await self._client.run(group_offset(core, self._group, queue, deadline=deadline))

    def position(self, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the next message to return; None while it is not known.

        Raises:
            OptionError: The queue is not assigned.
        """
        core = self._running_core()
        check_queue(queue)
        return self._client.step(lambda: core.cursor_of(queue).position)

    async def lag(self, *, timeout: float | None = None) -> dict[QueueId, int]:
        """Return how many messages of each queue were not returned yet, filters ignored.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            RocketMQError: A broker did not answer.
        """
        _, deadline = self._deadline(timeout)
        return await self._client.run(self._running_core().lag(deadline=deadline))

    # ---- inside ------------------------------------------------------------------------------

    def _make_core(self) -> ConsumerCore:
        client = self._client
        return ConsumerCore(client.core, self._group, self._options, client.spawn, _report)

    def _running_core(self) -> ConsumerCore:
        self._client_core()
        assert self._core is not None
        return self._core


def _names_of(what: str | QueueId | Iterable[str | QueueId]) -> list[str | QueueId]:
    expected = "a topic, a QueueId, or a list of them"
    names = [what] if isinstance(what, str | QueueId) else list(iterated("what", what, expected))
    for name in names:
        if isinstance(name, QueueId):
            check_queue(name)
        else:
            check_type("what", name, str, expected)
            check_name("topic", name)
    return names


def _filter_of(tags: str | Sql, sql: str | Sql | None) -> Filter:
    if not isinstance(tags, Sql):
        check_type("tags", tags, str, "a str or an Sql")
    if sql is not None and not isinstance(sql, Sql):
        check_text("sql", sql)
    message_filter = by_sql(tags) if isinstance(tags, Sql) else by_tags(tags)
    if sql is None:
        return message_filter
    if message_filter != EVERYTHING:
        raise OptionError(f"tags={str(tags)!r} and sql={str(sql)!r} exclude each other")
    return by_sql(sql)


def _report(queue: QueueId, error: RocketMQError | None) -> None:
    where = (queue.topic, queue.broker, queue.number)
    if error is None:
        _log.info("%s queue %s/%d can be read again", *where)
    else:
        _log.warning("%s queue %s/%d cannot be read, trying again: %s", *where, error)
