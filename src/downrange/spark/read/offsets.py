"""Positions in queues, and the JSON in which Spark stores them.

    {"q": {"orders": {"broker-a": {"0": 12, "1": 7}}}, "v": 1}

Each number is the offset of the next message, so an end is exclusive. Spark compares offsets as
texts, so keys are always sorted. Two more members exist:

- `first`: true on a stream's initial position. Spark does not store this position and asks for it
  again after a crash in the first batch. "latest" would then be a later offset, and the messages
  in between would be lost.
- `init`: on an end, the start of queues that the stored start does not name, or names wrongly. On
  the first end these are all queues, so that the initial position is stored with it. Planning
  prefers it to the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.wire.limits import INT64_MAX

VERSION: Final = 1
#: In offsets that a user writes: the first message, and the next message to come.
EARLIEST: Final = -2
LATEST: Final = -1


class Positions(Mapping[QueueId, int]):
    """An immutable, sorted mapping of queues to offsets.

    Args:
        offsets: Queue -> offset.
        is_first: Whether this is a stream's initial position.
        initial: On an end: where its batch begins, for queues whose stored start does not count.
    """

    __slots__ = ("_offsets", "initial", "is_first")

    def __init__(
        self,
        offsets: Mapping[QueueId, int],
        *,
        is_first: bool = False,
        initial: Positions | None = None,
    ) -> None:
        self._offsets = dict(sorted(offsets.items()))
        self.is_first = is_first
        self.initial = initial

    def __getitem__(self, queue: QueueId) -> int:
        return self._offsets[queue]

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        return f"Positions({self.to_json()})"

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores."""
        found: dict[str, Any] = {}
        if self.is_first:
            found["first"] = True
        if self.initial is not None:
            found["init"] = self.initial._table()
        found["q"] = self._table()
        found["v"] = VERSION
        return found

    def _table(self) -> dict[str, dict[str, dict[str, int]]]:
        # Keys of JSON are texts, so "10" comes before "2"; any fixed order will do.
        table: dict[str, dict[str, dict[str, int]]] = {}
        for queue in sorted(
            self._offsets, key=lambda one: (one.topic, one.broker, str(one.number))
        ):
            brokers = table.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker, {})[str(queue.number)] = self._offsets[queue]
        return table

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read the form that Spark stores.

        Raises:
            OptionError: It is of a later version, or not of this source.
        """
        version = found.get("v")
        if not isinstance(version, int) or version < 1:
            raise OptionError(f"these are not offsets of the rocketmq source: {found!r}")
        if version > VERSION:
            raise OptionError(
                f"these offsets have version {version}, and this release reads {VERSION}: they "
                "were written by a later release; update downrange, or use another checkpoint"
            )
        initial = found.get("init")
        return cls(
            read_table("offsets", found.get("q"), least=0),
            is_first=bool(found.get("first")),
            initial=None if initial is None else Positions(read_table("init", initial, least=0)),
        )


def begins_of(start: Positions, end: Positions) -> dict[QueueId, int]:
    """Return where each queue of a batch begins: from its end if it is there, else its start.

    Raises:
        OptionError: Neither has a start for a queue.
    """
    begins = {**start, **(end.initial or {})}
    if missing := [queue for queue in end if queue not in begins]:
        raise OptionError(
            f"{missing[0]} has an end in this checkpoint, but no start: the checkpoint was changed "
            "by hand, or belongs to another source; use a new checkpoint"
        )
    return begins


def read_table(
    name: str, table: Any, *, least: int = 0, read: Callable[[Any], int] | None = None
) -> dict[QueueId, int]:
    """Read topic -> broker -> queue id -> number.

    Args:
        name: The name of the option that holds it, for errors.
        table: The decoded JSON.
        least: The smallest valid offset.
        read: Converts values that are not offsets.

    Raises:
        OptionError: The table has another form.
    """
    if not isinstance(table, dict):
        raise OptionError(f"{name}: expected topics, found {table!r}")
    found: dict[QueueId, int] = {}
    for topic, brokers in table.items():
        if not isinstance(brokers, dict):
            raise OptionError(f"{name}: {topic!r} must hold brokers, found {brokers!r}; {_FORM}")
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise OptionError(
                    f"{name}: {broker!r} of {topic!r} must hold queues, found {queues!r}; queue "
                    f"ids are unique within a broker only, so its name comes first: {_FORM}"
                )
            for number, offset in queues.items():
                if not number.isdecimal():
                    raise OptionError(f"{name}: {number!r} of {topic!r} is not a queue id; {_FORM}")
                queue = QueueId(topic, broker, int(number))
                if read is not None:
                    found[queue] = read(offset)
                elif type(offset) is int and least <= offset <= INT64_MAX:
                    found[queue] = offset
                else:
                    raise OptionError(
                        f"{name}: {offset!r} of {topic!r} {broker!r} {number} is not an offset"
                    )
    return found


_FORM: Final = 'write {"topic": {"broker": {"0": 42}}}'
