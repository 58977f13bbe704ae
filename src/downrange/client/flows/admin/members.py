"""Connected clients: members of consumer groups and producer groups, and what they do now.

A broker forwards questions to members (307, 309), so each is asked of a broker that the member is
connected to. Names have no namespace here; it is added for the servers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.checks import check_flag, check_name
from downrange.client.flows.admin.clusters import (
    all_masters,
    ask_each,
    ask_some,
    unanswered_of,
)
from downrange.client.flows.admin.groups import mode_of, model_of
from downrange.client.flows.admin.messages import view_message
from downrange.client.flows.admin.reports import (
    DirectResult,
    GroupMembers,
    Member,
    MemberQueue,
    MemberRates,
    RunningState,
    TopicFilter,
)
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import shown_queue, with_namespace, without_namespace
from downrange.client.flows.routing.lookup import find_master
from downrange.client.flows.validation import check_group
from downrange.errors import RocketMQError
from downrange.wire.bodies import (
    AllProducersBody,
    ClientConnection,
    ConsumeDirectlyBody,
    ConsumerConnectionsBody,
    ProducerConnectionsBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode, release_name
from downrange.wire.command import Command
from downrange.wire.consumer_bodies import RunningStateBody
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumeDirectlyRequest,
    ConsumerConnectionsRequest,
    ProducerConnectionsRequest,
    RunningStateRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.bodies import Subscription
    from downrange.wire.consumer_bodies import QueueRunningState

_OFFLINE: Final = int(ResponseCode.CONSUMER_NOT_ONLINE)
#: A broker's code for a producer group that it does not know.
_NO_PRODUCER: Final = int(ResponseCode.SYSTEM_ERROR)


# ---- members -------------------------------------------------------------------------------------


def group_members(
    core: ClientCore,
    group: str,
    *,
    cluster: str | None = None,
    with_filters: bool = False,
    deadline: float,
) -> Flow[GroupMembers]:
    """Return the connected members of a consumer group, from all masters.

    Args:
        core: The client.
        group: The group.
        cluster: Only of this cluster.
        with_filters: Ask each member what it reads, so that differences can be seen.
        deadline: When to give up.

    Raises:
        RocketMQError: No broker answered.
    """
    check_group(group)
    check_flag("with_filters", with_filters)
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    return (yield from members_at(core, group, masters, with_filters, deadline))


def members_at(
    core: ClientCore, group: str, masters: Mapping[str, str], with_filters: bool, deadline: float
) -> Flow[GroupMembers]:
    """Return the members of a group that are connected to some masters."""
    header = ConsumerConnectionsRequest(with_namespace(group, core.options.namespace))
    replies, failures = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_OFFLINE
    )
    missing = unanswered_of(masters, failures)
    if not replies:
        return GroupMembers(group=group, unanswered=missing)
    bodies = {
        broker: decode_body(ConsumerConnectionsBody, reply.body)
        for broker, reply in replies.items()
    }
    members = _merged({broker: body.connection_set for broker, body in bodies.items()})
    if with_filters:
        members = yield from _ask_filters(core, group, masters, members, deadline)
    newest = max(bodies.values(), key=_newest_version)
    return GroupMembers(
        group=group,
        members=tuple(members),
        mode=mode_of(newest),
        model=model_of(newest),
        start=newest.consume_from_where,
        filters=_filters(core, newest.subscription_table.values()),
        unanswered=missing,
    )


def _newest_version(body: ConsumerConnectionsBody) -> int:
    return max((each.sub_version for each in body.subscription_table.values()), default=0)


def _merged(connections: Mapping[str, Iterable[ClientConnection]]) -> list[Member]:
    """Return one member per client id, with all brokers that it is connected to."""
    brokers: dict[str, list[str]] = {}
    first: dict[str, ClientConnection] = {}
    for broker, clients in connections.items():
        for client in clients:
            first.setdefault(client.client_id, client)
            brokers.setdefault(client.client_id, []).append(broker)
    return [
        Member(
            client_id=client_id,
            address=client.client_addr,
            language=client.language,
            version=release_name(client.version),
            brokers=tuple(sorted(brokers[client_id])),
        )
        for client_id, client in sorted(first.items())
    ]


def _filters(core: ClientCore, table: Iterable[Subscription]) -> tuple[TopicFilter, ...]:
    namespace = core.options.namespace
    return tuple(
        sorted(
            TopicFilter(
                without_namespace(each.topic, namespace), each.sub_string, each.expression_type
            )
            for each in table
        )
    )


def _ask_filters(
    core: ClientCore,
    group: str,
    masters: Mapping[str, str],
    members: list[Member],
    deadline: float,
) -> Flow[list[Member]]:
    """Ask members what they read; those that do not answer stay as they are."""
    states = yield from running_states(core, group, masters, members, deadline)
    return [
        msgspec.structs.replace(each, filters=states[each.client_id].filters)
        if each.client_id in states
        else each
        for each in members
    ]


# ---- running state -------------------------------------------------------------------------------


def running_states(
    core: ClientCore,
    group: str,
    masters: Mapping[str, str],
    members: Iterable[Member],
    deadline: float,
) -> Flow[dict[str, RunningState]]:
    """Return the state of each member that answers: client id -> state."""
    asked = [
        _ask_state(core, group, each.client_id, masters[each.brokers[0]], False, deadline)
        for each in members
    ]
    outcomes: list[RunningState | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    return {each.client_id: each for each in outcomes if isinstance(each, RunningState)}


def member_states(
    core: ClientCore, group: str, *, deadline: float
) -> Flow[dict[str, RunningState]]:
    """Return the state of each connected member that answers: client id -> state.

    Raises:
        RocketMQError: No broker answered.
    """
    masters = yield from all_masters(core, deadline=deadline)
    found = yield from members_at(core, group, masters, False, deadline)
    return (yield from running_states(core, group, masters, found.members, deadline))


def running_state(
    core: ClientCore, group: str, client_id: str, *, with_stack: bool = False, deadline: float
) -> Flow[RunningState]:
    """Return what a member of a group does now.

    Args:
        core: The client.
        group: The group.
        client_id: The member.
        with_stack: Ask for what its threads do, too.
        deadline: When to give up.

    Raises:
        ServerError: The member is not connected, or did not answer the broker.
        RocketMQError: No broker answered.
    """
    check_group(group)
    check_name("client_id", client_id)
    check_flag("with_stack", with_stack)
    masters = yield from all_masters(core, deadline=deadline)
    failure: RocketMQError | None = None
    for address in masters.values():
        try:
            return (yield from _ask_state(core, group, client_id, address, with_stack, deadline))
        except RocketMQError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _ask_state(
    core: ClientCore, group: str, client_id: str, address: str, with_stack: bool, deadline: float
) -> Flow[RunningState]:
    name = with_namespace(group, core.options.namespace)
    header = RunningStateRequest(name, client_id, with_stack)
    reply = yield from core.ask(address, request_command(header), deadline)
    body = decode_body(RunningStateBody, reply.body)
    return RunningState(
        client_id=client_id,
        properties=body.properties,
        filters=_filters(core, body.subscription_set),
        queues=_queues(core, body),
        rates=tuple(
            MemberRates(
                topic=without_namespace(topic, core.options.namespace),
                pulled=rates.pull_rate,
                pull_ms=rates.pull_ms,
                consumed=rates.consume_ok_rate,
                consume_ms=rates.consume_ms,
                failed=rates.consume_failed_rate,
                failed_last_hour=rates.consume_failed_msgs,
            )
            for topic, rates in sorted(body.status_table.items())
        ),
        stack=body.jstack,
    )


def _queues(core: ClientCore, body: RunningStateBody) -> tuple[MemberQueue, ...]:
    namespace = core.options.namespace
    pulled = [
        MemberQueue(
            queue=shown_queue(queue, namespace),
            committed=facts.commit_offset,
            buffered=facts.cached_msg_count,
            oldest=_oldest(facts),
            buffered_mib=facts.cached_msg_size_mib,
            is_locked=facts.locked,
            is_given_up=facts.droped,
            pulled_at=time_of(facts.last_pull_timestamp),
            consumed_at=time_of(facts.last_consume_timestamp),
        )
        for queue, facts in body.mq_table.items()
    ]
    popped = [
        MemberQueue(
            queue=shown_queue(queue, namespace),
            buffered=pop_facts.wait_ack_count,
            is_given_up=pop_facts.droped,
            pulled_at=time_of(pop_facts.last_pop_timestamp),
            by_pop=True,
        )
        for queue, pop_facts in body.mq_pop_table.items()
    ]
    return tuple(sorted([*pulled, *popped], key=lambda each: each.queue))


def _oldest(facts: QueueRunningState) -> int | None:
    """Return the first offset of those that wait, and of those in the handler.

    Java counts the messages in an orderly handler apart.
    """
    found: list[int] = []
    if facts.cached_msg_count:
        found.append(facts.cached_msg_min_offset)
    if facts.transaction_msg_count:
        found.append(facts.transaction_msg_min_offset)
    return min(found, default=None)


def time_of(at_ms: int) -> datetime | None:
    """Return a time of the protocol; None for "never"."""
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms > 0 else None


# ---- consuming directly --------------------------------------------------------------------------


def consume_directly(
    core: ClientCore, group: str, client_id: str, topic: str, message_id: str, *, deadline: float
) -> Flow[DirectResult]:
    """Have one member consume one message now; the group's offsets do not change.

    Args:
        core: The client.
        group: The group.
        client_id: The member.
        topic: The topic of the message.
        message_id: Either id of the message.
        deadline: When to give up.

    Raises:
        NotFound: There is no such message.
        ServerError: The member is not connected, or did not answer the broker in 10 s.
        RocketMQError: The broker did not answer.
    """
    check_group(group)
    check_name("client_id", client_id)
    found = yield from view_message(core, topic, message_id, deadline=deadline)
    name = with_namespace(topic, core.options.namespace)
    queue = msgspec.structs.replace(found.queue, topic=name)
    address = yield from find_master(core, queue, deadline)
    header = ConsumeDirectlyRequest(
        consumer_group=with_namespace(group, core.options.namespace),
        client_id=client_id,
        msg_id=found.offset_id,
        broker_name=queue.broker,
        topic=name,
    )
    reply = yield from core.ask(address, request_command(header), deadline, topic)
    body = decode_body(ConsumeDirectlyBody, reply.body)
    return DirectResult(
        client_id=client_id,
        result=body.consume_result,
        remark=body.remark,
        seconds=body.spent_time_mills / 1000,
        is_ordered=body.order,
    )


# ---- producers -----------------------------------------------------------------------------------


def producer_members(
    core: ClientCore, group: str, *, cluster: str | None = None, deadline: float
) -> Flow[list[Member]]:
    """Return the connected members of a producer group; empty when there is none.

    Raises:
        RocketMQError: No broker answered.
    """
    check_group(group)
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    header = ProducerConnectionsRequest(with_namespace(group, core.options.namespace))
    replies, _ = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_NO_PRODUCER
    )
    return _merged(
        {
            broker: decode_body(ProducerConnectionsBody, reply.body).connection_set
            for broker, reply in replies.items()
        }
    )


def list_producers(
    core: ClientCore, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, list[Member]]]:
    """Return all connected producers: group -> members, both by name.

    With a namespace, the groups of it only.

    Raises:
        NotSupported: A broker is too old for this request.
        RocketMQError: A broker did not answer.
    """
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    code = int(RequestCode.GET_ALL_PRODUCER_INFO)
    replies = yield from ask_each(core, masters, lambda: Command(code), deadline)
    groups: dict[str, dict[str, list[ClientConnection]]] = {}
    for broker, reply in replies.items():
        for group, entries in decode_body(AllProducersBody, reply.body).data.items():
            groups.setdefault(group, {})[broker] = [
                ClientConnection(
                    client_id=entry.client_id,
                    client_addr=entry.remote_ip.removeprefix("/"),
                    language=entry.language,
                    version=entry.version,
                )
                for entry in entries
            ]
    namespace = core.options.namespace
    return {
        without_namespace(group, namespace): _merged(connections)
        for group, connections in sorted(groups.items())
        if namespace is None or without_namespace(group, namespace) != group
    }
