"""What the members of groups did with messages, and the rules that hold for it.

Always: an acknowledged message is handled, or is a dead letter. Orderly: one handler per queue at a
time and in order, unless a lock was lost. Without faults: a message is handled as often as its plan
says, and never once more, whatever members join and leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from downrange.model import QueueId

#: How one call of a handler ends.
Outcome: TypeAlias = Literal["ok", "error", "retry", "dead"]
#: The plans of messages, each with its weight. The last outcome is repeated.
_PLANS: dict[tuple[Outcome, ...], int] = {
    ("ok",): 85,
    ("error", "ok"): 5,
    ("retry", "ok"): 3,
    ("retry", "error", "ok"): 2,
    ("dead",): 3,
    ("error",): 2,
}
#: Failed attempts after which a message is not delivered again.
RETRIES = 2


@dataclass(slots=True)
class Handling:
    """What became of one message in one group; broadcast: in one member.

    Attributes:
        plan: How its calls end, one after the other.
        started: Calls that began.
        ended: Calls that ended, and were not killed.
        is_done: Whether a call ended well.
    """

    plan: tuple[Outcome, ...]
    started: int = 0
    ended: int = 0
    is_done: bool = False

    @property
    def expected(self) -> int:
        """How many calls there are without faults."""
        if self.plan == ("error",):
            return RETRIES + 1
        return len(self.plan)

    @property
    def becomes_dead(self) -> bool:
        """Whether it becomes a dead letter without faults."""
        return self.plan[-1] != "ok"

    def end(self) -> Outcome:
        """Return how the next call ends, and count it."""
        outcome = self.plan[min(self.ended, len(self.plan) - 1)]
        self.ended += 1
        if outcome == "ok":
            self.is_done = True
        return outcome


@dataclass(slots=True)
class _Queue:
    """One queue of an orderly group: who handles it now, and how far it got."""

    running: dict[str, int] = field(default_factory=dict)
    member: str = ""
    window: float = 0.0
    offset: int = -1


class GroupLedger:
    """What all members of one group did.

    Args:
        random: Chooses the plans.
        is_calm: Whether there are no faults.
        is_batched: Whether the handler takes lists; these have simpler plans.
        is_orderly: Whether failed attempts are counted by each owner of a queue for itself.

    Attributes:
        handlings: By key: the body, and in broadcast also the member.
        overlaps: Orderly: how often two members handled a queue at the same time.
    """

    def __init__(
        self, random: Random, *, is_calm: bool, is_batched: bool, is_orderly: bool
    ) -> None:
        self.handlings: dict[tuple[str, bytes], Handling] = {}
        self.overlaps = 0
        self._random = random
        self._is_calm = is_calm
        self._is_orderly = is_orderly
        self._plans = {
            plan: weight for plan, weight in _PLANS.items() if not is_batched or plan != ("dead",)
        }
        self._queues: dict[QueueId, _Queue] = {}

    def begin(self, scope: str, body: bytes) -> Handling:
        """Count a call for a message."""
        handling = self.handlings.get((scope, body))
        if handling is None:
            (plan,) = self._random.choices(list(self._plans), list(self._plans.values()))
            handling = self.handlings[scope, body] = Handling(plan)
        handling.started += 1
        if self._is_calm:
            assert self._is_asked_for(handling), f"{body!r} is handled once too often"
        return handling

    def _is_asked_for(self, handling: Handling) -> bool:
        """Return whether its calls are no more than its plan asks for."""
        is_counted_anew = self._is_orderly and handling.plan == ("error",)
        return handling.started <= handling.expected or is_counted_anew

    def is_exact(self, handling: Handling) -> bool:
        """Return whether its calls are as many as its plan asks for."""
        return handling.started >= handling.expected and self._is_asked_for(handling)

    def is_done(self, scope: str, body: bytes, dead: set[bytes]) -> bool:
        """Return whether a message was handled, or is a dead letter."""
        handling = self.handlings.get((scope, body))
        return handling is not None and (handling.is_done or body in dead)

    @property
    def duplicates(self) -> int:
        """Calls beyond those that the plans ask for."""
        return sum(
            handling.started - handling.expected
            for handling in self.handlings.values()
            if not self._is_asked_for(handling)
        )

    # ---- orderly ----

    def enter_queue(
        self,
        member: str,
        queue: QueueId,
        window: float,
        offset: int,
        *,
        has_lock: bool,
        is_noticed: Callable[[str], bool],
    ) -> None:
        """Check that a handler may begin: nobody else handles the queue, and the order holds.

        Args:
            member: Its name.
            queue: The queue.
            window: When its window was made, which identifies it.
            offset: The offset of the message.
            has_lock: Whether the broker has given it the lock.
            is_noticed: Returns whether another member has noticed that its lock may be lost.
        """
        state = self._queues.setdefault(queue, _Queue())
        assert member not in state.running, f"{member} handles {queue} twice at a time"
        assert has_lock, f"{member} handles {queue} without its lock"
        others = list(state.running)
        if others:
            self.overlaps += 1
            unaware = [name for name in others if not is_noticed(name)]
            assert not unaware, f"{unaware} and {member} handle {queue} at the same time"
        if self._is_calm:
            assert not others, f"{others} and {member} handle {queue} at the same time"
            assert offset >= state.offset, f"{queue}: {offset} after {state.offset}"
        elif (member, window) == (state.member, state.window):
            assert offset >= state.offset, f"{queue}: {offset} after {state.offset}, one window"
        state.member, state.window, state.offset = member, window, offset
        state.running[member] = offset

    def leave_queue(self, member: str, queue: QueueId) -> None:
        """Note that a handler has ended."""
        self._queues[queue].running.pop(member, None)
