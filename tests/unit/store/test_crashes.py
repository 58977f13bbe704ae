"""Random runs of a store on a disk that loses power: the first records always survive.

Each seed is one run. `make campaign` does as many runs as time allows.
"""

from __future__ import annotations

import argparse
import time
from random import Random, randrange

import pytest

from downrange.store.files import MemoryFiles, PowerLost
from downrange.store.message_store import MessageStore
from downrange.wire.records import Record, decode_records
from tests.unit.store.store_stage import SMALL, record

STEPS = 40
SEEDS = range(40)


class CrashRun:
    """One store, the records that it was given, and those that must survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = MemoryFiles()
        self.store = MessageStore(self.files, SMALL)
        self.appended: list[Record] = []
        self.flushed = 0
        self.now_ms = 1000
        self.made = 0
        self.dropped_to = 0  # segments before this were dropped, but may be back after a crash
        self.born = {"A": 0, "B": 0}  # topic -> how many records there were when it was dropped
        self.unsure: set[str] = set()  # dropped topics that may be back after a crash

    def step(self) -> None:
        """Do one random action; power may be lost during it."""
        self.now_ms += self.random.randrange(5000)
        things = {
            self.append: 12,
            self.flush: 4,
            self.flush_log: 2,
            self.drop_segment: 1,
            self.drop_topic: 1,
            self.close_and_open: 1,
            self.kill: 1,
        }
        (thing,) = self.random.choices(list(things), weights=list(things.values()))
        if self.random.random() < 0.2:
            self.files.steps_left = self.random.randrange(30)
        try:
            thing()
        except PowerLost:
            self.crash()
        else:
            self.files.steps_left = None

    def append(self) -> None:
        records: list[Record] = []
        for _ in range(self.random.randrange(1, 5)):
            self.made += 1
            topic, queue_id = self.random.choice(["A", "B"]), self.random.randrange(2)
            size = self.random.randrange(900)
            records.append(record(self.made, topic=topic, queue_id=queue_id, size=size))
        self.appended += records
        self.store.append(records, self.now_ms)

    def flush(self) -> None:
        """Run a full flush, while messages arrive and the log alone is flushed."""
        count, dropped = len(self.appended), self.unsure
        self.unsure = set()
        flush = self.store.begin_flush()
        try:
            self.meanwhile()
            flush.run()
        except PowerLost:
            self.unsure |= dropped
            raise
        self.meanwhile()
        self.store.finish_flush(flush)
        self.flushed = max(self.flushed, count)

    def meanwhile(self) -> None:
        while self.random.random() < 0.4:
            things = [self.append, self.append, self.flush_log, self.drop_segment, self.drop_topic]
            self.random.choice(things)()

    def flush_log(self) -> None:
        count = len(self.appended)
        flush = self.store.begin_log_flush()
        if self.random.random() < 0.5:
            self.append()
        flush.run()
        self.store.finish_log_flush(flush)
        self.flushed = max(self.flushed, count)

    def drop_segment(self) -> None:
        if self.store.log.can_drop_first:
            self.store.drop_first_segment()
            # After a crash, dropped segments may be back, but without their keys.
            self.dropped_to = max(self.dropped_to, self.store.log.first)

    def drop_topic(self) -> None:
        topic = self.random.choice(["A", "B"])
        self.store.drop_topic(topic)
        self.born[topic] = len(self.appended)
        self.unsure.add(topic)

    def drop_again(self) -> None:
        """Drop the topics that may be back, as a broker does with unknown topics."""
        for topic in self.unsure:
            self.store.drop_topic(topic)
            self.born[topic] = len(self.appended)

    def close_and_open(self) -> None:
        count = len(self.appended)
        self.store.close()
        self.flushed = count
        self.unsure.clear()
        self.store = MessageStore(self.files, SMALL)
        assert self.store.recovery.was_clean
        assert self.store.recovery.scanned_records == 0

    def kill(self) -> None:
        """End the process; the disk keeps all writes."""
        self.store = MessageStore(self.files, SMALL)
        assert list(self.store.log.walk(self.store.log.first)) == self.kept()
        self.drop_again()

    def crash(self) -> None:
        """Lose power, and sometimes again while the store is opened."""
        self.files.crash(self.random)
        while True:
            if self.random.random() < 0.3:
                self.files.steps_left = self.random.randrange(20)
            try:
                self.store = MessageStore(self.files, SMALL)
                break
            except PowerLost:
                self.files.crash(self.random)
        self.files.steps_left = None
        survivors = list(self.store.log.walk(self.store.log.first))
        gone = len(self.appended) - len(self.kept())
        assert gone + len(survivors) >= self.flushed
        assert survivors == self.kept()[: len(survivors)]
        del self.appended[gone + len(survivors) :]
        self.drop_again()

    def open_interrupted(self, steps: int) -> bool:
        """Open the store, and lose power after some writes; return whether that was on the way."""
        self.files.steps_left = steps
        try:
            self.store = MessageStore(self.files, SMALL)
        except PowerLost:
            self.files.crash(self.random)
            return True
        self.files.steps_left = None
        return False

    def kept(self) -> list[Record]:
        """Return the appended records that are not in dropped segments."""
        return [made for made in self.appended if made.log_offset >= self.store.log.first]

    def check(self) -> None:
        """Find every record in its queue and by its key."""
        for topic, queue_id in ("A", 0), ("A", 1), ("B", 0), ("B", 1):
            mine = [
                made
                for made in self.appended[self.born[topic] :]
                if (made.topic, made.queue_id) == (topic, queue_id)
            ]
            queue = self.store.queue(topic, queue_id)
            first_min = sum(made.log_offset < self.store.log.first for made in mine)
            first_max = sum(made.log_offset < self.dropped_to for made in mine)
            assert first_min <= queue.min_offset <= first_max
            assert queue.max_offset == len(mine)
            units = queue.units(queue.min_offset, len(mine))
            packed = queue.packed(queue.min_offset, len(mine))
            count, parts = self.store.read_range(packed, 1 << 30)
            assert count == len(units) == queue.max_offset - queue.min_offset
            assert decode_records(b"".join(parts)) == mine[queue.min_offset :]
        for made in [made for made in self.kept() if made.log_offset >= self.dropped_to][-20:]:
            unique_id = made.properties()["UNIQ_KEY"]
            found_at = self.store.find(
                made.topic, unique_id, begin_ms=0, end_ms=2**62, found_max=64
            ).log_offsets
            assert made.log_offset in found_at


@pytest.mark.parametrize("seed", SEEDS)
def test_no_flushed_message_is_lost(seed: int) -> None:
    run = CrashRun(seed)
    for _ in range(STEPS):
        run.step()
        run.check()


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_at_each_write_of_a_recovery_loses_nothing(seed: int) -> None:
    """Also at each write of the checkpoints of the recovery, and of the recovery after it."""
    steps, is_interrupted = 0, True
    while is_interrupted:
        run = CrashRun(seed)
        while len(run.appended) < 25:
            run.step()
        run.flush_log()
        run.append()
        run.files.crash(run.random)
        is_interrupted = run.open_interrupted(steps)
        if is_interrupted:
            run.open_interrupted(steps // 2)
        run.crash()
        run.check()
        assert MessageStore(run.files, SMALL).recovery.scanned_records == 0
        steps += 1
    assert steps > 20


def test_same_seed_gives_the_same_run() -> None:
    def end_of(seed: int) -> list[tuple[int, bytes]]:
        run = CrashRun(seed)
        for _ in range(STEPS):
            run.step()
        return [(made.log_offset, made.body) for made in run.appended]

    assert end_of(3) == end_of(3)
    assert end_of(3) != end_of(4)


def main() -> None:
    """Do new runs until the time is over; a failure names its seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    deadline = time.monotonic() + parser.parse_args().seconds
    first = seed = randrange(1 << 40)
    while time.monotonic() < deadline:
        try:
            test_no_flushed_message_is_lost(seed)
        except BaseException:
            print(f"seed {seed} failed")
            raise
        seed += 1
    print(f"{seed - first} runs of a store that crashes, seeds {first} to {seed - 1}: no failure")


if __name__ == "__main__":
    main()
