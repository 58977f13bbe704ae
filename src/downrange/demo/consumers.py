"""The consumer groups of the shop: push consumers, some of whose handlers fail.

The group `packing` has two members; one of them leaves in the middle of the day and comes back, so
that the queues are divided anew. Some orders cannot be packed at once and are delivered again, a
few never can be and become dead letters. Some messages are left unread on purpose, so that the
report has something to show: no group reads gifts, coupons and readings, and the group `analysts`
stops early.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from downrange import Admin, Client, PushConsumer
from downrange.demo.workload import CLIENT
from downrange.errors import DeadLetter, Retry, RocketMQError
from downrange.options import Trace
from downrange.options.consumers import ConsumerOptions

if TYPE_CHECKING:
    from downrange.model import QueueId, ReceivedMessage

_LOOK: Final = 0.1
#: Seconds until an order without a postcode is tried again.
_RETRY_AFTER: Final = 1.0
#: How long a group may take to handle what is left, and a member to leave.
_END_TIMEOUT: Final = 45.0
_CLOSE_TIMEOUT: Final = 10.0
#: Shorter intervals than usual, because the demo is short.
_OPTIONS: Final = ConsumerOptions(
    start="earliest",
    concurrency=4,
    commit_interval=0.5,
    rebalance_interval=1.0,
    trace=Trace(batch_count=20, flush_interval=0.5, queue_max=20_000),
)


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """A consumer group.

    Attributes:
        group: Name of the group.
        topic: Topic that it reads.
        tags: Tag filter.
        share: Share of the sending time during which it reads.
        slow_every: One message in this many is handled slowly.
        absences: When a second member is away, as shares of the sending time; empty without one.
    """

    group: str
    topic: str
    tags: str = "*"
    share: float = 1.0
    slow_every: int = 40
    absences: tuple[tuple[float, float], ...] = ()

    @property
    def members(self) -> int:
        """Number of members."""
        return 2 if self.absences else 1

    def reads(self, tags: str | None) -> bool:
        """Return whether the group gets messages with these tags."""
        return self.tags == "*" or tags in self.tags.split(" || ")


CONSUMERS: Final = (
    # The second member comes when the day has begun, leaves, and comes back.
    ConsumerPlan(
        "packing",
        "orders",
        tags="standard || express",
        slow_every=20,
        absences=((0.0, 0.15), (0.65, 0.8)),
    ),
    ConsumerPlan("accounting", "payments"),
    ConsumerPlan("analysts", "clicks", share=0.75, slow_every=100),
    ConsumerPlan("purchasing", "stock", slow_every=100),
    ConsumerPlan("post-office", "reminders"),
)


@dataclass(slots=True)
class ConsumerProgress:
    """What one consumer group has done so far.

    Attributes:
        plan: The group.
        handled: Ids of messages that were handled.
        waiting: Ids of messages that failed and are delivered again.
        dead: Ids of messages that became dead letters.
        retried: Messages that were handled at a later attempt.
        repeated: Messages that were handled again, although they had been handled.
        rebalances: How often the queues of a member changed.
        problem: The error that ended the group early.
    """

    plan: ConsumerPlan
    handled: set[str] = field(default_factory=set[str])
    waiting: set[str] = field(default_factory=set[str])
    dead: set[str] = field(default_factory=set[str])
    retried: int = 0
    repeated: int = 0
    rebalances: int = 0
    problem: RocketMQError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, message: ReceivedMessage) -> None:
        """Handle a message: the handler of all members.

        Raises:
            Retry: It cannot be handled now.
            DeadLetter: It never can be.
        """
        name = message.message_id
        try:
            process(message, slow_every=self.plan.slow_every)
        except Retry:
            with self._lock:
                self.waiting.add(name)
            raise
        except DeadLetter:
            with self._lock:
                self.waiting.discard(name)
                self.dead.add(name)
            raise
        with self._lock:
            self.waiting.discard(name)
            self.repeated += name in self.handled
            self.retried += name not in self.handled and message.delivery_attempts > 0
            self.handled.add(name)


def process(message: ReceivedMessage, *, slow_every: int) -> None:
    """Decode the body, as a stand-in for real work; some messages take a few milliseconds more.

    Raises:
        Retry: The order has no postcode yet; the next attempt succeeds.
        DeadLetter: It still has none, and cannot be packed.
    """
    body: dict[str, Any] = json.loads(message.body)
    if message.offset % slow_every == slow_every - 1:
        time.sleep(0.004 + (message.offset % 7) * 0.003)
    if body.get("postcode", "") is None:
        if not message.delivery_attempts:
            raise Retry(after=_RETRY_AFTER)
        if sum(message.body) % 3 == 0:  # the same orders in every run with the same seed
            raise DeadLetter(f"order {body['id']} has no postcode")


# ---- members -------------------------------------------------------------------------------------


def run_consumer(
    name_server: str, progress: ConsumerProgress, *, seconds: float, settled: threading.Event
) -> None:
    """Run a group until the time of its plan is over, or everything was handled.

    Args:
        name_server: Address of the name server.
        progress: Updated with each message.
        seconds: How long the services send.
        settled: Set when every acknowledged message can be read.
    """
    plan, started = progress.plan, time.monotonic()
    stop_at = started + seconds * plan.share if plan.share < 1 else None
    deadline: float | None = None
    try:
        with _Members(name_server, progress) as members:
            while stop_at is None or time.monotonic() < stop_at:
                now = (time.monotonic() - started) / seconds
                members.set_second(
                    bool(plan.absences) and not any(a <= now < b for a, b in plan.absences)
                )
                if settled.is_set():
                    deadline = deadline or time.monotonic() + _END_TIMEOUT
                    if members.have_handled_all() or time.monotonic() > deadline:
                        return
                members.count_changes()
                time.sleep(_LOOK)
    except RocketMQError as error:
        progress.problem = error


class _Members:
    """The members of a group: one that stays, and one that comes and goes; a context manager."""

    def __init__(self, name_server: str, progress: ConsumerProgress) -> None:
        self._name_server = name_server
        self._progress = progress
        self._stack = ExitStack()
        self._second: PushConsumer | None = None
        self._queues: dict[PushConsumer, list[QueueId]] = {}

    def __enter__(self) -> _Members:
        self._client = self._stack.enter_context(Client(self._name_server, options=CLIENT))
        self._admin = self._stack.enter_context(Admin(self._client))
        self._first = self._start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.set_second(False)
            self._close(self._first)
        finally:
            self._stack.close()

    def set_second(self, is_wanted: bool) -> None:
        """Start or close the second member."""
        if is_wanted and self._second is None:
            self._second = self._start()
        elif not is_wanted and self._second is not None:
            second, self._second = self._second, None
            self._close(second)

    def count_changes(self) -> None:
        """Count the members whose queues have changed since the last call."""
        for member in filter(None, (self._first, self._second)):
            queues = member.assignment()
            self._progress.rebalances += queues != self._queues.get(member, [])
            self._queues[member] = queues

    def have_handled_all(self) -> bool:
        """Return whether nothing is left, also on a broker that has just restarted."""
        try:
            states = self._admin.topic_stats(self._progress.plan.topic)
        except RocketMQError:
            return False
        positions: dict[QueueId, int] = {}
        for member in filter(None, (self._first, self._second)):
            positions |= {each.queue: each.position for each in member.health().queues}
        is_read = all(positions.get(state.queue, -1) >= state.max_offset for state in states)
        # In this order: a message waits for its next attempt before its queue moves on.
        return is_read and not self._progress.waiting

    def _start(self) -> PushConsumer:
        plan = self._progress.plan
        return PushConsumer(
            self._name_server,
            group=plan.group,
            subscribe={plan.topic: plan.tags},
            handler=self._progress.handle,
            options=_OPTIONS,
            client_options=CLIENT,
        ).start()

    def _close(self, member: PushConsumer) -> None:
        self._queues.pop(member, None)
        member.close(_CLOSE_TIMEOUT)
