# Generated from client/_async/producer.py by scripts/generate_sync.py; do not edit.
"""`Producer`: sends messages.

    with Producer("127.0.0.1:9876", group="shop") as producer:
        receipt = producer.send(Message("orders", b"1"))

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from downrange.client.client_base import CLOSE_TIMEOUT, report_hook
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.client.flows.producing.recall import recall
from downrange.client.flows.producing.request_reply import reply, reply_to, request
from downrange.client.flows.routing.probes import detect
from downrange.client.futures import ProducerFutures
from downrange.errors import ClientClosed, NotStarted, RocketMQError
from downrange.options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.routing.selectors import Selector
    from downrange.model import BatchReceipt, Message, QueueId, ReceivedMessage, SendReceipt
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")


class Producer(ProducerFutures):
    """Sends messages, from any number of threads.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or an
            `Client` to share.
        group: The producer's group; brokers ask any member of it about transactions.
        options: How it sends.
        hooks: Functions called around every send.
        client_options: How its own client behaves.
        credentials: What its own client signs with.
        tls: How its own client speaks TLS.
        proxy: What its own client connects through.

    Raises:
        OptionError: An argument makes no sense.

    Example:
        ```python
        with Producer("127.0.0.1:9876", group="shop") as producer:
            receipt = producer.send(Message("orders", b"1", tags="new", keys=["o-1"]))
        ```
    """

    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        options: ProducerOptions | None = None,
        hooks: Hooks | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(
            servers,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
            hooks=hooks,
        )
        self._group = group
        self._options = options or ProducerOptions()
        self._hooks = hooks or Hooks()
        self._core: ProducerCore | None = None

    @property
    def group(self) -> str:
        """Its group."""
        return self._group

    @property
    def options(self) -> ProducerOptions:
        """Its settings."""
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
        """Change back-pressure while it is running.

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

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it, and its own client; nothing happens when it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            GroupTaken: The client has a producer of this group.
            ClientClosed: It was closed.
        """
        if self._state == "closed":
            raise ClientClosed(f"the producer of group {self._group!r}")
        if self._state == "new":
            self._client.start()
            try:
                core = self._make_core()
                self._client.run(core.enter())
            except BaseException:
                if self._owns_client:
                    self._client.close()
                raise
            self._core, self._state = core, "running"
            for flow in self._background(core):
                self._client.spawn(flow)
        else:
            self._client.start()  # fails in a process that was forked
        return self

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Send what was accepted, say goodbye to the brokers, close; harmless the second time.

        Args:
            timeout: How long that may take; what is not sent by then fails.
        """
        core, was_running = self._core, self._state == "running"
        self._state = "closed"
        if core is not None and was_running and self._client.state == "running":
            try:
                leave = core.exit(core.client.clock.now() + timeout)
                self._client.run_last(leave)
            except RocketMQError as error:
                _log.warning("while closing %r: %s", self, error)
        if self._owns_client:
            self._client.close(timeout)

    # ---- sending -----------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send a message and wait until a broker has it.

        Args:
            message: The message.
            queue: A queue, or what chooses one; it is not sent to another one then.
            timeout: For the whole call, all attempts together; the options' unless given.

        Returns:
            Where it is.

        Raises:
            InvalidMessage: The message breaks a rule.
            SendFailed: No broker took it; lists all attempts.
            RouteNotFound: The topic does not exist and cannot be created.
            RocketMQError: No name server answers, or a hook forbids it.
        """
        core, client = self._running_core(), self._client
        flow = core.send(message, client.round_robin, core.waiting_rules, queue, timeout)
        return client.run(flow)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand a message to a broker without waiting for an answer; it may be lost.

        Args:
            message: The message.
            queue: A queue, or what chooses one.
            timeout: For finding and reaching the broker; the options' unless given.

        Raises:
            InvalidMessage: The message breaks a rule.
            RocketMQError: The broker cannot be found or reached.
        """
        core, client = self._running_core(), self._client
        client.run(core.send_oneway(message, client.round_robin, queue, timeout))

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """Send messages of one topic in as few requests as they fit in.

        Args:
            messages: Any number of them; no delays among them.
            queue: A queue, or what chooses one, for each request.
            timeout: For each request; the options' unless given.

        Returns:
            One receipt per request.

        Raises:
            InvalidMessage: A message, or the list, breaks a rule.
            BatchFailed: Some were sent, then a request failed; says which.
            SendFailed: The first request failed.
        """
        core, client = self._running_core(), self._client
        flow = core.send_batch(messages, client.round_robin, core.waiting_rules, queue, timeout)
        return client.run(flow)

    # ---- request and reply, recall ------------------------------------------------------------

    def request(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply of whoever consumes it.

        Args:
            message: The request.
            queue: A queue, or what chooses one.
            timeout: For sending and waiting together; the options' unless given.

        Returns:
            The reply. Where it is stored, if at all, is not known: its offsets are 0.

        Raises:
            InvalidMessage: The message breaks a rule.
            RequestTimedOut: It was sent, but no reply came in time.
            SendFailed: No broker took it.
            RocketMQError: No name server answers, or a hook forbids it.
        """
        core, client = self._running_core(), self._client
        flow = request(core, message, client.round_robin, core.waiting_rules, queue, timeout)
        return client.run(flow)

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Answer a request that was received.

        Args:
            request: The request.
            body: What to answer.
            tags: See `Message`.
            keys: See `Message`.
            properties: See `Message`.
            timeout: For the whole call, all attempts together; the options' unless given.

        Returns:
            Where the reply is kept; whoever asked has it by then.

        Raises:
            InvalidMessage: The message is no request (code 10007), or the reply breaks a rule.
            SendFailed: No broker could hand it over: whoever asked may be gone.
        """
        core, client = self._running_core(), self._client
        message = reply_to(request, body, tags=tags, keys=keys, properties=properties)
        flow = reply(core, request, message, client.round_robin, core.waiting_rules, timeout)
        return client.run(flow)

    def recall(self, handle: str | None, *, timeout: float | None = None) -> str:
        """Take back a message with `deliver_at` or `deliver_in` before it is due.

        Args:
            handle: The `recall_handle` of its receipt.
            timeout: For the whole call; the options' unless given.

        Returns:
            The message's id.

        Raises:
            OptionError: There is no handle: the broker is too old, or the message not timed.
            NotSupported: The broker is older than 5.3.2.
            ServerError: The broker refuses: the message is due, or recall is switched off.
            RocketMQError: The broker cannot be found or reached.
        """
        core, client = self._running_core(), self._client
        return client.run(recall(core, handle, timeout))

    # ---- inside ------------------------------------------------------------------------------

    def _running_core(self) -> ProducerCore:
        core = self._core
        if core is None or self._state != "running":
            what = f"the producer of group {self._group!r}"
            raise ClientClosed(what) if self._state == "closed" else NotStarted(what)
        return core

    def _make_core(self) -> ProducerCore:
        return ProducerCore(self._client.core, self._group, self._options, self._hooks, report_hook)

    def _background(self, core: ProducerCore) -> list[Flow[None]]:
        return [*core.background(), *detect(core.client, core.health)]
