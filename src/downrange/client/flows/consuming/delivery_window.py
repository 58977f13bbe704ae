"""The messages of one queue between pull and commit, for one member of a group.

    pulled -> waiting -> running -> done           `position` is the first one that is not done
                 ^----------' put back, to be handled again

One rule: a window is one assignment of a queue. When the member loses the queue, or its offset is
reset, the window is dropped; if the queue comes back, it gets a new window. So an answer that comes
late for an old window is never taken for the new one. With another filter a window stays, because
of what was begun, and its epoch changes: an answer to a pull of an earlier epoch does not count.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from contextlib import suppress
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.effects import Signal
from downrange.client.flows.routing.routes import MASTER
from downrange.model import QueueOffset
from downrange.wire.limits import MIB

if TYPE_CHECKING:  # the struct here is never decoded, so its annotations are not evaluated
    from collections.abc import Callable, Sequence

    from downrange.client.flows.consuming.pull import Filter
    from downrange.errors import RocketMQError
    from downrange.model import QueueId, ReceivedMessage  # noqa: TC004


#: Fewer messages are handed out one by one: a run is for a queue with many.
_RUN_MIN: Final = 4
#: A pull may ask for so many messages even if the window's share of the buffer is less.
_PULL_LEAST: Final = 32
#: Most bytes of a pull: what brokers return by default, and what is asked for. Our broker goes by
#: it; Apache's returns its default whatever is asked for.
_PULL_BYTES_USUAL: Final = MIB // 4
_PULL_BYTES: Final = MIB
#: Most pulls of a window that are in flight.
_PULLS_MAX: Final = 8
_body_of: Final[Callable[[ReceivedMessage], bytes]] = attrgetter("body")
_offset_of: Final[Callable[[ReceivedMessage], int]] = attrgetter("offset")
_time_of: Final[Callable[[tuple[float, ReceivedMessage]], float]] = itemgetter(0)


def body_bytes(messages: Sequence[ReceivedMessage]) -> int:
    """Return the bytes of the bodies of messages."""
    return sum(map(len, map(_body_of, messages)))


class Buffer:
    """What a consumer has fetched and not handled, in all its windows.

    Args:
        count_max: Most messages.
        bytes_max: Most bytes of their bodies.
    """

    __slots__ = ("bytes", "bytes_max", "count", "count_max")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0

    def has_room(
        self, window: DeliveryWindow, window_count: int, queue_count: int, queue_bytes: int
    ) -> bool:
        """Return whether a window may fetch: limits of all windows, its share of them, its own.

        Args:
            window: The window.
            window_count: How many there are.
            queue_count: Most messages of one.
            queue_bytes: Most bytes of one; what is fetched last may go beyond it.
        """
        if not self.count:
            return True
        needed = max(window.needed, 1)
        if self.bytes + needed > self.bytes_max or self.count >= self.count_max:
            return False
        share = max(1, window_count)
        return not window.count or (
            window.count < min(queue_count, self.count_max // share + 1)
            and window.bytes <= min(queue_bytes, self.bytes_max // share)
        )

    def pull_limits(self, window_count: int, pull_batch: int) -> tuple[int, int | None]:
        """Return the most messages of a pull, and bytes if they are more than brokers' default.

        That is a window's share of the buffer, unless this is little.
        """
        share = max(1, window_count)
        size = min(_PULL_BYTES, self.bytes_max // share)
        count = min(pull_batch, max(_PULL_LEAST, self.count_max // share))
        return count, size if size > _PULL_BYTES_USUAL else None


class Delivery(msgspec.Struct, eq=False):
    """Messages that a handler has begun.

    Attributes:
        window: Where they are from.
        messages: One, or a batch, in order; of a run those that were begun, perhaps none yet. A
            retried one has the topic it was sent to.
        started_at: When it began, on the clock of the client.
        rest: Of a run: messages that the handler gets next, one by one. A worker takes from the
            left; from the right they may be taken away for others (`DeliveryWindow.share`).
        is_reported: Whether it was reported as stuck.
    """

    window: DeliveryWindow
    messages: list[ReceivedMessage]
    started_at: float
    rest: deque[ReceivedMessage] | None = None
    is_reported: bool = False

    @property
    def current(self) -> ReceivedMessage | None:
        """The message that is being handled, of a batch the first; None before a run begins."""
        if self.rest is None:
            return self.messages[0]
        return self.messages[-1] if self.messages else None


class DeliveryWindow:
    """The messages of one queue between pull and commit.

    Args:
        queue: The queue, without the namespace.
        message_filter: Which messages are pulled.
        first_offset: Where the first pull begins.
        buffer: What it shares with the other windows.
        now: The time.

    Attributes:
        message_filter: Which messages are pulled; `refilter` changes it.
        epoch: How often the filter was changed.
        next_offset: Where the next pull begins.
        stride: The messages of an answer, if the last two had equally many and the queue had more;
            else 0.
        committed: The last offset that the broker, or the offset store, confirmed; None if that
            is in doubt.
        is_saved: Whether one was confirmed since the window was made.
        count: Messages that wait or run.
        bytes: The bytes of their bodies.
        not_before: When an orderly queue may continue after a failure.
        is_stopped: Whether nothing is fetched or handed out any more.
        is_dropped: Whether results do not count any more.
        is_queued: Whether it stands in the line of windows with messages to hand out.
        is_paused: Whether the program paused this queue.
        taken: Fires when the worker that was woken for its messages has begun, or ended, with one;
            None without such a worker.
        needed: The bytes of the last answer, if it did not fit into the buffer; else 0.
        has_timer: Whether the broker can deliver a message after any number of seconds (5.x).
        locked_until: Until when the broker's lock is trusted.
        has_lock: Whether the broker has confirmed the lock, and not refused it since.
        is_lost: Whether the lock was refused after that: another member has the queue.
        is_unlocked: Whether the lock is given back, so it is not renewed.
        saving: Fires when the commit that is under way has ended; None without one.
        reset_to: Where the queue goes on, if the group was reset or the queue does not have the
            offset of a pull. Then the broker does not get the position any more. Else None.
        replica: The replica to pull from.
        failure: Why the last pull failed; None when it succeeded.
        failing_since: When the pulls began to fail.
        pulled_at: When the last pull was answered.
        handled_at: When the last handler ended.
        created_at: When the window was made.
    """

    __slots__ = (
        *(
            "_buffer",
            "_done",
            "_highest",
            "_open",
            "bytes",
            "committed",
            "count",
            "epoch",
        ),
        *("created_at", "failing_since", "failure", "handled_at", "has_lock", "has_timer"),
        *("idle", "is_dropped", "is_lost", "is_saved", "is_unlocked"),
        *("is_paused", "is_queued", "is_stopped", "locked_until", "message_filter", "needed"),
        "next_offset",
        *("not_before", "postponed", "pulled_at", "queue", "replica", "reset_to", "room"),
        *("_advance", "_behind", "_size", "running", "saving", "stride", "taken", "waiting"),
    )

    def __init__(
        self,
        queue: QueueId,
        message_filter: Filter,
        first_offset: QueueOffset,
        buffer: Buffer,
        now: float,
    ) -> None:
        self.queue = queue
        self.message_filter = message_filter
        self.epoch = 0
        self.next_offset = first_offset
        self.stride = 0
        #: Of the last answer: how many offsets it went on, its bytes, and how many offsets follow.
        self._advance = self._size = self._behind = 0
        self.committed: QueueOffset | None = None
        self.is_saved = False
        self.waiting: deque[ReceivedMessage] = deque()
        #: Deliveries by their identity: a run may have no message that was begun.
        self.running: dict[int, Delivery] = {}
        #: Messages to hand out again, each with the time from when on; the earliest comes first.
        self.postponed: deque[tuple[float, ReceivedMessage]] = deque()
        self.count = 0
        self.bytes = 0
        self.not_before = 0.0
        self.is_stopped = False
        self.is_dropped = False
        self.is_queued = False
        self.is_paused = False
        self.taken: Signal | None = None
        self.needed = 0
        self.has_timer = False
        self.locked_until = 0.0
        self.has_lock = False
        self.is_lost = False
        self.is_unlocked = False
        self.saving: Signal | None = None
        self.reset_to: QueueOffset | None = None
        self.replica = MASTER
        self.failure: RocketMQError | None = None
        self.failing_since: float | None = None
        self.pulled_at: float | None = None
        self.handled_at: float | None = None
        self.created_at = now
        #: Fires when there may be room again, or when the window ends.
        self.room = Signal()
        #: Fires when the last running handler has ended, after `stop`.
        self.idle = Signal()
        self._buffer = buffer
        #: Offsets of all messages that wait or run, in order, and of some that are done.
        self._open: deque[int] = deque()
        self._done: set[int] = set()
        self._highest = first_offset - 1

    # ---- what the broker has -----------------------------------------------------------------

    @property
    def position(self) -> QueueOffset:
        """The offset of the first message that is not done: what may be committed."""
        return QueueOffset(self._open[0]) if self._open else self.next_offset

    @property
    def span(self) -> int:
        """How far the last message handed out is ahead of the first one that is not done."""
        return self._highest - self._open[0] if self._open else 0

    def has_due(self, now: float) -> bool:
        """Return whether a message is to be handed out again now."""
        return bool(self.postponed) and self.postponed[0][0] <= now

    def add(self, messages: Sequence[ReceivedMessage], next_offset: QueueOffset) -> None:
        """Add what a pull returned; the next pull begins at `next_offset`."""
        self.waiting.extend(messages)
        self._open.extend(map(_offset_of, messages))
        self.next_offset = next_offset
        self._count(len(messages), body_bytes(messages))

    def note_answer(self, count: int, size: int, next_offset: int, max_offset: int) -> None:
        """Note what an answer says about the next ones; call it before `add`.

        Args:
            count: Its messages.
            size: The bytes of their bodies.
            next_offset: The offset behind it.
            max_offset: The end of the queue.
        """
        advance = next_offset - self.next_offset
        self.stride = advance if advance == count == self._advance else 0
        self._advance, self._size, self._behind = advance, size, max_offset - next_offset

    def refilter(self, message_filter: Filter) -> None:
        """Go on with another filter: forget what was not handed out, to pull it again.

        What was handed out ends as usual, and so does what comes before that: it was put back, or
        is the rest of a run.
        """
        self.message_filter = message_filter
        self.epoch += 1
        self.stride = self.needed = self._advance = 0
        for delivery in reversed(list(self.running.values())):
            self.share(delivery)
        highest = self._highest
        dropped = [message for message in self.waiting if message.offset > highest]
        if dropped:
            self.waiting = deque([each for each in self.waiting if each.offset <= highest])
            self._open = deque([offset for offset in self._open if offset <= highest])
            self.next_offset = QueueOffset(min(map(_offset_of, dropped)))
            self._count(-len(dropped), -body_bytes(dropped))
        self.room.fire()

    def pulls_at_once(self, max_count: int, window_count: int) -> int:
        """Return how many pulls to have in flight, for at most so many messages together."""
        stride = self.stride
        if not stride:
            return 1
        share = self._buffer.bytes_max // max(1, window_count)
        fitting = min(max_count // stride, share // max(1, self._size))
        return max(1, min(_PULLS_MAX, fitting, self._behind // stride))

    # ---- what handlers do --------------------------------------------------------------------

    def take(self, count: int, now: float) -> Delivery | None:
        """Hand out at most `count` messages, those that were postponed first."""
        postponed, waiting = self.postponed, self.waiting
        if self.has_due(now):
            messages: list[ReceivedMessage] = [postponed.popleft()[1]]
        elif waiting:
            messages = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            self._highest = max(self._highest, messages[-1].offset)
        else:
            return None
        delivery = Delivery(self, messages, now)
        self.running[id(delivery)] = delivery
        return delivery

    def take_run(self, count: int, now: float) -> Delivery | None:
        """Hand out at most `count` messages that one worker handles one by one.

        It adds each to `messages` before it handles it; see `Delivery`.
        """
        waiting = self.waiting
        if self.postponed or len(waiting) < _RUN_MIN:
            return self.take(1, now)
        if len(waiting) <= count:
            rest, self.waiting = waiting, deque()
        else:
            rest = deque([waiting.popleft() for _ in range(count)])
        self._highest = max(self._highest, rest[-1].offset)
        begun: list[ReceivedMessage] = []
        delivery = Delivery(self, begun, now, rest)
        self.running[id(delivery)] = delivery
        return delivery

    def share(self, delivery: Delivery) -> bool:
        """Take the rest of a run away from its worker, for others; return whether there was one."""
        rest = delivery.rest
        if not rest:
            return False
        taken: deque[ReceivedMessage] = deque()
        with suppress(IndexError):
            while True:  # its worker may take the last one meanwhile
                taken.appendleft(rest.pop())
        if taken and not self.is_dropped:
            self.waiting.extendleft(reversed(taken))
            if taken[-1].offset == self._highest:
                self._highest = taken[0].offset - 1
        return bool(taken)

    def finish(self, delivery: Delivery, now: float) -> None:
        """Note that a handler has ended, and that all its messages are done."""
        self.end(delivery, now)
        if self.is_dropped:
            return
        messages = delivery.messages
        self._settle(list(map(_offset_of, messages)))
        self._count(-len(messages), -body_bytes(messages))
        self.room.fire()

    def end(self, delivery: Delivery, now: float) -> None:
        """Note that a handler has ended; `settle`, `postpone` or `put_back` follows per message."""
        if delivery.rest:
            self.share(delivery)
        self.running.pop(id(delivery), None)
        self.handled_at = now
        if self.taken is not None:
            self.note_taken()
        if self.is_stopped and not self.running:
            self.idle.fire()

    def note_taken(self) -> None:
        """Note that the worker that was woken is at work: the next pull may go."""
        taken, self.taken = self.taken, None
        if taken is not None:
            taken.fire()

    def settle(self, message: ReceivedMessage) -> None:
        """Note that a message is done: handled, or the broker has it for another delivery."""
        if self.is_dropped:
            return
        self._settle([message.offset])
        self._count(-1, -len(message.body))
        self.room.fire()

    def postpone(self, message: ReceivedMessage, until: float) -> None:
        """Hand a message out again later; others may overtake it."""
        if not self.is_dropped:
            insort(self.postponed, (until, message), key=_time_of)

    def put_back(self, messages: Sequence[ReceivedMessage], not_before: float) -> None:
        """Hand messages out again, before all others of the queue."""
        if not self.is_dropped:
            self.waiting.extendleft(reversed(messages))
            self.not_before = not_before

    def note_saved(self, offset: QueueOffset) -> None:
        """Note that the broker, or the offset store, has this offset."""
        self.committed = offset
        self.is_saved = True

    # ---- its lock and its end ----------------------------------------------------------------

    @property
    def is_sure(self) -> bool:
        """Whether nothing happened that may have cost the lock, if it has one."""
        return self.locked_until > 0 or not self.has_lock

    def confirm_lock(self, until: float) -> None:
        """Note that the broker confirmed the lock."""
        if not self.has_lock:
            self.committed = None  # the member that had it may have committed after this one
        self.has_lock = True
        self.locked_until = until

    def doubt_lock(self) -> None:
        """Trust neither the lock nor the last commit until the broker confirms them."""
        self.committed = None
        self.locked_until = 0.0

    def stop(self) -> None:
        """Fetch nothing and hand out nothing any more; what runs may end."""
        self.is_stopped = True
        self.room.fire()
        if not self.running:
            self.idle.fire()

    def drop(self) -> None:
        """Forget all messages; results of handlers that still run do not count."""
        self.is_stopped = self.is_dropped = True
        self._count(-self.count, -self.bytes)
        self.waiting.clear()
        self.postponed.clear()
        self.room.fire()
        self.idle.fire()

    def _settle(self, offsets: list[int]) -> None:
        opened, done = self._open, self._done
        if list(islice(opened, len(offsets))) == offsets:  # as usual, they are the oldest
            for _ in offsets:
                opened.popleft()
        else:
            done.update(offsets)
        while done and opened and opened[0] in done:
            done.remove(opened.popleft())

    def _count(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size
        self._buffer.count += count
        self._buffer.bytes += size
