"""The slots of a key index file in memory, and the entries that are put into them.

Each slot has the number of its newest entry, or 0. An entry names the one before it in the same
slot. `key_index` has the layout of the file.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from downrange.native import twin
from downrange.wire.batches import KEY_ENTRY
from downrange.wire.limits import INT32_MAX

#: An entry of a file: key hash, log offset, seconds, number of the entry before it.
ENTRY: Final = Struct(">iqii")
SLOT_BYTES: Final = 4
#: Slots are written in pages of 4 KiB.
PAGE_SLOTS_LOG2: Final = 10


class PutEntries(NamedTuple):
    """Entries as the file has them, pages whose slots changed, and how many slots were empty."""

    data: bytes
    pages: list[int]
    slots_taken: int


class PureKeySlots:
    """All slots of one file.

    Args:
        count: How many there are; all are empty. Memory is taken only for pages that are touched.

    Raises:
        ValueError: The number of slots is not that of a file.
    """

    __slots__ = ("_slots",)

    def __init__(self, count: int) -> None:
        if not 0 < count <= INT32_MAX:
            raise ValueError("a file has 1 to 2^31 - 1 slots")
        self._slots = memoryview(bytearray(count * SLOT_BYTES)).cast("i")

    @staticmethod
    def load(data: bytes) -> PureKeySlots:
        """Return slots from their bytes in the machine's order.

        Raises:
            ValueError: The bytes are not those of slots.
        """
        if len(data) % SLOT_BYTES:
            raise ValueError("the last slot is cut off")
        loaded = PureKeySlots(len(data) // SLOT_BYTES)
        loaded._slots.cast("B")[:] = data
        return loaded

    def get(self, slot: int) -> int:
        """Return the number in a slot."""
        return self._slots[slot]

    def set(self, slot: int, number: int) -> None:
        """Change the number in a slot."""
        self._slots[slot] = number

    def part(self, begin: int, end: int) -> bytes:
        """Return the bytes of the slots between two places, in the machine's order."""
        return self._slots[begin:end].tobytes()

    def put(self, entries: bytes, number: int, seconds: int) -> PutEntries:
        """Put entries behind the last one of their slots.

        Args:
            entries: In the form of `KEY_ENTRY`.
            number: The number of the first entry; the others follow.
            seconds: Their time since the first store time of the file.

        Raises:
            ValueError: An entry is cut off, or its number does not fit a file. Nothing was put.
        """
        if len(entries) % KEY_ENTRY.size:
            raise ValueError("the last entry is cut off")
        if number < 1 or number + len(entries) // KEY_ENTRY.size - 1 > INT32_MAX:
            raise ValueError("the numbers of entries are not positive numbers of 31 bits")
        slots, pack = self._slots, ENTRY.pack
        slot_count = len(slots)
        data, slots_taken = bytearray(), 0
        pages: list[int] = []
        for hash_value, log_offset in KEY_ENTRY.iter_unpack(entries):
            slot = hash_value % slot_count
            previous = slots[slot]
            if not 0 < previous < number:
                previous = 0
                slots_taken += 1
            data += pack(hash_value, log_offset, seconds, previous)
            slots[slot] = number
            pages.append(slot >> PAGE_SLOTS_LOG2)
            number += 1
        return PutEntries(bytes(data), pages, slots_taken)


KeySlots: Final = twin(PureKeySlots)
