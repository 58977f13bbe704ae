"""Stories of a store on a disk that loses power: whatever happens, a front part survives.

Each seed is one story. `make campaign` tells as many as time allows.
"""

from __future__ import annotations

import argparse
import time
from random import Random, randrange

import pytest

from downrange.store.files import MemoryFiles
from downrange.store.message_store import MessageStore
from downrange.wire.records import Record, decode_record
from tests.unit.store.making import SMALL, record

STEPS = 40
SEEDS = range(40)


class Story:
    """One store, what it was given, and what must survive."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = MemoryFiles()
        self.store = MessageStore(self.files, SMALL)
        self.appended: list[Record] = []
        self.flushed = 0
        self.now_ms = 1000
        self.made = 0

    def step(self) -> None:
        """Do one thing, chosen by chance."""
        self.now_ms += self.random.randrange(5000)
        chance = self.random.random()
        if chance < 0.6:
            self.append()
        elif chance < 0.8:
            self.store.flush()
            self.flushed = len(self.appended)
        elif chance < 0.85:
            self.close_and_open()
        else:
            self.crash()

    def append(self) -> None:
        records: list[Record] = []
        for _ in range(self.random.randrange(1, 5)):
            self.made += 1
            topic, queue_id = self.random.choice(["A", "B"]), self.random.randrange(2)
            size = self.random.randrange(900)
            records.append(record(self.made, topic=topic, queue_id=queue_id, size=size))
        self.store.append(records, self.now_ms)
        self.appended += records

    def close_and_open(self) -> None:
        self.store.close()
        self.store = MessageStore(self.files, SMALL)
        self.flushed = len(self.appended)
        assert self.store.recovery.was_clean
        assert self.store.recovery.scanned_records == 0

    def crash(self) -> None:
        self.files.crash(self.random)
        self.store = MessageStore(self.files, SMALL)
        survivors = list(self.store.log.walk(0))
        assert len(survivors) >= self.flushed
        assert list(map(_facts, survivors)) == list(map(_facts, self.appended[: len(survivors)]))
        self.appended = self.appended[: len(survivors)]

    def check(self) -> None:
        """Find everything that was appended, in its queue and by its key."""
        for key in {(made.topic, made.queue_id) for made in self.appended}:
            mine = [made for made in self.appended if (made.topic, made.queue_id) == key]
            queue = self.store.queue(*key)
            assert (queue.min_offset, queue.max_offset) == (0, len(mine))
            found = [decode_record(self.store.read(unit)) for unit in queue.units(0, len(mine))]
            assert [one.body for one in found] == [one.body for one in mine]
        for made in self.appended[-20:]:
            unique_id = made.properties()["UNIQ_KEY"]
            found_at = self.store.find(
                made.topic, unique_id, begin_ms=0, end_ms=2**62, found_max=64
            ).log_offsets
            assert made.log_offset in found_at


def _facts(made: Record) -> tuple[object, ...]:
    """Return all of a record but its CRC, which only one that was read knows."""
    return tuple(getattr(made, name) for name in made.__struct_fields__ if name != "body_crc")


@pytest.mark.parametrize("seed", SEEDS)
def test_no_flushed_message_is_lost(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
        story.check()


def test_same_seed_tells_the_same_story() -> None:
    def end_of(seed: int) -> list[tuple[int, bytes]]:
        story = Story(seed)
        for _ in range(STEPS):
            story.step()
        return [(made.log_offset, made.body) for made in story.appended]

    assert end_of(3) == end_of(3)
    assert end_of(3) != end_of(4)


def main() -> None:
    """Tell new stories until the time is over; a failure names its seed."""
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
    print(f"{seed - first} stories of a store that crashes, seeds {first} to {seed - 1}: all well")


if __name__ == "__main__":
    main()
