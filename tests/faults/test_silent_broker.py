"""A broker that accepts connections and does not read from them."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
import tracemalloc
from typing import TYPE_CHECKING

from downrange import Message, Producer, ProducerOptions, TooManySends
from tests.faults.processes import served

if TYPE_CHECKING:
    from pathlib import Path

BODY = bytes(500_000)


def test_memory_stays_flat_while_a_broker_does_not_read(tmp_path: Path) -> None:
    options = ProducerOptions(in_flight_max=10, submit_retries=0, compress_over_bytes=1 << 22)
    with (
        served(tmp_path / "store") as server,
        Producer(server.name_server, group="g", options=options) as producer,
    ):
        producer.submit(Message("orders", b"1"), timeout=30.0).result(30.0)
        server.process.send_signal(signal.SIGSTOP)
        tracemalloc.start()
        try:
            held: list[int] = []
            for _ in range(3):
                until = time.monotonic() + 2.5
                while time.monotonic() < until:
                    with contextlib.suppress(TooManySends):
                        producer.submit(Message("orders", BODY), timeout=0.5)
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            server.process.send_signal(signal.SIGCONT)
    # Ten messages are in flight, and those of one second stay in the connection until it is closed.
    # Without an end of such connections it would be about 20 MB more after each round.
    assert max(held) < 30_000_000
    assert held[-1] - held[0] < 20_000_000
