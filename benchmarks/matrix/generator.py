"""The load generator as a client of the matrix; it uses little CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks import load, server_pair
from benchmarks.matrix.children import run_module
from benchmarks.matrix.tasks import Measured

if TYPE_CHECKING:
    from benchmarks.matrix.cells import Cell, WorkName
    from benchmarks.server_pair import Peer

_MODES: Final[dict[WorkName, load.Mode]] = {
    "sync-1": "single",
    "sync-64": "senders",
    "async-256": "window",
    "batch": "batch",
    "pull": "pull",
    "pull-commit": "commit",
    "pop-ack": "pop",
}


class Generator:
    """Runs `benchmarks.load` in a new process for each round."""

    def measure(self, peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        """Run one round.

        Raises:
            ClientFailed: A message was refused, or the server did not reply in time.
        """
        work = load.Work(
            mode=_MODES[cell.work],
            address=peer.broker,
            topic=cell.topic,
            queue_count=server_pair.QUEUES,
            seconds=seconds,
            lead_in=lead_in,
            pids=tuple(peer.pids),
        )
        argument = msgspec.json.encode(work).decode()
        printed = run_module("benchmarks.load", argument, seconds + lead_in)
        found = msgspec.json.decode(printed, type=load.Measured)
        return Measured(
            messages=found.messages,
            messages_before=found.messages_before,
            seconds=found.seconds,
            client_cpu=found.load_cpu,
            server_cpu=found.server_cpu,
            client_bytes=found.load_bytes,
            latencies_us=found.latencies_us,
        )
