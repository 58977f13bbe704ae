"""`AsyncProducer`: sends messages.

    async with AsyncProducer("127.0.0.1:9876", group="shop") as producer:
        receipt = await producer.send(Message("orders", b"1"))

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from downrange.checks import check_wait
from downrange.client._async.topic_calls import AsyncTopicCalls
from downrange.client.client_base import (
    CLOSE_TIMEOUT,
    check_setting,
    log_missing_routes,
    topic_list,
)
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.client.flows.producing.recall import recall
from downrange.client.flows.producing.request_reply import reply, reply_to, request
from downrange.client.flows.routing.probes import detect
from downrange.client.flows.validation import check_producer_group

# sync: from downrange.client.futures import ProducerFutures
from downrange.errors import ClientClosed, NotStarted, RocketMQError
from downrange.options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client._async.client import AsyncClient
    from downrange.client.client_base import Servers
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.routing.selectors import Selector
    from downrange.model import BatchReceipt, Message, QueueId, ReceivedMessage, SendReceipt
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")


class AsyncProducer(AsyncTopicCalls):  # sync: class Producer(ProducerFutures):
    """Sends messages, from any number of tasks of one event loop.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or an `AsyncClient` to share.
        group: The producer group; brokers send transaction checks to any member of it.
        topics: Topics whose routes `start` loads, so that the first send to each is as fast as the
            next ones, and the group is registered at their brokers at once. A topic whose route
            cannot be loaded is logged, and looked up again by the first send.
        options: Timeouts, retries, limits, compression, tracing.
        hooks: Functions called around every send.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        async with AsyncProducer("127.0.0.1:9876", group="shop") as producer:
            receipt = await producer.send(Message("orders", b"1", tags="new", keys=["o-1"]))
        ```
    """

    def __init__(
        self,
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        topics: Iterable[str] = (),
        options: ProducerOptions | None = None,
        hooks: Hooks | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        check_producer_group(group)
        check_setting("options", options, ProducerOptions)
        super().__init__(
            servers,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
            hooks=hooks,
        )
        self._group = group
        self._topics = topic_list(topics)
        self._options = options or ProducerOptions()
        self._hooks = hooks or Hooks()
        self._core: ProducerCore | None = None

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    @property
    def options(self) -> ProducerOptions:
        """The producer's options."""
        return self._options

    @property
    def core(self) -> ProducerCore:
        """The state behind the producer, for connectors that run flows of their own.

        Such a flow is run with `client.run` or `client.spawn`; see `downrange.client.flows`.

        Raises:
            NotStarted, ClientClosed: The producer is not running.
        """
        return self._running_core()

    def set_limits(
        self, *, in_flight_max: int | None = None, in_flight_bytes_max: int | None = None
    ) -> None:
        """Change the limits of back-pressure while the producer is running.

        Raises:
            OptionError: A limit is too small.
        """
        settings = {
            name: value
            for name, value in (
                ("in_flight_max", in_flight_max),
                ("in_flight_bytes_max", in_flight_bytes_max),
            )
            if value is not None
        }
        ProducerOptions(**settings)  # type: ignore[arg-type]
        permits = self._running_core().permits
        self._client.step(lambda: permits.resize(in_flight_max, in_flight_bytes_max))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} group={self._group!r} {self._state}>"

    # ---- life cycle --------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start the producer, and its own client; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            GroupTaken: The client has a producer of this group.
            ClientClosed: The producer was closed, perhaps meanwhile.
        """
        if self._state == "closed":
            raise ClientClosed(f"the producer of group {self._group!r}")
        if self._state == "new":
            await self._client.start()
            try:
                core = self._make_core()
                if self._topics:
                    failures = await self._client.run(core.load_routes(self._topics))
                    log_missing_routes(failures)
                await self._enter(core.enter(), lambda: core.exit(core.client.clock.now()))
            except BaseException:
                if self._owns_client:
                    await self._client.close()
                raise
            self._core, self._state = core, "running"
            for flow in self._background(core):
                self._client.spawn(flow)
        else:
            await self._client.start()  # raises in a forked process
        return self

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Send accepted messages, unregister from the brokers, close; may be called again.

        Args:
            timeout: How long that may take; messages that are not sent by then fail.
        """
        check_wait("timeout", timeout)
        core, was_running = self._core, self._state == "running"
        if was_running:  # no sync
            self._client.check_loop(repr(self))  # no sync
        self._state = "closed"
        if core is not None and was_running and self._client.state == "running":
            try:
                leave = core.exit(core.client.clock.now() + timeout)
                await self._client.run(leave)  # sync: self._client.run_last(leave)
            except RocketMQError as error:
                _log.warning("while closing %r: %s", self, error)
        if self._owns_client:
            await self._client.close(timeout)

    # ---- sending -----------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send a message and wait until a broker has stored it.

        Args:
            message: The message.
            queue: A queue, or a selector that chooses one; no other queue is tried then.
            timeout: For the whole call, all attempts together; the producer's option unless given.

        Returns:
            The queue and offset of the message.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: No broker confirmed that it stored it; `attempts` lists why, and
                `may_be_stored` says whether one may have stored it.
            RouteNotFound: The topic does not exist and cannot be created.
            BrokerNotFound: No broker is registered at the name server.
            RocketMQError: No name server answers, or a hook forbids the message.
        """
        core, client = self._running_core(), self._client
        if queue is None:
            send = core.direct_send(
                message, client.round_robin, core.async_rules, timeout, is_limited=True
            )
            if send is not None:
                return await client.run_send(send)
        flow = core.send(
            message, client.round_robin, core.async_rules, queue, timeout, is_limited=True
        )
        return await client.run(flow)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a message without an answer from the broker; it may be lost.

        A message that cannot be written to a connection goes to another broker.

        Args:
            message: The message.
            queue: A queue, or a selector that chooses one; no other queue is tried then.
            timeout: For finding and reaching brokers; the producer's option unless given.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: It could not be written to any connection; `attempts` lists why.
            RocketMQError: No broker is registered, no name server answers, or a hook forbids it.
        """
        core, client = self._running_core(), self._client
        await client.run(core.send_oneway(message, client.round_robin, queue, timeout))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """Send messages of one topic in as few requests as possible.

        Args:
            messages: Any number of messages, none of them delayed.
            queue: A queue, or a selector that chooses one, for each request.
            timeout: For each request; the producer's option unless given.

        Returns:
            One receipt per request.

        Raises:
            InvalidMessage: A message, or their combination, breaks a rule.
            BatchFailed: A request failed after others were stored; lists both.
            SendFailed: The first request failed.
        """
        core, client = self._running_core(), self._client
        flow = core.send_batch(
            messages, client.round_robin, core.async_rules, queue, timeout, is_limited=True
        )
        return await client.run(flow)

    # ---- request and reply, recall ------------------------------------------------------------

    async def request(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply of its consumer.

        Args:
            message: The request.
            queue: A queue, or a selector that chooses one.
            timeout: For sending and waiting together; the producer's option unless given.

        Returns:
            The reply. Its offsets are 0: the broker does not report where it is stored.

        Raises:
            InvalidMessage: The message breaks a rule.
            RequestTimedOut: The request was stored, but no reply arrived in time.
            SendFailed: No broker stored the request.
            RocketMQError: No name server answers, or a hook forbids the message.
        """
        core, client = self._running_core(), self._client
        flow = request(
            core, message, client.round_robin, core.async_rules, queue, timeout, is_limited=True
        )
        return await client.run(flow)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Reply to a request.

        Args:
            request: A received message that was sent with `request`.
            body: The body of the reply.
            tags: See `Message`.
            keys: See `Message`.
            properties: See `Message`.
            timeout: For the whole call, all attempts together; the producer's option unless given.

        Returns:
            The receipt of the reply; the requester has the reply by then.

        Raises:
            InvalidMessage: The message is not a request (code 10007), or the reply breaks a rule.
            SendFailed: No broker could deliver the reply: the requester may be gone.
        """
        core, client = self._running_core(), self._client
        message = reply_to(request, body, tags=tags, keys=keys, properties=properties)
        flow = reply(
            core, request, message, client.round_robin, core.async_rules, timeout, is_limited=True
        )
        return await client.run(flow)

    async def recall(self, handle: str | None, *, timeout: float | None = None) -> str:
        """Recall a message with `deliver_at` or `deliver_in` before it is delivered.

        Args:
            handle: The `recall_handle` of its receipt.
            timeout: For the whole call; the producer's option unless given.

        Returns:
            The message's id.

        Raises:
            OptionError: The handle is None: the broker is too old, or the message has no timer.
            NotSupported: The broker is older than 5.3.2.
            ServerError: The broker refuses: the message is due, or recall is disabled.
            RocketMQError: The broker cannot be found or reached.
        """
        core, client = self._running_core(), self._client
        return await client.run(recall(core, handle, timeout))

    # ---- inside ------------------------------------------------------------------------------

    def _running_core(self) -> ProducerCore:
        core = self._core
        if core is None or self._state != "running":
            what = f"the producer of group {self._group!r}"
            raise ClientClosed(what) if self._state == "closed" else NotStarted(what)
        return core

    def _make_core(self) -> ProducerCore:
        return ProducerCore(self._client.core, self._group, self._options, self._hooks)

    def _background(self, core: ProducerCore) -> list[Flow[None]]:
        return [*core.background(), *detect(core.client, core.health)]
