"""Clients: heartbeats, membership, queue locks, connections.

Served, with the fields that are read (behaviour of 5.5.0 where releases differ):

    34   heartbeat, full or short: creates its consumer groups and their retry topics; the reply
         says which form the next heartbeat may have
    35   leave: producerGroup, consumerGroup
    38   the client ids of a consumer group: consumerGroup
    41 42  lock and unlock queues: body
    46   check a subscription: body
    203 204 328  connections of a consumer group, a producer group, of all producers

When the members or topics of a consumer group change, all its members are notified by request 40,
unless the group's settings forbid it or the group broadcasts. A client without heartbeats for
`client_timeout` is disconnected, which ends its memberships. The queue locks of a client end with
its membership, before the others are notified, so that they can lock the queues at once. In Apache
such a lock lasts up to 60 s. Only queues that the broker has are locked, and their number has a
limit (`tables/queue_locks.py`); Apache locks any. The group need not be known, as in Apache.

Skipped on purpose: registration of producers by 5.x proxies, the unit flag of retry topics, and
locks of queues on other brokers (`onlyThisBroker`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import ensure_group, ensure_topic, refuse, succeed
from downrange.server.broker.handlers.pull import answer_refiltered
from downrange.server.broker.message_filter import check_filter
from downrange.server.broker.tables.topic_table import READ_WRITE
from downrange.server.outputs import Disconnect, Note, Output, Peer, Push, Reply
from downrange.wire.bodies import (
    AllProducersBody,
    CheckClientBody,
    ClientConnection,
    ConsumerConnectionsBody,
    GroupMembersBody,
    HeartbeatBody,
    LockedQueuesBody,
    LockQueuesBody,
    ProducerConnectionsBody,
    ProducerEntry,
    decode_body,
)
from downrange.wire.codes import CommandFlag, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumerConnectionsRequest,
    GroupMembersRequest,
    HeartbeatReply,
    MembersChangedRequest,
    ProducerConnectionsRequest,
    UnregisterClientRequest,
)
from downrange.wire.system_names import retry_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.model import QueueId
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.tables.client_table import Client, Departure
    from downrange.wire.command import Command

_SCAN_MS: Final = 10_000
_ONEWAY: Final = int(CommandFlag.ONEWAY)


def on_disconnect(state: BrokerState, peer: Peer, now_ms: int) -> list[Output]:
    """Remove the client of a connection that ended, and notify the other members of its groups."""
    return [
        output
        for departure in state.clients.drop_connection(peer.number)
        for output in _on_departure(state, departure, now_ms)
    ]


def expire(state: BrokerState, now_ms: int) -> list[Output]:
    """Sample the statistics; every ten seconds also disconnect clients without heartbeats."""
    state.statistics.sample(now_ms)
    if now_ms - state.clients.scanned_ms < _SCAN_MS:
        return []
    state.clients.scanned_ms = now_ms
    state.locks.expire(now_ms)
    state.filters.expire(now_ms)
    outputs: list[Output] = []
    for client in state.clients.expire(now_ms, int(state.options.client_timeout * 1000)):
        text = f"client {client.client_id} {client.address} is disconnected: it sent no heartbeat"
        outputs += [Note(text, is_warning=True), Disconnect(client.connection)]
        # The connection may take long to close. The other members are notified now.
        outputs += on_disconnect(state, Peer(client.connection, client.address), now_ms)
    return outputs


# ---- membership --------------------------------------------------------------------------------


def _heartbeat(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    body = decode_body(HeartbeatBody, request.body)
    outputs: list[Output] = []
    body.consumer_data_set = [
        member
        for member in body.consumer_data_set
        if _ensure_group_and_retry_topic(state, member.group_name, now_ms, outputs)
    ]
    language = None if request.language is None else request.language.name
    changes = state.clients.heartbeat(peer, body, language, request.version, now_ms)
    has_fingerprint = bool(body.heartbeat_fingerprint)
    if not (has_fingerprint and body.without_sub):
        for member in body.consumer_data_set:
            state.filters.register(member.group_name, member.subscription_data_set, now_ms)
    reply = HeartbeatReply(
        supports_v2=True, subscription_changed=changes.is_full_needed or not has_fingerprint
    )
    outputs += succeed(reply)
    for name, topic in changes.refiltered:
        outputs += answer_refiltered(state, name, topic)
    for group in changes.changed:
        outputs += _notify_members(state, group.name, now_ms)
    return outputs


def _ensure_group_and_retry_topic(
    state: BrokerState, group: str, now_ms: int, outputs: list[Output]
) -> bool:
    """Create both where they are missing; return whether the group exists now."""
    config = ensure_group(state, group, now_ms, outputs)
    if config is None:
        return False
    topic, queues = retry_topic(group), config.retry_queue_nums
    ensure_topic(state, topic, queues, READ_WRITE, now_ms, outputs)
    return True


def _leave(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = UnregisterClientRequest.from_fields(request.fields)
    group = header.consumer_group
    outputs: list[Output] = []
    if group is not None:
        ensure_group(state, group, now_ms, outputs)
    outputs += succeed()
    departure = state.clients.unregister(peer.number, header.producer_group, group)
    if departure is not None:
        outputs += _on_departure(state, departure, now_ms)
    return outputs


def _on_departure(state: BrokerState, departure: Departure, now_ms: int) -> list[Output]:
    if departure.is_gone:
        state.locks.unlock_all(departure.group, departure.client_id)
    return _notify_members(state, departure.group, now_ms)


def _notify_members(state: BrokerState, name: str, now_ms: int) -> list[Output]:
    """Notify all members of a group that it changed, so that they share its queues again."""
    group = state.clients.consumer_group(name)
    if group is None:
        state.filters.unregister(name, now_ms)
    config = state.groups.get(name)
    is_notified = config is None or config.notify_consumer_ids_changed_enable
    if group is None or group.is_broadcasting or not is_notified:
        return []
    command = request_command(MembersChangedRequest(consumer_group=name))
    command.flags = _ONEWAY
    return [Push(connection, command) for connection in group.members]


def _list_members(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = GroupMembersRequest.from_fields(request.fields)
    group = state.clients.consumer_group(header.consumer_group)
    if group is None:
        remark = f"no consumer for this group, {header.consumer_group}"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    return succeed(body=GroupMembersBody(consumer_id_list=group.client_ids).encode())


def _check_client(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    if not request.body:
        return succeed()
    subscription = decode_body(CheckClientBody, request.body).subscription_data
    refused = check_filter(state, subscription.sub_string, subscription.expression_type)
    return succeed() if refused is None else [Reply(refused)]


# ---- locks -------------------------------------------------------------------------------------


def _lock(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    body = decode_body(LockQueuesBody, request.body)
    queues = (queue for queue in body.mq_set if _is_own(state, queue))
    locked = state.locks.lock(body.consumer_group, body.client_id, queues, now_ms)
    return succeed(body=LockedQueuesBody(locked=locked).encode())


def _unlock(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    body = decode_body(LockQueuesBody, request.body)
    state.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
    return succeed()


def _is_own(state: BrokerState, queue: QueueId) -> bool:
    """Whether the broker has a queue; a client with an old route may ask for another one."""
    topic = state.topics.get(queue.topic)
    is_here = queue.broker == state.options.name
    return topic is not None and is_here and 0 <= queue.number < topic.read_queue_nums


# ---- connections -------------------------------------------------------------------------------


def _list_consumers(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = ConsumerConnectionsRequest.from_fields(request.fields)
    group = state.clients.consumer_group(header.consumer_group)
    if group is None:
        remark = f"the consumer group[{header.consumer_group}] not online"
        return refuse(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    body = ConsumerConnectionsBody(
        connection_set=[_connection(client) for client in group.members.values()],
        subscription_table=group.subscriptions(),
        consume_type=group.type,
        message_model=group.model,
        consume_from_where=group.start,
    )
    return succeed(body=body.encode())


def _list_producers(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = ProducerConnectionsRequest.from_fields(request.fields)
    producers = state.clients.producers(header.producer_group)
    if not producers:
        remark = f"the producer group[{header.producer_group}] not exist"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    body = ProducerConnectionsBody(connection_set=[_connection(client) for client in producers])
    return succeed(body=body.encode())


def _list_all_producers(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    body = AllProducersBody()
    for group, clients in state.clients.producer_groups():
        body.data[group] = [
            ProducerEntry(
                client_id=client.client_id,
                remote_ip=client.address,
                language=client.language,
                version=client.version,
                last_update_timestamp=client.producing[group],
            )
            for client in clients
        ]
    return succeed(body=body.encode())


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(
        client_id=client.client_id,
        client_addr=client.address,
        language=client.language,
        version=client.version,
    )


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.HEART_BEAT): _heartbeat,
    int(RequestCode.UNREGISTER_CLIENT): _leave,
    int(RequestCode.GET_CONSUMER_LIST_BY_GROUP): _list_members,
    int(RequestCode.LOCK_BATCH_MQ): _lock,
    int(RequestCode.UNLOCK_BATCH_MQ): _unlock,
    int(RequestCode.CHECK_CLIENT_CONFIG): _check_client,
    int(RequestCode.GET_CONSUMER_CONNECTION_LIST): _list_consumers,
    int(RequestCode.GET_PRODUCER_CONNECTION_LIST): _list_producers,
    int(RequestCode.GET_ALL_PRODUCER_INFO): _list_all_producers,
}
