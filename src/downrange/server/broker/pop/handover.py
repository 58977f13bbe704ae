"""Checkpoints that are stored again, for the next broker that uses the store or from the last one.

At a clean stop, the messages that are still open get new checkpoints at the end of the timer's
queue. An Apache broker that continues with the store then finds just these. Without them it would
read old checkpoints and their acknowledgements from the timer, which delivers records that are
overdue in any order: an acknowledgement that comes before its checkpoint is lost on it.

Checkpoints that an Apache broker left in the revive topic are stored again, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.broker.write_queue import no_outputs
from downrange.server.outputs import Note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.errors import RocketMQError
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.server.outputs import Output


def store_open_again(state: BrokerState, now_ms: int, on_stored: OnStored = no_outputs) -> None:
    """Add new records of all open checkpoints to the write queue.

    Args:
        state: The broker.
        now_ms: The time.
        on_stored: Called after success.
    """
    open_ones = list(state.checkpoints)
    records = [state.pop_records.checkpoint(checkpoint, now_ms) for checkpoint in open_ones]

    def finish(error: RocketMQError | None, now_ms: int) -> Iterable[Output]:
        if error is not None:  # the old records remain in force
            return (Note(f"checkpoints are not stored again: {error}", is_warning=True),)
        offsets = [record.queue_offset for record, _ in records]
        state.checkpoints.moved(dict(zip(open_ones, offsets, strict=True)))
        for offset in offsets:
            state.timers.pass_over(offset)
        return on_stored(None, now_ms)

    state.write_queue.add(
        [record for record, _ in records], [properties for _, properties in records], finish
    )
