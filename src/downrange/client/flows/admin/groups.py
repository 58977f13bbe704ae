"""Consumer groups: list, create, change and delete them, on every master of a cluster.

Settings travel as the broker sent them, with the changes put in. So settings of newer brokers that
are not known here stay as they are. Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from downrange.checks import check_between, check_flag, check_optional_text
from downrange.client.flows.admin.changes import delete_topic
from downrange.client.flows.admin.clusters import (
    all_masters,
    ask_each,
    ask_some,
    change_each,
    find_masters,
    unanswered_of,
)
from downrange.client.flows.admin.reports import GroupList, GroupSettings, GroupSummary
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import with_namespace, without_namespace
from downrange.client.flows.validation import check_group
from downrange.errors import GroupNotFound, RocketMQError
from downrange.wire import fastjson
from downrange.wire.bodies import (
    BrokerConsumeStatsBody,
    ConsumerConnectionsBody,
    GroupConfig,
    GroupTableBody,
    convert_body,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    BrokerConsumeStatsRequest,
    ConsumerConnectionsRequest,
    DeleteGroupRequest,
)
from downrange.wire.limits import INT32_MAX
from downrange.wire.system_names import (
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    dead_letter_topic,
    retry_topic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.client_core import ClientCore

_ALL_GROUPS: Final = int(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
_PUT_GROUP: Final = int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
_OFFLINE: Final = int(ResponseCode.CONSUMER_NOT_ONLINE)
_MODES: Final = {
    "CONSUME_PASSIVELY": "push",
    "CONSUME_ACTIVELY": "pull",
    "CONSUME_POP": "pop",
}
_MODELS: Final = {"CLUSTERING": "clustering", "BROADCASTING": "broadcast"}


def mode_of(body: ConsumerConnectionsBody) -> str | None:
    """Return how the members of a group read: "push", "pull", "pop", or Java's word."""
    return _MODES.get(body.consume_type or "", body.consume_type)


def model_of(body: ConsumerConnectionsBody) -> str | None:
    """Return how a group shares messages: "clustering", "broadcast", or Java's word."""
    return _MODELS.get(body.message_model or "", body.message_model)


# ---- listing -------------------------------------------------------------------------------------


def list_groups(
    core: ClientCore, *, cluster: str | None = None, with_progress: bool = False, deadline: float
) -> Flow[GroupList]:
    """Return all consumer groups by name; with a namespace, its groups and the system groups.

    Args:
        core: The client.
        cluster: Only of this cluster.
        with_progress: Ask for members, lag and rate of each group, too.
        deadline: When to give up.

    Raises:
        RocketMQError: No broker answered.
    """
    check_flag("with_progress", with_progress)
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    now = core.clock.now()
    until = now + (deadline - now) / 2 if with_progress else deadline  # a silent broker takes it
    replies, failures = yield from ask_some(core, masters, lambda: Command(_ALL_GROUPS), until)
    answering = {broker: masters[broker] for broker in replies}
    homes: dict[str, list[str]] = {}
    for broker, reply in replies.items():
        for group in decode_body(GroupTableBody, reply.body).subscription_group_table:
            homes.setdefault(group, []).append(broker)
    groups = sorted(name for name in homes if is_shown(core, name))
    progress: dict[str, dict[str, Any]] = {}
    if with_progress:
        progress = yield from _progress_of(core, answering, groups, deadline)
    found = (
        GroupSummary(
            group=without_namespace(name, core.options.namespace),
            kind="system" if _is_system(name) else "normal",
            brokers=tuple(sorted(homes[name])),
            **progress.get(name, {}),
        )
        for name in groups
    )
    return GroupList(found, unanswered_of(masters, failures))


def _is_system(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_shown(core: ClientCore, name: str) -> bool:
    """Whether a group is of the client's namespace, or the servers' own."""
    namespace = core.options.namespace
    return namespace is None or _is_system(name) or without_namespace(name, namespace) != name


def _progress_of(
    core: ClientCore, masters: Mapping[str, str], groups: list[str], deadline: float
) -> Flow[dict[str, dict[str, Any]]]:
    """Return the figures of groups: group -> fields of `GroupSummary`."""
    found: dict[str, dict[str, Any]] = {
        name: {"members": 0, "lag": 0, "rate": 0.0} for name in groups
    }
    header = BrokerConsumeStatsRequest(is_order=False)
    replies = yield from ask_each(core, masters, lambda: request_command(header), deadline)
    for reply in replies.values():
        for entry in decode_body(BrokerConsumeStatsBody, reply.body).consume_stats_list:
            for group, stats in entry.items():
                facts = found.get(group)
                if facts is not None:
                    facts["rate"] += sum(each.consume_tps for each in stats)
                    facts["lag"] += sum(
                        max(queue.broker_offset - queue.consumer_offset, 0)
                        for each in stats
                        for queue in each.offset_table.values()
                    )
    asked = [connections_of(core, masters, name, deadline) for name in groups]
    outcomes: list[dict[str, ConsumerConnectionsBody] | RocketMQError] = yield Gather(
        asked, CALLS_AT_ONCE
    )
    for name, outcome in zip(groups, outcomes, strict=True):
        if isinstance(outcome, RocketMQError) or not outcome:
            continue
        clients = {each.client_id for body in outcome.values() for each in body.connection_set}
        first = next(iter(outcome.values()))
        found[name] |= {"members": len(clients), "mode": mode_of(first), "model": model_of(first)}
    return found


def connections_of(
    core: ClientCore, masters: Mapping[str, str], group: str, deadline: float
) -> Flow[dict[str, ConsumerConnectionsBody]]:
    """Return the connections of a group: broker -> body; empty without a member.

    Raises:
        RocketMQError: No broker answered.
    """
    header = ConsumerConnectionsRequest(group)
    replies, _ = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_OFFLINE
    )
    return {
        broker: decode_body(ConsumerConnectionsBody, reply.body)
        for broker, reply in replies.items()
    }


# ---- settings ------------------------------------------------------------------------------------


def group_settings(
    core: ClientCore, group: str, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, GroupSettings]]:
    """Return the settings of a group: broker -> settings.

    Raises:
        GroupNotFound: No broker has it.
        RocketMQError: A broker did not answer.
    """
    check_group(group)
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    configs = yield from _raw_configs(core, masters, group, deadline)
    return {broker: _settings(group, config, broker) for broker, config in configs.items()}


def _raw_configs(
    core: ClientCore, masters: Mapping[str, str], group: str, deadline: float
) -> Flow[dict[str, dict[str, Any]]]:
    """Return a group as each broker describes it; brokers without it are left out.

    The request for one group (352) would create a group that is missing.
    """
    name = with_namespace(group, core.options.namespace)
    replies = yield from ask_each(core, masters, lambda: Command(_ALL_GROUPS), deadline)
    found: dict[str, dict[str, Any]] = {}
    for broker, reply in replies.items():
        table = decode_body(GroupTableBody, reply.body).subscription_group_table
        if name in table:
            found[broker] = fastjson.loads(reply.body)["subscriptionGroupTable"][name]
    if not found:
        raise GroupNotFound(group, list(masters.values()))
    return found


def _settings(group: str, raw: dict[str, Any], broker: str) -> GroupSettings:
    config = convert_body(GroupConfig, raw)
    return GroupSettings(
        group=group,
        is_enabled=config.consume_enable,
        can_broadcast=config.consume_broadcast_enable,
        retries=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
        is_ordered=bool(config.consume_message_orderly),
        attributes=config.attributes or {},
        brokers=(broker,),
    )


# ---- changes -------------------------------------------------------------------------------------


def create_group(
    core: ClientCore,
    group: str,
    *,
    is_enabled: bool = True,
    can_broadcast: bool = True,
    retries: int = 16,
    retry_queues: int = 1,
    is_ordered: bool = False,
    cluster: str | None = None,
    deadline: float,
) -> Flow[None]:
    """Create a consumer group on every master of a cluster, or give one these settings.

    Args:
        core: The client.
        group: Its name.
        is_enabled: Whether it may read.
        can_broadcast: Whether its members may read in broadcast mode, each all messages.
        retries: How often a message that a consumer sent back is delivered again.
        retry_queues: Queues of the group's retry topic.
        is_ordered: Whether a 5.x proxy delivers its messages in order.
        cluster: The cluster, when there are several.
        deadline: When to give up.

    Raises:
        OptionError: The name is not allowed, or a number is not valid.
        PartlyDone: Some brokers made the change, others failed.
        RocketMQError: No broker made the change.
    """
    check_group(group)
    check_optional_text("cluster", cluster)
    changes = _checked(is_enabled, can_broadcast, retries, retry_queues, is_ordered)
    name = with_namespace(group, core.options.namespace)
    masters = yield from _masters_for_group(core, name, cluster, deadline)
    raw = fastjson.loads(GroupConfig(group_name=name).encode()) | changes
    if not is_ordered:
        del raw["consumeMessageOrderly"]  # 4.9 does not have it
    body = fastjson.dumps(raw)
    what = f"create group {group!r}"
    yield from change_each(core, masters, lambda: Command(_PUT_GROUP, body=body), deadline, what)


def update_group(
    core: ClientCore,
    group: str,
    *,
    is_enabled: bool | None = None,
    can_broadcast: bool | None = None,
    retries: int | None = None,
    retry_queues: int | None = None,
    is_ordered: bool | None = None,
    cluster: str | None = None,
    deadline: float,
) -> Flow[dict[str, GroupSettings]]:
    """Change a consumer group; settings that are not given keep their value on each broker.

    A broker that does not have the group gets it, with the settings of the first one that has it.
    For the arguments see `create_group`.

    Returns:
        Broker -> the new settings.

    Raises:
        OptionError: A number is not valid.
        GroupNotFound: No broker has it.
        PartlyDone: Some brokers made the change, others failed.
        RocketMQError: A broker did not answer; nothing was changed.
    """
    check_group(group)
    check_optional_text("cluster", cluster)
    changes = _checked(is_enabled, can_broadcast, retries, retry_queues, is_ordered)
    name = with_namespace(group, core.options.namespace)
    masters = yield from _masters_for_group(core, name, cluster, deadline)
    configs = yield from _raw_configs(core, masters, group, deadline)
    fallback = next(iter(configs.values()))
    new = {broker: configs.get(broker, fallback) | changes for broker in masters}
    # Brokers merge attributes into theirs, and expect a sign before each name.
    bodies = iter([fastjson.dumps({**raw, "attributes": {}}) for raw in new.values()])
    what = f"update group {group!r}"
    yield from change_each(
        core, masters, lambda: Command(_PUT_GROUP, body=next(bodies)), deadline, what
    )
    return {broker: _settings(group, raw, broker) for broker, raw in new.items()}


def _checked(
    is_enabled: bool | None,
    can_broadcast: bool | None,
    retries: int | None,
    retry_queues: int | None,
    is_ordered: bool | None,
) -> dict[str, Any]:
    """Return the settings that are given, by the names of the protocol."""
    flags = {
        "consumeEnable": ("is_enabled", is_enabled),
        "consumeBroadcastEnable": ("can_broadcast", can_broadcast),
        "consumeMessageOrderly": ("is_ordered", is_ordered),
    }
    numbers = {
        "retryMaxTimes": ("retries", retries),
        "retryQueueNums": ("retry_queues", retry_queues),
    }
    for name, flag in flags.values():
        if flag is not None:
            check_flag(name, flag)
    for name, number in numbers.values():
        if number is not None:
            check_between(0, INT32_MAX, name, number)
    given = {**flags, **numbers}
    return {wire_name: value for wire_name, (_, value) in given.items() if value is not None}


def delete_group(
    core: ClientCore,
    group: str,
    *,
    keep_offsets: bool = False,
    with_topics: bool = False,
    cluster: str | None = None,
    deadline: float,
) -> Flow[None]:
    """Delete a consumer group on every master of a cluster.

    Args:
        core: The client.
        group: Its name.
        keep_offsets: Leave its offsets, so that a group of this name goes on where it was.
        with_topics: Delete its retry and dead-letter topics, and the messages in them, too.
        cluster: The cluster, when there are several.
        deadline: When to give up.

    Raises:
        PartlyDone: Some brokers deleted it, others failed.
        RocketMQError: No broker deleted it.
    """
    check_group(group)
    check_flag("keep_offsets", keep_offsets)
    check_flag("with_topics", with_topics)
    check_optional_text("cluster", cluster)
    name = with_namespace(group, core.options.namespace)
    masters = yield from _masters_for_group(core, name, cluster, deadline)
    header = DeleteGroupRequest(name, clean_offset=not keep_offsets, remove_offset=not keep_offsets)
    what = f"delete group {group!r}"
    yield from change_each(core, masters, lambda: request_command(header), deadline, what)
    for topic in (retry_topic(group), dead_letter_topic(group)) if with_topics else ():
        yield from delete_topic(core, topic, cluster=cluster, deadline=deadline)


def _masters_for_group(
    core: ClientCore, group: str, cluster: str | None, deadline: float
) -> Flow[dict[str, str]]:
    topic = retry_topic(group)
    return (
        yield from find_masters(core, cluster=cluster, brokers=None, topic=topic, deadline=deadline)
    )
