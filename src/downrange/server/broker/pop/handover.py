"""Checkpoints that are stored again, for the next broker that uses the store or from the last one.

At a clean stop, the messages that are still open get new checkpoints at the end of the timer's
queue. An Apache broker that continues with the store then finds just these. Without them it would
read old checkpoints and their acknowledgements from the timer, which delivers records that are
overdue in any order: an acknowledgement that comes before its checkpoint is lost on it.

Checkpoints that an Apache broker left in the revive topic are stored again, too.

One rule: they are stored in portions, so that the memory this takes does not grow with their
number. The old records remain in force until all are stored, since a checkpoint may be read twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import RocketMQError
from downrange.server.broker.pop.pop_store import append_items
from downrange.server.outputs import Note

if TYPE_CHECKING:
    from downrange.server.broker.pop.checkpoints import Checkpoint
    from downrange.server.broker.state import BrokerState

#: How many checkpoints one append stores.
_PORTION: Final = 1_024


def store_open_again(state: BrokerState, now_ms: int) -> Note | None:
    """Store new records of all open checkpoints, also while the broker stops.

    Returns:
        None; or a warning if not all of them are stored.
    """
    open_ones = list(state.checkpoints)
    timer_offsets: dict[Checkpoint, int] = {}
    for begin in range(0, len(open_ones), _PORTION):
        portion = open_ones[begin : begin + _PORTION]
        items = [state.pop_records.checkpoint_item(each, now_ms) for each in portion]
        try:
            first = append_items(state, items, now_ms)
        except RocketMQError as error:
            return Note(f"checkpoints are not stored again: {error}", is_warning=True)
        state.timers.pass_over(first, len(items))
        timer_offsets.update(zip(portion, range(first, first + len(items)), strict=True))
    state.checkpoints.moved(timer_offsets)
    return None
