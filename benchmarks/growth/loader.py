"""A load generator for many topics, many connections, and servers that are killed under load.

Like `benchmarks.load`, it fills digits into prebuilt frames and only counts replies. It runs in its
own process, takes one `Work` as JSON, and prints one `Loaded`.
"""

from __future__ import annotations

import selectors
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle
from typing import Final, Literal, TypeAlias

import msgspec

from benchmarks.load import BATCHES_IN_FLIGHT, WINDOW, Connection, cpu_seconds, percentiles_us
from benchmarks.sends import BATCH, BODY, Batches
from downrange.wire.command import encode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequestV2

Mode: TypeAlias = Literal["window", "fill", "crash", "paced"]

#: All topic names have the same width, so that only digits of a frame change.
TOPIC: Final = "growth-%05d"

_STAND_IN: Final = 99_999
_FIRST_ID: Final = 1_000_000_000
_IDS: Final = 999_999_999
_WAITING_MAX: Final = 1000
_PATIENCE: Final = 30.0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The load to generate.

    Attributes:
        mode: "window": keep 256 messages in flight on one connection for some seconds; "fill": send
            `batches` batches of 100; "crash": like "window", until the server ends; "paced": send
            at a constant rate, each message alone and on the next of many connections.
        address: Address of the broker.
        topics: Number of topics; messages go to them in turn.
        queues: Queues of each topic.
        connections: Number of connections, with "paced".
        rate: Messages per second, with "paced".
        batches: Number of batches, with "fill".
        seconds: Duration of the measurement.
        lead_in: Duration of the same load before the measurement.
        pids: Processes of the server, whose CPU time is measured.
    """

    mode: Mode
    address: str
    topics: int = 1
    queues: int = 1
    connections: int = 1
    rate: float = 0.0
    batches: int = 0
    seconds: float = 0.0
    lead_in: float = 0.0
    pids: tuple[int, ...] = ()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The results.

    Attributes:
        messages: Messages acknowledged in the measured time.
        messages_before: The same in the lead-in.
        unknown: Messages in flight when the server ended: stored or not.
        seconds: The measured time.
        server_cpu: CPU seconds of the server in that time.
        latencies_us: Median and 99th percentile from a write to its reply, with "paced".
    """

    messages: int
    messages_before: int = 0
    unknown: int = 0
    seconds: float
    server_cpu: float = 0.0
    latencies_us: tuple[float, float] | None = None


Drive: TypeAlias = Callable[[float, list[float]], int]
"""Loads the server until a time, records latencies, and returns the number of messages."""


class TopicSends:
    """Generates send requests for topics and their queues in turn, each with its own key."""

    def __init__(self, topics: int, queues: int) -> None:
        """Encode one frame per queue."""
        self._topics = topics
        self._frames = [_fillable(queue) for queue in range(queues)]
        # Several generators on one server must not use the same keys.
        self._first_key = time.time_ns() & 0xFFFF_FFFF_FFFF << 16
        self._sent = 0

    def take(self, count: int) -> bytes:
        """Return the next requests, concatenated."""
        topics, frames, queues = self._topics, self._frames, len(self._frames)
        first = self._sent
        self._sent = first + count
        parts: list[bytes] = []
        for number in range(first, first + count):
            turn, topic = divmod(number, topics)
            filled = {
                b"topic": topic,
                b"key": self._first_key + number,
                b"id": _FIRST_ID + number % _IDS,
            }
            parts += (frames[turn % queues] % filled, BODY)
        return b"".join(parts)


def _fillable(queue: int) -> bytes:
    """Return a frame without its body, with placeholders for topic, key and request id."""
    key = "K" * 16
    header = SendRequestV2(
        producer_group="growth",
        topic=TOPIC % _STAND_IN,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=f"UNIQ_KEY\x01{key * 2}\x02WAIT\x01true\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    command = request_command(header, BODY)
    command.request_id = _FIRST_ID
    frame = encode(command).removesuffix(BODY)
    assert b"%" not in frame
    return (
        frame.replace(b"%05d" % _STAND_IN, b"%(topic)05d", 1)
        .replace(key.encode(), b"%(key)016X", 1)
        .replace(b"%d" % _FIRST_ID, b"%(id)d", 1)
    )


def _window(work: Work) -> Drive:
    connection, sends = Connection(work.address), TopicSends(work.topics, work.queues)

    def drive(end: float, _latencies: list[float]) -> int:
        connection.send(sends.take(WINDOW))
        count = 0
        while time.perf_counter() < end:
            if came := connection.replies():
                connection.send(sends.take(came))
                count += came
        last = count + WINDOW
        while count < last:
            count += connection.replies()
        return count

    return drive


def _paced(work: Work) -> Drive:
    sends = TopicSends(work.topics, work.queues)
    connections = [Connection(work.address) for _ in range(work.connections)]
    waiting: dict[Connection, deque[float]] = {each: deque() for each in connections}
    selector = selectors.DefaultSelector()
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
    turns = cycle(connections)

    def drive(end: float, latencies: list[float]) -> int:
        count = under_way = 0
        now = due = time.perf_counter()
        while now < end or under_way:
            while due <= now < end and under_way < _WAITING_MAX:
                connection = next(turns)
                waiting[connection].append(time.perf_counter())
                connection.send(sends.take(1))
                under_way += 1
                due += 1 / work.rate
            for key, _ in selector.select(max(due - now, 0.0) if now < end else _PATIENCE):
                connection = key.data
                came = connection.replies()
                now = time.perf_counter()
                latencies += [now - waiting[connection].popleft() for _ in range(came)]
                count += came
                under_way -= came
            now = time.perf_counter()
        return count

    return drive


_DRIVES: Final[dict[Mode, Callable[[Work], Drive]]] = {"window": _window, "paced": _paced}


def run(work: Work) -> Loaded:
    """Generate the load in this process.

    Raises:
        Refused: A reply was an error.
        OSError: The server cannot be reached, or did not reply in time.
    """
    if work.mode == "fill":
        return _fill(work)
    if work.mode == "crash":
        return _load_until_crash(work)
    drive = _DRIVES[work.mode](work)
    before = drive(time.perf_counter() + work.lead_in, []) if work.lead_in else 0
    latencies: list[float] = []
    cpu, started = cpu_seconds(work.pids), time.perf_counter()
    messages = drive(started + work.seconds, latencies)
    return Loaded(
        messages=messages,
        messages_before=before,
        seconds=time.perf_counter() - started,
        server_cpu=cpu_seconds(work.pids) - cpu,
        latencies_us=percentiles_us(latencies),
    )


def _fill(work: Work) -> Loaded:
    connection, batches = Connection(work.address), Batches(TOPIC % 0, work.queues)
    started = time.perf_counter()
    sent = min(BATCHES_IN_FLIGHT, work.batches)
    connection.send(batches.take(sent))
    answered = 0
    while answered < work.batches:
        came = connection.replies()
        answered += came
        more = min(came, work.batches - sent)
        if more:
            connection.send(batches.take(more))
            sent += more
    return Loaded(messages=answered * BATCH, seconds=time.perf_counter() - started)


def _load_until_crash(work: Work) -> Loaded:
    connection, sends = Connection(work.address), TopicSends(work.topics, work.queues)
    started = time.perf_counter()
    count = 0
    try:
        connection.send(sends.take(WINDOW))
        while True:
            came = connection.replies()
            count += came
            connection.send(sends.take(came))
    except ConnectionError:
        return Loaded(messages=count, unknown=WINDOW, seconds=time.perf_counter() - started)


def main() -> None:
    work = msgspec.json.decode(sys.argv[1], type=Work)
    print(msgspec.json.encode(run(work)).decode())


if __name__ == "__main__":
    main()
