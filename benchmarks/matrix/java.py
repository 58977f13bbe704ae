"""The Java client as a client of the matrix: one JVM per server, paused unless it is measured.

A JVM runs through all rounds, so that it can compile hot code. With one JVM for each server, none
has connections to a paused server.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.load import cpu_seconds, own_bytes
from benchmarks.matrix.cells import (
    BATCH,
    BATCHES_IN_FLIGHT,
    ONE_WAY_FENCE,
    PACED_RATE,
    PUSHES,
    SENDERS,
    WINDOW,
)
from benchmarks.matrix.tasks import Measured
from benchmarks.server_pair import APACHE_VERSION, QUEUES
from tests.apache.java_client import JavaClient

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.matrix.cells import Cell, ServerName, WorkName
    from benchmarks.server_pair import Peer

_GRACE: Final = 60.0
#: The same as for our clients: no compression, no retries, a timeout for a busy machine.
_OPTIONS: Final = {
    "compressMsgBodyOverHowmuch": 1 << 22,
    "sendMsgTimeout": 10_000,
    "retryTimesWhenSendFailed": 0,
    "retryTimesWhenSendAsyncFailed": 0,
}


class _Load(NamedTuple):
    """The client of the JVM for a work, and its arguments."""

    client: str
    mode: str
    threads: int = 1
    width: int = 1


_LOADS: Final[dict[WorkName, _Load]] = {
    "sync-1": _Load("plain", "sync"),
    "sync-64": _Load("plain", "sync", threads=SENDERS),
    "async-256": _Load("plain", "async", width=WINDOW),
    "one-way": _Load("plain", "oneway", width=ONE_WAY_FENCE),
    "batch": _Load("plain", "batch", threads=BATCHES_IN_FLIGHT, width=BATCH),
    "auto-batch": _Load("gathering", "async", width=WINDOW),
    "transactions": _Load("transactional", "transaction", threads=SENDERS),
}
_CLIENTS: Final = ("plain", "gathering", "transactional", "reading")

#: Works whose last requests get no reply: one-way messages, and the ends of transactions.
_ENDING_ONE_WAY: Final = ("one-way", "transactions")


class JavaClients:
    """A JVM for each server; a context manager."""

    def __init__(self) -> None:
        """Create the object; a JVM starts with `connect`."""
        self._stack = contextlib.ExitStack()
        self._jvms: dict[ServerName, JavaClient] = {}

    def __enter__(self) -> JavaClients:
        """Create the object; a JVM starts with `connect`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all JVMs."""
        for jvm in self._jvms.values():  # a stopped process cannot end
            os.kill(jvm.pid, signal.SIGCONT)
        self._stack.close()

    def connect(self, peer: Peer) -> None:
        """Start producers and a consumer for a running server."""
        if peer.name not in self._jvms:
            jvm = self._stack.enter_context(JavaClient(APACHE_VERSION, purpose="benchmark"))
            self._jvms[peer.name] = jvm
        with self._running(peer) as jvm:
            _start_clients(jvm, peer.name_server)

    def disconnect(self, peer: Peer) -> None:
        """Stop the clients of a server; the JVM stays for the next server of this name."""
        if peer.name in self._jvms:
            with self._running(peer) as jvm:
                for name in _CLIENTS:
                    jvm.stop(name)

    def measure(self, peer: Peer, cell: Cell, *, seconds: float, lead_in: float) -> Measured:
        """Run one round.

        Raises:
            JavaError: A message was refused, or no reply came in time.
        """
        if cell.work in PUSHES:
            return self._measure_push(peer, cell, seconds)
        with self._running(peer) as jvm:
            before = _work(jvm, cell, lead_in)["messages"] if lead_in else 0
            server_cpu, client_cpu = cpu_seconds(peer.pids), cpu_seconds([jvm.pid])
            found = _work(jvm, cell, seconds)
            server_cpu = cpu_seconds(peer.pids) - server_cpu
            client_cpu = cpu_seconds([jvm.pid]) - client_cpu
            client_bytes = own_bytes([jvm.pid])
            if cell.work in _ENDING_ONE_WAY:
                # The Java client passes one-way requests through one more thread, so the last
                # message, which has a reply, overtakes some. They must be sent before the JVM is
                # paused.
                sent = before + found["messages"]
                peer.await_stored(cell.topic, peer.acknowledged[cell.topic] + sent)
        latencies = found["p50Ns"], found["p99Ns"]
        return Measured(
            messages=found["messages"],
            messages_before=before,
            seconds=found["elapsedNs"] / 1e9,
            client_cpu=client_cpu,
            server_cpu=server_cpu,
            client_bytes=client_bytes,
            latencies_us=None if latencies[0] is None else (latencies[0] / 1e3, latencies[1] / 1e3),
        )

    def _measure_push(self, peer: Peer, cell: Cell, seconds: float) -> Measured:
        """Run one round of a push consumer: without a lead-in, because it makes passes."""
        with self._running(peer) as jvm:
            server_cpu = cpu_seconds(peer.pids)
            found = jvm.call(
                "push.bench" if cell.work == "push" else "push.latency",
                timeout=seconds + _GRACE,
                name="plain",
                nameServers=peer.name_server,
                topic=cell.topic,
                stored=peer.acknowledged[cell.topic],
                bodyBytes=cell.body_bytes,
                rate=PACED_RATE if cell.work == "push-paced" else 0,
                queues=QUEUES,
                durationMs=round(seconds * 1000),
            )
            server_cpu = cpu_seconds(peer.pids) - server_cpu
            client_bytes = own_bytes([jvm.pid])
        return Measured(
            messages=found["messages"],
            messages_before=found.get("messagesBefore", 0),
            seconds=found["elapsedNs"] / 1e9,
            client_cpu=found["cpuNs"] / 1e9,
            server_cpu=server_cpu,
            client_bytes=client_bytes,
            latencies_us=(found["p50Ns"] / 1e3, found["p99Ns"] / 1e3) if "p50Ns" in found else None,
        )

    @contextlib.contextmanager
    def _running(self, peer: Peer) -> Generator[JavaClient]:
        jvm = self._jvms[peer.name]
        os.kill(jvm.pid, signal.SIGCONT)
        try:
            yield jvm
        finally:
            os.kill(jvm.pid, signal.SIGSTOP)


def _start_clients(jvm: JavaClient, name_server: str) -> None:
    jvm.start_producer(name_server, "bench-plain", name="plain", options=_OPTIONS)
    gathering = {**_OPTIONS, "autoBatch": True}
    jvm.start_producer(name_server, "bench-gathering", name="gathering", options=gathering)
    jvm.start_producer(
        name_server,
        "bench-transactional",
        name="transactional",
        transaction=True,
        commits=True,
        options=_OPTIONS,
    )
    jvm.call("pull.start", name="reading", group="bench-reading", nameServers=name_server)


def _work(jvm: JavaClient, cell: Cell, seconds: float) -> dict[str, Any]:
    timeout, duration = seconds + _GRACE, round(seconds * 1000)
    found: dict[str, Any]
    if cell.work == "pull":
        found = jvm.call(
            "pull.bench", timeout=timeout, name="reading", topic=cell.topic, durationMs=duration
        )
        return found
    load = _LOADS[cell.work]
    found = jvm.call(
        "producer.bench",
        timeout=timeout,
        name=load.client,
        topic=cell.topic,
        mode=load.mode,
        threads=load.threads,
        width=load.width,
        bodyBytes=cell.body_bytes,
        durationMs=duration,
    )
    return found
