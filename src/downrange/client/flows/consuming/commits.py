"""How the progress of a group is saved: at the brokers, or in a store of one's own for broadcast.

Every commit is an answered request. A failure is counted, published and tried again by the next
commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from downrange.client.flows.consuming.offsets import set_group_offset
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather, Signal, UserCall, Wait
from downrange.errors import RocketMQError, StoreError
from downrange.model import QueueId, QueueOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import DeliveryWindow
    from downrange.options.consumers import OffsetStore


class Commits(Protocol):
    """Saves the positions of windows."""

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Save the positions that have changed; return what failed."""
        ...


class BrokerCommits:
    """Commits to the brokers, one request per queue.

    A queue that was reset has its new offset at the broker. The window that it had before may still
    wait for a handler, and even be given up for another member: its position is not committed, or
    it would undo the reset.

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
            if window.position != window.committed and _may_commit(window)
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
                window.note_saved(position)
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

    One save at a time: a slow one that ends after a later one would put old offsets into the store,
    or write to it after its release.

    Whatever the store raises is a `StoreError` here: it may be code of the user.

    Args:
        store: The user's store; its methods may block.
        group: The group, with the namespace.
    """

    def __init__(self, store: OffsetStore, group: str) -> None:
        self._store = store
        self._group = group
        self._name = type(store).__name__  # what it shows of itself may have a password
        self.offsets: dict[QueueId, QueueOffset] = {}
        #: Fires when the save that is under way has ended; None without one.
        self._saving: Signal | None = None

    def load(self) -> Flow[None]:
        """Read what was saved before.

        Raises:
            StoreError: The store failed, or returned something else than offsets.
        """
        found: object = yield from self._call(self._store.load, self._group)
        if not _are_offsets(found):
            raise StoreError(
                f"load() of the offset store {self._name} returned {found!r:.100}, not a dict of "
                "QueueId and int"
            )
        self.offsets = dict(cast("Mapping[QueueId, QueueOffset]", found))

    def release(self, deadline: float) -> Flow[None]:
        """Tell the store that this consumer does not use it any more.

        Raises:
            StoreError: The store failed, or still saves at the deadline; then it is not released.
        """
        yield from self._wait_for_save(deadline)
        method = getattr(self._store, "release", None)
        if method is not None:
            yield from self._call(method, self._group)

    def save(self, windows: Iterable[DeliveryWindow], deadline: float) -> Flow[list[RocketMQError]]:
        """Save all positions if one has changed; return what failed.

        The deadline is that for the end of another save: the store itself has none.
        """
        try:
            yield from self._wait_for_save(deadline)
        except StoreError as error:
            return [error]
        changed = {
            window: window.position
            for window in windows
            if not window.is_dropped and window.position != window.committed
        }
        if not changed:
            return []
        offsets = self.offsets | {window.queue: position for window, position in changed.items()}
        self._saving = ended = Signal()
        try:
            yield from self._call(self._store.save, self._group, dict(offsets))
        except RocketMQError as error:
            return [error]
        finally:
            self._saving = None
            ended.fire()
        self.offsets = offsets
        for window, position in changed.items():
            window.committed = position
        return []

    def _wait_for_save(self, deadline: float) -> Flow[None]:
        """Wait until no other flow saves.

        Raises:
            StoreError: One still does at the deadline.
        """
        while self._saving is not None:
            has_ended: bool = yield Wait(self._saving, deadline)
            if not has_ended:
                raise StoreError(f"save() of the offset store {self._name} has not ended yet")

    def _call(self, method: Callable[..., object], *arguments: object) -> Flow[object]:
        """Call a method of the store.

        Raises:
            StoreError: It failed.
        """
        try:
            answer: object = yield UserCall(method, arguments, may_block=True)
        except RocketMQError:
            raise
        except Exception as error:
            what = f"{getattr(method, '__name__', 'a method')}() of the offset store {self._name}"
            raise StoreError(f"{what} failed: {type(error).__name__}: {error}") from error
        return answer


def _may_commit(window: DeliveryWindow) -> bool:
    return not (window.is_dropped or window.is_lost) and window.reset_to is None


def _are_offsets(found: object) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(queue, QueueId) and isinstance(offset, int) and offset >= 0
        for queue, offset in found.items()
    )
