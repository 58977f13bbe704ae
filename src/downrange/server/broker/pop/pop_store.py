"""Stores the records of pops and acknowledgements, at once.

Other handlers add records to the write queue, which stores those of a turn together. Here that
would cost more than it saves: a pop is one small record for many messages, and its reply waits for
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import DiskFull, RocketMQError
from downrange.server.broker.state import DISK_FULL
from downrange.server.outputs import FlushAwaited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output
    from downrange.wire.run_items import RunItem

_FLUSH_AWAITED: Final = (FlushAwaited(),)


def store_items(state: BrokerState, items: Sequence[RunItem], now_ms: int) -> int:
    """Store records; return the offset of the first one in the timer's queue.

    Raises:
        RocketMQError: None of them is stored.
    """
    if state.unwritable is not None:
        raise RocketMQError(f"nothing is stored: {state.unwritable}")
    return append_items(state, items, now_ms)


def append_items(state: BrokerState, items: Sequence[RunItem], now_ms: int) -> int:
    """Do the same while a stop refuses all that clients want to have stored.

    Raises:
        RocketMQError: None of them is stored.
    """
    store, form = state.store, state.pop_records.form
    begin = store.log.end
    try:
        offset = store.append_run(form, items, now_ms)
    except DiskFull:
        state.unwritable = DISK_FULL  # the driver resets it when there is space
        raise
    except OSError as error:
        raise RocketMQError(f"the log cannot be written: {error}") from error
    state.statistics.stored_run(form.queue[0], len(items), store.log.end - begin)
    return offset


def until_durable(state: BrokerState) -> Sequence[Output]:
    """Return what stands before a reply that confirms stored records: in sync mode it waits."""
    return _FLUSH_AWAITED if state.options.flush == "sync" else ()
