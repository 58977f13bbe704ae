"""The broker's CPU cost of reading a topic, with Apache's limit of 32 messages and in bulk.

A broker process holds 1 KB messages in four queues, sent in batches of 100, one queue after the
other, so the log holds runs of 100 messages of one queue. A plain socket then reads the whole
topic, with one request in flight per queue and with requests of several sizes. The broker's CPU
time per message includes everything: parsing the request, finding and reading the records, and the
kernel's work to send them over the loopback. "Longest reply" is the slowest single request, as seen
by the client with nothing else in flight.

With `--single`, messages are sent one by one to the queues in turn: no two messages of a queue are
neighbours in the log. With `--tag`, the pull has a tag that all messages have, so the broker must
check each message.

    python -m benchmarks.bulk_pull [--messages 300000] [--rounds 3] [--single] [--tag]
"""

from __future__ import annotations

import argparse
import socket
import time
from typing import Final, NamedTuple

from benchmarks import server_pair
from benchmarks.load import Connection, cpu_seconds
from benchmarks.sends import BATCH, Batches, Sends
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import decode, encode
from downrange.wire.fields import request_command
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import PullReply, PullRequest

TOPIC: Final = "bulk"
TAG: Final = "red"
_HAS_SUBSCRIPTION: Final = 4
_RECEIVE_BYTES: Final = 1 << 20
_SENDS_IN_FLIGHT: Final = 4
_TIMEOUT: Final = 60.0


class Size(NamedTuple):
    """The limits of a pull."""

    messages: int
    size_bytes: int | None


SIZES: Final = (
    Size(32, None),
    Size(1024, 512 << 10),
    Size(2048, 1 << 20),
    Size(4096, 2 << 20),
    Size(8192, 4 << 20),
)


class Reading(NamedTuple):
    """The cost of reading the topic once."""

    seconds: float
    server_cpu: float
    messages: int
    answers: int


def fill(peer: server_pair.Peer, messages: int, *, is_single: bool) -> tuple[int, float]:
    """Send messages; return their number, and the broker's CPU time."""
    maker = (Sends if is_single else Batches)(TOPIC, server_pair.QUEUES, tag=TAG)
    per_request = 1 if is_single else BATCH
    total = messages // per_request
    width = _SENDS_IN_FLIGHT * BATCH if is_single else _SENDS_IN_FLIGHT
    connection = Connection(peer.broker)
    before = cpu_seconds(peer.pids)
    connection.send(maker.take(width))
    asked, answered = width, 0
    while answered < asked:
        count = connection.replies()
        answered += count
        more = min(count, total - asked)
        if more > 0:
            connection.send(maker.take(more))
            asked += more
    return answered * per_request, cpu_seconds(peer.pids) - before


def read(peer: server_pair.Peer, size: Size, subscription: str) -> Reading:
    """Read the whole topic with one request in flight per queue."""
    host, _, port = peer.broker.rpartition(":")
    offsets = [0] * server_pair.QUEUES
    answers = 0
    cpu, started = cpu_seconds(peer.pids), time.perf_counter()
    with socket.create_connection((host, int(port)), _TIMEOUT) as connection:
        splitter = FrameSplitter()
        for queue in range(server_pair.QUEUES):
            connection.sendall(pull_frame(queue, 0, size, subscription))
        left = server_pair.QUEUES
        while left:
            splitter.receive(connection.recv(_RECEIVE_BYTES))
            while (frame := splitter.next_frame()) is not None:
                reply = decode(frame)
                if reply.code != ResponseCode.SUCCESS:
                    if reply.code != ResponseCode.PULL_NOT_FOUND:
                        raise RuntimeError(f"the pull was refused: {reply.code} {reply.remark}")
                    left -= 1
                    continue
                answers += 1
                queue, after = reply.request_id, PullReply.from_fields(reply.fields)
                offsets[queue] = after.next_begin_offset
                connection.sendall(pull_frame(queue, offsets[queue], size, subscription))
    seconds = time.perf_counter() - started
    return Reading(seconds, cpu_seconds(peer.pids) - cpu, sum(offsets), answers)


def longest_reply(peer: server_pair.Peer, size: Size, subscription: str) -> float:
    """Return the seconds of the slowest reply, with one request in flight."""
    host, _, port = peer.broker.rpartition(":")
    longest, offset = 0.0, 0
    with socket.create_connection((host, int(port)), _TIMEOUT) as connection:
        splitter = FrameSplitter()
        for _ in range(8):
            started = time.perf_counter()
            connection.sendall(pull_frame(0, offset, size, subscription))
            while (frame := splitter.next_frame()) is None:
                splitter.receive(connection.recv(_RECEIVE_BYTES))
            longest = max(longest, time.perf_counter() - started)
            offset = PullReply.from_fields(decode(frame).fields).next_begin_offset
    return longest


def pull_frame(queue: int, offset: int, size: Size, subscription: str) -> bytes:
    """Return a pull request whose request id is the number of the queue."""
    header = PullRequest(
        consumer_group="bench",
        topic=TOPIC,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=size.messages,
        max_msg_bytes=size.size_bytes,
        sys_flag=_HAS_SUBSCRIPTION,
        subscription=subscription,
        expression_type="TAG",
    )
    command = request_command(header, code=RequestCode.PULL_MESSAGE)
    command.request_id = queue
    return encode(command)


def main() -> None:
    """Fill a topic, read it in all sizes, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--tag", action="store_true")
    options = parser.parse_args()
    subscription = TAG if options.tag else "*"
    with server_pair.start("downrange") as peer:
        peer.make_topic(TOPIC)
        sent, cpu = fill(peer, options.messages, is_single=options.single)
        print(f"{sent} messages sent, {1e6 * cpu / sent:.2f} µs of the broker's CPU each\n")
        print("limits                   per reply   messages/s   broker µs each    longest reply")
        for size in SIZES:
            readings = [read(peer, size, subscription) for _ in range(options.rounds)]
            if any(reading.messages != sent for reading in readings):
                raise RuntimeError(f"{sent} messages were sent, but these were read: {readings}")
            best = min(readings, key=lambda reading: reading.server_cpu)
            size_text = "-" if size.size_bytes is None else f"{size.size_bytes >> 10} KiB"
            print(
                f"{size.messages:5} messages {size_text:>8}   {sent / best.answers:10.0f}   "
                f"{sent / min(reading.seconds for reading in readings):10.0f}   "
                f"{1e6 * best.server_cpu / sent:14.2f}   "
                f"{1e3 * longest_reply(peer, size, subscription):11.1f} ms"
            )


if __name__ == "__main__":
    main()
