"""Offsets of groups, and the ends of queues.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    14   a group's offset: consumerGroup, topic, queueId, setZeroIfNotFound
    15   commit it: consumerGroup, topic, queueId, commitOffset; it may go back
    29   search by time: topic, queueId, timestamp, boundaryType
    30 31 32  a queue's end, its begin, the time of its first message: topic, queueId
    43 45  all offsets of groups, of delay levels: requests of slaves
    308  the offsets of the slowest group: topic, filterGroups, compareGroup
    314  copy a group's offsets to another: srcGroup, destGroup, topic, offline

An unknown topic or queue counts as empty, except for 15: there the group and the topic must exist
(26, 17), and the topic must have the queue (29; Apache accepts any number). For a 4.9 client a
missing group is created if that is allowed. A commit after a reset (222) is confirmed and ignored
until a consumer has learnt of the reset.

308 leaves the offsets of the groups in filterGroups as they are; Apache deletes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import ensure_group, refuse, succeed
from downrange.server.broker.queues import find_queue, is_new, queue_count, stored_ms
from downrange.server.outputs import Output, Peer, Reply, TablesChanged
from downrange.wire.bodies import CorrectionOffsetsBody
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import (
    CloneOffsetsRequest,
    CommitOffsetRequest,
    CorrectionOffsetsRequest,
    EarliestTimeReply,
    EarliestTimeRequest,
    GroupOffsetRequest,
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetByTimeRequest,
    OffsetReply,
)
from downrange.wire.limits import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

_UPPER: Final = "upper"
_VERSION_5: Final = int(ReleaseVersion.V5_0_0)


def _show(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = GroupOffsetRequest.from_fields(request.fields)
    offset = state.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is not None and offset >= 0:
        return succeed(OffsetReply(offset=offset))
    if header.set_zero_if_not_found is False:
        remark = "Not found, do not set to zero, maybe this group boot first"
        return refuse(ResponseCode.QUERY_NOT_FOUND, remark)
    queue = find_queue(state, header.topic, header.queue_id)
    if queue is not None and is_new(state, queue):
        return succeed(OffsetReply(offset=0))
    remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    return refuse(ResponseCode.QUERY_NOT_FOUND, remark)


def _commit(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = CommitOffsetRequest.from_fields(request.fields)
    group, topic = header.consumer_group, header.topic
    outputs: list[Output] = []
    if request.version < _VERSION_5:  # 4.9 accepts offsets of groups that do not exist yet
        ensure_group(state, group, now_ms, outputs)
    if state.groups.get(group) is None:
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    config = state.topics.get(topic)
    if config is None:
        return [*outputs, *refuse(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")]
    if not 0 <= header.queue_id < queue_count(config):
        remark = f"queueId[{header.queue_id}] is illegal, topic:[{topic}]"
        return [*outputs, *refuse(ResponseCode.INVALID_PARAMETER, remark)]
    if state.offsets.is_reset(group, topic, header.queue_id):
        confirmed = Command(int(ResponseCode.SUCCESS), remark="Offset has been previously reset")
        return [*outputs, Reply(confirmed)]
    if state.offsets.get(group, topic, header.queue_id) != header.commit_offset:
        version = state.tables_version
        state.set_offset(group, topic, header.queue_id, header.commit_offset)
        if state.tables_version != version:  # a batch that was popped in order is forgotten
            outputs.append(TablesChanged(state.tables_version))
    return [*outputs, *succeed()]


def _search(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = OffsetByTimeRequest.from_fields(request.fields)
    queue = find_queue(state, header.topic, header.queue_id)
    if queue is None:
        return succeed(OffsetReply(offset=0))
    is_upper = (header.boundary_type or "").lower() == _UPPER
    store_ms = header.timestamp + 1 if is_upper else header.timestamp
    offset = state.store.offset_at(header.topic, header.queue_id, store_ms)
    if is_upper:  # the last message at this time or before
        offset = max(offset - 1, queue.min_offset)
    return succeed(OffsetReply(offset=offset))


def _show_max(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = MaxOffsetRequest.from_fields(request.fields)
    queue = find_queue(state, header.topic, header.queue_id)
    return succeed(OffsetReply(offset=0 if queue is None else queue.max_offset))


def _show_min(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = MinOffsetRequest.from_fields(request.fields)
    queue = find_queue(state, header.topic, header.queue_id)
    return succeed(OffsetReply(offset=0 if queue is None else queue.min_offset))


def _show_earliest(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = EarliestTimeRequest.from_fields(request.fields)
    queue = find_queue(state, header.topic, header.queue_id)
    store_ms = None if queue is None else stored_ms(state, queue, queue.min_offset)
    return succeed(EarliestTimeReply(timestamp=-1 if store_ms is None else store_ms))


def _list_groups(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(body=state.offsets.dump())


def _list_delays(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(body=state.delays.dump())


def _show_slowest(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = CorrectionOffsetsRequest.from_fields(request.fields)
    topic, body = header.topic, CorrectionOffsetsBody()
    slowest = body.correction_offsets
    groups = set(state.offsets.groups_of(topic)) - set((header.filter_groups or "").split(","))
    for group in groups:
        for queue_id, offset in state.offsets.of_group(group)[topic].items():
            queue = find_queue(state, topic, queue_id)
            if offset >= (0 if queue is None else queue.min_offset):
                slowest[queue_id] = min(slowest.get(queue_id, offset), offset)
    if header.compare_group in groups:  # where it is behind the others, there is nothing to correct
        for queue_id, offset in state.offsets.of_group(header.compare_group)[topic].items():
            if slowest.get(queue_id, offset) > offset:
                slowest[queue_id] = INT64_MAX
    return succeed(body=body.encode())


def _clone(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = CloneOffsetsRequest.from_fields(request.fields)
    topics = [header.topic] if header.topic else state.offsets.topics_of(header.src_group)
    outputs: list[Output] = []
    if ensure_group(state, header.dest_group, now_ms, outputs) is None:
        remark = f"Group {header.dest_group} not exist!"
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    source = state.offsets.of_group(header.src_group)
    for topic in topics:
        for queue_id, offset in list(source.get(topic, {}).items()):
            state.set_offset(header.dest_group, topic, queue_id, offset)
    return [*outputs, TablesChanged(state.tables_version), *succeed()]


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.QUERY_CONSUMER_OFFSET): _show,
    int(RequestCode.UPDATE_CONSUMER_OFFSET): _commit,
    int(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): _search,
    int(RequestCode.GET_MAX_OFFSET): _show_max,
    int(RequestCode.GET_MIN_OFFSET): _show_min,
    int(RequestCode.GET_EARLIEST_MSG_STORETIME): _show_earliest,
    int(RequestCode.GET_ALL_CONSUMER_OFFSET): _list_groups,
    int(RequestCode.GET_ALL_DELAY_OFFSET): _list_delays,
    int(RequestCode.QUERY_CORRECTION_OFFSET): _show_slowest,
    int(RequestCode.CLONE_GROUP_OFFSET): _clone,
}
