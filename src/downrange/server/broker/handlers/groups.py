"""Consumer groups: create, change, describe, delete; their progress.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    200 225  create or change a group, or several: body
    201      all groups: groupSeq, maxGroupNum and dataVersion select a page
    207      delete: groupName, cleanOffset (4.9: removeOffset)
    208      the progress of a group: consumerGroup, topic, topicList
    303      the store times of messages that a group has yet to read: topic, group
    317      the progress of all groups: isOrder
    343 345  the topics of a group, its subscription to one: group, topic
    352      one group, created if it is missing: group
    353      forbid a group to read a topic, or allow it: group, topic, readable

A topic that is allowed again stays forbidden to other groups, and the group stays forbidden to read
others; Apache allows all topics of the group, until the broker starts again.

Skipped on purpose: checks of a group's attributes (all are kept).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.server.broker.handlers.answers import (
    ensure_group,
    refuse,
    succeed,
    succeed_when_saved,
)
from downrange.server.broker.handlers.pages import page
from downrange.server.broker.pop.revival import drop_checkpoints
from downrange.server.broker.queues import queues_of, stored_ms
from downrange.server.broker.tables.group_table import FORBIDDEN_MAX
from downrange.server.outputs import STORE_PENDING
from downrange.wire.bodies import (
    BrokerConsumeStatsBody,
    ConsumeOffset,
    ConsumeStatsBody,
    ForbiddenBody,
    GroupConfig,
    GroupListBody,
    GroupSubscriptionBody,
    QueueTimeSpan,
    TimeSpansBody,
    TopicNamesBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import (
    AllGroupsReply,
    AllGroupsRequest,
    BrokerConsumeStatsRequest,
    ConsumeStatsRequest,
    ConsumeTimeSpanRequest,
    DeleteGroupRequest,
    ForbidGroupRequest,
    GroupConfigRequest,
    GroupSubscriptionRequest,
    GroupTopicsRequest,
)
from downrange.wire.limits import QUEUES_MAX
from downrange.wire.system_names import group_problem, topic_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.model import QueueId
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.store.queue_index import QueueIndex
    from downrange.wire.bodies import TopicConfig
    from downrange.wire.command import Command


# ---- creating and deleting ---------------------------------------------------------------------


def _create(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return _put_all(state, [decode_body(GroupConfig, request.body)], now_ms)


def _create_several(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    return _put_all(state, decode_body(GroupListBody, request.body).group_config_list, now_ms)


def _put_all(state: BrokerState, configs: list[GroupConfig], now_ms: int) -> list[Output]:
    """Create or change groups, all or none."""
    for config in configs:
        problem = group_problem(config.group_name)
        if problem is None and not 0 <= config.retry_queue_nums <= QUEUES_MAX:
            problem = f"retryQueueNums {config.retry_queue_nums} is not 0 to {QUEUES_MAX}"
        if problem is not None:
            return refuse(ResponseCode.INVALID_PARAMETER, problem)
    new = {config.group_name for config in configs if state.groups.get(config.group_name) is None}
    if len(state.groups) + len(new) > state.options.groups_max:
        remark = f"there are {len(state.groups)} groups, which is the limit"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    for config in configs:
        _put(state, config, now_ms)
    return succeed_when_saved(state)


def _put(state: BrokerState, config: GroupConfig, now_ms: int) -> None:
    current = state.groups.get(config.group_name)
    attributes = {} if current is None else dict(current.attributes or {})
    for signed, value in (config.attributes or {}).items():
        if signed.startswith("-"):
            attributes.pop(signed[1:], None)
        else:
            attributes[signed.removeprefix("+")] = value
    state.groups.put(msgspec.structs.replace(config, attributes=attributes), now_ms)


def _delete(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = DeleteGroupRequest.from_fields(request.fields)
    state.groups.delete(header.group_name, now_ms)
    state.statistics.drop_group(header.group_name)
    state.request_modes.delete_group(header.group_name)
    name = header.group_name
    is_stored = drop_checkpoints(state, lambda found: found.group == name, now_ms)
    if header.clean_offset or header.remove_offset:
        state.forget_group(header.group_name)
    return [*succeed_when_saved(state), *STORE_PENDING[: int(is_stored)]]


def _forbid(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ForbidGroupRequest.from_fields(request.fields)
    group, topic = header.group, header.topic
    problem = group_problem(group) or topic_problem(topic)
    if problem is not None:
        return refuse(ResponseCode.INVALID_PARAMETER, problem)
    if header.readable is not None and not state.groups.forbid(
        group, topic, is_forbidden=not header.readable, now_ms=now_ms
    ):
        remark = f"{FORBIDDEN_MAX} topics are forbidden to groups, which is the limit"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    is_readable = not state.groups.is_forbidden(group, topic)
    body = ForbiddenBody(group=group, topic=topic, readable=is_readable)
    return succeed_when_saved(state, body.encode())


# ---- describing --------------------------------------------------------------------------------


def _list(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = AllGroupsRequest.from_fields(request.fields)
    table = state.groups.table()
    table.subscription_group_table = page(
        table.subscription_group_table,
        table.data_version,
        begin=header.group_seq,
        count=header.max_group_num,
        version=header.data_version,
    )
    return succeed(AllGroupsReply(total_group_num=len(state.groups)), table.encode())


def _describe(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = GroupConfigRequest.from_fields(request.fields)
    outputs: list[Output] = []
    config = ensure_group(state, header.group, now_ms, outputs)
    if config is None:
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return [*outputs, *succeed(body=config.encode())]


def _list_topics(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    group = GroupTopicsRequest.from_fields(request.fields).group
    topics = state.offsets.topics_of(group)
    body = TopicNamesBody(topic_list=topics, broker_addr=state.host.address)
    return succeed(body=body.encode())


def _show_subscription(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = GroupSubscriptionRequest.from_fields(request.fields)
    members = state.clients.consumer_group(header.group)
    body = GroupSubscriptionBody(
        group=header.group,
        topic=header.topic,
        subscription_data=None if members is None else members.subscription(header.topic),
    )
    return succeed(body=body.encode())


# ---- progress ---------------------------------------------------------------------------------


def _measure(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ConsumeStatsRequest.from_fields(request.fields)
    group = header.consumer_group
    if header.topic:
        topics = [header.topic]
    elif header.topic_list:
        topics = [topic for topic in header.topic_list.split(";") if topic]
    else:
        topics = state.offsets.topics_of(group)
    body = ConsumeStatsBody()
    for topic in topics:
        config = state.topics.get(topic)
        if config is not None and _is_read(state, group, topic):
            body.offset_table |= _progress(state, group, config)
            body.consume_tps += state.statistics.consumed_rate(group, topic)
    return succeed(body=body.encode())


def _is_read(state: BrokerState, group: str, topic: str) -> bool:
    """Whether the connected members of a group subscribe to a topic; True without members."""
    members = state.clients.consumer_group(group)
    return members is None or not members.subscriptions() or members.subscription(topic) is not None


def _progress(state: BrokerState, group: str, topic: TopicConfig) -> dict[QueueId, ConsumeOffset]:
    found: dict[QueueId, ConsumeOffset] = {}
    for name, queue in queues_of(state, topic):
        # Of a group that pops, the committed offset stays at the oldest message that is open. Tools
        # are shown what was handed out, as by Apache.
        offset = max(state.checkpoints.next_offset(name.topic, group, name.number) or 0, 0)
        found[name] = ConsumeOffset(
            broker_offset=queue.max_offset,
            consumer_offset=offset,
            pull_offset=max(state.statistics.next_offset(group, name.topic, name.number), offset),
            last_timestamp=stored_ms(state, queue, offset - 1) or 0,
        )
    return found


def _measure_all(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = BrokerConsumeStatsRequest.from_fields(request.fields)
    body = BrokerConsumeStatsBody(broker_addr=state.host.address)
    total_inflight = 0
    for group in state.groups:
        stats: list[ConsumeStatsBody] = []
        for topic in state.offsets.topics_of(group.group_name):
            config = state.topics.get(topic)
            if config is None or (header.is_order and not config.order):
                continue
            if not _is_read(state, group.group_name, topic):
                continue
            progress = _progress(state, group.group_name, config)
            rate = state.statistics.consumed_rate(group.group_name, topic)
            stats.append(ConsumeStatsBody(offset_table=progress, consume_tps=rate))
            for queue in progress.values():
                body.total_diff += queue.broker_offset - queue.consumer_offset
                total_inflight += (queue.pull_offset or 0) - queue.consumer_offset
        body.consume_stats_list.append({group.group_name: stats})
    body.total_inflight_diff = total_inflight
    return succeed(body=body.encode())


def _measure_times(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = ConsumeTimeSpanRequest.from_fields(request.fields)
    config = state.topics.get(header.topic)
    if config is None:
        return refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    spans = [
        _time_span(state, header.group, name, queue, now_ms)
        for name, queue in queues_of(state, config)
    ]
    return succeed(body=TimeSpansBody(consume_time_span_set=spans).encode())


def _time_span(
    state: BrokerState, group: str, name: QueueId, queue: QueueIndex, now_ms: int
) -> QueueTimeSpan:
    first_ms = stored_ms(state, queue, queue.min_offset)
    if first_ms is None:
        return QueueTimeSpan(message_queue=name)
    offset = state.offsets.get(group, name.topic, name.number) or 0
    read_ms = stored_ms(state, queue, offset - 1)
    next_ms = stored_ms(state, queue, max(offset, queue.min_offset))
    return QueueTimeSpan(
        message_queue=name,
        min_time_stamp=first_ms,
        max_time_stamp=stored_ms(state, queue, queue.max_offset - 1) or -1,
        consume_time_stamp=first_ms if read_ms is None else read_ms,
        delay_time=0 if next_ms is None else max(now_ms - next_ms, 0),
    )


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): _create,
    int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST): _create_several,
    int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): _list,
    int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG): _describe,
    int(RequestCode.DELETE_SUBSCRIPTIONGROUP): _delete,
    int(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN): _forbid,
    int(RequestCode.GET_CONSUME_STATS): _measure,
    int(RequestCode.GET_BROKER_CONSUME_STATS): _measure_all,
    int(RequestCode.QUERY_CONSUME_TIME_SPAN): _measure_times,
    int(RequestCode.QUERY_TOPICS_BY_CONSUMER): _list_topics,
    int(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER): _show_subscription,
}
