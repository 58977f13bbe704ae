"""`submit…` of the sync classes: send without waiting for the reply, get a future.

The only part of the public classes without an asyncio twin: there, a task is a future already.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from downrange.checks import wrong_type
from downrange.client._sync.topic_calls import TopicCalls
from downrange.client.flows.effects import Signal
from downrange.client.flows.producing.plain_send import PlainSend
from downrange.client.flows.producing.request_reply import request
from downrange.client.template_base import Details, TemplateBase
from downrange.model import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from downrange.client._sync.client import Client
    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.client.flows.routing.selectors import Selector
    from downrange.model import BatchReceipt, QueueId, ReceivedMessage, SendReceipt

#: Messages of other threads that may come between a look at the limits and the use of the room.
_MARGIN: Final = 64


class ProducerFutures(TopicCalls):
    """`submit`, `submit_batch` and `submit_request` of `Producer`."""

    def submit(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> Future[SendReceipt]:
        """Send a message without waiting for its reply.

        When `in_flight_max` messages are on their way, the call waits until one of them has its
        reply; with `when_full` other than "block" it does not. The wait counts into the timeout.

        Args:
            message: The message.
            queue: A queue, or a selector that chooses one.
            timeout: For the whole call, all attempts together; the producer's option unless given.

        Returns:
            A future of the receipt. Its callbacks run in the client's pool.

        Raises:
            InvalidMessage: The message breaks a rule.
            TooManySends: Too many messages are on their way, see `ProducerOptions.when_full`.
        """
        core, client = self._running_core(), self._client
        room = _room_for(core, client, message)
        if room is None and queue is None and core.is_direct:
            send = core.direct_send(
                message, client.round_robin, core.submit_rules, timeout, is_limited=True
            )
            if isinstance(send, PlainSend):
                return client.submit_send(send)
        flow = core.send(
            message,
            client.round_robin,
            core.submit_rules,
            queue,
            timeout,
            is_limited=True,
            admitted=room,
        )
        return client.submit(flow, room)

    def submit_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> Future[BatchReceipt]:
        """Send messages of one topic without waiting for replies, in as few requests as possible.

        The call waits until there is room for its first request, as `submit` does; further requests
        wait in the background.

        Args:
            messages: Any number of messages. Those of the first request are taken from the iterable
                by this call, the others in the background; with `when_full="queue"`, all of them.
            queue: A queue, or a selector that chooses one, for each request.
            timeout: For each request; the producer's option unless given.

        Returns:
            A future of one receipt per request.

        Raises:
            InvalidMessage: A message breaks a rule.
            TooManySends: Too many messages are on their way, see `ProducerOptions.when_full`.
        """
        core, client = self._running_core(), self._client
        room = None if core.options.when_full == "queue" else Signal()
        flow = core.send_batch(
            messages,
            client.round_robin,
            core.submit_rules,
            queue,
            timeout,
            is_limited=True,
            admitted=room,
        )
        return client.submit(flow, room)

    def submit_request(
        self,
        message: Message,
        *,
        queue: QueueId | Selector | None = None,
        timeout: float | None = None,
    ) -> Future[ReceivedMessage]:
        """Send a request without waiting for its reply.

        A request counts as a message on its way until its reply is there; see `submit`.

        Args:
            message: The request.
            queue: A queue, or a selector that chooses one.
            timeout: For sending and waiting together; the producer's option unless given.

        Returns:
            A future of the reply. Its callbacks run in the client's pool.

        Raises:
            InvalidMessage: The message breaks a rule.
            TooManySends: Too many messages are on their way, see `ProducerOptions.when_full`.
        """
        core, client = self._running_core(), self._client
        room = _room_for(core, client, message)
        flow = request(
            core,
            message,
            client.round_robin,
            core.submit_rules,
            queue,
            timeout,
            is_limited=True,
            admitted=room,
        )
        return client.submit(flow, room)

    def _running_core(self) -> ProducerCore:
        raise NotImplementedError


def _room_for(core: ProducerCore, client: Client, message: Message) -> Signal | None:
    """Return the signal that a submit of a message waits for: there is room.

    None where it need not wait: with "queue", or if there is room for sure. To take room for each
    message in the thread of the caller would make the two threads wait for each other's lock. This
    reads without the lock: other threads may submit in between, which the margin allows for.
    """
    permits = core.permits
    # A value that is not a message is refused later.
    size = len(message.body) if isinstance(cast("Any", message), Message) else 0
    if size > permits.size_high:
        permits.size_high = size
    ahead = client.backlog + _MARGIN
    if core.options.when_full == "queue" or (
        permits.in_flight + ahead < permits.count_max
        and permits.in_flight_bytes + ahead * permits.size_high < permits.bytes_max
    ):
        return None
    return Signal()


class TemplateFutures(TemplateBase):
    """`convert_and_submit` of `MessageTemplate`."""

    @property
    def producer(self) -> ProducerFutures:
        """The producer of the template."""
        raise NotImplementedError

    def convert_and_submit(
        self,
        destination: str,
        payload: object,
        *,
        on_success: Callable[[SendReceipt], object] | None = None,
        on_failure: Callable[[BaseException], object] | None = None,
        timeout: float | None = None,
        **details: Unpack[Details],
    ) -> Future[SendReceipt]:
        """Send a value without waiting.

        Args:
            destination: "topic:tag" or "topic"; ":tag" and "" use the default topic.
            payload: The value to convert into the body, or an `Envelope` of it.
            on_success: Called with the receipt, in the client's pool.
            on_failure: Called with the error, in the client's pool.
            timeout: For the whole call; the producer's option unless given.
            details: Keys, properties, delay.

        Returns:
            A future of the receipt.

        Raises:
            OptionError: No converter takes the payload, or an argument is invalid.
        """
        for name, function in (("on_success", on_success), ("on_failure", on_failure)):
            if function is not None and not callable(function):
                raise wrong_type(name, function, "a function")
        message = self.message(destination, payload, **details)
        future = self.producer.submit(message, timeout=timeout)
        if on_success is not None or on_failure is not None:
            future.add_done_callback(partial(_notify, on_success, on_failure))
        return future


def _notify(
    on_success: Callable[[SendReceipt], object] | None,
    on_failure: Callable[[BaseException], object] | None,
    future: Future[SendReceipt],
) -> None:
    """Call the function for the outcome of a future; none for a cancelled one."""
    if future.cancelled():
        return
    error = future.exception()
    if error is not None:
        if on_failure is not None:
            on_failure(error)
    elif on_success is not None:
        on_success(future.result())
