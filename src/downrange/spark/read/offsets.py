"""Positions in queues, and the JSON that Spark keeps of them.

    {"q": {"orders": {"broker-a": {"0": 12, "1": 7}}}, "v": 1}

Each number is the offset of the next message, so an end is exclusive. Spark compares offsets as
texts, so keys are always sorted. Two more members are ours alone:

- `first`, true on a stream's initial position. Spark does not store that one, and asks again after
  a crash in the first batch: "latest" would be elsewhere by then, and what lay between be lost.
- `init`, on an end: where queues begin that the start does not name, or names wrongly. On the first
  end these are all queues, so the initial position is stored with it. Planning prefers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from downrange.errors import OptionError
from downrange.model import QueueId
from downrange.wire.limits import INT64_MAX

VERSION: Final = 1
#: What stands for the first and for the next message in offsets that a user writes.
EARLIEST: Final = -2
LATEST: Final = -1


class Positions(Mapping[QueueId, int]):
    """An offset for each of some queues; sorted, and never changed.

    Args:
        offsets: Queue -> offset.
        is_first: Whether it is a stream's initial position.
        initial: On an end: where its batch begins, for queues whose start is not to be believed.
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
        """Return what Spark keeps."""
        found: dict[str, Any] = {}
        if self.is_first:
            found["first"] = True
        if self.initial is not None:
            found["init"] = self.initial._table()
        found["q"] = self._table()
        found["v"] = VERSION
        return found

    def _table(self) -> dict[str, dict[str, dict[str, int]]]:
        # Keys of JSON are texts, so "10" comes before "2"; what matters is that it is always so.
        table: dict[str, dict[str, dict[str, int]]] = {}
        for queue in sorted(
            self._offsets, key=lambda one: (one.topic, one.broker, str(one.number))
        ):
            brokers = table.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker, {})[str(queue.number)] = self._offsets[queue]
        return table

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read what Spark kept.

        Raises:
            OptionError: It is of a later version, or not what we write.
        """
        version = found.get("v")
        if not isinstance(version, int) or version < 1:
            raise OptionError(f"these offsets are none of the rocketmq source: {found!r}")
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
    """Return where each queue of a batch begins: as its end says, else as its start does.

    Raises:
        OptionError: Neither says it of a queue.
    """
    begins = {**start, **(end.initial or {})}
    if missing := [queue for queue in end if queue not in begins]:
        raise OptionError(
            f"{missing[0]} has an end in this checkpoint, but no start: it was changed by hand, or "
            "belongs to another source; begin with a new checkpoint"
        )
    return begins


def read_table(
    name: str, table: Any, *, least: int = 0, read: Callable[[Any], int] | None = None
) -> dict[QueueId, int]:
    """Read topic -> broker -> queue id -> number.

    Args:
        name: Of the option that holds it, for the error.
        table: What JSON says.
        least: The smallest offset that means something.
        read: Reads what is not an offset.

    Raises:
        OptionError: It has another form.
    """
    if not isinstance(table, dict):
        raise OptionError(f"{name}: no topics, but {table!r}")
    found: dict[QueueId, int] = {}
    for topic, brokers in table.items():
        if not isinstance(brokers, dict):
            raise OptionError(f"{name}: {topic!r} holds no brokers, but {brokers!r}; {_FORM}")
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise OptionError(
                    f"{name}: {broker!r} of {topic!r} holds no queues, but {queues!r}; queue ids "
                    f"are unique on one broker only, so its name comes first: {_FORM}"
                )
            for number, offset in queues.items():
                if not number.isdecimal():
                    raise OptionError(f"{name}: {number!r} of {topic!r} is no queue id; {_FORM}")
                place = QueueId(topic, broker, int(number))
                if read is not None:
                    found[place] = read(offset)
                elif type(offset) is int and least <= offset <= INT64_MAX:
                    found[place] = offset
                else:
                    raise OptionError(
                        f"{name}: {offset!r} of {topic!r} {broker!r} {number} is no offset"
                    )
    return found


_FORM: Final = 'write {"topic": {"broker": {"0": 42}}}'
