"""Downrange's asyncio client as a client of the matrix: a `Drive` per work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.matrix import push_works
from benchmarks.matrix.cells import (
    BATCH,
    BATCHES_IN_FLIGHT,
    ONE_WAY_FENCE,
    PUSHES,
    SENDERS,
    WINDOW,
)
from benchmarks.matrix.tasks import Meter
from downrange import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    Message,
    Outcome,
)
from downrange.model import QueueOffset

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from benchmarks.matrix.cells import WorkName
    from benchmarks.matrix.tasks import Measured, Task
    from downrange import ReceivedMessage, SendReceipt

Drive: TypeAlias = "Callable[[float, list[float]], Awaitable[int]]"
"""Works until a time, records the durations of calls, and returns the number of messages."""

GROUP: Final = "bench-asyncio"
_POLL: Final = 500


async def run(task: Task) -> Measured:
    """Run the task on this event loop."""
    if task.work in PUSHES:
        return await push_works.run_async(task)
    async with _DRIVES[task.work](task) as drive:
        before = await drive(time.perf_counter() + task.lead_in, [])
        meter = Meter(task.pids)
        messages = await drive(meter.started + task.seconds, meter.spans)
        return meter.end(messages, before)


def _singles(width: int) -> Callable[[Task], contextlib.AbstractAsyncContextManager[Drive]]:
    """Return a work that sends single messages from `width` tasks."""

    @contextlib.asynccontextmanager
    async def singles(task: Task) -> AsyncGenerator[Drive]:
        async with _producer(task) as producer:
            yield _in_tasks(_calls(producer.send, task), width)

    return singles


@contextlib.asynccontextmanager
async def _transactions(task: Task) -> AsyncGenerator[Drive]:
    async def commit(*_: Message | ReceivedMessage | SendReceipt) -> Outcome:
        return Outcome.COMMIT

    async with AsyncTransactionProducer(
        task.name_server, group=GROUP, check=commit, options=task.producer_options
    ) as producer:

        async def send(message: Message) -> None:
            done = await producer.send_in_transaction(message, commit)
            assert done.outcome is Outcome.COMMIT

        yield _in_tasks(_calls(send, task), SENDERS)


@contextlib.asynccontextmanager
async def _batches(task: Task) -> AsyncGenerator[Drive]:
    message = _maker(task)
    async with _producer(task) as producer:

        async def drive(until: float, spans: list[float]) -> int:
            count = 0
            while (now := time.perf_counter()) < until:
                receipt = await producer.send_batch([message() for _ in range(BATCH)])
                spans.append(time.perf_counter() - now)
                count += len(receipt)
            return count

        yield _in_tasks(drive, BATCHES_IN_FLIGHT)


@contextlib.asynccontextmanager
async def _one_way(task: Task) -> AsyncGenerator[Drive]:
    message = _maker(task)
    async with _producer(task) as producer:

        async def drive(until: float, _spans: list[float]) -> int:
            count = 0
            while time.perf_counter() < until:
                for _ in range(ONE_WAY_FENCE - 1):
                    await producer.send_oneway(message())
                await producer.send(message())
                count += ONE_WAY_FENCE
            return count

        yield drive


@contextlib.asynccontextmanager
async def _pull(task: Task) -> AsyncGenerator[Drive]:
    left = task.stored
    async with AsyncPullConsumer(task.name_server, group=GROUP) as consumer:
        await consumer.assign(task.topic, start="earliest")
        queues = consumer.queues()

        async def drive(until: float, _spans: list[float]) -> int:
            nonlocal left
            count = 0
            while time.perf_counter() < until:
                found = len(await consumer.poll(10.0, max_count=_POLL))
                if not 0 < found <= left:
                    raise RuntimeError(f"read {found} messages, but {left} were left")
                count += found
                left -= found
                if not left:
                    for queue in queues:
                        await consumer.seek(queue, QueueOffset(0))
                    left = task.stored
            return count

        yield drive


def _producer(task: Task) -> AsyncProducer:
    return AsyncProducer(task.name_server, group=GROUP, options=task.producer_options)


def _maker(task: Task) -> Callable[[], Message]:
    body, topic = os.urandom(task.body_bytes), task.topic
    return lambda: Message(topic, body)


def _calls(call: Callable[[Message], Awaitable[object]], task: Task) -> Drive:
    """Return a drive that makes one call after the other."""
    message = _maker(task)

    async def drive(until: float, spans: list[float]) -> int:
        count = 0
        now = time.perf_counter()
        while now < until:
            await call(message())
            after = time.perf_counter()
            spans.append(after - now)
            now = after
            count += 1
        return count

    return drive


def _in_tasks(drive: Drive, count: int) -> Drive:
    """Return a drive that runs another one in `count` tasks."""

    async def drive_all(until: float, spans: list[float]) -> int:
        return sum(await asyncio.gather(*(drive(until, spans) for _ in range(count))))

    return drive_all


_DRIVES: Final[dict[WorkName, Callable[[Task], contextlib.AbstractAsyncContextManager[Drive]]]] = {
    "sync-1": _singles(1),
    "sync-64": _singles(SENDERS),
    "async-256": _singles(WINDOW),
    "one-way": _one_way,
    "batch": _batches,
    "auto-batch": _singles(WINDOW),
    "transactions": _transactions,
    "pull": _pull,
}
