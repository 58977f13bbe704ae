"""Trace records of consumption: one before the handler runs, one after, per message.

As in Java's `ConsumeMessageTraceHookImpl`, both have the same request id, and the time of a batch
is divided among its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from downrange.client.flows.producing.trace_records import (
    SubAfterTrace,
    SubBeforeTrace,
    SubResult,
)
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from downrange.client.flows.producing.trace_buffer import TraceBuffer
    from downrange.model import ReceivedMessage


class TracedBatch(NamedTuple):
    """Messages that a handler has been given.

    Attributes:
        records: Their records; none of messages that are not traced.
        message_count: How many messages the handler got.
    """

    records: list[SubBeforeTrace]
    message_count: int


def trace_before(
    buffer: TraceBuffer, messages: Sequence[ReceivedMessage], *, group: str, request_id: str
) -> TracedBatch:
    """Add the records of messages that a handler is about to get.

    Messages of the trace topic are not traced, nor those whose producer said so.

    Args:
        buffer: Takes the records.
        messages: All messages of one call of the handler, as the handler sees them.
        group: The consumer's group, without a namespace.
        request_id: A new unique id.
    """
    time_ms = buffer.clock.wall_ms()
    records = [
        SubBeforeTrace(
            time_ms=time_ms,
            region=message.properties.get(PropertyKey.REGION),
            group=group,
            request_id=request_id,
            message_id=message.message_id,
            retry_count=message.delivery_attempts,
            keys=message.properties.get(PropertyKey.KEYS),
        )
        for message in messages
        if message.properties.get(PropertyKey.TRACE_ON) != "false"
        and buffer.traces_topic(message.topic)
    ]
    for record in records:
        buffer.add(record)
    return TracedBatch(records, len(messages))


def trace_after(
    buffer: TraceBuffer,
    batch: TracedBatch,
    result: SubResult,
    *,
    is_success: bool | None = None,
    failed_ids: Collection[str] = (),
) -> None:
    """Add the records of messages that a handler has ended with.

    Args:
        buffer: Takes the records.
        batch: What `trace_before` returned.
        result: How the handler ended.
        is_success: Whether the messages are done; by default, whether the result is a success. A
            handler that took too long may have succeeded.
        failed_ids: Ids of messages that failed alone, while the others are done.
    """
    if not batch.records:
        return
    now_ms = buffer.clock.wall_ms()
    cost_ms = max(0, now_ms - batch.records[0].time_ms) // batch.message_count
    is_done = result is SubResult.SUCCESS if is_success is None else is_success
    for before in batch.records:
        has_failed = before.message_id in failed_ids
        record = SubAfterTrace(
            request_id=before.request_id,
            message_id=before.message_id,
            cost_ms=cost_ms,
            is_success=is_done and not has_failed,
            keys=before.keys,
            result=SubResult.FAILED if has_failed else result,
            # Java leaves both out for a cloud.
            time_ms=None if buffer.is_cloud else now_ms,
            group=None if buffer.is_cloud else before.group,
        )
        buffer.add(record, region=before.region)
