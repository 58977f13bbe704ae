"""The task of a client process and its results; both are passed as JSON."""

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
    """The work to do.

    Attributes:
        client: The client to use.
        work: The work; see `cells`.
        name_server: Address of the name server.
        topic: An existing topic.
        stored: Number of messages in the topic, for reading.
        body_bytes: Size of each body.
        seconds: Duration of the measurement.
        lead_in: Duration of the same work before the measurement.
        pids: Processes of the server, whose CPU time is measured.
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
        """Options without compression and retries, the same as for the Java client."""
        return ProducerOptions(
            compress_over_bytes=1 << 22,
            timeout=10.0,
            retries=0,
            submit_retries=0,
            auto_batch=AutoBatch() if self.work == "auto-batch" else None,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results.

    Attributes:
        messages: Messages acknowledged or read in the measured time.
        messages_before: The same in the lead-in.
        seconds: The measured time.
        client_cpu: CPU seconds of the client in that time.
        server_cpu: CPU seconds of the server in that time.
        client_bytes: Memory of the client at the end.
        latencies_us: Median and 99th percentile of a call, if the work waits for calls.
    """

    messages: int
    messages_before: int
    seconds: float
    client_cpu: float
    server_cpu: float
    client_bytes: int
    latencies_us: tuple[float, float] | None = None


class Meter:
    """Measures the CPU time of this process and of a server, since its creation."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Start the measurement."""
        self._pids = pids
        self.spans: list[float] = []
        self._server_cpu = cpu_seconds(pids)
        self._client_cpu = time.process_time()
        self.started = time.perf_counter()

    def end(self, messages: int, messages_before: int) -> Measured:
        """Return the results."""
        seconds = time.perf_counter() - self.started
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
