"""`AsyncPushConsumer`: a member of a consumer group whose handler gets the messages.

    async def bill(message: ReceivedMessage) -> None: ...

    async with AsyncPushConsumer("127.0.0.1:9876", group="billing", subscribe={"orders": "new"},
                                 handler=bill) as consumer:
        await consumer.wait()

Every method makes a flow, which the client runs.
"""

from __future__ import annotations

import asyncio  # no sync
import logging
from contextlib import (
    asynccontextmanager,  # sync: contextmanager,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast, overload

from downrange.checks import check_wait
from downrange.client._async.client_user import AsyncClientUser
from downrange.client._async.pushed_message import AsyncPushedMessage
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
    any_handler,
    handle_run_async,
    handler_pool,  # no sync
    in_pool,  # no sync
    is_coroutine_handler,  # no sync
)
from downrange.errors import ClientClosed, ClientStateError, OptionError, RocketMQError
from downrange.options.consumers import ConsumerOptions

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
    )
    from concurrent.futures import ThreadPoolExecutor  # no sync
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from downrange.client._async.client import AsyncClient
    from downrange.client.client_base import Servers
    from downrange.client.consumer_stats import ConsumerHealth, ConsumerStats
    from downrange.client.drivers.workers import AioWorkers
    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.consuming.subscriptions import Subscribe
    from downrange.client.flows.effects import Flow
    from downrange.filters.sql import Sql
    from downrange.model import QueueId, ReceivedMessage, SendReceipt
    from downrange.options import TLS, ClientOptions, Credentials, Proxy

_log = logging.getLogger("downrange.client")


class AsyncPushConsumer(AsyncClientUser):
    """A member of a consumer group; the members divide the queues of the topics.

    A handler that returns has handled its message. One that raises gets it again later: after the
    usual time, after `Retry(after=…)`, or never with `DeadLetter`, which moves the message to the
    group's dead-letter topic. Each message is handled at least once; after a crash some are handled
    twice.

    Without a handler, iterate over the consumer: a message is done when the next one is asked for.

    Args:
        servers: Name servers, "host:port" separated by ";" or a list; or an `AsyncClient` to share.
        group: The consumer group.
        subscribe: A topic, a list of topics, or a dict of topics to tags ("new || paid") or `Sql`.
        handler: Called with each message, or with a list if `batch` is above 1. A coroutine
            function runs on the event loop, a plain one in a thread.
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
        async with AsyncPushConsumer(
            "127.0.0.1:9876", group="billing", subscribe={"orders": "new || paid"}, handler=bill
        ) as consumer:
            await consumer.wait()
        ```
    """

    @overload
    def __init__(
        self,
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[AsyncPushedMessage], Awaitable[object] | object] | None = None,
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
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[list[AsyncPushedMessage]], Awaitable[object] | object]
        | Callable[[list[ReceivedMessage]], Awaitable[object] | object],
        options: ConsumerOptions,
        client_options: ClientOptions | None = None,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        proxy: Proxy | None = None,
        hooks: Hooks | None = None,
    ) -> None: ...
    def __init__(
        self,
        servers: AsyncClient | Servers | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Callable[[Any], Awaitable[object] | object] | None = None,
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
        self._handler = None if handler is None else any_handler(handler)
        if handler is None and self._options.batch > 1:
            raise OptionError("batch is for handlers; iteration gives one message at a time")
        self._hooks = hooks or Hooks()
        self._core: PushCore | None = None
        self._workers: AioWorkers | None = None
        self._pool: ThreadPoolExecutor | None = None  # no sync
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

    async def start(self) -> Self:
        """Join the group and begin to handle messages; does nothing while it is running.

        Raises:
            ConnectFailed: No name server can be reached.
            GroupTaken: The client has a consumer of this group.
            InvalidSql, SqlNotSupported: A broker refuses a filter.
            ClientClosed: The consumer was closed, perhaps meanwhile.
        """
        if self._state == "closed":
            raise ClientClosed(repr(self))
        await self._client.start()  # in a forked process it raises
        self._check_open()
        if self._state == "running":
            return self
        core = self._make_core()
        try:
            deadline = core.core.clock.now() + core.core.options.call_timeout
            await self._enter(core.enter(self._filters, deadline), core.undo_enter)
        except BaseException:
            if self._owns_client:
                await self._client.close()
            raise
        self._core, self._state = core, "running"
        for flow in core.background():
            self._client.spawn(flow)
        if self._handler is not None:
            name = f"downrange-{self._group}"
            self._workers = self._client.start_workers(core.work, self._options.concurrency, name)
        return self

    async def close(self, timeout: float = DRAIN_TIMEOUT) -> None:
        """Let running handlers end, commit, and leave the group; may be called again.

        Messages that were not begun go to other members. Messages whose handlers do not end in time
        are delivered again.

        Args:
            timeout: How long handlers may take.

        Raises:
            ClientStateError: It was called by a handler, for which it would wait; use `stop`.
        """
        check_wait("timeout", timeout)
        if self._state == "running":  # no sync
            self._client.check_loop(repr(self))  # no sync
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
            error = await self._error_of(lambda: self._leave(core, deadline, unfinished))
            await self._end_workers(core, deadline if unfinished else None)
        if self._pool is not None:  # no sync
            self._pool.shutdown(wait=False)  # no sync
        if self._owns_client:
            await self._client.close()
        if isinstance(error, RocketMQError):
            _log.warning("while closing %r: %s", self, error)
        elif error is not None:
            raise error

    async def _leave(
        self, core: PushCore, deadline: float, unfinished: list[DeliveryWindow]
    ) -> None:
        """Leave the group; add the windows whose handlers did not end in time."""
        self._client.step(self._stopped.fire)
        self._drop_last(core)
        unfinished += await self._client.run(core.exit(deadline))
        for window in unfinished:
            _log.warning(
                "%r was closed while %d messages of %s were handled; they are delivered again",
                self,
                len(window.running),
                window.queue,
            )

    async def _end_workers(self, core: PushCore, deadline: float | None) -> None:
        """End the workers, whatever failed before; None if no handler runs."""
        with suppress(ClientStateError):  # the client was closed meanwhile
            self._client.step(core.end_workers)
        if self._workers is not None:
            left = 1.0 if deadline is None else max(0.0, deadline - core.core.clock.now())
            await self._workers.join(left)

    def stop(self) -> None:
        """Let `wait` return and iteration end; may be called in a handler, and from any thread."""
        if self._state == "running":
            self._client.step(self._stopped.fire)

    async def wait(self, timeout: float | None = None) -> bool:
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
            await self._client.run(_wait(self._stopped, until))
            if deadline is not None and clock.now() >= deadline:
                break
        return self._stopped.is_fired

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer; messages that are being handled may end."""
        await self.close()

    # ---- at run time -------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, tags: str | Sql = "*", *, timeout: float | None = None
    ) -> None:
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
        await self._resubscribe(self._current_filters | {topic: filter_of(tags)}, timeout)

    async def unsubscribe(self, topic: str, *, timeout: float | None = None) -> None:
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
        await self._resubscribe(filters, timeout)

    async def _resubscribe(self, filters: dict[str, Filter], timeout: float | None) -> None:
        _, deadline = self._deadline(timeout)
        await self._client.run(self._running_core().member.resubscribe(filters, deadline))

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
        flow = reply(
            core, request, message, client.round_robin, core.async_rules, timeout, is_limited=True
        )
        return await client.run(flow)

    # ---- iteration ---------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[AsyncPushedMessage]:
        """Iterate over messages; each is done when the next one is asked for.

        For several at a time use `processing`.

        Raises:
            OptionError: The consumer has a handler.
        """
        if self._handler is not None:
            raise OptionError(f"{self!r} has a handler, which gets the messages")
        return self

    async def __anext__(self) -> AsyncPushedMessage:
        """Return the next message; the one before is done, unless a block of it was made."""
        core = self._running_core()
        self._client.check_loop()  # no sync
        if self._last:
            await self._finish_last()
        delivery = await self._next_delivery(core)
        if delivery is None:
            raise StopAsyncIteration
        message = _message_of(delivery)
        self._last[id(message)] = delivery
        return message

    async def _next_delivery(self, core: PushCore) -> Delivery | None:
        """Take a message in a step, after a wait: a caller that is cancelled has taken none."""
        try:
            while not self._stopped.is_fired:
                delivery = self._client.step(core.take_next)
                if delivery is not None:
                    return delivery
                if not await self._client.run(core.wait_for_next(self._stopped)):
                    break
        except BaseException:  # if it was woken already, another caller gets the message
            with suppress(ClientStateError):
                self._client.step(core.wake)
            raise
        return None

    def processing(
        self, message: ReceivedMessage
    ) -> AbstractAsyncContextManager[AsyncPushedMessage]:
        """Return a block in which a message is handled, while others are asked for.

        It is done when the block ends, and delivered again if the block raises: `Retry` and
        `DeadLetter` end here, any other exception goes on to the caller. The block may be entered
        later and elsewhere.

        Make the block in the loop, before the next message is asked for. A task that was created
        there may make it, too, before it awaits anything else: later the message counts as done.

        Args:
            message: A message of the iteration that is not done.

        Raises:
            OptionError: It is done, or has a block already.
        """
        return self._processing(self._running_core(), self._take_last(message))

    @asynccontextmanager  # sync: @contextmanager
    async def _processing(
        self, core: PushCore, delivery: Delivery
    ) -> AsyncGenerator[AsyncPushedMessage]:
        try:
            yield _message_of(delivery)
        except Exception as error:
            await self._client.run(core.fail_to_its_end(delivery, error))
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
                "loop, before the next message is asked for, and give the block to the task"
            )
        return delivery

    async def _finish_last(self) -> None:
        """Settle what was handed out before, unless a block of it was made.

        Before that the loop takes a turn: a task that was created for the message runs to its
        `processing()`. If the caller is cancelled in this turn, the message is not done: its task
        may have been cancelled, too, before it began.
        """
        core, passed = self._running_core(), list(self._last)
        await asyncio.sleep(0)  # no sync
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
        if handler is not None and not is_coroutine_handler(handler):  # no sync
            self._pool = handler_pool(self._group, self._options.concurrency)  # no sync
            handler = in_pool(self._pool, handler)  # no sync
        core = PushCore(
            client.core,
            self._group,
            self._options,
            handler,
            handle_run_async,
            self._hooks,
            client.spawn,
        )
        core.member.message_class = AsyncPushedMessage
        core.member.link = partial(link_to, consumer=self)
        return core

    def _running_core(self) -> PushCore:
        self._client_core()
        assert self._core is not None
        return self._core


def _message_of(delivery: Delivery) -> AsyncPushedMessage:
    """Return the message of a delivery; `_make_core` says that it is of this class."""
    return cast("AsyncPushedMessage", delivery.messages[0])


def _wait(signal: Signal, deadline: float) -> Flow[bool]:
    is_fired: bool = yield Wait(signal, deadline)
    return is_fired
