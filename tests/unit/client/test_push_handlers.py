from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections import deque
from typing import Any

import pytest

from downrange.client.consumed_base import ConsumedMessage, link_to
from downrange.client.flows.consuming.delivery_window import Buffer, Delivery, DeliveryWindow
from downrange.client.flows.consuming.pull import EVERYTHING, read_messages
from downrange.client.push_base import (
    any_handler,
    handle_run,
    handle_run_async,
    handler_pool,
    in_pool,
    is_coroutine_handler,
    plain_handler,
)
from downrange.errors import OptionError
from downrange.model import QueueId, QueueOffset, ReceivedMessage
from tests.unit.client.flows.fake_servers import FakeServers, record


class AsyncObject:
    async def __call__(self, message: Any) -> None: ...

    async def method(self, message: Any) -> None: ...


async def coroutine(message: Any) -> None: ...


def messages(count: int, kind: type[ReceivedMessage] = ReceivedMessage) -> list[ReceivedMessage]:
    data = b"".join(record("orders", number) for number in range(count))
    return read_messages(FakeServers().core, data, "a", message_class=kind)


def run_of(count: int) -> Delivery:
    queue = QueueId("orders", "a", 0)
    window = DeliveryWindow(queue, EVERYTHING, QueueOffset(0), Buffer(100, 1000), 0.0)
    return Delivery(window, [], 0.0, deque(messages(count)))


def test_coroutine_functions_are_known_in_any_form() -> None:
    for handler in (coroutine, AsyncObject(), AsyncObject().method):
        assert is_coroutine_handler(handler)
        assert inspect.iscoroutinefunction(any_handler(handler))
        with pytest.raises(OptionError, match="use AsyncPushConsumer"):
            plain_handler(handler)
    assert plain_handler(print) is print
    for check in (plain_handler, any_handler):
        with pytest.raises(OptionError, match="cannot be called"):
            check(3)


def test_a_run_is_handled_until_it_ends_or_its_queue_goes() -> None:
    handled: list[Any] = []
    delivery = run_of(3)
    handle_run(handled.append, delivery)
    assert [each.offset for each in handled] == [0, 1, 2]
    assert delivery.messages == handled
    delivery = run_of(3)
    handle_run(lambda message: delivery.window.stop(), delivery)
    assert (len(delivery.messages), len(delivery.rest or ())) == (1, 2)


def test_another_worker_may_take_the_last_message_of_a_run() -> None:
    class Taken(deque[Any]):
        def __bool__(self) -> bool:
            return True  # as seen before the other one took it

    delivery = run_of(0)
    delivery.rest = Taken()
    handle_run(print, delivery)
    assert delivery.messages == []


def test_a_run_of_a_coroutine_function() -> None:
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        handled.append(message)
        if message.offset == 1:
            delivery.window.stop()

    delivery = run_of(3)
    asyncio.run(handle_run_async(handle, delivery))
    assert [each.offset for each in handled] == [0, 1]


def test_a_promise_of_a_handler_is_not_its_work() -> None:
    delivery = run_of(3)
    with pytest.raises(OptionError, match="the handler returned a coroutine, so it has not"):
        handle_run(lambda message: coroutine(message), delivery)
    assert len(delivery.messages) == 1

    async def promise(message: Any) -> Any:
        return coroutine(message)

    with pytest.raises(OptionError, match="returned a coroutine"):
        asyncio.run(handle_run_async(promise, run_of(1)))


def test_what_a_plain_handler_of_an_event_loop_promises_is_awaited() -> None:
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        handled.append(message)

    async def check() -> None:
        with handler_pool("jobs", 1) as pool:
            await in_pool(pool, lambda message: handle(message))(3)

    asyncio.run(check())
    assert handled == [3]


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt])
def test_errors_that_a_future_cannot_hold_come_out_of_the_pool(
    error: type[BaseException],
) -> None:
    def fail(argument: Any) -> None:
        raise error

    async def check() -> None:
        with handler_pool("jobs", 1) as pool:
            assert await in_pool(pool, str)(3) == "3"
            with pytest.raises(RuntimeError, match=f"the handler raised {error.__name__}"):
                await in_pool(pool, fail)(3)

    asyncio.run(check())


def test_a_copy_of_a_message_is_a_plain_one() -> None:
    (message,), (plain,) = messages(1, ConsumedMessage), messages(1)
    link_to(message, "the consumer")
    assert isinstance(message, ConsumedMessage)
    assert message._consumer == "the consumer"
    assert message == plain
    assert hash(message) == hash(plain)
    assert message.__eq__(b"x") is NotImplemented
    for made in (copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert type(made) is ReceivedMessage
        assert made == message
