"""Our producer at work in a process of its own: takes `SendWork` as JSON, prints `SendMeasured`.

python -m benchmarks.sender '{"mode": "sync", "name_server": "127.0.0.1:9876",
"topic": "bench", "seconds": 3}'
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from downrange import AsyncProducer, AutoBatch, Message, Producer, ProducerOptions
from downrange.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from downrange import BatchReceipt, SendReceipt

SendMode: TypeAlias = Literal[
    "sync", "sync-threads", "submit", "aio", "uvloop", "batch", "aio-batch", "auto-batch",
    "aio-auto-batch", "oneway",
]  # fmt: skip
Until: TypeAlias = float

WINDOW: Final = 256
THREADS: Final = 64
BATCH: Final = 100
BATCHES_IN_FLIGHT: Final = 8
GROUP: Final = "bench-ours"


class SendWork(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        mode: How to send.
        name_server: Where.
        topic: An existing topic.
        seconds: How long to measure.
        lead_in: How long to do the same before.
        body_bytes: Size of each body.
        codec: How headers are written.
    """

    mode: SendMode
    name_server: str
    topic: str
    seconds: float
    lead_in: float = 0.5
    body_bytes: int = 1024
    codec: Literal["json", "binary"] = "json"


class SendMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        messages: Acknowledged in the measured time.
        messages_before: The same in the lead-in.
        seconds: The measured time.
        client_cpu: CPU seconds of this process in it.
        latencies_us: Median and 99th percentile of a call, where callers wait.
    """

    messages: int
    messages_before: int
    seconds: float
    client_cpu: float
    latencies_us: tuple[float, float] | None = None


def _options(work: SendWork) -> ProducerOptions:
    gathers = work.mode in ("auto-batch", "aio-auto-batch")
    # compressing is not what is measured; Java's client is told the same
    return ProducerOptions(
        compress_over_bytes=1 << 22, timeout=10.0, auto_batch=AutoBatch() if gathers else None
    )


# ---- threads -------------------------------------------------------------------------------------


def _sync(
    producer: Producer, message: Callable[[], Message], spans: list[float]
) -> Callable[[Until], int]:
    def drive(until: Until) -> int:
        count = 0
        now = time.perf_counter()
        while now < until:
            producer.send(message())
            after = time.perf_counter()
            spans.append(after - now)
            now = after
            count += 1
        return count

    return drive


def _threads(drive: Callable[[Until], int]) -> Callable[[Until], int]:
    def drive_all(until: Until) -> int:
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(drive(until))) for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return drive_all


def _submit(producer: Producer, message: Callable[[], Message]) -> Callable[[Until], int]:
    def drive(until: Until) -> int:
        count = 0
        waiting: deque[Future[SendReceipt]] = deque()
        while time.perf_counter() < until:
            waiting.append(producer.submit(message()))
            if len(waiting) >= WINDOW:
                waiting.popleft().result()
                count += 1
        for future in waiting:
            future.result()
        return count + len(waiting)

    return drive


def _batches(producer: Producer, message: Callable[[], Message]) -> Callable[[Until], int]:
    def drive(until: Until) -> int:
        count = 0
        waiting: deque[Future[BatchReceipt]] = deque()
        while time.perf_counter() < until:
            waiting.append(producer.submit_batch([message() for _ in range(BATCH)]))
            if len(waiting) >= BATCHES_IN_FLIGHT:
                count += len(waiting.popleft().result())
        return count + sum(len(future.result()) for future in waiting)

    return drive


def _oneway(producer: Producer, message: Callable[[], Message]) -> Callable[[Until], int]:
    def drive(until: Until) -> int:
        count = 0
        while time.perf_counter() < until:
            producer.send_oneway(message())
            count += 1
        return count

    return drive


def _run_threads(work: SendWork) -> SendMeasured:
    body = os.urandom(work.body_bytes)
    spans: list[float] = []

    def message() -> Message:
        return Message(work.topic, body)

    with Producer(
        work.name_server,
        group=GROUP,
        options=_options(work),
        client_options=ClientOptions(header_codec=work.codec),
    ) as producer:
        producer.send(message())
        if work.mode == "sync":
            drive = _sync(producer, message, spans)
        elif work.mode in ("sync-threads", "auto-batch"):
            drive = _threads(_sync(producer, message, spans))
        elif work.mode == "submit":
            drive = _submit(producer, message)
        elif work.mode == "batch":
            drive = _batches(producer, message)
        else:
            drive = _oneway(producer, message)
        before = 1 + drive(time.perf_counter() + work.lead_in)
        spans.clear()
        begun, cpu = time.perf_counter(), time.process_time()
        messages = drive(begun + work.seconds)
        return SendMeasured(
            messages=messages,
            messages_before=before,
            seconds=time.perf_counter() - begun,
            client_cpu=time.process_time() - cpu,
            latencies_us=_percentiles(spans),
        )


# ---- asyncio -------------------------------------------------------------------------------------


async def _run_tasks(work: SendWork) -> SendMeasured:
    body = os.urandom(work.body_bytes)
    spans: list[float] = []

    async with AsyncProducer(
        work.name_server,
        group=GROUP,
        options=_options(work),
        client_options=ClientOptions(header_codec=work.codec),
    ) as producer:

        async def single(until: Until) -> int:
            count = 0
            now = time.perf_counter()
            while now < until:
                await producer.send(Message(work.topic, body))
                after = time.perf_counter()
                spans.append(after - now)
                now = after
                count += 1
            return count

        async def batches(until: Until) -> int:
            count = 0
            while time.perf_counter() < until:
                messages = [Message(work.topic, body) for _ in range(BATCH)]
                count += len(await producer.send_batch(messages))
            return count

        async def drive(until: Until) -> int:
            if work.mode == "aio-batch":
                tasks = [batches(until) for _ in range(BATCHES_IN_FLIGHT)]
            else:
                tasks = [single(until) for _ in range(WINDOW)]
            return sum(await asyncio.gather(*tasks))

        await producer.send(Message(work.topic, body))
        before = 1 + await drive(time.perf_counter() + work.lead_in)
        spans.clear()
        begun, cpu = time.perf_counter(), time.process_time()
        messages = await drive(begun + work.seconds)
        return SendMeasured(
            messages=messages,
            messages_before=before,
            seconds=time.perf_counter() - begun,
            client_cpu=time.process_time() - cpu,
            latencies_us=_percentiles(spans),
        )


def _percentiles(spans: list[float]) -> tuple[float, float] | None:
    if not spans:
        return None
    spans.sort()
    return spans[len(spans) // 2] * 1e6, spans[len(spans) * 99 // 100] * 1e6


def main(argument: str) -> None:
    work = msgspec.json.decode(argument, type=SendWork)
    if work.mode == "aio":
        measured = asyncio.run(_run_tasks(work))
    elif work.mode in ("uvloop", "aio-batch", "aio-auto-batch"):
        import uvloop

        measured = uvloop.run(_run_tasks(work))
    else:
        measured = _run_threads(work)
    sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
