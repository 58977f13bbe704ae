"""The broker's CPU cost of popping messages, beside pulling the same ones, ours and Apache's.

A topic holds 1 KB messages in four queues. A plain socket reads all of them with one request in
flight per queue: by pulls with commits, and by pops with acknowledgements, of one queue and of any
queue (`consumption.py`). The figures are the broker's CPU time per message, with everything that it
does: parsing, reading, storing checkpoints and acknowledgements, and the kernel's part. After the
pops, the end of the checkpoints' time is awaited, because Apache's broker handles them then:
"later" is that CPU time, less what the idle server uses. The target is that a pop costs at most 1.5
times as much as a pull.

    python -m benchmarks.pops [--messages 100000] [--rounds 3] [--server downrange]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import server_pair
from benchmarks.bulk_pull import TOPIC, fill
from benchmarks.consumption import Group, Way, queue_sizes
from benchmarks.load import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Generator

#: Long enough that nothing becomes visible again during a round on a slow machine.
INVISIBLE_MS: Final = 20_000
WAYS: Final[dict[Way, str]] = {"pull": "", "pop": "one queue", "pop-any": "any queue"}
_TIMEOUT: Final = 60.0
#: How long after the end of a checkpoint Apache's broker may still work on it.
_REVIVED_AFTER: Final = 5.0


def cost(peer: server_pair.Peer, way: Way, sent: int) -> tuple[float, float]:
    """Return the broker's CPU time per message, at once and later, in microseconds."""
    host, _, port = peer.broker.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT) as connection:
        sizes = queue_sizes(connection, TOPIC, server_pair.QUEUES)
        group = Group(connection, TOPIC, sizes, way, INVISIBLE_MS)
        before = cpu_seconds(peer.pids)
        count = group.read_all(math.inf)
        used = cpu_seconds(peer.pids) - before
    if count != sent:
        raise RuntimeError(f"{sent} messages were sent, but {count} were read")
    later = 0.0 if way == "pull" else _later_cost(peer)
    return 1e6 * used / count, 1e6 * later / count


def _later_cost(peer: server_pair.Peer) -> float:
    """Return the CPU time that the checkpoints cause when their time is over.

    What the server uses without any work is subtracted, measured at the end.
    """
    waited = INVISIBLE_MS / 1000 + _REVIVED_AFTER
    before = cpu_seconds(peer.pids)
    time.sleep(waited)
    later = cpu_seconds(peer.pids) - before
    idle = peer.cpu_percent(_REVIVED_AFTER) / 100 * waited
    return max(later - idle, 0.0)


@contextlib.contextmanager
def _start(name: server_pair.Name) -> Generator[server_pair.Peer]:
    """Start a server that does not poll: polling would use CPU while it waits for the client."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "serve.toml")
        config.write_text("[listener]\nbusy_poll = 0\n", encoding="utf-8")
        with server_pair.start(name, flags=("--config", str(config))) as peer:
            yield peer


def main() -> None:
    """Fill a topic, read it in both ways, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("downrange", "apache"), default=None)
    options = parser.parse_args()
    names: tuple[server_pair.Name, ...] = ("downrange", "apache")
    print("server      of           pull µs each   pop µs each   later µs each   pop to pull")
    for name in names if options.server is None else (options.server,):
        with _start(name) as peer:
            peer.make_topic(TOPIC)
            sent, _ = fill(peer, options.messages, is_single=False)
            peer.await_stored(TOPIC, sent)
            costs: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way in WAYS:
                    costs[way].append(cost(peer, way, sent))
            pull, _ = min(costs["pull"])
            for way, text in WAYS.items():
                pop, later = min(costs[way])
                if way != "pull":
                    print(
                        f"{name:10}  {text:10}   {pull:12.2f}   {pop:11.2f}   {later:13.2f}   "
                        f"{pop / pull:10.2f}x",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
