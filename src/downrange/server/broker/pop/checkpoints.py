"""Checkpoints: which popped messages are not acknowledged yet, and when each becomes visible again.

A checkpoint covers the messages of one queue that one pop returned. Each of its messages is open
until it is acknowledged or revived, that is, stored again in a retry topic. The table is in memory;
it follows from the records in the log (see `checkpoint_records`), which are read again at a start.

Three numbers describe a group's progress in a queue, from low to high:

    committed   the start of the oldest open checkpoint: a restart never goes on behind it
    open        messages of checkpoints that are not acknowledged
    next        what the next pop reads; all before it was handed out or did not match a filter

One rule: `next` is never saved, as it follows from the committed offset and the open checkpoints. A
checkpoint that begins before `next` is one whose time was changed: it does not hold the committed
offset back, because its own record protects its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from downrange.server.broker.pop.queue_reader import Taken
    from downrange.server.broker.tables.group_offsets import GroupOffsets

#: Identifies a checkpoint: topic, group, queue id, start offset, time of the pop. The topic is the
#: one that has the messages, which may be a retry topic.
CheckpointName: TypeAlias = tuple[str, str, int, int, int]

#: How many closed checkpoints a collection may hold, besides one for each open one, before they
#: are removed from it. Few, because memory that is used again soon is still in the CPU's caches:
#: with 1024, a pop and its acknowledgement took 3 µs more.
_CLOSED_MAX: Final = 100


class Checkpoint(msgspec.Struct, eq=False, gc=False):  # made per pop, and part of no cycle
    """The messages of one queue that one pop returned.

    Attributes:
        name: See `CheckpointName`.
        offsets: Of the messages, in rising order; a range if they are neighbours.
        invisible_ms: For how long the messages are invisible.
        revive_queue: The queue of the revive topic that gets its records.
        timer_offset: The offset of its record in the timer's queue.
        open_bits: A bit for each message that is neither acknowledged nor revived.
        is_suspended: Whether a consumer gave the message back without handling it (`suspend` in a
            change of the time): this delivery does not count.
    """

    name: CheckpointName
    offsets: Sequence[int]
    invisible_ms: int
    revive_queue: int
    timer_offset: int = 0
    open_bits: int = 0
    is_suspended: bool = False

    def __post_init__(self) -> None:
        """Open all messages."""
        self.open_bits = (1 << len(self.offsets)) - 1

    @property
    def topic(self) -> str:
        """The topic that has the messages."""
        return self.name[0]

    @property
    def group(self) -> str:
        """The group that popped them."""
        return self.name[1]

    @property
    def queue_id(self) -> int:
        """Their queue."""
        return self.name[2]

    @property
    def start(self) -> int:
        """The first offset."""
        return self.name[3]

    @property
    def pop_ms(self) -> int:
        """When they were popped."""
        return self.name[4]

    @property
    def due_ms(self) -> int:
        """When the open messages become visible again."""
        return self.name[4] + self.invisible_ms

    def receipt(self, offset: int) -> str:
        """Return a text that identifies the delivery of one of its messages."""
        _, _, queue_id, start, pop_ms = self.name
        return f"{start} {pop_ms} {self.invisible_ms} {self.revive_queue} 0 - {queue_id} {offset}"

    def open_offsets(self) -> Sequence[int]:
        """Return the offsets of the open messages."""
        if self.open_bits == (1 << len(self.offsets)) - 1:
            return self.offsets
        return [offset for bit, offset in enumerate(self.offsets) if self.open_bits >> bit & 1]

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Return the bits of those offsets that are open."""
        if offsets == self.offsets:  # by far the most frequent case: all at once
            return self.open_bits
        bits = 0
        for offset in offsets:
            if offset in self.offsets:
                bits |= 1 << self.offsets.index(offset)
        return bits & self.open_bits


class _Progress:
    """A group's progress in a queue; see the module's docstring.

    Attributes:
        next: What the next pop reads.
        first_pops: The checkpoints that hold the committed offset back, in the order of offsets.
        is_new: Whether the group has not committed an offset here.
        limit: The length of `first_pops` at which closed checkpoints are removed from it.
    """

    __slots__ = ("first_pops", "is_new", "limit", "next")

    def __init__(self, next_offset: int) -> None:
        self.next = next_offset
        self.first_pops: deque[Checkpoint] = deque()
        self.is_new = True
        self.limit = _CLOSED_MAX

    def hold(self, checkpoint: Checkpoint) -> None:
        """Hold the committed offset back until a checkpoint is closed."""
        self.first_pops.append(checkpoint)
        if len(self.first_pops) > self.limit:
            self.first_pops = deque(found for found in self.first_pops if found.open_bits)
            self.limit = 2 * len(self.first_pops) + _CLOSED_MAX


class Checkpoints:
    """All open checkpoints.

    Args:
        offsets: The committed offsets of groups, which move as checkpoints close.

    Attributes:
        version: The number of changes since the start.
    """

    def __init__(self, offsets: GroupOffsets) -> None:
        self.version = 0
        self._offsets = offsets
        self._open: dict[CheckpointName, Checkpoint] = {}
        self._progress: dict[tuple[str, str, int], _Progress] = {}  # by topic, group, queue id
        self._by_age: deque[Checkpoint] = deque()  # in the order of the timer's queue
        self._times: list[tuple[int, int, Checkpoint]] = []  # a heap; a number breaks ties
        self._next_sweep = _CLOSED_MAX  # the version at which closed ones are removed from both

    def __len__(self) -> int:
        """Return the number of open checkpoints."""
        return len(self._open)

    def __iter__(self) -> Iterator[Checkpoint]:
        """Iterate over the open checkpoints."""
        return iter(self._open.values())

    def get(self, name: CheckpointName) -> Checkpoint | None:
        """Return an open checkpoint, or None."""
        return self._open.get(name)

    def unused_ms(self, group: str, found: Sequence[Taken], now_ms: int) -> int:
        """Return a time for a pop so that its checkpoints have names of their own.

        It is the current time, unless an offset or the clock was set back.
        """
        pop_ms, is_used = now_ms, self._open.__contains__
        for taken in found:
            while is_used((taken.topic, group, taken.queue_id, taken.start, pop_ms)):
                pop_ms += 1
        return pop_ms if pop_ms == now_ms else self.unused_ms(group, found, pop_ms)

    # ---- a group's progress ----

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return what the next pop reads, or None if the group has neither popped nor committed."""
        progress = self._progress.get((topic, group, queue_id))
        committed = self._offsets.get(group, topic, queue_id)
        if progress is None:
            return committed
        return progress.next if committed is None else max(progress.next, committed)

    def has_popped(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group has popped from a queue, as far as records of it were read."""
        return (topic, group, queue_id) in self._progress

    def skip(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Set what the next pop reads, as no message before it matches."""
        key = (topic, group, queue_id)
        progress = self._progress.get(key)
        if progress is None:
            progress = self._progress[key] = _Progress(next_offset)
        progress.next = next_offset
        self._commit(key, progress)

    def add_first(self, checkpoint: Checkpoint, next_offset: int) -> None:
        """Add the checkpoint of a pop, once its record is stored.

        Args:
            checkpoint: The checkpoint.
            next_offset: What the next pop reads: the offset after the last one that was examined.
        """
        key = checkpoint.name[:3]
        progress = self._progress.get(key)
        if progress is None:
            progress = self._progress[key] = _Progress(next_offset)
        progress.next = next_offset
        progress.hold(checkpoint)
        if progress.is_new:
            self._commit(key, progress)
        self._open_up(checkpoint)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set what the next pop reads, whatever is open; the caller commits the offset."""
        if (topic, group, queue_id) in self._progress:
            self._progress[topic, group, queue_id] = _Progress(offset)

    def commit_all(self) -> None:
        """Commit what the next pop reads, of every queue: the broker stops.

        All checkpoints are in the log then. An Apache broker that continues with the store reads
        from the committed offset on, whatever is open; ours would go on from here in any case.
        """
        for (topic, group, queue_id), progress in self._progress.items():
            self._offsets.advance(group, topic, queue_id, progress.next)

    def _commit(self, key: tuple[str, str, int], progress: _Progress) -> None:
        progress.is_new = False
        topic, group, queue_id = key
        first_pops = progress.first_pops
        while first_pops and not first_pops[0].open_bits:
            first_pops.popleft()
        offset = first_pops[0].name[3] if first_pops else progress.next
        self._offsets.advance(group, topic, queue_id, offset)

    # ---- opening and closing ----

    def add(self, checkpoint: Checkpoint, *, moves_next: bool = True) -> None:
        """Add a checkpoint that was read from the log, or one whose time was changed.

        One that is known is not added again. A record that lists fewer messages than the first one
        was written later: the others were acknowledged in between.

        Args:
            checkpoint: The checkpoint.
            moves_next: Whether the next pop reads behind it. Not after the time of a popped message
                was changed, and not if the group was set back since.
        """
        known = self._open.get(checkpoint.name)
        if known is not None:
            done = known.open_bits & ~known.bits_of(checkpoint.offsets)
            if done:
                self.close(known, done)
            return
        topic, group, queue_id, start, _ = checkpoint.name
        key = (topic, group, queue_id)
        progress = self._progress.get(key)
        if progress is None:
            committed = self._offsets.get(group, topic, queue_id)
            progress = self._progress[key] = _Progress(start if committed is None else committed)
        if moves_next and start >= progress.next:
            progress.hold(checkpoint)
            progress.next = checkpoint.offsets[-1] + 1
        self._open_up(checkpoint)

    def _open_up(self, checkpoint: Checkpoint) -> None:
        name = checkpoint.name
        self._open[name] = checkpoint
        self._by_age.append(checkpoint)
        # A number that rises breaks ties.
        self.version = number = self.version + 1
        heappush(self._times, (name[4] + checkpoint.invisible_ms, number, checkpoint))
        if number >= self._next_sweep:
            self._times = [entry for entry in self._times if entry[2].open_bits]
            heapify(self._times)
            self._by_age = deque(found for found in self._by_age if found.open_bits)
            self._next_sweep = number + len(self._open) + _CLOSED_MAX

    def moved(self, timer_offsets: Mapping[Checkpoint, int]) -> None:
        """Note that records of checkpoints were stored again, behind all others.

        Args:
            timer_offsets: The new offset of each in the timer's queue.
        """
        for checkpoint, offset in timer_offsets.items():
            checkpoint.timer_offset = offset
        self._by_age = deque(sorted(self, key=lambda found: found.timer_offset))
        self.version += 1

    def close(self, checkpoint: Checkpoint, bits: int) -> None:
        """Note that messages of a checkpoint are acknowledged or revived.

        Args:
            checkpoint: One that is open; nothing happens if it was closed meanwhile.
            bits: See `Checkpoint.open_bits`.
        """
        left = checkpoint.open_bits = checkpoint.open_bits & ~bits
        self.version += 1
        if left or self._open.pop(checkpoint.name, None) is None:
            return
        by_age = self._by_age
        while by_age and not by_age[0].open_bits:
            by_age.popleft()
        key = checkpoint.name[:3]
        progress = self._progress.get(key)
        if progress is not None:
            self._commit(key, progress)

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Forget checkpoints and progress whose topic or group was deleted.

        Args:
            is_gone: Takes a topic and a group.
        """
        for key in [key for key in self._progress if is_gone(key[0], key[1])]:
            del self._progress[key]
        for checkpoint in [found for found in self if is_gone(found.topic, found.group)]:
            self.close(checkpoint, checkpoint.open_bits)

    # ---- time ----

    def next_due_ms(self) -> int | None:
        """Return when the next open checkpoint is due, or None."""
        while self._times and not self._times[0][2].open_bits:
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def take_due(self, now_ms: int) -> Checkpoint | None:
        """Return the next checkpoint that is due; `put_back` or `close` must follow."""
        due_ms = self.next_due_ms()
        return heappop(self._times)[2] if due_ms is not None and due_ms <= now_ms else None

    def put_back(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Return a checkpoint that could not be revived; it is due again at a time."""
        self.version += 1
        heappush(self._times, (due_ms, self.version, checkpoint))

    def first_timer_offset(self) -> int | None:
        """Return the offset in the timer's queue before which no open checkpoint is stored."""
        return self._by_age[0].timer_offset if self._by_age else None
