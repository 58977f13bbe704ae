"""The last step before the write queue, for messages of producers, retries and committed halves.

Delayed and timed messages are redirected here (see `scheduled/`). A message that is too large to be
stored or read back is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.delayed_delivery import delay_message
from downrange.server.broker.scheduled.timed_delivery import time_message
from downrange.server.broker.write_queue import OnStored, no_outputs
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from downrange.wire.records import MAGIC_V2
from downrange.wire.send_runs import REDIRECT_KEYS

if TYPE_CHECKING:
    from downrange.server.broker.state import BrokerState
    from downrange.wire.command import Command
    from downrange.wire.records import Record


def store_message(
    state: BrokerState,
    record: Record,
    properties: dict[str, str],
    now_ms: int,
    on_stored: OnStored = no_outputs,
    *,
    is_flush_awaited: bool = False,
    behind: tuple[Record, dict[str, str]] | None = None,
) -> Command | None:
    """Add a message to the write queue, or return the refusal.

    Args:
        state: The broker.
        record: Complete except for offsets, size and store time; `property_bytes` holds
            `properties`.
        properties: The message's properties; a redirect changes them and the record.
        now_ms: The time.
        on_stored: Called with the result; `record` has its offsets then.
        is_flush_awaited: Whether the outputs of `on_stored` wait until the record is durable.
        behind: A record of the broker that is stored together with the message, and its properties.
    """
    if state.unwritable is None and not REDIRECT_KEYS.isdisjoint(properties):
        refused = _redirect(state, record, properties, now_ms)
        if refused is not None:
            return refused
    return store_directly(
        state, record, properties, on_stored, is_flush_awaited=is_flush_awaited, behind=behind
    )


def store_directly(
    state: BrokerState,
    record: Record,
    properties: dict[str, str],
    on_stored: OnStored = no_outputs,
    *,
    is_flush_awaited: bool = False,
    behind: tuple[Record, dict[str, str]] | None = None,
) -> Command | None:
    """Do the same as `store_message`, but never redirect the message."""
    limit = state.options.message_bytes_max
    if state.unwritable is not None:
        remark = f"no message is stored: {state.unwritable}"
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    if len(record.body) > limit or len(record.property_bytes) > PROPERTIES_BYTES_MAX:
        return _too_large(limit)
    if len(record.topic_bytes) > TOPIC_BYTES_MAX:
        record.magic = MAGIC_V2
    records, known = [record], [properties]
    if behind is not None:
        records.append(behind[0])
        known.append(behind[1])
    state.write_queue.add(records, known, on_stored, is_flush_awaited=is_flush_awaited)
    return None


def _too_large(limit: int) -> Command:
    remark = (
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {limit}B, msg properties length limit 32KB."
    )
    return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)


def _redirect(
    state: BrokerState, record: Record, properties: dict[str, str], now_ms: int
) -> Command | None:
    """Redirect a delayed or timed message to a topic of the broker."""
    refused = delay_message(state, record, properties)
    if refused is None:  # a level of 0 means no delay and keeps the timer properties
        refused = time_message(state, record, properties, now_ms)
    record.property_bytes = join_properties(properties)
    return refused
