"""The offsets of consumer groups: how far each group has read in each queue.

One rule: the last committed offset counts, even if it is lower than the one before. `version`
counts the changes, so that an unchanged table is not written again.

An offset that an operator has reset is kept until a consumer was told: the next pull (or pop) of
the queue takes it, and commits are ignored until then. This is lost when the broker stops; the
offset itself is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.wire.bodies import DataVersion, GroupOffsetsBody, decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATH: Final = "config/consumerOffset.json"
#: Separates topic and group in the file's keys; a topic's name cannot contain it.
_SEPARATOR: Final = "@"

_encode: Final = msgspec.json.Encoder().encode


class GroupOffsets:
    """The offsets of all groups.

    Attributes:
        version: The number of changes since the start.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, int]]] = {}
        self._resets: dict[tuple[str, str, int], int] = {}
        self._loaded = DataVersion(state_version=0)
        self.version = 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a group in a queue, or None if it never committed one."""
        try:
            return self._groups[group][topic].get(queue_id)
        except KeyError:
            return None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group in a queue."""
        try:
            queues = self._groups[group][topic]
        except KeyError:
            queues = self._groups.setdefault(group, {}).setdefault(topic, {})
        if queues.get(queue_id) != offset:  # most pulls commit the same offset again
            queues[queue_id] = offset
            self.version += 1

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group in a queue, unless it is higher already."""
        try:
            queues = self._groups[group][topic]
        except KeyError:
            queues = self._groups.setdefault(group, {}).setdefault(topic, {})
        if queues.get(queue_id, -1) < offset:
            queues[queue_id] = offset
            self.version += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group in a queue, from which its consumers have to go on."""
        self.commit(group, topic, queue_id, offset)
        self._resets[group, topic, queue_id] = offset

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether consumers do not know of a reset yet, so that they must not commit."""
        return bool(self._resets) and (group, topic, queue_id) in self._resets

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset to which a queue was reset, once; None if it was not."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def delete_group(self, group: str) -> None:
        """Remove a group's offsets."""
        self._drop_resets(0, group)
        if self._groups.pop(group, None) is not None:
            self.version += 1

    def delete_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in a topic."""
        self._drop_resets(1, topic)
        for group in self.groups_of(topic):
            del self._groups[group][topic]
            self.version += 1

    def _drop_resets(self, part: int, name: str) -> None:
        for key in [key for key in self._resets if key[part] == name]:
            del self._resets[key]

    def of_group(self, group: str) -> Mapping[str, Mapping[int, int]]:
        """Return a group's offsets by topic and queue id."""
        return self._groups.get(group, {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset."""
        return list(self._groups.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in a topic."""
        return [group for group, topics in self._groups.items() if topic in topics]

    def dump(self) -> bytes:
        """Encode consumerOffset.json."""
        body: dict[str, Any] = {
            "dataVersion": self._version(),
            "offsetTable": dict(self._entries()),
        }
        return _encode(body)

    def load(self, data: bytes) -> None:
        """Decode consumerOffset.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        body = decode_body(GroupOffsetsBody, data)
        for key, queues in body.offset_table.items():
            topic, _, group = key.partition(_SEPARATOR)
            self._groups.setdefault(group, {})[topic] = queues
        self._loaded = body.data_version or self._loaded

    def _entries(self) -> Iterator[tuple[str, dict[int, int]]]:
        for group, topics in self._groups.items():
            for topic, queues in topics.items():
                yield f"{topic}{_SEPARATOR}{group}", queues

    def _version(self) -> DataVersion:
        return DataVersion(
            timestamp=self._loaded.timestamp,
            counter=self._loaded.counter + self.version,
            state_version=0,
        )
