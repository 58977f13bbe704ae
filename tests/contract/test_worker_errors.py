"""Handlers that raise what is not an `Exception`: the message has failed, and consuming goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from downrange import ConsumerOptions, Message, PushConsumer
from tests.contract.conftest import only_async
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server


class Odd(BaseException):
    """Neither an `Exception` nor one that Python itself raises."""


def check_that_it_goes_on(consumer: Any, producer: Any, topic: str, handled: list[bytes]) -> None:
    for body in (b"bad", b"good"):
        producer.send(Message(topic, body))
        wait_until(lambda: body in handled)  # noqa: B023 - it is called before the next turn
    wait_until(lambda: consumer.stats().sent_back == 1)
    stats = consumer.stats()
    assert (stats.failed, stats.handled) == (1, 1)


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
