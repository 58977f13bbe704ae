"""What the indexes need of many records at once, for recovery: units by queue, and entries of keys.

Recovery reads the log in pieces of a megabyte. Most records of a piece continue their queues, so
their units are made without an object per record. A run ends before the first record that is not
of this kind; the store reads that one alone.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from downrange.native import twin
from downrange.store.unit_runs import UNIT
from downrange.wire.batches import KEY_ENTRY
from downrange.wire.codes import TransactionFlag
from downrange.wire.hashes import key_front, key_hash_behind, tag_hash
from downrange.wire.properties import index_properties
from downrange.wire.records import intact_run

#: Topic, queue id, offset of the first record, units.
QueueUnits: TypeAlias = tuple[bytes, int, int, bytes]
#: The number of records, their bytes, their newest store time (at least 0), units of queues, and
#: store times with entries of keys, each in the form of `KEY_ENTRY`.
IndexedRun: TypeAlias = tuple[int, int, int, list[QueueUnits], list[tuple[int, bytes]]]

#: Records with this bit, prepared and rolled-back ones, are in no queue.
_PREPARED: Final = int(TransactionFlag.PREPARED)


class _Queue:
    """The records of one queue, whose offsets follow each other."""

    __slots__ = ("first_offset", "key_front", "next_offset", "units")

    def __init__(self, first_offset: int, key_front: int) -> None:
        self.first_offset = self.next_offset = first_offset
        self.key_front = key_front
        self.units = bytearray()


def pure_index_run(
    data: bytes, at: int, log_offset: int, keys_end: int, index_tags: bool, delay_topic: bytes
) -> IndexedRun:
    """Return what the indexes need of the records from a position on.

    The run ends as in `intact_run`; before a record whose offset does not continue that of the one
    before it in its queue; and before one whose topic is not ASCII, or that of delayed messages.

    Args:
        data: Bytes of a commit log.
        at: Where a record begins in them.
        log_offset: The log offset of that record.
        keys_end: Records up to this log offset need no entries of keys.
        index_tags: Whether a tag is indexed like a key, as `T#tag`.
        delay_topic: The topic whose units do not have the hash of the tag.
    """
    queues: dict[tuple[bytes, int], _Queue] = {}
    keyed: list[tuple[int, bytearray]] = []  # store times never go back, so equal ones are together
    count = keyed_ms = newest_ms = 0
    entries, begin = bytearray(), log_offset
    pack_unit, pack_key = UNIT.pack, KEY_ENTRY.pack
    for own_offset, size, queue_id, offset, flags, ms, topic, found in intact_run(
        data, at, log_offset
    ):
        if not flags & _PREPARED:
            queue = queues.get((topic, queue_id))
            if queue is None:
                if topic == delay_topic or not topic.isascii():
                    break
                queue = queues[topic, queue_id] = _Queue(offset, key_front(topic.decode()))
            elif offset != queue.next_offset:
                break
            queue.next_offset = offset + 1
            unique_key, user_keys, tag = index_properties(found)
            queue.units += pack_unit(own_offset, size, tag_hash(tag))
            if own_offset > keys_end:
                if ms != keyed_ms or not keyed:
                    keyed_ms, entries = ms, bytearray()
                    keyed.append((ms, entries))
                front = queue.key_front
                if unique_key:
                    entries += pack_key(key_hash_behind(front, unique_key), own_offset)
                if user_keys:
                    for key in user_keys.split(" "):
                        if key:
                            entries += pack_key(key_hash_behind(front, key), own_offset)
                if tag and index_tags:
                    entries += pack_key(key_hash_behind(front, f"T#{tag}"), own_offset)
        newest_ms = max(newest_ms, ms)
        count += 1
        log_offset = own_offset + size
    units = [
        (topic, queue_id, queue.first_offset, bytes(queue.units))
        for (topic, queue_id), queue in queues.items()
    ]
    keys = [(ms, bytes(entries)) for ms, entries in keyed if entries]
    return count, log_offset - begin, newest_ms, units, keys


index_run = twin(pure_index_run)
