"""Topics: create, change, describe, delete.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    17 18   create or change a topic, or several: all except defaultTopic
    21      all topics: topicSeq, maxTopicNum and dataVersion select a page
    202     the ends of all queues: topic
    215     delete: topic; removes its queues, the offsets of its groups, and the retry topics with
            its messages that groups pop again; records stay in the log
    300     the groups that read a topic: topic
    305     the broker's own topics
    351     one topic: topic

Creating checks the name, and that the topic is not one of the broker's own (29).

Skipped on purpose: queue type and clean-up policy as attributes (there is one kind of queue; a
topic that requests another is refused with 1), checks of the order config, static topics (513 is
refused with 3 and the reason): their queues move between brokers, and ours know no other brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from downrange.server.broker.handlers.answers import refuse, succeed, succeed_when_saved
from downrange.server.broker.handlers.pages import page
from downrange.server.broker.pop.pop_plan import retry_topics
from downrange.server.broker.queues import queues_of, stored_ms
from downrange.wire.bodies import (
    GroupNamesBody,
    TopicConfig,
    TopicListBody,
    TopicNamesBody,
    TopicOffset,
    TopicStatsBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import (
    AllTopicsReply,
    AllTopicsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    TopicConfigRequest,
    TopicConsumersRequest,
    TopicStatsRequest,
)
from downrange.wire.limits import QUEUES_MAX
from downrange.wire.system_names import (
    BROKER_SYSTEM_TOPICS,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    is_broker_system_topic,
    topic_problem,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command

_PERM_MAX: Final = 15
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_ATTRIBUTES: Final = frozenset({"message.type", "reserve.time"})


class _FixedAttribute(NamedTuple):
    """The one value that an attribute can have here, and why."""

    value: str
    reason: str


_FIXED_ATTRIBUTES: Final = {
    "queue.type": _FixedAttribute(
        "SimpleCQ",
        "each queue of this broker has one entry per message (SimpleCQ). Create the topic without "
        "this attribute: the messages of a batch are then stored one by one",
    ),
    "cleanup.policy": _FixedAttribute(
        "DELETE",
        "this broker deletes messages by age (DELETE) and cannot keep the last one of each key. "
        "Create the topic without this attribute",
    ),
}


# ---- creating ----------------------------------------------------------------------------------


def _create(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = CreateTopicRequest.from_fields(request.fields)
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=_parse_attributes(header.attributes),
    )
    refused = _check(state, config)
    if refused is not None:
        return refused
    _put(state, config, now_ms)
    return succeed_when_saved(state)


def _create_several(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    configs = decode_body(TopicListBody, request.body).topic_config_list
    for config in configs:  # all or none
        refused = _check(state, config)
        if refused is not None:
            return refused
    for config in configs:
        _put(state, config, now_ms)
    return succeed_when_saved(state)


def _check(state: BrokerState, config: TopicConfig) -> list[Output] | None:
    """Return the refusal of a topic that cannot have these settings, or None."""
    topic = config.topic_name
    problem = topic_problem(topic) or _own_topic_problem(state, topic)
    counts = (config.read_queue_nums, config.write_queue_nums)
    if problem is None and not all(0 <= count <= QUEUES_MAX for count in counts):
        problem = f"The topic[{topic}] must have 0 to {QUEUES_MAX} queues, not {counts}."
    if problem is None and not 0 <= config.perm <= _PERM_MAX:
        problem = f"The topic[{topic}] cannot have permission {config.perm}."
    if problem is not None:
        return refuse(ResponseCode.INVALID_PARAMETER, problem)
    if config.topic_filter_type not in _FILTER_TYPES:
        problem = f"topicFilterType = [{config.topic_filter_type}] value invalid"
    elif state.topics.get(topic) is None and len(state.topics) >= state.options.topics_max:
        problem = f"there are {len(state.topics)} topics, which is the limit"
    else:
        problem = _attribute_problem(config.attributes or {})
    return None if problem is None else refuse(ResponseCode.SYSTEM_ERROR, problem)


def _own_topic_problem(state: BrokerState, topic: str) -> str | None:
    if not is_broker_system_topic(topic) and topic not in _own_topics(state):
        return None
    return f"The topic[{topic}] is conflict with system topic."


def _own_topics(state: BrokerState) -> tuple[str, ...]:
    options = state.options
    return (options.cluster, options.name, f"{options.cluster}{REPLY_SUFFIX}")


def _parse_attributes(text: str | None) -> dict[str, str]:
    """Parse `+name=value,-name` and keep the signs, as in a body of request 18."""
    changes = (word.partition("=") for word in (text or "").split(",") if word.strip())
    return {name.strip(): value.strip() for name, _, value in changes}


def _attribute_problem(changes: dict[str, str]) -> str | None:
    for signed, value in changes.items():
        name = signed.lstrip("+-")
        if name in _FIXED_ATTRIBUTES:
            if not signed.startswith("-") and value != _FIXED_ATTRIBUTES[name].value:
                return f"{name}={value} is not supported: {_FIXED_ATTRIBUTES[name].reason}"
        elif name not in _ATTRIBUTES:
            return f"unsupported key: {name}"
    return None


def _put(state: BrokerState, config: TopicConfig, now_ms: int) -> None:
    """Create or change a topic; one that has these settings already is not announced again."""
    current = state.topics.get(config.topic_name)
    attributes = {} if current is None else dict(current.attributes or {})
    for signed, value in (config.attributes or {}).items():
        if signed.startswith("-"):
            attributes.pop(signed[1:], None)
        else:
            attributes[signed.removeprefix("+")] = value
    changed = msgspec.structs.replace(config, attributes=attributes)
    if changed != current:
        state.topics.put(changed, now_ms)


# ---- deleting ----------------------------------------------------------------------------------


def _delete(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    topic = request.fields.get("topic", "")
    if not topic.strip():
        return refuse(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    topic = DeleteTopicRequest.from_fields(request.fields).topic
    problem = _own_topic_problem(state, topic)
    if problem is not None:
        return refuse(ResponseCode.INVALID_PARAMETER, problem)
    for name in (topic, *_topics_popped_again(state, topic)):
        if state.topics.delete(name, now_ms):
            state.forget_topic(name)
            state.statistics.drop_topic(name)
            state.request_modes.delete_topic(name)
            state.store.drop_topic(name)
            state.unmatched.clear()
            state.is_checkpoint_due = True  # or recovery would find the topic's records again
            state.held_pulls.checked_ms = 0  # the next tick answers the pulls that wait for it
    return succeed_when_saved(state)


def _topics_popped_again(state: BrokerState, topic: str) -> list[str]:
    """Return the topics of messages of a topic that groups pop again.

    Java: clearRetryTopicWhenDeleteTopic. `%RETRY%G_T` may also be the retry topic of a group "G_T",
    which keeps it.
    """
    return [
        name
        for group in state.offsets.groups_of(topic)
        for _, name in retry_topics(topic, group)
        if state.groups.get(name.removeprefix(RETRY_PREFIX)) is None
    ]


# ---- describing --------------------------------------------------------------------------------


def _list(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = AllTopicsRequest.from_fields(request.fields)
    table = state.topics.table()
    table.topic_config_table = page(
        table.topic_config_table,
        table.data_version,
        begin=header.topic_seq,
        count=header.max_topic_num,
        version=header.data_version,
    )
    # No member is null, so the plain encoder is enough: `table.encode()` takes 70 times as long.
    body = msgspec.json.encode(table)
    return succeed(AllTopicsReply(total_topic_num=len(state.topics)), body)


def _describe(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    topic = TopicConfigRequest.from_fields(request.fields).topic
    config = state.topics.get(topic)
    if config is None:
        return refuse(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return succeed(body=config.encode())


def _list_own(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    names = {*BROKER_SYSTEM_TOPICS, *_own_topics(state)}
    names |= {
        config.topic_name for config in state.topics if is_broker_system_topic(config.topic_name)
    }
    return succeed(body=TopicNamesBody(topic_list=sorted(names)).encode())


def _measure(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    topic = TopicStatsRequest.from_fields(request.fields).topic
    config = state.topics.get(topic)
    if config is None:
        return refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    body = TopicStatsBody()
    for name, queue in queues_of(state, config):
        body.offset_table[name] = TopicOffset(
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            last_update_timestamp=stored_ms(state, queue, queue.max_offset - 1) or 0,
        )
    body.topic_put_tps = state.statistics.stored_rate(topic)
    return succeed(body=body.encode())


def _list_readers(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    topic = TopicConsumersRequest.from_fields(request.fields).topic
    connected = [
        group.name
        for group in state.clients.consumer_groups()
        if group.subscription(topic) is not None
    ]
    groups = list(dict.fromkeys([*connected, *state.offsets.groups_of(topic)]))
    return succeed(body=GroupNamesBody(group_list=groups).encode())


#: Requests that are refused on purpose -> the reason and the next step.
REFUSED: Final[dict[int, str]] = {
    int(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC): (
        "static topics are not supported: a queue of this broker cannot move to another broker. "
        "Create an ordinary topic (mqadmin updateTopic, downrange topic create), or use Apache "
        "brokers of 5.x"
    ),
}

HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.UPDATE_AND_CREATE_TOPIC): _create,
    int(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST): _create_several,
    int(RequestCode.GET_ALL_TOPIC_CONFIG): _list,
    int(RequestCode.GET_TOPIC_CONFIG): _describe,
    int(RequestCode.GET_TOPIC_STATS_INFO): _measure,
    int(RequestCode.DELETE_TOPIC_IN_BROKER): _delete,
    int(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO): _list_readers,
    int(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER): _list_own,
}
