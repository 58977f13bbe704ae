"""How the progress of a group is saved: at the brokers, or in a store of one's own for broadcast.

Every commit is an answered request. A failure is counted, published and tried again by the next
commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from downrange.client.flows.consuming.offsets import set_group_offset
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, UserCall, Wait
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.model import QueueId, QueueOffset
    from downrange.options.consumers import OffsetStore


class Commits(Protocol):
    """Saves the positions of windows."""

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Save the positions that have changed; return what failed."""
        ...


class BrokerCommits:
    """Commits to the brokers, one request per queue.

    Args:
        core: The client.
        group: The group, without the namespace.
    """

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self._group = group

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Save the positions that have changed; return what failed.

        One commit of a queue at a time: a broker may handle two in the wrong order.
        """
        for window in windows:
            while window.saving is not None and self._core.clock.now() < deadline:
                yield Wait(window.saving, deadline)
        changed = [
            (window, window.position)
            for window in windows
            if not window.is_dropped and not window.is_lost and window.position != window.committed
        ]
        if not changed:
            return []
        ended = Signal()
        for window, _ in changed:
            window.saving = ended
        try:
            outcomes: list[object] = yield Gather(
                [self._save(window.queue, position, deadline) for window, position in changed],
                CALLS_AT_ONCE,
            )
        finally:
            for window, _ in changed:
                window.saving = None
            ended.fire()
        failures: list[RocketMQError] = []
        for (window, position), outcome in zip(changed, outcomes, strict=True):
            if isinstance(outcome, RocketMQError):
                failures.append(outcome)
            else:
                window.committed = position
        return failures

    def _save(self, queue: QueueId, position: QueueOffset, deadline: float) -> Flow[None]:
        return set_group_offset(self._core, self._group, queue, position, deadline=deadline)


class NoCommits:
    """Saves nothing: for broadcast without an offset store."""

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Note the positions as saved."""
        del deadline
        for window in windows:
            window.committed = window.position
        return []
        yield  # a flow


class LocalCommits:
    """Saves all positions in an offset store, for broadcast.

    Args:
        store: The user's store; its methods may block.
        group: The group, with the namespace.
    """

    def __init__(self, store: OffsetStore, group: str) -> None:
        self._store = store
        self._group = group
        self.offsets: dict[QueueId, QueueOffset] = {}

    def load(self) -> Flow[None]:
        """Read what was saved before."""
        self.offsets = yield UserCall(self._store.load, (self._group,), may_block=True)

    def release(self) -> Flow[None]:
        """Tell the store that this consumer does not use it any more."""
        method = getattr(self._store, "release", None)
        if method is not None:
            yield UserCall(method, (self._group,), may_block=True)

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Save all positions if one has changed; return what failed."""
        del deadline  # a file has none
        changed = {
            window: window.position
            for window in windows
            if not window.is_dropped and window.position != window.committed
        }
        if not changed:
            return []
        offsets = self.offsets | {window.queue: position for window, position in changed.items()}
        try:
            yield UserCall(self._store.save, (self._group, offsets), may_block=True)
        except RocketMQError as error:
            return [error]
        self.offsets = offsets
        for window, position in changed.items():
            window.committed = position
        return []
