# Generated from client/_async/simple_consumer.py by scripts/generate_sync.py; do not edit.
"""`SimpleConsumer`: receives messages of a group, and settles each by itself.

    with SimpleConsumer("127.0.0.1:9876", group="jobs", subscribe=["bills"]) as consumer:
        for message in consumer.receive(max_count=16, invisible=60.0, timeout=10.0):
            message.ack()

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from downrange.checks import check_between, check_name, check_timeout, check_type, check_wait
from downrange.client._sync.client_user import ClientUser
from downrange.client._sync.popped_message import PoppedMessage
from downrange.client.client_base import check_setting
from downrange.client.flows.consuming.pull import by_sql, by_tags
from downrange.client.flows.consuming.simple_core import SimpleCore
from downrange.client.flows.validation import check_consumer_group
from downrange.client.popped_base import deliveries_of, report_renewal, report_source
from downrange.errors import AcksFailed, ClientClosed, ClientStateError
from downrange.filters.sql import Sql
from downrange.options import SimpleOptions

if TYPE_CHECKING:
    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.consuming.simple_core import SimpleHealth, SimpleStats
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")
#: How long `close` waits for `processing` blocks unless told otherwise.
_CLOSE_TIMEOUT: Final = 30.0
#: Most messages of one call of `receive`.
_COUNT_MAX: Final = 1024
_SUBSCRIBE: Final = "a list of topics, or a dict of topics and filters"


class SimpleConsumer(ClientUser):
    """Receives messages of a group, from any number of threads.

    Every member of the group gets messages of all queues; a received message is invisible to the
    others until it is settled, or its time is over. There is no order. It needs RocketMQ 5.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        group: The consumer group.
        subscribe: Topics; or a dict of topics with tags such as "new || paid", or an `Sql`.
        options: Where the group starts, retries, limits.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.

    Raises:
        OptionError: An argument is invalid.
        InvalidSql: An SQL92 expression is wrong.

    Example:
        ```python
        with SimpleConsumer("127.0.0.1:9876", group="jobs", subscribe=["bills"]) as jobs:
            for message in jobs.receive(invisible=60.0):
                with message.processing():
                    print(message.body)
        ```
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        subscribe: str | Iterable[str] | Mapping[str, str | Sql] = (),
        options: SimpleOptions | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        check_consumer_group(group)
        check_setting("options", options, SimpleOptions)
        self._group = group
        self._subscribed = _filters_of(subscribe)
        self._options = options or SimpleOptions()
        self._core: SimpleCore | None = None
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
    def options(self) -> SimpleOptions:
        """The consumer's options."""
        return self._options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} group={self._group!r} {self._state}>"

    # ---- life cycle --------------------------------------------------------------------------

    def start(self) -> Self:
        """Join the group; does nothing while it is running.

        If it fails, the consumer is closed.

        Raises:
            ConnectFailed: No name server can be reached.
            PopNotSupported: A broker is older than RocketMQ 5.
            RouteNotFound: A topic does not exist.
            InvalidSql: A broker is too old for an SQL92 expression.
            SqlNotSupported: A broker has SQL92 filters switched off.
            GroupTaken: The client has a consumer of this group.
            ClientClosed: The consumer was closed.
            RocketMQError: No broker of a topic answered.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        self._client.start()  # raises in a forked process
        self._check_open()
        if self._state == "new":
            core = self._core = self._make_core()
            self._state = "running"
            try:
                deadline = core.core.clock.now() + core.core.options.call_timeout
                self._client.run(core.start(self._subscribed, deadline))
                self._check_open()
            except BaseException:
                self.close(0.0)
                raise
        return self

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Receive no more, wait for `processing` blocks, leave the group; may be called again.

        Messages that were received and not settled are delivered again when their time is over.

        Args:
            timeout: How long the blocks, and its own client, may take.
        """
        check_wait("timeout", timeout)
        was_running, self._state = self._state == "running", "closed"
        core, error = self._core, None
        if was_running and core is not None:
            error = self._error_of(lambda: self._leave(core, timeout))
        if self._owns_client:
            self._client.close(timeout)
        if error is not None:
            raise error

    def _leave(self, core: SimpleCore, timeout: float) -> None:
        try:
            with suppress(ClientStateError):  # the client was closed before, or in a fork
                left = self._client.run(core.close(core.core.clock.now() + timeout))
                if left:
                    _log.warning("%r was closed while %d blocks handle a message", self, left)
        finally:
            core.is_closed = True

    # ---- subscriptions -----------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str | Sql = "*", *, timeout: float | None = None) -> None:
        """Receive messages of a topic, too, or with another filter from now on.

        All members of a group must have the same subscriptions.

        Args:
            topic: The topic.
            tags: Only messages with one of these tags, such as "new || paid"; or an `Sql`.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: An argument is invalid.
            RocketMQError: As `start`.
        """
        _, deadline = self._deadline(timeout)
        ((name, message_filter),) = _filters_of({topic: tags}).items()
        self._client.run(self._running_core().subscribe(name, message_filter, deadline))

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Receive no more messages of a topic.

        Args:
            topic: A subscribed topic.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: It is not subscribed.
        """
        _, deadline = self._deadline(timeout)
        check_name("topic", topic)
        self._client.run(self._running_core().unsubscribe(topic, deadline))

    def topics(self) -> list[str]:
        """Return the subscribed topics."""
        return list(self._client.step(self._running_core().topics))

    # ---- receiving ---------------------------------------------------------------------------

    def receive(
        self, max_count: int = 16, invisible: float = 60.0, timeout: float = 10.0
    ) -> list[PoppedMessage]:
        """Return messages as soon as there are any; an empty list at the timeout.

        The messages of one call come from one broker and topic; the next call begins with the
        next. Nothing is fetched in advance.

        Args:
            max_count: How many at most, up to 1,024.
            invisible: Seconds until they are delivered again, to any member of the group, unless
                they are settled.
            timeout: How long to wait for the first message; 0 asks each broker once. The answer of
                a broker may take `call_timeout` longer.

        Raises:
            OptionError: Nothing is subscribed, or an argument is invalid.
            ClientClosed: The consumer was closed meanwhile.
            RocketMQError: No broker can be asked now; call again.
        """
        core = self._running_core()
        check_between(1, _COUNT_MAX, "max_count", max_count)
        check_timeout(invisible, "invisible")
        check_wait("timeout", timeout)
        deadline = core.core.clock.now() + timeout
        found = self._client.run(core.receive(max_count, invisible, deadline))
        return [PoppedMessage.of(delivery, self._client, core) for delivery in found]

    def ack(self, messages: Iterable[PoppedMessage], *, timeout: float | None = None) -> None:
        """Acknowledge many messages, with one request per broker.

        Args:
            messages: Messages that `receive` returned.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            AcksFailed: Some were not acknowledged; lists them, each with its error.
            ReceiptMissing: One is a copy; nothing was done.
        """
        _, deadline = self._deadline(timeout)
        deliveries = deliveries_of(messages)
        outcomes = self._client.run(self._running_core().ack(deliveries, deadline))
        failures = [
            (delivery.message, error)
            for delivery, error in zip(deliveries, outcomes, strict=True)
            if error is not None
        ]
        if failures:
            raise AcksFailed(failures)

    # ---- state -------------------------------------------------------------------------------

    def stats(self) -> SimpleStats:
        """Return the counters of this consumer."""
        return self._client.step(self._running_core().stats)

    def health(self) -> SimpleHealth:
        """Return whether it can receive, with the state of each broker."""
        return self._client.step(self._running_core().health)

    # ---- inside ------------------------------------------------------------------------------

    def _make_core(self) -> SimpleCore:
        client = self._client
        return SimpleCore(
            client.core, self._group, self._options, client.spawn, report_source, report_renewal
        )

    def _running_core(self) -> SimpleCore:
        self._client_core()
        assert self._core is not None
        return self._core


def _filters_of(subscribe: str | Iterable[str] | Mapping[str, str | Sql]) -> dict[str, Filter]:
    """Return the filter of each topic.

    Raises:
        OptionError: A topic or filter is invalid.
    """
    if isinstance(subscribe, str):
        subscribe = [subscribe]
    check_type("subscribe", subscribe, Iterable, _SUBSCRIBE)
    filters: dict[str, Filter] = {}
    for topic in subscribe:
        check_type("subscribe", topic, str, _SUBSCRIBE)
        check_name("topic", topic)
        tags = subscribe[topic] if isinstance(subscribe, Mapping) else "*"
        if isinstance(tags, Sql):
            filters[topic] = by_sql(tags)
        else:
            check_type("tags", tags, str, "a str or an Sql")
            filters[topic] = by_tags(tags)
    return filters
