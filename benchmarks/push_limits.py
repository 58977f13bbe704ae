"""Limits of push consumers: what idle queues cost, and whether memory stays flat.

    python -m benchmarks.push_limits [--only idle|memory] [--queues N] [--seconds S] [--messages N]

"idle" subscribes to a topic with 10,000 queues without messages, and measures the CPU of the
consumer and of the embedded server: only long polls should be left. So many queues are polled every
100 seconds; the default of 200 seconds is two rounds of polls. The result says how many queues were
polled, which shows if S is too short for N. "memory" sends small messages while a consumer handles
them, and prints the consumer's memory after a quarter of them and at the end. Client and server are
processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import server_pair
from benchmarks.load import cpu_seconds, own_bytes
from benchmarks.matrix.children import run_module
from benchmarks.matrix.topic_filler import fill
from downrange import AsyncPushConsumer
from downrange.options.consumers import ConsumerOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.server_pair import Peer
    from downrange import ReceivedMessage

QUEUES: Final = 10_000
MESSAGES: Final = 2_000_000
#: Two rounds of polls of `QUEUES`: a whole number, because queues are polled in bursts.
IDLE_SECONDS: Final = 200.0
_TOPIC: Final = "bench-limits"
_BODY_BYTES: Final = 100
_SETTLE_TIMEOUT: Final = 120.0
_WAIT_MAX: Final = 600.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer's process does.

    Attributes:
        name_server: Where the server is.
        broker_pids: The server's processes.
        queues: Idle queues to wait for; 0 to handle messages.
        seconds: How long to measure idle queues.
        messages: Messages to handle.
    """

    name_server: str
    broker_pids: tuple[int, ...]
    queues: int = 0
    seconds: float = IDLE_SECONDS
    messages: int = 0


class Idle(msgspec.Struct, frozen=True):
    """CPU of idle queues, in percent of a core; memory in MB.

    Attributes:
        client_percent: CPU of the consumer.
        server_percent: CPU of the server.
        client_mb: Memory of the consumer.
        polled: Queues with an answer to a poll in the time that was measured.
        queues: All queues of the consumer, those of its retry topic included.
    """

    client_percent: float
    server_percent: float
    client_mb: float
    polled: int
    queues: int


class Memory(msgspec.Struct, frozen=True):
    """Memory of a consumer in MB after a quarter of the messages, and after all."""

    quarter_mb: float
    end_mb: float
    rate: float


async def _idle(job: Job) -> Idle:
    async def handle(_: ReceivedMessage) -> None:
        raise AssertionError("there are no messages")

    async with AsyncPushConsumer(
        job.name_server, group="bench-idle", subscribe=[_TOPIC], handler=handle
    ) as consumer:
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        # The last queue is idle when its first pull is held: then the consumer takes no CPU.
        while len(consumer.assignment()) < job.queues or await _percent(1.0) > 20:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(consumer.assignment())} of {job.queues} queues")
        started, before = time.monotonic(), cpu_seconds(job.broker_pids)
        client = await _percent(job.seconds)
        server = cpu_seconds(job.broker_pids) - before
        seconds = time.monotonic() - started
        pulls = [queue.last_pull for queue in consumer.health().queues]
        return Idle(
            client_percent=client,
            server_percent=server / seconds * 100,
            client_mb=own_bytes(["self"]) / 1e6,
            polled=sum(last is not None and last < seconds for last in pulls),
            queues=len(pulls),
        )


async def _percent(seconds: float) -> float:
    """Return the share of one core that this process takes in some seconds."""
    before, started = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    return (time.process_time() - before) / (time.monotonic() - started) * 100


async def _memory(job: Job) -> Memory:
    count, quarter = 0, 0.0
    is_over = asyncio.Event()
    started = time.monotonic()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal count, quarter
        count += len(message.body) == _BODY_BYTES
        if count == job.messages // 4:
            quarter = own_bytes(["self"]) / 1e6
        elif count == job.messages:
            is_over.set()

    async with AsyncPushConsumer(
        job.name_server,
        group=f"bench-memory-{os.getpid()}",
        subscribe=[_TOPIC],
        handler=handle,
        options=ConsumerOptions(start="earliest"),
    ):
        await asyncio.wait_for(is_over.wait(), _WAIT_MAX)
        rate = job.messages / (time.monotonic() - started)
        return Memory(quarter, own_bytes(["self"]) / 1e6, rate)


def _run(job: Job) -> bytes:
    argument = msgspec.json.encode(job).decode()
    return run_module("benchmarks.push_limits", argument, _WAIT_MAX + job.seconds)


@contextlib.contextmanager
def _bar(text: str) -> Generator[None]:
    """Show a moving bar and the time; without a terminal, print the text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(text)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task(text, total=None)
        yield


def measure_idle(peer: Peer, queues: int, seconds: float) -> Idle:
    """Measure a consumer of a topic with many idle queues."""
    fields = {
        "topic": _TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    reply = probe.call(peer.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    if reply.code:
        raise RuntimeError(f"no topic: {reply.code} {reply.remark}")
    job = Job(
        name_server=peer.name_server,
        broker_pids=tuple(peer.pids),
        queues=queues,
        seconds=seconds,
    )
    with _bar(f"{queues} idle queues, measured for {seconds:g} s after the start"):
        return msgspec.json.decode(_run(job), type=Idle)


def measure_memory(peer: Peer, messages: int) -> Memory:
    """Measure the memory of a consumer that handles many messages."""
    peer.make_topic(_TOPIC)
    fill(peer, _TOPIC, messages, _BODY_BYTES)
    job = Job(name_server=peer.name_server, broker_pids=tuple(peer.pids), messages=messages)
    return msgspec.json.decode(_run(job), type=Memory)


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):  # the consumer's process
        import uvloop

        job = msgspec.json.decode(sys.argv[1], type=Job)
        found = uvloop.run(_idle(job) if job.queues else _memory(job))
        print(msgspec.json.encode(found).decode())
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.push_limits")
    parser.add_argument("--only", choices=("idle", "memory"), help="measure only this")
    parser.add_argument("--queues", type=int, default=QUEUES, help="idle queues")
    parser.add_argument("--seconds", type=float, default=IDLE_SECONDS, help="time of idle queues")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages to handle")
    asked = parser.parse_args()
    if asked.only != "memory":
        with server_pair.start("downrange") as peer:
            idle = measure_idle(peer, asked.queues, asked.seconds)
        print(
            f"{asked.queues} idle queues over {asked.seconds:g} s: consumer "
            f"{idle.client_percent:.1f} % of a core and {idle.client_mb:.0f} MB, server "
            f"{idle.server_percent:.1f} % of a core; {idle.polled} of {idle.queues} were polled"
        )
    if asked.only != "idle":
        with server_pair.start("downrange") as peer:
            memory = measure_memory(peer, asked.messages)
        print(
            f"{asked.messages} messages, {memory.rate:,.0f} per second: "
            f"{memory.quarter_mb:.1f} MB after a quarter, {memory.end_mb:.1f} MB at the end"
        )


if __name__ == "__main__":
    main()
