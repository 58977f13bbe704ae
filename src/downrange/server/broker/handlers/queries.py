"""Queries: single messages by key and by id, and the units of a queue's index.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    12    by key: topic, key, maxNum, beginTimestamp, endTimestamp, indexType, _UNIQUE_KEY_QUERY
    33    by id: offset
    321   units of a queue: topic, queueId, index, count, consumerGroup

A query by key returns the newest matches in the order of the log, and only messages that have the
key: the index contains hashes, and Apache leaves the comparison of keys to the client. Tags (index
type T) are found only in an index that Apache 5.5 wrote. An id that does not point at the first
byte of a record is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import refuse, succeed
from downrange.server.broker.queues import find_queue
from downrange.server.outputs import Reply
from downrange.store.key_index import FOUND_MAX
from downrange.wire.bodies import QueueUnit, QueueUnitsBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import (
    QueryByKeyRequest,
    QueryReply,
    QueueUnitsRequest,
    ViewRequest,
)
from downrange.wire.properties import PropertyKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.wire.bodies import Subscription
    from downrange.wire.records import Record

#: Messages with the same unique key: one, and its copies in retry topics.
_UNIQUE_FOUND_MAX: Final = 32
_BY_TAG: Final = "T"
_TAG_PREFIX: Final = "T#"
_UNITS_MAX: Final = 1_000


def _find(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = QueryByKeyRequest.from_fields(request.fields)
    is_tag = header.index_type == _BY_TAG
    count = _UNIQUE_FOUND_MAX if header.is_unique_key else min(header.max_num, FOUND_MAX)
    found = state.store.find(
        header.topic,
        f"{_TAG_PREFIX}{header.key}" if is_tag else header.key,
        begin_ms=header.begin_timestamp,
        end_ms=header.end_timestamp,
        found_max=max(count, 0),
    )
    parts: list[bytes] = []
    for log_offset in sorted(found.log_offsets):
        record = state.store.find_record(log_offset)
        if record is not None and _has_key(record, header.topic, header.key, is_tag=is_tag):
            parts.append(state.store.log.read(log_offset, record.size))
    if not parts:
        fields = QueryReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        remark = "can not find message, maybe time range not correct"
        code = int(ResponseCode.QUERY_NOT_FOUND)
        return [Reply(Command(code, fields.to_fields(), remark=remark))]
    header_out = QueryReply(
        index_last_update_timestamp=found.last_store_ms,
        index_last_update_phyoffset=found.last_log_offset,
    )
    return succeed(header_out, b"".join(parts))


def _has_key(record: Record, topic: str, key: str, *, is_tag: bool) -> bool:
    if record.topic != topic:
        return False
    properties = record.properties()
    if is_tag:
        return properties.get(PropertyKey.TAGS) == key
    keys = properties.get(PropertyKey.KEYS, "").split(" ")
    return key == properties.get(PropertyKey.UNIQUE_KEY) or key in keys


def _view(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ViewRequest.from_fields(request.fields)
    offset = header.offset
    record = state.store.find_record(offset)
    # Access is granted by the topic in the request, so it must be the message's own.
    if record is None or (header.topic and record.topic != header.topic):
        remark = f"can not find message by the offset, {offset}"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    return succeed(body=state.store.log.read(offset, record.size))


def _show_units(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = QueueUnitsRequest.from_fields(request.fields)
    queue = find_queue(state, header.topic, header.queue_id)
    if queue is None:
        remark = f"{header.queue_id}@{header.topic} is not exist!"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    body = QueueUnitsBody(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
    if header.consumer_group is not None:
        members = state.clients.consumer_group(header.consumer_group)
        body.subscription_data = None if members is None else members.subscription(header.topic)
        if body.subscription_data is None:
            body.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
    begin = max(header.index, queue.min_offset)
    for unit in queue.units(begin, min(header.count, _UNITS_MAX)):
        body.queue_data.append(
            QueueUnit(
                physic_offset=unit.log_offset,
                physic_size=unit.size,
                tags_code=unit.tag_hash,
                eval=_is_taken(unit.tag_hash, body.subscription_data),
            )
        )
    return succeed(body=body.encode())


def _is_taken(tag_hash: int, subscription: Subscription | None) -> bool:
    if subscription is None:
        return False
    return not subscription.code_set or tag_hash in subscription.code_set


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.QUERY_MESSAGE): _find,
    int(RequestCode.VIEW_MESSAGE_BY_ID): _view,
    int(RequestCode.QUERY_CONSUME_QUEUE): _show_units,
}
