"""Sends whose cost is counted: every kind, through the public classes."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from opentelemetry.sdk.trace import TracerProvider

from downrange import (
    AsyncProducer,
    AutoBatch,
    Message,
    Producer,
    ProducerOptions,
    instrument,
    uninstrument,
)
from tests.guards.server_loop import NAME_SERVER, TOPIC, AnsweringDialer

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.guards.count import Operation

BATCH: Final = 100
TOGETHER: Final = 100
_BODY: Final = bytes(1024)


def _message() -> Message:
    return Message(TOPIC, _BODY)


@contextmanager
def _threaded() -> Generator[Producer]:
    with (
        patch("downrange.client._sync.client.Dialer", AnsweringDialer),
        Producer(NAME_SERVER, group="guards") as producer,
    ):
        yield producer


@contextmanager
def _asynchronous(
    options: ProducerOptions | None = None,
) -> Generator[tuple[asyncio.Runner, AsyncProducer]]:
    with (
        patch("downrange.client._async.client.Dialer", AnsweringDialer),
        asyncio.Runner() as runner,
    ):

        async def producer() -> AsyncProducer:
            return await AsyncProducer(NAME_SERVER, group="guards", options=options).start()

        started = runner.run(producer())
        try:
            yield runner, started
        finally:
            runner.run(started.close())


@contextmanager
def sync() -> Generator[Operation]:
    """One message, in the caller's thread."""
    with _threaded() as producer:
        yield lambda: producer.send(_message())


@contextmanager
def traced() -> Generator[Operation]:
    """One message with a span of OpenTelemetry; the SDK's own code is not counted."""
    with _threaded() as producer:
        instrument(tracer_provider=TracerProvider())
        try:
            yield lambda: producer.send(_message())
        finally:
            uninstrument()


@contextmanager
def oneway() -> Generator[Operation]:
    """One one-way message."""
    with _threaded() as producer:
        yield lambda: producer.send_oneway(_message())


@contextmanager
def batch() -> Generator[Operation]:
    """A hundred messages in one request."""
    with _threaded() as producer:
        yield lambda: producer.send_batch([_message() for _ in range(BATCH)])


@contextmanager
def tasks() -> Generator[Operation]:
    """A hundred messages that a hundred tasks send at the same time."""
    with _asynchronous() as (runner, producer):

        async def together() -> None:
            await asyncio.gather(*(producer.send(_message()) for _ in range(TOGETHER)))

        yield lambda: runner.run(together())


@contextmanager
def tasks_batch() -> Generator[Operation]:
    """A hundred messages in one request of a task."""
    with _asynchronous() as (runner, producer):

        async def one() -> None:
            await producer.send_batch([_message() for _ in range(BATCH)])

        yield lambda: runner.run(one())


@contextmanager
def tasks_gathered() -> Generator[Operation]:
    """A hundred messages of a hundred tasks, which the producer collects into batches."""
    with _asynchronous(ProducerOptions(auto_batch=AutoBatch(hold_ms=1))) as (runner, producer):

        async def together() -> None:
            await asyncio.gather(*(producer.send(_message()) for _ in range(TOGETHER)))

        yield lambda: runner.run(together())
