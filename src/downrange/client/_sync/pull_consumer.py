# Generated from client/_async/pull_consumer.py by scripts/generate_sync.py; do not edit.
"""`PullConsumer`: reads queues at the program's own pace.

    with PullConsumer("127.0.0.1:9876", group="audit") as consumer:
        consumer.assign("orders", start="earliest")    # queues that the program chooses
        messages = consumer.poll(timeout=1.0)

    consumer.subscribe("orders")                       # or: the group's members share them

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from downrange.allocation import Average
from downrange.checks import (
    check_count,
    check_name,
    check_text,
    check_timeout,
    check_type,
    check_wait,
    iterated,
)
from downrange.client._sync.client_user import ClientUser
from downrange.client.client_base import CLOSE_TIMEOUT, check_setting
from downrange.client.consumer_stats import consumer_health, consumer_stats
from downrange.client.flows.consuming.consumer_core import ConsumerCore
from downrange.client.flows.consuming.offsets import check_start, group_offset
from downrange.client.flows.consuming.poll_core import PollCore
from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql, by_tags
from downrange.client.flows.consuming.subscriptions import filter_of
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.validation import check_consumer_group, check_queue, check_topic
from downrange.errors import ClientClosed, ClientStateError, OptionError, RocketMQError
from downrange.filters.sql import Sql
from downrange.model import QueueId
from downrange.options import PullOptions
from downrange.options.consumers import DEFAULT_COMMIT, ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.consumer_stats import ConsumerHealth, ConsumerStats
    from downrange.client.flows.consuming.group_member import GroupMember
    from downrange.client.flows.consuming.offsets import Start
    from downrange.model import QueueOffset, ReceivedMessage
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")
#: Seconds of one poll while `messages` waits without an end.
_LONG_WAIT: Final = 5.0


class PullConsumer(ClientUser):
    """Reads queues, from any number of threads.

    After `assign` it reads the queues that the program chose. After `subscribe` it is a member of
    its group, and reads its share of the queues. The program decides when it commits, unless
    `auto_commit` is set.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        group: The consumer group that it reads and commits for.
        options: Sizes of pulls and buffers, waiting times.
        auto_commit: The same as `PullOptions(auto_commit=…)`: seconds between two commits, for
            `subscribe`.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        with PullConsumer("127.0.0.1:9876", group="audit") as consumer:
            consumer.assign("orders", start="earliest")
            for message in consumer.poll(timeout=1.0):
                print(message.body)
            consumer.commit()
        ```
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        options: PullOptions | None = None,
        auto_commit: float | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        check_consumer_group(group)
        check_setting("options", options, PullOptions)
        self._group = group
        self._options = _with_auto_commit(options or PullOptions(), auto_commit)
        self._core: ConsumerCore | PollCore | None = None
        self._filters: dict[str, Filter] = {}
        self._on_assigned: Callable[[list[QueueId]], object] | None = None
        self._on_revoked: Callable[[list[QueueId]], object] | None = None
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

    def start(self) -> Self:
        """Start the consumer, and its own client; does nothing while it is running.

        If it subscribed before, it joins its group. If that fails, the consumer is closed.

        Raises:
            ConnectFailed: No name server can be reached.
            ClientClosed: The consumer was closed, perhaps meanwhile.
            RocketMQError: As `subscribe`.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        self._client.start()  # raises in a forked process
        self._check_open()
        if self._state == "new":
            self._core = self._make_core()
            self._state = "running"
            if self._filters:
                try:
                    _, deadline = self._deadline(None)
                    self._join(self._filters, deadline)
                except BaseException:
                    self.close(0.0)
                    raise
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Stop to fetch, leave the group, close; may be called again.

        It commits only with `auto_commit`, and without the messages of the last poll.

        Args:
            timeout: How long leaving the group and closing its own client may take.
        """
        check_wait("timeout", timeout)
        core, is_running = self._core, self._client.state == "running"
        error: BaseException | None = None
        if self._state == "running" and core is not None and is_running:
            error = self._error_of(lambda: self._leave(core, timeout))
        self._state = "closed"
        if self._owns_client:
            self._client.close(timeout)
        if error is not None:
            raise error

    def _leave(self, core: ConsumerCore | PollCore, timeout: float) -> None:
        with suppress(ClientStateError):  # the client was closed meanwhile, or before a fork
            if isinstance(core, PollCore):  # `on_revoked` may commit, so it is not closed yet
                self._client.run(core.exit(core.core.clock.now() + timeout))
            else:
                self._client.step(core.close)

    # ---- assignment --------------------------------------------------------------------------

    def assign(
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
        if isinstance(core, PollCore):
            raise OptionError("this consumer has subscribed, so its group divides the queues")
        self._client.run(
            core.assign(names, start=start, message_filter=message_filter, deadline=deadline)
        )

    def subscribe(
        self,
        topic: str,
        tags: str | Sql = "*",
        *,
        on_assigned: Callable[[list[QueueId]], object] | None = None,
        on_revoked: Callable[[list[QueueId]], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Read a topic as a member of the group: the members divide its queues.

        Call it again for further topics. Before `start` it only notes the topic. Messages that a
        poll returned are done when the next poll begins, or when they are committed. Where the
        group has no offset yet, it starts as `PullOptions(start=…)` says.

        Args:
            topic: The topic.
            tags: Only messages with one of these tags, such as "new || paid"; or an `Sql`.
            on_assigned: Called with queues that this member gets, before their first message.
            on_revoked: Called with queues that go to another member, before that one gets them;
                the place to commit.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: An argument is invalid, or queues were assigned.
            GroupTaken: The client has another consumer of this group.
            InvalidSql, SqlNotSupported: A broker refuses the filter.
            RocketMQError: No name server answered.
        """
        check_topic(topic)
        filters = self._current_filters | {topic: filter_of(tags)}
        for name, function in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if function is not None and not callable(function):
                raise OptionError(f"{name}={function!r} cannot be called; give a function")
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked
        if self._state == "new":  # `start` joins the group
            check_timeout(1.0 if timeout is None else timeout)
            self._filters = filters
        else:
            _, deadline = self._deadline(timeout)
            self._join(filters, deadline)

    @property
    def _current_filters(self) -> dict[str, Filter]:
        """What it reads now: a call that waits for queues has changed that already."""
        core = self._core
        return core.member.subscriptions.filters if isinstance(core, PollCore) else self._filters

    def _join(self, filters: dict[str, Filter], deadline: float) -> None:
        """Join the group, or read other topics as its member."""
        is_new = not isinstance(self._core, PollCore)
        core = self._core if isinstance(self._core, PollCore) else self._make_member()
        core.member.on_assigned, core.member.on_revoked = self._on_assigned, self._on_revoked
        if is_new:
            self._enter(core.enter(filters, deadline), core.undo_enter)
            self._core = core
            for flow in core.background():
                self._client.spawn(flow)
        else:
            self._client.run(core.member.resubscribe(filters, deadline))

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Read a topic no more.

        Args:
            topic: The topic.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: The topic is not subscribed.
        """
        _, deadline = self._deadline(timeout)
        core = self._running_core()
        current = self._current_filters
        if topic not in current or not isinstance(core, PollCore):
            raise OptionError(f"{topic!r} is not subscribed; {sorted(current)} are")
        filters = {name: each for name, each in current.items() if name != topic}
        self._client.run(core.member.resubscribe(filters, deadline))

    def pause(self, *queues: QueueId) -> None:
        """Return no messages of these queues until `resume`; of all, without arguments.

        Without arguments, queues that this member gets later are paused, too, until `resume` is
        called without arguments.

        Raises:
            OptionError: The consumer has not subscribed, or this member does not have a queue.
        """
        self._pause(queues, is_paused=True)

    def resume(self, *queues: QueueId) -> None:
        """Continue with queues after `pause`; with all, without arguments.

        Raises:
            OptionError: The consumer has not subscribed, or this member does not have a queue.
        """
        self._pause(queues, is_paused=False)

    def _pause(self, queues: tuple[QueueId, ...], *, is_paused: bool) -> None:
        core = self._running_core()
        if not isinstance(core, PollCore):
            raise OptionError("pause and resume are for queues that come by subscribe()")
        if queues:
            self._client.step(lambda: core.pause(queues, is_paused=is_paused))
        else:
            self._client.step(lambda: core.pause_all(is_paused=is_paused))

    def seek(self, queue: QueueId, to: Start, *, timeout: float | None = None) -> None:
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
        self._client.run(self._running_core().seek(queue, to, deadline=deadline))

    def queues(self) -> list[QueueId]:
        """Return the assigned queues."""
        return list(self._client.step(self._running_core().positions))

    def assignment(self) -> list[QueueId]:
        """Return the queues that it reads now: after `subscribe`, its share of the group's."""
        core = self._running_core()
        return self._client.step(
            core.member.assigned if isinstance(core, PollCore) else lambda: list(core.positions())
        )

    def health(self) -> ConsumerHealth:
        """Return whether a member of a group is well, and the state of each queue.

        Raises:
            OptionError: It has not subscribed; after `assign` see `failures`.
        """
        member = self._member("health")
        return self._client.step(lambda: consumer_health(member))

    def stats(self) -> ConsumerStats:
        """Return the counters of a member of a group.

        Raises:
            OptionError: It has not subscribed; after `assign` see `position` and `lag`.
        """
        member = self._member("stats")
        return self._client.step(lambda: consumer_stats(member))

    def _member(self, what: str) -> GroupMember:
        core = self._running_core()
        if not isinstance(core, PollCore):
            raise OptionError(
                f"{what}() is about a member of a group: call subscribe() first; after assign() "
                "there are failures(), position() and lag()"
            )
        return core.member

    # ---- reading -----------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_count: int = 500) -> list[ReceivedMessage]:
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
        deadline = core.core.clock.now() + timeout
        messages = self._client.step(lambda: core.begin_poll(max_count))
        while not messages and self._client.run(core.wait_for_messages(deadline)):
            # After the wait, in a step: a caller that is cancelled has taken none.
            messages = self._client.step(lambda: core.take(max_count))
        return messages

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[ReceivedMessage]:
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

    def _messages(self, idle_timeout: float | None) -> Iterator[ReceivedMessage]:
        wait = _LONG_WAIT if idle_timeout is None else idle_timeout
        while True:
            try:
                found = self.poll(wait, max_count=1)
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

    def commit(self, *, timeout: float | None = None) -> dict[QueueId, QueueOffset]:
        """Commit the offsets after the messages that were returned.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Returns:
            The committed offsets, without queues whose position has not changed.

        Raises:
            RocketMQError: A broker failed; others may have stored their offsets.
        """
        _, deadline = self._deadline(timeout)
        return self._client.run(self._running_core().commit(deadline=deadline))

    def committed(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset | None:
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
        return self._client.run(group_offset(core, self._group, queue, deadline=deadline))

    def position(self, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the next message to return; None while it is not known.

        Raises:
            OptionError: The queue is not assigned.
        """
        core = self._running_core()
        check_queue(queue)
        return self._client.step(lambda: core.position_of(queue))

    def lag(self, *, timeout: float | None = None) -> dict[QueueId, int]:
        """Return how many messages of each queue were not returned yet, filters ignored.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            RocketMQError: A broker did not answer.
        """
        _, deadline = self._deadline(timeout)
        return self._client.run(self._running_core().lag(deadline=deadline))

    # ---- inside ------------------------------------------------------------------------------

    def _make_core(self) -> ConsumerCore:
        client = self._client
        return ConsumerCore(client.core, self._group, self._options, client.spawn, _report)

    def _make_member(self) -> PollCore:
        if isinstance(self._core, ConsumerCore) and self._core.cursors:
            raise OptionError("queues were assigned to this consumer; use another one to subscribe")
        client, options = self._client, self._options
        return PollCore(
            client.core,
            self._group,
            ConsumerOptions(
                start=options.start,
                strategy=options.strategy or Average(),
                pull_batch=options.batch_count,
                suspend=options.suspend,
                buffer_messages=options.buffered_max,
                commit_interval=options.auto_commit or DEFAULT_COMMIT,
                retry_backoff=options.retry_backoff,
                retry_backoff_max=options.retry_backoff_max,
                decode_body=options.decode_body,
            ),
            Hooks(),
            client.spawn,
            is_auto_commit=options.auto_commit is not None,
        )

    def _running_core(self) -> ConsumerCore | PollCore:
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


def _with_auto_commit(options: PullOptions, auto_commit: float | None) -> PullOptions:
    """Return the options with the argument of the same name.

    Raises:
        OptionError: It is wrong, or the options have another one.
    """
    if auto_commit is None:
        return options
    if options.auto_commit not in (None, auto_commit):
        raise OptionError(
            f"auto_commit={auto_commit!r} and PullOptions(auto_commit={options.auto_commit!r}) "
            "differ; give one of them"
        )
    return replace(options, auto_commit=auto_commit)


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
