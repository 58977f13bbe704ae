"""Handlers that end in odd ways: the message has failed, and consuming goes on.

They raise what is not an `Exception`, or return a coroutine that is not awaited.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin, ClientOptions, ConsumerOptions, Message, PushConsumer
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_async
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server


PATIENT = ClientOptions(call_timeout=LONG_TIMEOUT)


class Odd(BaseException):
    """Neither an `Exception` nor one that Python itself raises."""


def check_that_it_goes_on(consumer: Any, producer: Any, topic: str, handled: list[bytes]) -> None:
    for body in (b"bad", b"good"):
        producer.send(Message(topic, body))
        wait_until(lambda: body in handled)  # noqa: B023 - it is called before the next turn

    def is_counted() -> bool:
        stats = consumer.stats()
        # On a slow machine the failed message may have come again.
        counts = (handled.count(b"bad"), handled.count(b"bad"), handled.count(b"good"))
        return (stats.failed, stats.sent_back, stats.handled) == counts

    wait_until(is_counted)
    assert handled.count(b"good") == 1


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, SystemExit, Odd])
@pytest.mark.parametrize("mode", ["concurrent", "pop"])
def test_plain_handlers(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    error: type[BaseException],
    mode: Any,
) -> None:
    topic, handled = embedded.topic(queues=1), list[bytes]()

    def handle(message: Any) -> None:
        handled.append(message.body)
        if message.body == b"bad":
            raise error

    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=unique_name("jobs"),
        subscribe=topic,
        handler=handle,
        options=ConsumerOptions(mode=mode, start="earliest", concurrency=1),
    ).start()
    check_that_it_goes_on(consumer, producer(embedded), topic, handled)


@only_async
@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd])
def test_coroutine_handlers(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    error: type[BaseException],
) -> None:
    topic, handled = embedded.topic(queues=1), list[bytes]()

    async def handle(message: Any) -> None:
        handled.append(message.body)
        if message.body == b"bad":
            raise error

    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=unique_name("jobs"),
        subscribe=topic,
        handler=handle,
        options=ConsumerOptions(start="earliest", concurrency=1),
    ).start()
    check_that_it_goes_on(consumer, producer(embedded), topic, handled)


@pytest.mark.parametrize("mode", ["concurrent", "orderly", "pop"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_message_is_not_done_when_its_handler_returns_a_coroutine(
    embedded: Server,
    producer: MakeProducer,
    make: Make,
    unique_name: UniqueName,
    mode: Any,
    batch: int,
) -> None:
    topic, handled = embedded.topic(queues=1), list[Any]()

    async def handle(message: Any) -> None:
        handled.append(message)

    def decorated(message: Any) -> Any:
        return handle(message)

    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=unique_name("jobs"),
        subscribe=topic,
        handler=decorated,
        options=ConsumerOptions(mode=mode, start="earliest", batch=batch),
    ).start()
    producer(embedded).send(Message(topic, b"1"))
    if make.kind == "async":
        wait_until(lambda: consumer.stats().handled == 1)
        assert len(handled) == 1
    else:  # no thread can await it
        wait_until(lambda: consumer.stats().failed >= 1)
        assert (consumer.stats().handled, handled) == (0, [])


@only_async
def test_a_tool_has_an_object_handle_a_message(
    embedded: Server, producer: MakeProducer, make: Make, unique_name: UniqueName
) -> None:
    topic, group, handled = embedded.topic(queues=1), unique_name("jobs"), list[bytes]()

    class Bill:
        async def __call__(self, message: Any) -> None:
            handled.append(message.body)

    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=group,
        subscribe=topic,
        handler=Bill(),
        options=ConsumerOptions(start="earliest"),
    ).start()
    receipt = producer(embedded).send(Message(topic, b"1"))
    wait_until(lambda: consumer.stats().handled == 1)
    with Admin(embedded.name_server, client_options=PATIENT) as admin:
        [member] = admin.group_members(group).members
        result = admin.consume_directly(group, member.client_id, topic, receipt.message_id)
    assert (result.is_consumed, handled) == (True, [b"1", b"1"])
