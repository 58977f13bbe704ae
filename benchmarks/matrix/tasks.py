"""What a client process is told to do, and what it tells in the end; both travel as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from benchmarks.load import cpu_seconds, own_bytes, percentiles_us
from benchmarks.matrix.cells import ClientName, WorkName
from downrange import AutoBatch, ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Sequence


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        client: By which client.
        work: What; see `cells`.
        name_server: Where.
        topic: An existing topic.
        stored: How many messages are in it; only of interest to who reads.
        body_bytes: Size of each body.
        seconds: How long to measure.
        lead_in: How long to do the same before.
        pids: The server's processes, whose CPU time is taken.
    """

    client: ClientName
    work: WorkName
    name_server: str
    topic: str
    stored: int = 0
    body_bytes: int
    seconds: float
    lead_in: float
    pids: tuple[int, ...] = ()

    @property
    def producer_options(self) -> ProducerOptions:
        """How to send: without compression or repetition, as Java's client is told, too."""
        return ProducerOptions(
            compress_over_bytes=1 << 22,
            timeout=10.0,
            retries=0,
            submit_retries=0,
            auto_batch=AutoBatch() if self.work == "auto-batch" else None,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        messages: Acknowledged, or read, in the measured time.
        messages_before: The same in the lead-in.
        seconds: The measured time.
        client_cpu: CPU seconds of the client in it.
        server_cpu: CPU seconds of the server in it.
        client_bytes: The client's own memory at the end.
        latencies_us: Median and 99th percentile of a call, where somebody waits for one.
    """

    messages: int
    messages_before: int
    seconds: float
    client_cpu: float
    server_cpu: float
    client_bytes: int
    latencies_us: tuple[float, float] | None = None


class Meter:
    """Measures from its making on what this process and a server take."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Begin."""
        self._pids = pids
        self.spans: list[float] = []
        self._server_cpu = cpu_seconds(pids)
        self._client_cpu = time.process_time()
        self.begun = time.perf_counter()

    def end(self, messages: int, messages_before: int) -> Measured:
        """Return what was found."""
        seconds = time.perf_counter() - self.begun
        client_cpu = time.process_time() - self._client_cpu
        return Measured(
            messages=messages,
            messages_before=messages_before,
            seconds=seconds,
            client_cpu=client_cpu,
            server_cpu=cpu_seconds(self._pids) - self._server_cpu,
            client_bytes=own_bytes(["self"]),
            latencies_us=percentiles_us(self.spans),
        )
