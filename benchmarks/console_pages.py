"""Times of the console's pages on a cluster with many topics.

    python -m benchmarks.console_pages                  10,000 topics, 200 groups
    python -m benchmarks.console_pages --topics 1000

The cluster is our own, in a process of its own. For each page: the wall time, and the time that
this process itself has computed. The difference is what the cluster and the network took.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from downrange import AsyncProducer, Cluster, Message
from downrange.console.cluster.pages.common import ListRequest, as_json
from downrange.console.cluster.view import ClusterView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

#: What a page may take in this process, beside the cluster's own time.
_TARGET_MS = 200.0
_AT_ONCE = 32


def _serve(pipe: Connection) -> None:
    """Run a cluster until the pipe says so."""
    with Cluster() as cluster:
        pipe.send(cluster.name_server)
        pipe.recv()


async def _fill(view: ClusterView, topics: int, groups: int) -> None:
    """Create topics, and groups with offsets in some of them."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def create(number: int) -> None:
        async with gate:
            await view.admin.create_topic(f"topic-{number:05}", queues=4, timeout=60.0)

    began = time.monotonic()
    await asyncio.gather(*map(create, range(topics)))
    print(f"{topics} topics created in {time.monotonic() - began:.1f} s", file=sys.stderr)
    async with AsyncProducer(view.admin.client, group="benchmark") as producer:
        for number in range(min(topics, 200)):
            await producer.send(Message(f"topic-{number:05}", b"x" * 100))
    for number in range(groups):
        group = f"group-{number:04}"
        await view.admin.create_group(group)
        for queue in await view.admin.read_queues(f"topic-{number % topics:05}"):
            await view.admin.set_group_offset(group, queue, 0)


async def _measure(name: str, page: Callable[[], Awaitable[Any]], runs: int) -> tuple[float, float]:
    walls: list[float] = []
    costs: list[float] = []
    size = 0
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        size = len(as_json(await page()))
        costs.append((time.process_time() - cpu) * 1000)
        walls.append((time.perf_counter() - wall) * 1000)
    wall_ms, cost_ms = statistics.median(walls), statistics.median(costs)
    print(
        f"{name:34} {walls[0]:8.0f} ms first  {wall_ms:8.0f} ms median  "
        f"{costs[0]:8.0f} / {cost_ms:4.0f} ms in this process  {size / 1024:8.0f} KiB"
    )
    return costs[0], wall_ms


async def _run(address: str, topics: int, groups: int, runs: int) -> bool:
    # A long time between polls: they must not run while a page is measured.
    async with ClusterView(address, poll_seconds=3600.0) as view:
        await _fill(view, topics, groups)
        await asyncio.sleep(1.0)

    async with ClusterView(address, poll_seconds=3600.0) as view:
        await view.overview()

        def listed(**settings: Any) -> Callable[[], Awaitable[Any]]:
            async def page() -> Any:
                view.forget()  # each viewer is the first one
                return await view.topics(ListRequest(**settings))

            return page

        async def groups_page() -> Any:
            view.forget()
            return await view.groups()

        pages: dict[str, Callable[[], Awaitable[Any]]] = {
            "topics, first page of 50": listed(),
            "topics, last page of 50": listed(page=10**6),
            "topics, search": listed(search="777"),
            "topics, by lag": listed(sort="lag", is_descending=True),
            "topics, by rate": listed(sort="sent_rate", is_descending=True),
            "topics, page of 200": listed(size=200),
            "topic": lambda: view.topic("topic-00000"),
            "search, newest": lambda: view.search("topic-00000"),
            "groups, first page of 50": groups_page,
            "group": lambda: view.group("group-0000"),
            "overview": view.overview,
        }
        times = {name: await _measure(name, page, runs) for name, page in pages.items()}
    cost, _ = times["topics, first page of 50"]
    print(f"first page of topics: {cost:.0f} ms in this process; target {_TARGET_MS:.0f} ms")
    return cost <= _TARGET_MS


def main() -> int:
    """Run the benchmark; exits with 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        address = ours.recv()
        is_met = asyncio.run(_run(address, given.topics, given.groups, given.runs))
    finally:
        ours.send("stop")
        process.join(30)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
