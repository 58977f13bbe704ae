"""Limits of push consumers: what idle queues cost, and whether memory stays flat.

    python -m benchmarks.push_limits [--only idle|memory] [--queues N] [--messages N]

"idle" subscribes to a topic with 10,000 queues without messages, and measures the CPU of the
consumer and of the embedded server over 20 seconds: only long polls should be left. "memory" sends
small messages while a consumer handles them, and prints the consumer's memory after a quarter of
them and at the end. Client and server are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks import peers
from benchmarks.load import cpu_seconds, own_bytes
from benchmarks.matrix.children import run_module
from benchmarks.matrix.topic_filler import fill
from downrange import AsyncPushConsumer
from downrange.options.consumers import ConsumerOptions
from downrange.wire.codes import RequestCode
from tests.apache import probe

if TYPE_CHECKING:
    from benchmarks.peers import Peer
    from downrange import ReceivedMessage

QUEUES: Final = 10_000
MESSAGES: Final = 2_000_000
_TOPIC: Final = "bench-limits"
_BODY_BYTES: Final = 100
_IDLE_SECONDS: Final = 20.0
_SETTLE_TIMEOUT: Final = 120.0
_WAIT_MAX: Final = 600.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer's process does.

    Attributes:
        name_server: Where the server is.
        broker_pids: The server's processes.
        queues: Idle queues to wait for; 0 to handle messages.
        messages: Messages to handle.
    """

    name_server: str
    broker_pids: tuple[int, ...]
    queues: int = 0
    messages: int = 0


class Idle(msgspec.Struct, frozen=True):
    """CPU of idle queues, in percent of a core; memory in MB."""

    client_percent: float
    server_percent: float
    client_mb: float


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
        server = cpu_seconds(job.broker_pids)
        client = await _percent(_IDLE_SECONDS)
        server = cpu_seconds(job.broker_pids) - server
        return Idle(client, server / _IDLE_SECONDS * 100, own_bytes(["self"]) / 1e6)


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
    return run_module("benchmarks.push_limits", argument, _WAIT_MAX)


def measure_idle(peer: Peer, queues: int) -> Idle:
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
    job = Job(name_server=peer.name_server, broker_pids=tuple(peer.pids), queues=queues)
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
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages to handle")
    asked = parser.parse_args()
    if asked.only != "memory":
        with peers.start("downrange") as peer:
            idle = measure_idle(peer, asked.queues)
        print(
            f"{asked.queues} idle queues: consumer {idle.client_percent:.1f} % of a core and "
            f"{idle.client_mb:.0f} MB, server {idle.server_percent:.1f} % of a core"
        )
    if asked.only != "idle":
        with peers.start("downrange") as peer:
            memory = measure_memory(peer, asked.messages)
        print(
            f"{asked.messages} messages, {memory.rate:,.0f} per second: "
            f"{memory.quarter_mb:.1f} MB after a quarter, {memory.end_mb:.1f} MB at the end"
        )


if __name__ == "__main__":
    main()
