"""Rewinds: the offsets to which groups were set back that had read, or popped, further.

The records of pops and acknowledgements are read again at a start, and each of them moves a group's
progress forward. Those that were stored before a rewind would undo it. So the broker remembers for
each rewind where the timer's queue ended:

    timer's queue   pop 0-2   acknowledged   | rewind to 0 |   pop 0-2 again
    at a start      only known: open or not  |             |   moves the progress

The table is saved in `config/popRewinds.json`, which Apache ignores. The reply to the request that
sets an offset back waits until it is saved. The offsets of groups are saved later, with the
progress, so a start sets those offsets that they do not contain; `RewindProgress` tells which.

A reset also closes the deliveries of messages that the group reads again. While a start still reads
the timer's queue, some of them are not known yet. So the rewind says which: they are closed as soon
as the whole queue is read (`revival.is_loaded`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import field

from downrange.wire.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATH: Final = "config/popRewinds.json"
PROGRESS_PATH: Final = "config/popRewindProgress.json"

#: Topic, group and queue id.
Place: TypeAlias = tuple[str, str, int]


class RewindBody(Body, kw_only=True):
    """The last rewind of a group in a queue.

    Attributes:
        number: Rises with each rewind of the broker.
        timer_end: The end of the timer's queue at that time.
        offset: To which the group was set back.
        dropped_from: A reset drops deliveries of messages from this offset on.
        dropped_end: It drops those whose record is before this offset of the timer's queue; 0 for
            none.
    """

    topic: str
    group: str
    queue_id: int
    number: int
    timer_end: int
    offset: int
    dropped_from: int = 0
    dropped_end: int = 0


class RewindsBody(Body, kw_only=True):
    """The contents of popRewinds.json."""

    last_number: int = 0
    rewinds: list[RewindBody] = field(default_factory=list)


class RewindProgressBody(Body, kw_only=True):
    """The contents of popRewindProgress.json."""

    included: int = 0


class Rewinds:
    """The last rewind of each group and queue.

    Attributes:
        version: The number of changes since the start.
        last_number: The number of the last rewind.
        included: The last rewind that the saved offsets of groups contained at the start.
    """

    def __init__(self) -> None:
        self.version = 0
        self.last_number = 0
        self.included = 0
        self._rewinds: dict[Place, RewindBody] = {}

    def __len__(self) -> int:
        """Return the number of rewinds."""
        return len(self._rewinds)

    def add(self, place: Place, offset: int, timer_end: int, *, drops_unread: bool = False) -> None:
        """Note that a group was set back.

        Args:
            place: Topic, group and queue id.
            offset: The group's new offset.
            timer_end: The end of the timer's queue.
            drops_unread: Whether deliveries of messages from the offset on are dropped as soon as
                their records are read.
        """
        last = self._rewinds.get(place)
        dropped_from, dropped_end = (
            (0, 0) if last is None else (last.dropped_from, last.dropped_end)
        )
        if drops_unread:
            dropped_from, dropped_end = offset, timer_end
        self.last_number += 1
        topic, group, queue_id = place
        self._rewinds[place] = RewindBody(
            topic=topic,
            group=group,
            queue_id=queue_id,
            number=self.last_number,
            timer_end=timer_end,
            offset=offset,
            dropped_from=dropped_from,
            dropped_end=dropped_end,
        )
        self.version += 1

    def is_before(self, place: Place, timer_offset: int) -> bool:
        """Whether a record of the timer's queue was stored before a group was set back."""
        rewind = self._rewinds.get(place)
        return rewind is not None and timer_offset < rewind.timer_end

    def is_dropped(self, place: Place, start: int, timer_offset: int) -> bool:
        """Whether a reset dropped a delivery before its record was read.

        Args:
            place: Topic, group and queue id.
            start: The offset of its first message.
            timer_offset: Of its record.
        """
        rewind = self._rewinds.get(place)
        return (
            rewind is not None
            and timer_offset < rewind.dropped_end
            and start >= rewind.dropped_from
        )

    def drop_nothing(self) -> None:
        """Forget at a start what resets dropped: another broker has delivered messages since."""
        for rewind in self._rewinds.values():
            if rewind.dropped_end:
                rewind.dropped_from = rewind.dropped_end = 0
                self.version += 1

    def unsaved(self) -> Iterator[tuple[Place, int]]:
        """Return the offsets that the saved offsets of groups do not contain, for a start."""
        for place, rewind in self._rewinds.items():
            if rewind.number > self.included:
                yield place, rewind.offset

    def cut(self, timer_end: int) -> None:
        """Note at a start where the timer's queue ends: a loss of power may have cut it."""
        for rewind in self._rewinds.values():
            if rewind.timer_end > timer_end:
                rewind.timer_end = timer_end
                rewind.dropped_end = min(rewind.dropped_end, timer_end)
                self.version += 1

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Forget rewinds whose topic or group was deleted.

        Args:
            is_gone: Takes a topic and a group.
        """
        for place in [place for place in self._rewinds if is_gone(place[0], place[1])]:
            del self._rewinds[place]
            self.version += 1

    def dump(self) -> bytes:
        """Encode popRewinds.json."""
        rewinds = list(self._rewinds.values())
        return RewindsBody(last_number=self.last_number, rewinds=rewinds).encode()

    def load(self, data: bytes) -> None:
        """Decode popRewinds.json.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        body = decode_body(RewindsBody, data)
        self.last_number = body.last_number
        self._rewinds = {
            (rewind.topic, rewind.group, rewind.queue_id): rewind for rewind in body.rewinds
        }


class RewindProgress:
    """Tells which rewinds the saved offsets of groups contain; saved together with them."""

    def __init__(self, rewinds: Rewinds) -> None:
        self._rewinds = rewinds

    @property
    def version(self) -> int:
        """The number of changes since the start."""
        return self._rewinds.version

    def dump(self) -> bytes:
        """Encode popRewindProgress.json."""
        return RewindProgressBody(included=self._rewinds.last_number).encode()

    def load(self, data: bytes) -> None:
        """Decode popRewindProgress.json.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        rewinds = self._rewinds
        rewinds.included = decode_body(RewindProgressBody, data).included
        rewinds.last_number = max(rewinds.last_number, rewinds.included)
