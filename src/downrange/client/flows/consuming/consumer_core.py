"""One pull consumer: pulls from many queues in the background, and polls return the messages.

Each queue has a fetch flow, which runs in the background and fills the buffer of that queue; a poll
empties the buffers in turn. So a queue whose broker is away does not block the others. A poll takes
messages in a step, and waits as a flow: a caller that gives up while it waits has taken none.

One rule: a cursor is one pass through one queue. A seek drops the cursor and starts another one;
messages that still arrive for the old cursor are discarded.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from downrange.client.flows.consuming.offsets import find_start, max_offset, set_group_offset
from downrange.client.flows.consuming.pull import EVERYTHING, PullStatus, check_filter, pull
from downrange.client.flows.effects import (
    CALLS_AT_ONCE,
    Flow,
    Gather,
    Pause,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.routing.lookup import read_queues, refresh_route
from downrange.client.flows.routing.routes import MASTER
from downrange.client.flows.validation import check_group
from downrange.errors import ClientClosed, OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.offsets import Start
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId, QueueOffset, ReceivedMessage
    from downrange.options import PullOptions

ResultT = TypeVar("ResultT")
#: Least seconds between two pulls of a broker that answers at once although it was asked to wait.
_HELD_MIN: Final = 0.05
#: Most seconds that a fetch flow waits for room before it checks whether its cursor was dropped.
_WAIT_MAX: Final = 60.0


class PullCursor:
    """One pass through one queue.

    Args:
        queue: The queue.
        start: Where to begin; becomes an offset when the broker answers.
        message_filter: Which messages to read.
        offset: The first offset, if it is known already.

    Attributes:
        committed: The last offset of the group that this cursor read or committed.
        failure: Why the last pull failed; None when it succeeded.
        moves: How often the queue no longer had the offset, so that messages were missed.
        is_dropped: Whether its messages are discarded from now on.
    """

    def __init__(
        self,
        queue: QueueId,
        start: Start,
        message_filter: Filter,
        offset: QueueOffset | None = None,
    ) -> None:
        self.queue = queue
        self.start: Start = start
        self.message_filter = message_filter
        self.next_offset = offset
        self.buffer: deque[ReceivedMessage] = deque()
        self.committed = offset if start == "committed" else None
        self.failure: RocketMQError | None = None
        self.moves = 0
        self.is_dropped = False
        self.replica = MASTER
        #: Fires when there is room in the buffer again, or when the cursor is dropped.
        self.room = Signal()

    @property
    def position(self) -> QueueOffset | None:
        """The offset of the next message to return; None when it is not known yet."""
        return self.buffer[0].offset if self.buffer else self.next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """Remove and return at most `count` messages from the buffer."""
        buffer = self.buffer
        taken = [buffer.popleft() for _ in range(min(count, len(buffer)))]
        self.room.fire()
        return taken

    def drop(self) -> None:
        """Discard its messages, also those that still arrive."""
        self.is_dropped = True
        self.buffer.clear()
        self.room.fire()


class ConsumerCore:
    """One pull consumer of a client: its group and its cursors.

    Args:
        core: The client.
        group: The group, without the namespace.
        options: How it reads.
        spawn: Starts a flow in the background; may be called from any thread.
        report: Called with a queue and the error when its pulls begin to fail, and with None when
            they succeed again.

    Raises:
        OptionError: The name of the group is not allowed.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: PullOptions,
        spawn: Callable[[Flow[None]], object],
        report: Callable[[QueueId, RocketMQError | None], None],
    ) -> None:
        check_group(group)
        self.core = core
        self.group = group
        self.options = options
        self.cursors: dict[QueueId, PullCursor] = {}
        self._spawn = spawn
        self._report = report
        self._is_closed = False
        self._turn = 0
        self._arrival = Signal()
        #: Topic -> its filter, and the route from which its queues were taken last.
        self._topics: dict[str, tuple[Filter, Route | None]] = {}

    # ---- assigning -----------------------------------------------------------------------------

    def assign(
        self,
        what: Iterable[str | QueueId],
        *,
        start: Start,
        message_filter: Filter,
        deadline: float,
    ) -> Flow[None]:
        """Read these topics and queues from now on, instead of those assigned before.

        Queues that a topic gets later are read from their beginning.

        Raises:
            OptionError: The start is not valid.
            RouteNotFound: A topic has no queues to read.
            RocketMQError: A broker refused the filter, or no broker answered. Queues of single
                brokers that did not answer are tried again in the background.
        """
        core, group = self.core, self.group
        queues: list[QueueId] = []
        topics: list[str] = []
        for each in what:
            if isinstance(each, str):
                topics.append(each)
                queues += yield from read_queues(core, each, deadline=deadline)
            else:
                queues.append(each)
        if message_filter.kind != EVERYTHING.kind:
            for topic in sorted({queue.topic for queue in queues}):
                yield from check_filter(core, topic, group, message_filter, deadline)
        cursors = yield from self._begin(dict.fromkeys(queues), start, message_filter, deadline)
        self.drop_all()
        self._topics = {topic: (message_filter, self._route(topic)) for topic in topics}
        yield from self._add(cursors)

    def seek(self, queue: QueueId, to: Start, *, deadline: float) -> Flow[None]:
        """Continue at another place of a queue.

        Raises:
            OptionError: The queue is not assigned, or the place is not valid.
            RocketMQError: The broker did not answer.
        """
        old = self.cursor_of(queue)
        cursors = yield from self._begin([queue], to, old.message_filter, deadline)
        cursors[0].committed = old.committed
        yield from self._add(cursors)

    def _begin(
        self, queues: Iterable[QueueId], start: Start, message_filter: Filter, deadline: float
    ) -> Flow[list[PullCursor]]:
        """Return cursors with their first offsets; without one where a broker is away.

        Raises:
            RocketMQError: All of them failed, or the start is not valid.
        """
        named = list(queues)
        finding = [
            find_start(self.core, queue, self.group, start, deadline=deadline) for queue in named
        ]
        found: list[QueueOffset | RocketMQError] = yield Gather(finding, CALLS_AT_ONCE)
        failures = [each for each in found if isinstance(each, RocketMQError)]
        hopeless = [failure for failure in failures if isinstance(failure, OptionError)]
        if hopeless or (failures and len(failures) == len(named)):
            raise (hopeless or failures)[0]
        cursors: list[PullCursor] = []
        for queue, each in zip(named, found, strict=True):
            if isinstance(each, RocketMQError):
                cursors.append(PullCursor(queue, start, message_filter))
                cursors[-1].failure = each
            else:
                cursors.append(PullCursor(queue, start, message_filter, each))
        return cursors

    def _add(self, cursors: Iterable[PullCursor]) -> Flow[None]:
        """Put cursors in place of the ones in the same queues, and start to fetch."""
        for cursor in cursors:
            if self._is_closed:
                raise self._closed()
            old = self.cursors.get(cursor.queue)
            if old is not None:
                cursor.moves += old.moves
                old.drop()
            self.cursors[cursor.queue] = cursor
            yield UserCall(self._spawn, (self._fetch(cursor),))

    def _follow(self) -> Flow[None]:
        """Add queues that the assigned topics have got since."""
        for topic, message_filter, route in self._changed_routes():
            self._topics[topic] = (message_filter, route)
            queues = [shown_queue(queue, self.core.options.namespace) for queue in route.readable]
            yield from self._add(
                [
                    PullCursor(queue, "earliest", message_filter)
                    for queue in queues
                    if queue not in self.cursors
                ]
            )

    def _changed_routes(self) -> list[tuple[str, Filter, Route]]:
        """Return the assigned topics whose routes have changed since their queues were added."""
        return [
            (topic, message_filter, route)
            for topic, (message_filter, seen) in self._topics.items()
            if (route := self._route(topic)) is not None and route is not seen
        ]

    def _route(self, topic: str) -> Route | None:
        return self.core.routes.get(with_namespace(topic, self.core.options.namespace))

    def drop_all(self) -> None:
        """Stop reading all queues."""
        for cursor in self.cursors.values():
            cursor.drop()
        self.cursors.clear()
        self._topics.clear()

    def close(self) -> None:
        """Stop reading all queues, and end all polls."""
        self._is_closed = True
        self.drop_all()
        self._arrival.fire()

    def _closed(self) -> ClientClosed:
        return ClientClosed(f"the consumer of group {self.group!r}")

    def cursor_of(self, queue: QueueId) -> PullCursor:
        """Return the cursor of a queue.

        Raises:
            OptionError: The queue is not assigned.
        """
        cursor = self.cursors.get(queue)
        if cursor is None:
            raise OptionError(f"{queue} is not assigned to this consumer")
        return cursor

    # ---- fetching ------------------------------------------------------------------------------

    def _fetch(self, cursor: PullCursor) -> Flow[None]:
        """Fill the buffer of a cursor until it is dropped; go on after errors."""
        options = self.options
        pause = options.retry_backoff
        while not cursor.is_dropped:
            try:
                yield from self._fetch_once(cursor)
                pause = options.retry_backoff
            except RocketMQError as error:
                if cursor.is_dropped:
                    return
                if cursor.failure is None:
                    self._report(cursor.queue, error)
                cursor.failure = error
                self._arrival.fire()
                yield Pause(pause)
                pause = min(2 * pause, options.retry_backoff_max)
                yield from self._refresh_route(cursor.queue)

    def _fetch_once(self, cursor: PullCursor) -> Flow[None]:
        core, options = self.core, self.options
        now = core.clock.now()
        if cursor.buffer and len(cursor.buffer) + options.batch_count > self._room_per_queue():
            cursor.room = Signal()
            yield Wait(cursor.room, now + _WAIT_MAX)
            return
        if cursor.next_offset is None:
            cursor.next_offset = yield from find_start(
                core,
                cursor.queue,
                self.group,
                cursor.start,
                deadline=now + core.options.call_timeout,
            )
        batch = yield from pull(
            core,
            cursor.queue,
            cursor.next_offset,
            group=self.group,
            max_count=options.batch_count,
            message_filter=cursor.message_filter,
            suspend=options.suspend,
            replica=cursor.replica,
            deadline=now + options.suspend + options.answer_margin,
            decode_body=options.decode_body,
        )
        if cursor.is_dropped:
            return
        if cursor.failure is not None:
            self._report(cursor.queue, None)
        cursor.failure = None
        cursor.replica = batch.replica
        cursor.moves += batch.status is PullStatus.MOVED
        cursor.next_offset = batch.next_offset
        if batch.messages:
            cursor.buffer.extend(batch.messages)
            self._arrival.fire()
        elif batch.status is PullStatus.NO_NEW and core.clock.now() - now < _HELD_MIN:
            yield Pause(_HELD_MIN)

    def _room_per_queue(self) -> int:
        return self.options.buffered_max // max(1, len(self.cursors))

    def _refresh_route(self, queue: QueueId) -> Flow[None]:
        """Refresh the route, in case the broker of the queue has moved."""
        core = self.core
        topic = with_namespace(queue.topic, core.options.namespace)
        deadline = core.clock.now() + core.options.call_timeout
        try:
            yield from refresh_route(core, topic, deadline)
        except RocketMQError:
            return  # the next pull fails and reports it

    # ---- polling -------------------------------------------------------------------------------

    def begin_poll(self, max_count: int) -> list[ReceivedMessage]:
        """Return buffered messages, if there are any; none if a topic may have got queues.

        Raises:
            OptionError: Nothing is assigned.
        """
        if not self.cursors:
            raise OptionError("nothing is assigned: call assign() or subscribe() first")
        return [] if self._changed_routes() else self.take(max_count)

    def wait_for_messages(self, deadline: float) -> Flow[bool]:
        """Add queues that topics have got, and wait until `take` may have messages.

        Returns:
            False at the deadline.

        Raises:
            ClientClosed: The consumer was closed meanwhile.
            RocketMQError: The pulls of all queues fail. An error that cannot be retried is raised
                at once, another one at the deadline: fetching goes on in the background.
        """
        yield from self._follow()
        while not self._is_closed:
            if any(cursor.buffer for cursor in self.cursors.values()):
                return True
            failure = self._failure()
            if failure is not None and not failure.retryable:
                raise failure
            if self._arrival.is_fired:
                self._arrival = Signal()
            is_in_time: bool = yield Wait(self._arrival, deadline)
            if not is_in_time:
                break
        if self._is_closed:
            raise self._closed()
        failure = self._failure()
        if failure is not None:
            raise failure
        return False

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """Return buffered messages, from all queues in turn.

        Messages of one queue come together and in order, then those of the next queue. The next
        call begins with the queue that follows.
        """
        cursors = list(self.cursors.values())
        first, self._turn = self._turn, self._turn + 1
        taken: list[ReceivedMessage] = []
        for index in range(len(cursors)):
            cursor = cursors[(first + index) % len(cursors)]
            if cursor.buffer:
                taken += cursor.take(max_count - len(taken))
                if len(taken) >= max_count:
                    break
        return taken

    def _failure(self) -> RocketMQError | None:
        """Return why no queue can be read; None when at least one has not failed."""
        failures = [cursor.failure for cursor in self.cursors.values()]
        known = [failure for failure in failures if failure is not None]
        if not known or len(known) < len(failures):
            return None
        return next((failure for failure in known if failure.retryable), known[0])

    def positions(self) -> dict[QueueId, QueueOffset | None]:
        """Return the offset of the next message of each queue; None while it is not known."""
        return {queue: cursor.position for queue, cursor in self.cursors.items()}

    def position_of(self, queue: QueueId) -> QueueOffset | None:
        """Return the offset of the next message to return; None while it is not known.

        Raises:
            OptionError: The queue is not assigned.
        """
        return self.cursor_of(queue).position

    def failures(self) -> dict[QueueId, RocketMQError]:
        """Return the queues whose last pull failed, with the error."""
        return {
            queue: cursor.failure
            for queue, cursor in self.cursors.items()
            if cursor.failure is not None
        }

    # ---- progress ------------------------------------------------------------------------------

    def commit(self, *, deadline: float) -> Flow[dict[QueueId, QueueOffset]]:
        """Commit the offset behind the last message that a poll returned, for each queue.

        Returns:
            The committed offsets; queues whose position has not changed are left out.

        Raises:
            RocketMQError: A commit failed; others may have succeeded, and a second call repeats
                only those that failed.
        """
        dirty = [
            (cursor, position)
            for cursor in self.cursors.values()
            if (position := cursor.position) is not None and position != cursor.committed
        ]
        outcomes: list[object] = yield Gather(
            [
                set_group_offset(self.core, self.group, cursor.queue, position, deadline=deadline)
                for cursor, position in dirty
            ],
            CALLS_AT_ONCE,
        )
        recorded: dict[QueueId, QueueOffset] = {}
        failure: RocketMQError | None = None
        for (cursor, position), outcome in zip(dirty, outcomes, strict=True):
            if isinstance(outcome, RocketMQError):
                failure = failure or outcome
            else:
                cursor.committed = recorded[cursor.queue] = position
        if failure is not None:
            raise failure
        return recorded

    def lag(self, *, deadline: float) -> Flow[dict[QueueId, int]]:
        """Return how many messages of each queue were not returned yet, filters ignored.

        Raises:
            RocketMQError: A broker did not answer.
        """
        queues = list(self.cursors)
        ends: list[QueueOffset | RocketMQError] = yield Gather(
            [max_offset(self.core, queue, deadline=deadline) for queue in queues], CALLS_AT_ONCE
        )
        lags: dict[QueueId, int] = {}
        for queue, end in zip(queues, ends, strict=True):
            if isinstance(end, RocketMQError):
                raise end
            position = self.cursors[queue].position if queue in self.cursors else None
            lags[queue] = max(0, end - (position or 0))
        return lags
