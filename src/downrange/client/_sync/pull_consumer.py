# Generated from client/_async/pull_consumer.py by scripts/generate_sync.py; do not edit.
"""`PullConsumer`: reads queues at the program's own pace.

    with PullConsumer("127.0.0.1:9876", group="audit") as consumer:
        consumer.assign("orders", start="earliest")
        messages = consumer.poll(timeout=1.0)

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from downrange.client._sync.client_user import ClientUser
from downrange.client.client_base import CLOSE_TIMEOUT
from downrange.client.flows.consuming.consumer_core import ConsumerCore
from downrange.client.flows.consuming.offsets import group_offset
from downrange.client.flows.consuming.pull import Filter, by_sql, by_tags
from downrange.client.flows.validation import check_group
from downrange.errors import ClientClosed, ClientStateError, OptionError, RocketMQError
from downrange.model import QueueId
from downrange.options import PullOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.flows.consuming.offsets import Start
    from downrange.model import QueueOffset, ReceivedMessage
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")
#: Who waits for a message without end waits so long at a time.
_LONG_WAIT: Final = 5.0


class PullConsumer(ClientUser):
    """Reads queues in its own time, from any number of threads.

    It says itself which queues it reads, and keeps its progress where it is told to: nothing is
    shared out among the members of a group, and nothing is committed by itself.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        group: In whose name it reads and commits.
        options: How it reads.
        client_options: How its own client behaves.
        credentials: What its own client signs with.
        tls: How its own client speaks TLS.
        proxy: What its own client connects through.

    Raises:
        OptionError: An argument makes no sense.

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
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        check_group(group)
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
        """Its group."""
        return self._group

    @property
    def options(self) -> PullOptions:
        """Its settings."""
        return self._options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} group={self._group!r} {self._state}>"

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it, and its own client; nothing happens when it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            ClientClosed: It was closed.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        if self._state == "new":
            self._client.start()
            self._core = self._make_core()
            self._state = "running"
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Read no more, close; harmless the second time. What was not committed is not.

        Args:
            timeout: How long its own client may take.
        """
        was_running, self._state = self._state == "running", "closed"
        if was_running and self._core is not None and self._client.state == "running":
            with suppress(ClientStateError):  # the client was closed meanwhile, or before a fork
                self._client.step(self._core.close)
        if self._owns_client:
            self._client.close(timeout)

    # ---- what to read ------------------------------------------------------------------------

    def assign(
        self,
        what: str | QueueId | Iterable[str | QueueId],
        *,
        start: Start = "committed",
        tags: str = "*",
        sql: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Read these topics and queues from now on, and nothing else.

        Queues that a topic gets later are read, too, from their beginning.

        Args:
            what: A topic, a queue, or several of them.
            start: "committed" where the group is, or at the first message when it has not begun;
                "earliest" at the first message; "latest" at the next one to come; a datetime at
                what was stored from then on (a 4.9 broker may begin with an older one); an offset.
            tags: Only messages with one of these tags, such as "new || paid".
            sql: Only messages whose properties are like this, such as "amount > 100"; for brokers
                that are set up for it.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: An argument makes no sense.
            RouteNotFound: A topic does not exist.
            RocketMQError: The broker refuses the expression, or no broker answered.
        """
        _, deadline = self._deadline(timeout)
        message_filter = _filter_of(tags, sql)
        names = [what] if isinstance(what, str | QueueId) else what
        core = self._running_core()
        self._client.run(
            core.assign(names, start=start, message_filter=message_filter, deadline=deadline)
        )

    def seek(self, queue: QueueId, to: Start, *, timeout: float | None = None) -> None:
        """Go on elsewhere in a queue; what was fetched of it is forgotten.

        Args:
            queue: An assigned queue.
            to: An offset, a datetime, "earliest", "latest" or "committed".
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: The queue is not assigned, or the place makes no sense.
            RocketMQError: The broker did not answer.
        """
        _, deadline = self._deadline(timeout)
        self._client.run(self._running_core().seek(queue, to, deadline=deadline))

    def queues(self) -> list[QueueId]:
        """Return what is assigned."""
        return list(self._client.step(self._running_core().positions))

    # ---- reading -----------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_count: int = 500) -> list[ReceivedMessage]:
        """Return messages as soon as there are any; none when the time is over.

        Fetching goes on in the background, whether or not this is called; so a queue whose broker
        is away holds nobody up.

        Args:
            timeout: How long to wait for the first one.
            max_count: How many at most.

        Raises:
            OptionError: Nothing is assigned.
            RocketMQError: No queue at all can be read now; call again to go on trying.
        """
        _, deadline = self._deadline(timeout)
        return self._client.run(self._running_core().poll(max_count, deadline))

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[ReceivedMessage]:
        """Go through messages one by one, forever or until none has come for a while.

        A `commit` in the loop covers the message that was handed out last, and no later one.

        Args:
            idle_timeout: End after so many seconds without a message.

        Raises:
            RocketMQError: See `poll`. Without an `idle_timeout`, brokers that are away are waited
                for.
        """
        wait = _LONG_WAIT if idle_timeout is None else idle_timeout
        while True:
            try:
                found = self.poll(wait, max_count=1)
            except RocketMQError as error:
                if idle_timeout is not None or not error.retryable:
                    raise
                continue  # brokers are away; fetching goes on in the background
            if found:
                yield found[0]
            elif idle_timeout is not None:
                return

    def failures(self) -> dict[QueueId, RocketMQError]:
        """Return which queues cannot be read now, and why; they are tried again and again."""
        return self._client.step(self._running_core().failures)

    # ---- progress ----------------------------------------------------------------------------

    def commit(self, *, timeout: float | None = None) -> dict[QueueId, QueueOffset]:
        """Record how far the group has come: behind the messages that were handed out.

        Args:
            timeout: For the whole call; the client's `call_timeout` unless given.

        Returns:
            What was recorded; queues whose position has not changed are left out.

        Raises:
            RocketMQError: A broker did not take it; others may have.
        """
        _, deadline = self._deadline(timeout)
        return self._client.run(self._running_core().commit(deadline=deadline))

    def committed(self, queue: QueueId, *, timeout: float | None = None) -> QueueOffset | None:
        """Return how far the group has come in a queue; None when it has not begun.

        Args:
            queue: Any queue.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            RouteNotFound: Nobody knows the queue's broker.
            RocketMQError: The broker did not answer.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(group_offset(core, self._group, queue, deadline=deadline))

    def position(self, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the next message of a queue; None when it is not known yet.

        Raises:
            OptionError: The queue is not assigned.
        """
        core = self._running_core()
        return self._client.step(lambda: core.cursor_of(queue).position)

    def lag(self, *, timeout: float | None = None) -> dict[QueueId, int]:
        """Return how many messages of each queue were not handed out yet; filters do not count.

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

    def _running_core(self) -> ConsumerCore:
        self._client_core()
        assert self._core is not None
        return self._core


def _filter_of(tags: str, sql: str | None) -> Filter:
    message_filter = by_tags(tags)
    if sql is None:
        return message_filter
    if message_filter.tags:
        raise OptionError(f"tags={tags!r} and sql={sql!r} exclude each other")
    return by_sql(sql)


def _report(queue: QueueId, error: RocketMQError | None) -> None:
    where = (queue.topic, queue.broker, queue.number)
    if error is None:
        _log.info("%s queue %s/%d can be read again", *where)
    else:
        _log.warning("%s queue %s/%d cannot be read, trying again: %s", *where, error)
