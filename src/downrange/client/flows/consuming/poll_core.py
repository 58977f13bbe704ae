"""A pull consumer that shares queues with the other members of its group.

The member's windows fill in the background; a poll empties them. It takes messages in a step, and
waits as a flow, so that a caller that gives up while it waits has taken none. Messages that a poll
returned are done when the next poll begins, or when they are committed: a program that dies between
two polls gets the last messages again. The methods are those of `ConsumerCore`, which reads
queues that the program chose.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from downrange.client.flows.background import to_its_end
from downrange.client.flows.consuming.group_member import GroupMember
from downrange.client.flows.consuming.offsets import find_start, max_offset
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, Wait
from downrange.errors import ClientClosed, OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.offsets import Start
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.hooks import Hooks
    from downrange.model import QueueId, QueueOffset, ReceivedMessage
    from downrange.options.consumers import ConsumerOptions


class PollCore:
    """A subscribed pull consumer of a client.

    Args:
        core: The client.
        group: The group, without the namespace.
        options: How it consumes.
        hooks: Functions of the user.
        spawn: Starts a flow in the background; may be called from any thread.
        is_auto_commit: Whether offsets are committed without a call of `commit`.

    Attributes:
        member: Its membership in the group.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ConsumerOptions,
        hooks: Hooks,
        spawn: Callable[[Flow[None]], object],
        *,
        is_auto_commit: bool,
    ) -> None:
        self.core = core
        self.group = group
        self.member = GroupMember(core, group, options, hooks, spawn, self._arrived, is_polled=True)
        self.member.is_auto_commit = is_auto_commit
        self._spawn = spawn
        self._line: deque[DeliveryWindow] = deque()
        self._arrival = Signal()
        #: What the last poll returned.
        self._out: list[Delivery] = []

    # ---- life --------------------------------------------------------------------------------

    def enter(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Join the group; see `GroupMember.enter`."""
        yield from self.member.enter(filters, deadline)

    def undo_enter(self) -> Flow[None]:
        """Leave the group again, if it was joined; a caller that gives up does not end that."""
        if self.member.is_joined:
            yield from to_its_end(self.core, self._spawn, self.exit(self.core.clock.now()))

    def background(self) -> list[Flow[None]]:
        """Return the flows that run until it leaves."""
        return self.member.background()

    def exit(self, deadline: float) -> Flow[None]:
        """Leave the group. What the last poll returned is not done, and will be returned again."""
        self._let_go(self._out)
        self._out = []
        try:
            yield from self.member.exit(deadline)
        finally:
            self._arrival.fire()

    # ---- polling -----------------------------------------------------------------------------

    def begin_poll(self, max_count: int) -> list[ReceivedMessage]:
        """Note that the messages of the last poll are done, and return the next ones, if any."""
        self._finish()
        return self.take(max_count)

    def wait_for_messages(self, deadline: float) -> Flow[bool]:
        """Wait until `take` may have messages; return False at the deadline.

        Raises:
            ClientClosed: The consumer was closed meanwhile.
            RocketMQError: The pulls of all queues fail.
        """
        while not self.member.is_closing:
            if self._line:
                return True
            if self._arrival.is_fired:
                self._arrival = Signal()
            is_in_time: bool = yield Wait(self._arrival, deadline)
            if not is_in_time:
                break
        if self.member.is_closing:
            raise ClientClosed(f"the consumer of group {self.group!r}")
        failures = list(self.failures().values())
        if failures and len(failures) == len(self.member.windows):
            raise failures[0]
        return False

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """Return messages that wait, from all queues in turn; without any, nothing is in line."""
        line, now = self._line, self.core.clock.now()
        taken: list[ReceivedMessage] = []
        for _ in range(len(line)):
            window = line.popleft()
            window.is_queued = False
            delivery = None
            if not window.is_stopped and not window.is_paused:
                delivery = window.take(max_count - len(taken), now)
            if delivery is not None:
                self._out.append(delivery)
                taken += delivery.messages
                self._queue(window)
            if len(taken) >= max_count:
                break
        return taken

    def _arrived(self, window: DeliveryWindow) -> None:
        self._queue(window)
        self._arrival.fire()

    def _queue(self, window: DeliveryWindow) -> None:
        if window.waiting and not window.is_queued:
            window.is_queued = True
            self._line.append(window)

    def _finish(self) -> None:
        """Note that what the last poll returned is done."""
        out, self._out = self._out, []
        now = self.core.clock.now()
        for delivery in out:
            delivery.window.finish(delivery, now)
            self.member.counts.handled += len(delivery.messages)
        if out:
            self.member.settled()

    def _let_go(self, deliveries: Iterable[Delivery]) -> None:
        now = self.core.clock.now()
        for delivery in deliveries:
            delivery.window.end(delivery, now)

    # ---- queues ------------------------------------------------------------------------------

    def positions(self) -> dict[QueueId, QueueOffset | None]:
        """Return the offset of the next message of each queue."""
        return {queue: _next(window) for queue, window in self.member.windows.items()}

    def position_of(self, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the next message to return.

        Raises:
            OptionError: This member does not have the queue.
        """
        return _next(self._window(queue))

    def failures(self) -> dict[QueueId, RocketMQError]:
        """Return the queues whose last pull failed, with the error."""
        return {
            queue: window.failure
            for queue, window in self.member.windows.items()
            if window.failure is not None
        }

    def seek(self, queue: QueueId, to: Start, *, deadline: float) -> Flow[None]:
        """Continue at another place of a queue.

        Raises:
            OptionError: This member does not have the queue.
            RocketMQError: The broker did not answer.
        """
        self._window(queue)
        offset = yield from find_start(self.core, queue, self.group, to, deadline=deadline)
        window = self._window(queue)
        dropped = [delivery for delivery in self._out if delivery.window is window]
        self._out = [delivery for delivery in self._out if delivery.window is not window]
        self._let_go(dropped)
        yield from self.member.replace_window(window, offset)

    def pause(self, queues: Iterable[QueueId], *, is_paused: bool) -> None:
        """Return no messages of these queues, or continue with them.

        Raises:
            OptionError: This member does not have one of them.
        """
        for window in [self._window(queue) for queue in queues]:
            self._pause(window, is_paused=is_paused)

    def pause_all(self, *, is_paused: bool) -> None:
        """Return no messages of any queue, also of those that come later; or continue with all."""
        self.member.is_paused = is_paused
        for window in self.member.windows.values():
            self._pause(window, is_paused=is_paused)

    def _pause(self, window: DeliveryWindow, *, is_paused: bool) -> None:
        window.is_paused = is_paused
        window.room.fire()
        self._arrived(window)

    def _window(self, queue: QueueId) -> DeliveryWindow:
        window = self.member.windows.get(queue)
        if window is None or window.is_stopped:
            raise OptionError(f"{queue} is not assigned to this member of group {self.group!r} now")
        return window

    # ---- progress ----------------------------------------------------------------------------

    def commit(self, *, deadline: float) -> Flow[dict[QueueId, QueueOffset]]:
        """Commit the offsets behind the messages that were returned.

        Raises:
            RocketMQError: A commit failed; others may have succeeded.
        """
        self._finish()
        windows = list(self.member.windows.values())
        before = {window.queue: window.committed for window in windows}
        is_saved = yield from self.member.commit(windows, deadline)
        if not is_saved and self.member.last_commit_error is not None:
            raise self.member.last_commit_error
        return {
            window.queue: window.committed
            for window in windows
            if window.committed is not None and window.committed != before[window.queue]
        }

    def lag(self, *, deadline: float) -> Flow[dict[QueueId, int]]:
        """Return how many messages of each queue were not returned yet, filters ignored.

        Raises:
            RocketMQError: A broker did not answer.
        """
        queues = list(self.member.windows)
        ends: list[QueueOffset | RocketMQError] = yield Gather(
            [max_offset(self.core, queue, deadline=deadline) for queue in queues], CALLS_AT_ONCE
        )
        lags: dict[QueueId, int] = {}
        for queue, end in zip(queues, ends, strict=True):
            if isinstance(end, RocketMQError):
                raise end
            window = self.member.windows.get(queue)
            if window is not None:
                lags[queue] = max(0, end - _next(window))
        return lags


def _next(window: DeliveryWindow) -> QueueOffset:
    return window.waiting[0].offset if window.waiting else window.next_offset
