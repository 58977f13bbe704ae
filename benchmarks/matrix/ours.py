"""Downrange's clients as clients of the matrix: one process per round.

This module is both parent and child: `OurClients` starts `python -m benchmarks.matrix.ours TASK`,
which prints its results. Asyncio runs on uvloop, as the server does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from benchmarks.matrix import asyncio_client, thread_client
from benchmarks.matrix.children import run_module
from benchmarks.matrix.tasks import Measured, Task

if TYPE_CHECKING:
    from benchmarks.matrix.cells import Cell
    from benchmarks.server_pair import Peer


class OurClients:
    """The clients `threads` and `asyncio`."""

    def measure(self, peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        """Run one round.

        Raises:
            ClientFailed: A message was refused or lost, or the server did not reply in time.
        """
        task = Task(
            client=cell.client,
            work=cell.work,
            name_server=peer.name_server,
            topic=cell.topic,
            stored=peer.acknowledged[cell.topic],
            body_bytes=cell.body_bytes,
            seconds=seconds,
            lead_in=lead_in,
            pids=tuple(peer.pids),
        )
        found = run_module(
            "benchmarks.matrix.ours", msgspec.json.encode(task).decode(), seconds + lead_in
        )
        return msgspec.json.decode(found, type=Measured)


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    if task.client == "asyncio":
        import uvloop

        measured = uvloop.run(asyncio_client.run(task))
    else:
        measured = thread_client.run(task)
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main()
