# Generated from client/_async/push_consumer.py by scripts/generate_sync.py; do not edit.
"""`PushConsumer`: a member of a consumer group whose handler gets the messages.

    def bill(message: ReceivedMessage) -> None: ...

    with PushConsumer("127.0.0.1:9876", group="billing", subscribe={"orders": "new"},
                                 handler=bill) as consumer:
        consumer.wait()

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import logging
from contextlib import (
    contextmanager,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast, overload

from downrange.checks import check_wait
from downrange.client._sync.client_user import ClientUser
from downrange.client._sync.pushed_message import PushedMessage
from downrange.client.client_base import check_setting
from downrange.client.consumed_base import link_to
from downrange.client.consumer_stats import consumer_health, consumer_stats
from downrange.client.flows.consuming.push_core import PushCore
from downrange.client.flows.consuming.subscriptions import (
    check_not_empty,
    filter_of,
    filters_of,
)
from downrange.client.flows.effects import Signal, Wait
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.producing.request_reply import reply, reply_to
from downrange.client.flows.validation import check_consumer_group, check_topic
from downrange.client.push_base import (
    DRAIN_TIMEOUT,
    LONG_WAIT,
    handle_run,
    plain_handler,
)
from downrange.errors import ClientClosed, ClientStateError, OptionError, RocketMQError
from downrange.options.consumers import ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
    )
    from contextlib import AbstractContextManager
    from types import TracebackType

    from downrange.client._sync.client import Client
    from downrange.client.client_base import Servers
    from downrange.client.consumer_stats import ConsumerHealth, ConsumerStats
    from downrange.client.drivers.workers import ThreadWorkers
    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.consuming.subscriptions import Subscribe
    from downrange.client.flows.effects import Flow
    from downrange.filters.sql import Sql
    from downrange.model import QueueId, ReceivedMessage, SendReceipt
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")


class PushConsumer(ClientUser):
    """A member of a consumer group; the members divide the queues of the topics.

    A handler that returns has handled its message. One that raises gets it again later: after the
    usual time, after `Retry(after=…)`, or never with `DeadLetter`, which moves the message to the
    group's dead-letter topic. Each message is handled at least once; after a crash some are handled
    twice.

    Without a handler, iterate over the consumer: a message is done when the next one is asked for.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or a `Client` to share.
        group: The consumer group.
        subscribe: A topic, a list of topics, or a dict of topics to tags ("new || paid") or `Sql`.
        handler: Called with each message, or with a list if `batch` is above 1. It runs in
            one of `concurrency` threads.
        options: Mode, concurrency, retries, buffers and so on.
        client_options: Options of its own client.
        credentials: Keys that its own client signs requests with.
        tls: TLS settings of its own client.
        proxy: Proxy of its own client.
        hooks: Functions called around each handler; those for requests are called by its own
            client.

    Raises:
        OptionError: An argument is invalid.

    Example:
        ```python
        with PushConsumer(
            "127.0.0.1:9876", group="billing", subscribe={"orders": "new || paid"}, handler=bill
        ) as consumer:
            consumer.wait()
        ```
    """

    @overload
    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[PushedMessage], object] | None = None,
        options: ConsumerOptions | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[list[PushedMessage]], object]
        | Callable[[list[ReceivedMessage]], object],
        options: ConsumerOptions,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None: ...
    def __init__(
        self,
        servers: Client | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[Any], object] | None = None,
        options: ConsumerOptions | None = None,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        check_consumer_group(group)
        check_setting("options", options, ConsumerOptions)
        self._filters = filters_of(subscribe)
        check_not_empty(self._filters)
        self._group = group
        self._options = options or ConsumerOptions()
        self._handler = None if handler is None else plain_handler(handler)
        if handler is None and self._options.batch > 1:
            raise OptionError("batch is for handlers; iteration gives one message at a time")
        self._hooks = hooks or Hooks()
        self._core: PushCore | None = None
        self._workers: ThreadWorkers | None = None
        self._stopped = Signal()
        #: What iteration has handed out and not settled, by the identity of its message: one, or
        #: more if several callers iterate.
        self._last: dict[int, Delivery] = {}
        super().__init__(
            servers,
            client_options=client_options,
            credentials=credentials,
            tls=tls,
            proxy=proxy,
            hooks=hooks,
        )

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def options(self) -> ConsumerOptions:
        """The consumer's options."""
        return self._options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} group={self._group!r} {self._state}>"

    # ---- life cycle --------------------------------------------------------------------------

    def start(self) -> Self:
        """Join the group and begin to handle messages; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            GroupTaken: The client has a consumer of this group.
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            ClientClosed: The consumer was closed, perhaps meanwhile.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        self._client.start()  # in a forked process it raises
        self._check_open()
        if self._state == "running":
            return self
        core = self._make_core()
        try:
            deadline = core.core.clock.now() + core.core.options.call_timeout
            self._enter(core.enter(self._filters, deadline), core.undo_enter)
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        self._core, self._state = core, "running"
        for flow in core.background():
            self._client.spawn(flow)
        if self._handler is not None:
            name = f"downrange-{self._group}"
            self._workers = self._client.start_workers(core.work, self._options.concurrency, name)
        return self

    def close(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Let running handlers end, commit, and leave the group; may be called again.

        Messages that were not begun go to other members. Messages whose handlers do not end in time
        are delivered again.

        Args:
            timeout: How long handlers may take.

        Raises:
            ClientStateError: It was called by a handler, for which it would wait; use `stop`.
        """
        check_wait("timeout", timeout)
        workers, core = self._workers, self._core
        if workers is not None and workers.is_current:
            raise ClientStateError(
                f"{self!r} cannot be closed by its own handler, for which it would wait; call "
                "stop() in the handler, and close() after wait() has returned"
            )
        was_running, self._state = self._state == "running", "closed"
        error: BaseException | None = None
        if was_running and core is not None and self._client.state == "running":
            deadline = core.core.clock.now() + timeout
            unfinished: list[DeliveryWindow] = []
            error = self._error_of(lambda: self._leave(core, deadline, unfinished))
            self._end_workers(core, deadline if unfinished else None)
        if self._owns_client:
            self._client.close()
        if isinstance(error, RocketMQError):
            _log.warning("while closing %r: %s", self, error)
        elif error is not None:
            raise error

    def _leave(self, core: PushCore, deadline: float, unfinished: list[DeliveryWindow]) -> None:
        """Leave the group; add the windows whose handlers did not end in time."""
        self._client.step(self._stopped.fire)
        self._drop_last(core)
        unfinished += self._client.run(core.exit(deadline))
        for window in unfinished:
            _log.warning(
                "%r was closed while %d messages of %s were handled; they are delivered again",
                self,
                len(window.running),
                window.queue,
            )

    def _end_workers(self, core: PushCore, deadline: float | None) -> None:
        """End the workers, whatever failed before; None if no handler runs."""
        with suppress(ClientStateError):  # the client was closed meanwhile
            self._client.step(core.end_workers)
        if self._workers is not None:
            left = 1.0 if deadline is None else max(0.0, deadline - core.core.clock.now())
            self._workers.join(left)

    def stop(self) -> None:
        """Let `wait` return and iteration end; may be called in a handler, and from any thread."""
        if self._state == "running":
            self._client.step(self._stopped.fire)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer is stopped or closed; return False at the timeout.

        Args:
            timeout: How long to wait; without an end if not given.

        Raises:
            NotStarted: The consumer was not started.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
        clock = self._client_core().clock
        deadline = None if timeout is None else clock.now() + timeout
        while not self._stopped.is_fired and self._client.state == "running":
            until = clock.now() + LONG_WAIT if deadline is None else deadline
            self._client.run(_wait(self._stopped, until))
            if deadline is not None and clock.now() >= deadline:
                break
        return self._stopped.is_fired

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer; messages that are being handled may end."""
        self.close()

    # ---- at run time -------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str | Sql = "*", *, timeout: float | None = None) -> None:
        """Read another topic, or a topic with another filter.

        Args:
            topic: The topic.
            tags: Only messages with one of these tags, such as "new || paid"; or an `Sql`.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: An argument is invalid.
            InvalidSql, SqlNotSupported: A broker refuses the filter.
            RocketMQError: No name server answered.
        """
        check_topic(topic)
        self._resubscribe(self._current_filters | {topic: filter_of(tags)}, timeout)

    def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
        """Read a topic no more; running handlers end, and the offsets are committed.

        Args:
            topic: The topic.
            timeout: For the whole call; the client's `call_timeout` unless given.

        Raises:
            OptionError: The consumer does not read the topic, or no other one.
        """
        current = self._current_filters
        if topic not in current:
            raise OptionError(f"{topic!r} is not subscribed; {sorted(current)} are")
        filters = {name: each for name, each in current.items() if name != topic}
        if not filters:
            raise OptionError(f"{topic!r} is the only topic; pause() or close() the consumer")
        self._resubscribe(filters, timeout)

    def _resubscribe(self, filters: dict[str, Filter], timeout: float | None) -> None:
        _, deadline = self._deadline(timeout)
        self._client.run(self._running_core().member.resubscribe(filters, deadline))

    @property
    def _current_filters(self) -> dict[str, Filter]:
        """What it reads now: a call that waits for queues has changed that already."""
        return self._filters if self._core is None else self._core.member.subscriptions.filters

    def pause(self) -> None:
        """Begin no further handler until `resume`; those that run end."""
        self._client.step(self._running_core().pause)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._client.step(self._running_core().resume)

    @property
    def is_paused(self) -> bool:
        """Whether the consumer is paused."""
        return self._running_core().is_paused

    def assignment(self) -> list[QueueId]:
        """Return the queues that this member has now.

        In the mode "pop" it shares all queues of a broker, which have the number -1.
        """
        return self._client.step(self._running_core().member.assigned)

    def subscriptions(self) -> dict[str, str]:
        """Return the topics that it reads, and the expression of each."""
        return {topic: each.text for topic, each in self._current_filters.items()}

    def health(self) -> ConsumerHealth:
        """Return whether it is well, and the state of each queue."""
        member = self._running_core().member
        return self._client.step(lambda: consumer_health(member))

    def stats(self) -> ConsumerStats:
        """Return its counters."""
        member = self._running_core().member
        return self._client.step(lambda: consumer_stats(member))

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
        """Reply to a message that was sent with `request`; the same as `message.reply`.

        Args:
            request: The message.
            body: The body of the reply.
            tags: See `Message`.
            keys: See `Message`.
            properties: See `Message`.
            timeout: For the whole call, all attempts together; 3 seconds unless given.

        Returns:
            The receipt of the reply; the requester has the reply by then.

        Raises:
            InvalidMessage: The message is not a request (code 10007), or the reply breaks a rule.
            SendFailed: No broker could deliver the reply: the requester may be gone.
        """
        core, client = self._running_core().inner, self._client
        message = reply_to(request, body, tags=tags, keys=keys, properties=properties)
        flow = reply(core, request, message, client.round_robin, core.waiting_rules, timeout)
        return client.run(flow)

    # ---- iteration ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[PushedMessage]:
        """Iterate over messages; each is done when the next one is asked for.

        For several at a time use `processing`.

        Raises:
            OptionError: The consumer has a handler.
        """
        if self._handler is not None:
            raise OptionError(f"{self!r} has a handler, which gets the messages")
        return self

    def __next__(self) -> PushedMessage:
        """Return the next message; the one before is done, unless a block of it was made."""
        core = self._running_core()
        if self._last:
            self._finish_last()
        delivery = self._next_delivery(core)
        if delivery is None:
            raise StopIteration
        message = _message_of(delivery)
        self._last[id(message)] = delivery
        return message

    def _next_delivery(self, core: PushCore) -> Delivery | None:
        """Take a message in a step, after a wait: a caller that is cancelled has taken none."""
        try:
            while not self._stopped.is_fired:
                delivery = self._client.step(core.take_next)
                if delivery is not None:
                    return delivery
                if not self._client.run(core.wait_for_next(self._stopped)):
                    break
        except BaseException:  # if it was woken already, another caller gets the message
            with suppress(ClientStateError):
                self._client.step(core.wake)
            raise
        return None

    def processing(self, message: ReceivedMessage) -> AbstractContextManager[PushedMessage]:
        """Return a block in which a message is handled, while others are asked for.

        It is done when the block ends, and delivered again if the block raises: `Retry` and
        `DeadLetter` end here, any other exception goes on to the caller. The block may be entered
        later and elsewhere.

        Make the block in the loop, before the next message is asked for, and give it to the
        thread that handles the message: if that thread makes it, the message may be done by then.

        Args:
            message: A message of the iteration that is not done.

        Raises:
            OptionError: It is done, or has a block already.
        """
        return self._processing(self._running_core(), self._take_last(message))

    @contextmanager
    def _processing(self, core: PushCore, delivery: Delivery) -> Generator[PushedMessage]:
        try:
            yield _message_of(delivery)
        except Exception as error:
            self._client.run(core.fail_to_its_end(delivery, error))
            if not core.is_signal(error):
                raise
        except BaseException as error:  # cancelled, or interrupted: nothing can be waited for
            with suppress(ClientStateError):
                self._client.spawn(core.fail(delivery, error))
            raise
        else:
            self._client.step(lambda: core.finish(delivery))

    def _take_last(self, message: ReceivedMessage) -> Delivery:
        delivery = self._last.pop(id(message), None)
        if delivery is None:
            raise OptionError(
                f"message {message.message_id} cannot be handled in this block: it was done when "
                "the next message was asked for, or it has another block; call processing() in the "
                "loop, before the next message is asked for, and give the block to the thread"
            )
        return delivery

    def _finish_last(self) -> None:
        """Settle what was handed out before, unless a block of it was made."""
        core, passed = self._running_core(), list(self._last)
        for number in passed:
            delivery = self._last.pop(number, None)
            if delivery is not None:
                self._client.step(partial(core.finish, delivery))

    def _drop_last(self, core: PushCore) -> None:
        """Give up what an iteration that has ended did not settle: it is delivered again."""
        for number in list(self._last):
            delivery = self._last.pop(number, None)
            if delivery is not None:
                self._client.step(partial(core.let_go, delivery))

    # ---- inside ------------------------------------------------------------------------------

    def _make_core(self) -> PushCore:
        client, handler = self._client, self._handler
        core = PushCore(
            client.core,
            self._group,
            self._options,
            handler,
            handle_run,
            self._hooks,
            client.spawn,
        )
        core.member.message_class = PushedMessage
        core.member.link = partial(link_to, consumer=self)
        return core

    def _running_core(self) -> PushCore:
        self._client_core()
        assert self._core is not None
        return self._core


def _message_of(delivery: Delivery) -> PushedMessage:
    """Return the message of a delivery; `_make_core` says that it is of this class."""
    return cast("PushedMessage", delivery.messages[0])


def _wait(signal: Signal, deadline: float) -> Flow[bool]:
    is_fired: bool = yield Wait(signal, deadline)
    return is_fired
