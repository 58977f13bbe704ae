"""The process of one client: `python -m benchmarks.peers.worker MODULE ADDRESSES TOPIC BYTES`.

Runs with the Python of the client's environment, so it uses only the standard library. For each
line of the input, such as "many 5.0", it works that long, and prints the result as a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def main(module: str, addresses: str, topic: str, body_bytes: str) -> None:
    """Serve until the input ends."""
    # Libraries may print anything; only the results go where they are read.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    body = os.urandom(int(body_bytes)).hex().encode()[: int(body_bytes)]
    made: Any = importlib.import_module(f"benchmarks.peers.clients.{module}")
    client = made.Client(json.loads(addresses), topic, body)
    results.write("{}\n")
    for line in sys.stdin:
        way, seconds = line.split()
        cpu, begun = time.process_time(), time.perf_counter()
        sent = getattr(client, way)(begun + float(seconds))
        taken = time.perf_counter() - begun
        used = time.process_time() - cpu
        results.write(json.dumps({"sent": sent, "seconds": taken, "cpu": used}) + "\n")
    os._exit(0)  # some clients have threads that do not end


if __name__ == "__main__":
    main(*sys.argv[1:])
