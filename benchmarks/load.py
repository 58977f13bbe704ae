"""A load generator that uses little CPU, so that the rate depends on the server.

It uses plain blocking sockets and prebuilt frames: per message only a unique key and the request id
are filled in, both of fixed width, and only the length and the first bytes of the header of a reply
are read. It runs in its own process, takes one `Work` as JSON, and prints one `Measured`. Any reply
other than "stored" ends the run: a rate with lost messages is useless.

    python -m benchmarks.load '{"mode": "window", "address": "127.0.0.1:10911", "topic": "bench",
        "seconds": 3}'
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, Literal, TypeAlias

import msgspec

from benchmarks.consumption import Group, Way, queue_sizes
from benchmarks.sends import BATCH, Batches, Sends
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import PullReply, PullRequest

Mode: TypeAlias = Literal["single", "window", "batch", "senders", "pull", "commit", "pop"]
Drive: TypeAlias = Callable[[float, list[float]], int]
"""Loads the server until a time, records latencies, and returns the number of messages."""

WINDOW: Final = 256
BATCHES_IN_FLIGHT: Final = 8
SENDERS: Final = 64

_GOOD: Final = b'{"code":0,'
_RECEIVE_BYTES: Final = 1 << 18
_LENGTH: Final = Struct(">i").unpack_from
_LENGTH_AND_WORD: Final = 8  # before a frame's header
_TIMEOUT: Final = 30.0
_HAS_SUBSCRIPTION: Final = 4  # bit of a pull's system flags
_SCHEDULER_CLOCK: Final = 2  # the low bits of the id of a process's clock


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The load to generate.

    Attributes:
        mode: "single": one message in flight; "window": 256 on one connection; "batch": batches of
            100, eight in flight; "senders": 64 connections with one in flight each; "pull": read
            all stored messages, repeatedly; "commit" and "pop": the same as a consumer group, by
            pulls with commits or by pops with acknowledgements.
        address: Address of the broker.
        topic: An existing topic.
        queue_count: Its number of queues.
        seconds: Duration of the measurement.
        lead_in: Duration of the same load before the measurement.
        pids: Processes of the server, whose CPU time is measured.
    """

    mode: Mode
    address: str
    topic: str
    queue_count: int = 4
    seconds: float
    lead_in: float = 0.0
    pids: tuple[int, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results.

    Attributes:
        messages: Messages acknowledged or read in the measured time.
        messages_before: The same in the lead-in.
        seconds: The measured time.
        server_cpu: CPU seconds of the server in that time.
        load_cpu: CPU seconds of this process in that time.
        load_bytes: Memory of this process at the end.
        latencies_us: Median and 99th percentile of a round trip, with one message in flight.
    """

    messages: int
    messages_before: int
    seconds: float
    server_cpu: float
    load_cpu: float
    load_bytes: int
    latencies_us: tuple[float, float] | None = None


class Refused(Exception):
    """The server replied with an error."""


class Connection:
    """One blocking connection that counts replies."""

    def __init__(self, address: str) -> None:
        """Connect to the server."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), _TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send = self.socket.sendall
        self.close = self.socket.close
        self._rest = b""

    def replies(self) -> int:
        """Wait for more bytes and return the number of complete replies.

        Raises:
            Refused: A reply is not a success.
        """
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        if self._rest:
            data = self._rest + data
        at, count, end = 0, 0, len(data)
        while end - at >= _LENGTH_AND_WORD:
            after = at + 4 + _LENGTH(data, at)[0]
            if after > end:
                break
            if not data.startswith(_GOOD, at + _LENGTH_AND_WORD):
                raise Refused(data[at + _LENGTH_AND_WORD : after].decode(errors="replace"))
            at = after
            count += 1
        self._rest = data[at:]
        return count


Connect: TypeAlias = Callable[[], Connection]
"""Opens another connection to the server."""


def _single(work: Work, connect: Connect) -> Drive:
    sends, connection = Sends(work.topic, work.queue_count), connect()

    def drive(end: float, latencies: list[float]) -> int:
        count = 0
        now = time.perf_counter()
        while now < end:
            connection.send(sends.take(1))
            while not connection.replies():
                pass
            started, now = now, time.perf_counter()
            latencies.append(now - started)
            count += 1
        return count

    return drive


def _window(work: Work, connect: Connect) -> Drive:
    return _in_flight(connect(), Sends(work.topic, work.queue_count).take, WINDOW)


def _batch(work: Work, connect: Connect) -> Drive:
    batches = Batches(work.topic, work.queue_count)
    drive = _in_flight(connect(), batches.take, BATCHES_IN_FLIGHT)
    return lambda end, latencies: BATCH * drive(end, latencies)


def _in_flight(connection: Connection, take: Callable[[int], bytes], width: int) -> Drive:
    """Keep `width` requests in flight: send one new request per reply, all in one write."""

    def drive(end: float, _latencies: list[float]) -> int:
        connection.send(take(width))
        count = 0
        while time.perf_counter() < end:
            came = connection.replies()
            if came:
                connection.send(take(came))
                count += came
        last = count + width
        while count < last:
            count += connection.replies()
        return count

    return drive


def _senders(work: Work, connect: Connect) -> Drive:
    sends = Sends(work.topic, work.queue_count)
    connections = [connect() for _ in range(SENDERS)]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)

    def drive(end: float, _latencies: list[float]) -> int:
        for connection in connections:
            connection.send(sends.take(1))
        count, busy = 0, SENDERS
        while busy:
            is_over = time.perf_counter() >= end
            for key, _ in selector.select(_TIMEOUT):
                connection = key.data
                if not connection.replies():
                    continue
                count += 1
                if is_over:
                    busy -= 1
                else:
                    connection.send(sends.take(1))
        return count

    return drive


def _pull(work: Work, connect: Connect) -> Drive:
    connection = connect()

    def drive(end: float, _latencies: list[float]) -> int:
        count = 0
        while time.perf_counter() < end:
            count += _pull_all(connection.socket, work, end)
        return count

    return drive


def _consume(way: Way, work: Work, connect: Connect) -> Drive:
    connection = connect().socket
    sizes = queue_sizes(connection, work.topic, work.queue_count)

    def drive(end: float, _latencies: list[float]) -> int:
        count = 0
        while time.perf_counter() < end:
            count += Group(connection, work.topic, sizes, way).read_all(end)
        return count

    return drive


def _pull_all(connection: socket.socket, work: Work, end: float) -> int:
    """Read the whole topic, or until a time, with one request in flight per queue."""
    splitter = FrameSplitter()
    for queue in range(work.queue_count):
        connection.sendall(_pull_frame(work.topic, queue, 0))
    count, left = 0, work.queue_count
    while left:
        splitter.receive(connection.recv(_RECEIVE_BYTES))
        while (frame := splitter.next_frame()) is not None:
            reply = decode(frame)
            if reply.code == ResponseCode.PULL_NOT_FOUND:
                left -= 1
                continue
            if reply.code != ResponseCode.SUCCESS:
                raise Refused(str(reply))
            count += _count_records(reply.body)
            if time.perf_counter() >= end:
                left -= 1
                continue
            after = PullReply.from_fields(reply.fields).next_begin_offset
            connection.sendall(_pull_frame(work.topic, reply.request_id, after))
    return count


def _pull_frame(topic: str, queue: int, offset: int) -> bytes:
    header = PullRequest(
        consumer_group="bench",
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=_HAS_SUBSCRIPTION,
        subscription="*",
        expression_type="TAG",
    )
    command = request_command(header, code=RequestCode.PULL_MESSAGE)
    command.request_id = queue
    return encode(command)


def _count_records(body: bytes) -> int:
    at = count = 0
    while at < len(body):
        at += _LENGTH(body, at)[0]
        count += 1
    return count


_DRIVES: Final[dict[Mode, Callable[[Work, Connect], Drive]]] = {
    "single": _single,
    "window": _window,
    "batch": _batch,
    "senders": _senders,
    "pull": _pull,
    "commit": partial(_consume, "pull"),
    "pop": partial(_consume, "pop"),
}


def run(work: Work) -> Measured:
    """Generate the load in this process.

    Raises:
        Refused: A reply was an error.
        OSError: The server cannot be reached, or did not reply in time.
    """
    with contextlib.ExitStack() as stack:
        drive = _DRIVES[work.mode](
            work, lambda: stack.enter_context(contextlib.closing(Connection(work.address)))
        )
        return _measure(work, drive)


def _measure(work: Work, drive: Drive) -> Measured:
    before = drive(time.perf_counter() + work.lead_in, []) if work.lead_in else 0
    latencies: list[float] = []
    server_cpu, load_cpu = cpu_seconds(work.pids), time.process_time()
    started = time.perf_counter()
    messages = drive(started + work.seconds, latencies)
    ended = time.perf_counter()
    load_cpu = time.process_time() - load_cpu
    return Measured(
        messages=messages,
        messages_before=before,
        seconds=ended - started,
        server_cpu=cpu_seconds(work.pids) - server_cpu,
        load_cpu=load_cpu,
        load_bytes=own_bytes(["self"]),
        latencies_us=percentiles_us(latencies),
    )


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of processes so far, user and system, by the scheduler's clock.

    Linux has a clock for each process (see clock_getcpuclockid). It counts nanoseconds, and
    threads that have ended, too; /proc/<pid>/stat has steps of 10 ms.
    """
    return sum(time.clock_gettime(~pid << 3 | _SCHEDULER_CLOCK) for pid in pids)


def own_bytes(pids: Iterable[int | str]) -> int:
    """Return the anonymous memory of processes, without pages of files."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = next(line for line in lines if line.startswith("RssAnon:"))
        total += int(found.split()[1]) * 1024
    return total


def percentiles_us(latencies: Sequence[float]) -> tuple[float, float] | None:
    """Return the median and the 99th percentile in microseconds; None without values."""
    if not latencies:
        return None
    ordered = sorted(latencies)
    return ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6


def main() -> None:
    work = msgspec.json.decode(sys.argv[1], type=Work)
    print(msgspec.json.encode(run(work)).decode())


if __name__ == "__main__":
    main()
