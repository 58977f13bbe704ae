"""CPU cost of storing a message, and of reading it again after a crash.

The first part stores messages alone and in groups, with one topic and with ten thousand. It appends
to the log and to both indexes, without a flush: the work between the arrival of a send and its
acknowledgement with asynchronous flushes. Properties are parsed before, as in the broker. The floor
is one `pwrite` of the same bytes per group. Each figure is the best of many rounds, because other
work on the machine can only add to it.

Recovery reads the messages of a store that was not closed, indexes them and writes the checkpoint.
Its floor is to read the same bytes and to compute the CRC of each body.

    python benchmarks/store.py [--messages 20000] [--quick]
    python benchmarks/store.py --recovery [--messages 20000]

`--quick` leaves out the ten thousand topics, whose files take long to create and to close.
`--recovery` measures only recovery, and prints one number: to compare two versions of the package,
run it with each of them in turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING
from zlib import crc32

from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.records import Record, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_800_000_000_000
#: Messages of one round: a multiple of all group sizes.
ROUND = 1024
BODY = bytes(range(256)) * 4
#: Recoveries of which the best counts.
RECOVERIES = 5
TOPICS_RECOVERED = 4
READ_BYTES = 1024 * 1024
SIZES = StoreOptions(log_segment_bytes=64 * 1024 * 1024, queue_segment_units=3000)


def make(number: int, topics: int) -> Record:
    properties = f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F00000100010000{number:016X}\x02"
    return Record(
        topic_bytes=b"orders-%d" % (number % topics),
        body=BODY,
        property_bytes=f"{properties}WAIT\x01true\x02TAGS\x01paid\x02".encode(),
        born_ms=NOW_MS,
    )


def append_us(messages: int, group: int, topics: int) -> float:
    """Return the CPU time per message."""
    with tempfile.TemporaryDirectory() as folder:
        files = OsFiles(folder)
        store = MessageStore(files, SIZES)
        for topic in range(topics):  # create the queues before the measurement
            store.append([make(topic, topics)], NOW_MS)
        records = [make(number, topics) for number in range(messages)]
        properties = [record.properties() for record in records]

        def append(first: int) -> None:
            last = first + group
            store.append(records[first:last], NOW_MS + first, properties[first:last])

        cost = best_us(append, messages, group)
        store.close()
        files.close()
    return cost


def floor_us(messages: int, group: int) -> float:
    """Return the CPU time per message of writing prebuilt bytes, one call per group."""
    data = encode_record(make(1, 1)) * group
    with tempfile.TemporaryDirectory() as folder:
        handle = os.open(Path(folder) / "floor", os.O_RDWR | os.O_CREAT)
        cost = best_us(lambda first: os.pwrite(handle, data, first * 1200), messages, group)
        os.close(handle)
    return cost


def recovery_us(messages: int) -> float:
    """Return the CPU time per message of the best of some recoveries, with four topics."""
    costs: list[float] = []
    for _ in range(RECOVERIES):
        with tempfile.TemporaryDirectory() as folder:
            files = OsFiles(folder)
            fill(MessageStore(files, SIZES), messages)
            files.close()
            files = OsFiles(folder)
            started = process_time()
            store = MessageStore(files, SIZES)
            costs.append((process_time() - started) / messages * 1e6)
            assert store.recovery.scanned_records == messages
            files.close()
    return min(costs)


def recovery_floor_us(messages: int) -> float:
    """Return the CPU time per message of reading the log and computing the CRC of each body."""
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        files = OsFiles(folder)
        store = MessageStore(files, SIZES)
        fill(store, messages)
        size, end = len(encode_record(make(1, TOPICS_RECOVERED))), store.log.end
        for _ in range(RECOVERIES):
            started = process_time()
            for position in range(0, end, READ_BYTES):
                view = memoryview(store.log.read(position, READ_BYTES))
                for at in range(0, len(view), size):
                    crc32(view[at : at + len(BODY)])
            costs.append((process_time() - started) / messages * 1e6)
        files.close()
    return min(costs)


def fill(store: MessageStore, messages: int) -> None:
    """Append messages in groups, as a busy broker does, without a flush."""
    for first in range(0, messages, 16):
        last = min(first + 16, messages)
        records = [make(number, TOPICS_RECOVERED) for number in range(first, last)]
        store.append(records, NOW_MS + first // 30)


def best_us(act: Callable[[int], object], messages: int, group: int) -> float:
    """Return the CPU time per message of the best round."""
    costs: list[float] = []
    for start in range(0, messages - ROUND + 1, ROUND):
        started = process_time()
        for first in range(start, start + ROUND, group):
            act(first)
        costs.append((process_time() - started) / ROUND * 1e6)
    return min(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="with one topic only")
    parser.add_argument("--recovery", action="store_true", help="print the cost of recovery only")
    asked = parser.parse_args()
    messages: int = asked.messages
    if asked.recovery:
        print(f"{recovery_us(messages):.2f}")
        return
    print("µs of CPU per 1 KB message\n")
    print(f"{'group':>6}{'topics':>8}{'append':>10}{'floor':>9}{'ratio':>8}")
    for group in (1, 16, 128):
        for topics in (1,) if asked.quick else (1, 10_000):
            ours, floor = append_us(messages, group, topics), floor_us(messages, group)
            print(f"{group:>6}{topics:>8}{ours:>10.1f}{floor:>9.1f}{ours / floor:>7.1f}x")
    ours, floor = recovery_us(messages), recovery_floor_us(messages)
    print(f"\n{'recovery':>14}{ours:>10.1f}{floor:>9.1f}{ours / floor:>7.1f}x")


if __name__ == "__main__":
    main()
