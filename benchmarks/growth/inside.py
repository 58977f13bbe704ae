"""Measures the store alone as it grows: cost per message, flushes, start time after a crash.

    python -m benchmarks.growth.inside [--megabytes 300]

Three tables: the cost of an append by number of topics, and how long a full flush blocks the
store's thread; the cost of an append as the log grows; and the time to open a store after a crash,
with the same amount of unflushed data after logs of different size. Costs are CPU time, the best of
several rounds; the other times are elapsed time.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from time import perf_counter, process_time

from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.records import Record

NOW_MS = 1_800_000_000_000
GROUP = 16
ROUND = 2048
BODY = bytes(range(256)) * 4
SIZES = StoreOptions(log_segment_bytes=64 * 1024 * 1024)


class Load:
    """A store, and messages for its topics in turn."""

    def __init__(self, folder: str, topics: int) -> None:
        self.files = OsFiles(folder)
        self.store = MessageStore(self.files, SIZES)
        self.topics = topics
        self.made = 0

    def make(self) -> Record:
        """Return the next message."""
        number = self.made
        self.made += 1
        text = f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F00000100010000{number:016X}\x02"
        return Record(
            topic_bytes=b"orders-%d" % (number % self.topics),
            body=BODY,
            property_bytes=f"{text}WAIT\x01true\x02TAGS\x01paid\x02".encode(),
            born_ms=NOW_MS,
        )

    def append_us(self, messages: int, group: int = GROUP) -> float:
        """Append messages and return the CPU time per message."""
        records = [self.make() for _ in range(messages)]
        properties = [record.properties() for record in records]
        started = process_time()
        for first in range(0, messages, group):
            last = first + group
            self.store.append(records[first:last], NOW_MS + first, properties[first:last])
        return (process_time() - started) / messages * 1e6


def show_topics() -> None:
    print(
        "topics: µs per message alone and in groups of 16; ms of a full flush, all queues dirty\n"
    )
    print(f"{'topics':>8}{'alone':>8}{'group':>8}{'begin':>9}{'run':>9}{'finish':>9}")
    for topics in (1, 10, 100, 1000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            load = Load(folder, topics)
            load.append_us(max(topics, ROUND))
            load.store.flush()
            alone = min(load.append_us(ROUND, group=1) for _ in range(8))
            grouped = min(load.append_us(ROUND) for _ in range(8))
            load.append_us(topics)
            moments = [perf_counter()]
            flush = load.store.begin_flush()
            moments.append(perf_counter())
            flush.run()
            moments.append(perf_counter())
            load.store.finish_flush(flush)
            moments.append(perf_counter())
            load.files.close()
        begin, run, finish = ((after - before) * 1e3 for before, after in pairwise(moments))
        print(f"{topics:>8}{alone:>8.1f}{grouped:>8.1f}{begin:>9.2f}{run:>9.1f}{finish:>9.2f}")


def show_size(megabytes: int) -> None:
    print("\nstored: µs per message in groups of 16\n")
    print(f"{'MB':>8}{'group':>8}")
    with tempfile.TemporaryDirectory() as folder:
        load = Load(folder, topics=4)
        for stored in range(0, megabytes + 1, max(megabytes // 6, 1)):
            while load.store.log.end < stored << 20:
                load.append_us(ROUND, group=128)
            print(f"{stored:>8}{min(load.append_us(ROUND) for _ in range(4)):>8.1f}")
        load.files.close()


def show_restart(megabytes: int) -> None:
    print("\nrestart after a crash, 2,048 messages not flushed\n")
    print(f"{'MB':>8}{'ms':>8}{'scanned':>10}")
    for stored in (0, megabytes // 4, megabytes // 2, megabytes):
        with tempfile.TemporaryDirectory() as folder:
            load = Load(folder, topics=4)
            while load.store.log.end < stored << 20:
                load.append_us(ROUND, group=128)
            load.store.flush()
            load.append_us(2048)
            load.files.close()  # the store is not closed, as in a crash
            files = OsFiles(folder)
            started = perf_counter()
            store = MessageStore(files, SIZES)
            took = (perf_counter() - started) * 1e3
            print(f"{stored:>8}{took:>8.0f}{store.recovery.scanned_records:>10}")
            files.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=300)
    megabytes = parser.parse_args().megabytes
    show_topics()
    show_size(megabytes)
    show_restart(megabytes)


if __name__ == "__main__":
    main()
