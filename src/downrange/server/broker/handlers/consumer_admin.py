"""Requests of tools that a broker forwards to the members of a consumer group.

    222   reset a group's offsets: topic, group, timestamp, isForce, queueId, offset. The members
          learn of it in the reply to their next pull of the queue (`pull`), as with 5.x; isForce
          is not read. Pulls of the group that are held are answered, so the next ones come at once.
          With `is_reset_by_pull` off, request 220 makes members drop messages that they prefetched
          and continue from the new offsets, as with 4.9
    223   the offsets of the members: topic, group, clientAddr; each is called with 221
    307   the running state of a member: consumerGroup, clientId; forwarded
    309   consume one message now: consumerGroup, clientId, msgId; forwarded with the message as
          body

Skipped on purpose: the list form of 220 for C++ tools.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.errors import WireError
from downrange.model import QueueId
from downrange.server.broker.handlers.answers import refuse, succeed
from downrange.server.broker.handlers.pull import answer_reset
from downrange.server.broker.pop.revival import drop_checkpoints
from downrange.server.broker.queues import queue_count
from downrange.server.outputs import (
    STORE_PENDING,
    Call,
    LateReply,
    Note,
    Output,
    Peer,
    Push,
    TablesChanged,
    refusal,
)
from downrange.wire.bodies import ConsumerStatusBody, ResetOffsetBody, decode_body
from downrange.wire.codes import CommandFlag, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    ResetOffsetRequest,
    RunningStateRequest,
)
from downrange.wire.ids import parse_offset_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.pop.checkpoints import Checkpoint
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.tables.client_table import Client

_ANSWER_SECONDS: Final = 10.0
_STATUS_SECONDS: Final = 5.0
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_ALL_QUEUES: Final = -1
_TO_THE_END: Final = -1


# ---- resetting ---------------------------------------------------------------------------------


def _reset(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ResetOffsetRequest.from_fields(request.fields)
    topic = state.topics.get(header.topic)
    if topic is None:
        return refuse(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    group = state.groups.get(header.group)
    if group is None:
        remark = f"Group {header.group} does not exist"
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not _ALL_QUEUES <= header.queue_id < queue_count(topic):
        remark = f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
        return refuse(ResponseCode.INVALID_PARAMETER, remark)
    queue_ids: Iterable[int] = [header.queue_id]
    if header.queue_id == _ALL_QUEUES:
        queue_ids = range(topic.read_queue_nums)
    body = ResetOffsetBody()
    for queue_id in queue_ids:
        offset = _target_offset(state, header, queue_id)
        if offset is None:
            queue = state.store.queue(header.topic, queue_id)
            remark = (
                f"Target offset {header.offset} not in consume queue range "
                f"[{queue.min_offset}-{queue.max_offset}]"
            )
            return refuse(ResponseCode.SYSTEM_ERROR, remark)
        body.offset_table[QueueId(header.topic, state.options.name, queue_id)] = offset
    if not body.offset_table:
        return refuse(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    text = f"group {header.group} was reset in topic {header.topic} by {peer.address}"
    outputs: list[Output] = [Note(text)]
    is_stored = drop_checkpoints(state, partial(_is_read_again, header, body), now_ms)
    for name, offset in body.offset_table.items():
        state.set_offset(header.group, header.topic, name.number, offset, is_reset=True)
        if state.options.is_reset_by_pull:
            state.offsets.reset(header.group, header.topic, name.number, offset)
    if state.options.is_reset_by_pull:
        outputs += answer_reset(state, group, topic, [name.number for name in body.offset_table])
    else:
        outputs += _notify_reset(state, header, body)
    outputs += [TablesChanged(state.tables_version), *succeed(body=body.encode())]
    return [*outputs, *STORE_PENDING[: int(is_stored)]]


def _is_read_again(
    header: ResetOffsetRequest, body: ResetOffsetBody, checkpoint: Checkpoint
) -> bool:
    """Whether a group that is reset pops the open messages of a checkpoint again."""
    if (checkpoint.topic, checkpoint.group) != (header.topic, header.group):
        return False
    return any(
        name.number == checkpoint.queue_id and offset <= checkpoint.start
        for name, offset in body.offset_table.items()
    )


def _target_offset(state: BrokerState, header: ResetOffsetRequest, queue_id: int) -> int | None:
    """Return the offset from which a queue will be read, or None if it does not have it."""
    queue = state.store.queue(header.topic, queue_id)
    is_for_one = header.queue_id != _ALL_QUEUES
    if is_for_one and header.offset is not None and header.offset != _TO_THE_END:
        return header.offset if queue.min_offset <= header.offset <= queue.max_offset else None
    if header.timestamp < 0:
        offset = queue.max_offset
    else:
        offset = state.store.offset_at(header.topic, queue_id, header.timestamp)
    current = state.offsets.get(header.group, header.topic, queue_id)
    if state.options.is_reset_by_pull or header.is_force or current is None:
        return offset
    return min(offset, current)  # without force, offsets only go back


def _notify_reset(
    state: BrokerState, header: ResetOffsetRequest, body: ResetOffsetBody
) -> list[Output]:
    members = state.clients.consumer_group(header.group)
    if members is None:
        return []
    reset = ResetOffsetRequest(
        topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
    )
    code = int(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    command = request_command(reset, body.encode(), code=code)
    command.flags = _ONEWAY
    return [Push(connection, command) for connection in members.members]


# ---- all members -------------------------------------------------------------------------------


def _show_status(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ConsumerStatusRequest.from_fields(request.fields)
    group = state.clients.consumer_group(header.group)
    members = [] if group is None else list(group.members.values())
    if header.client_addr:
        members = [client for client in members if client.client_id == header.client_addr]
    if not members:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        return refuse(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    return _StatusQuery(request, peer, members).calls(header)


class _StatusQuery:
    """A call to several members; the tool is answered after the last reply or timeout."""

    def __init__(self, request: Command, peer: Peer, members: list[Client]) -> None:
        self._request = request
        self._peer = peer
        self._members = members
        self._open = len(members)
        self._body = ConsumerStatusBody()

    def calls(self, header: ConsumerStatusRequest) -> list[Output]:
        """Return one call per member."""
        code = int(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        question = ConsumerStatusRequest(topic=header.topic, group=header.group)
        return [
            self._call(client, request_command(question, code=code)) for client in self._members
        ]

    def _call(self, client: Client, command: Command) -> Call:
        def on_reply(reply: Command | None, now_ms: int) -> Sequence[Output]:
            return self._on_reply(client.client_id, reply)

        return Call(client.connection, command, _STATUS_SECONDS, on_reply)

    def _on_reply(self, client_id: str, reply: Command | None) -> Sequence[Output]:
        self._open -= 1
        if reply is not None and reply.code == ResponseCode.SUCCESS and reply.body:
            try:
                status = decode_body(ConsumerStatusBody, reply.body)
            except WireError:
                status = ConsumerStatusBody()  # one malformed reply must not hide the others
            self._body.consumer_table[client_id] = status.message_queue_table
        if self._open:
            return ()
        answer = Command(int(ResponseCode.SUCCESS), body=self._body.encode())
        return [LateReply(self._peer.number, self._request, answer)]


# ---- forwarding --------------------------------------------------------------------------------


def _show_running(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = RunningStateRequest.from_fields(request.fields)
    forwarded = Command(request.code, header.to_fields())
    return _forward(state, request, peer, forwarded, header.consumer_group, header.client_id)


def _consume_now(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ConsumeDirectlyRequest.from_fields(request.fields)
    body = b""
    if header.msg_id is not None:
        offset = parse_offset_id(header.msg_id).log_offset
        record = state.store.find_record(offset)
        if record is None:
            remark = f"can not find message by the offset, {offset}"
            return refuse(ResponseCode.SYSTEM_ERROR, remark)
        body = state.store.log.read(offset, record.size)
    header.broker_name = state.options.name
    forwarded = Command(request.code, header.to_fields(), body)
    return _forward(state, request, peer, forwarded, header.consumer_group, header.client_id or "")


def _forward(
    state: BrokerState,
    request: Command,
    peer: Peer,
    forwarded: Command,
    group: str,
    client_id: str,
) -> Sequence[Output]:
    """Call a member and pass its reply back; the tool's signature is not forwarded."""
    connection = state.clients.find_consumer_connection(group, client_id)
    if connection is None:
        remark = f"The Consumer <{group}> <{client_id}> not online"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)

    def on_reply(reply: Command | None, now_ms: int) -> Sequence[Output]:
        if reply is None:
            remark = f"consumer <{group}> <{client_id}> Timeout: {_ANSWER_SECONDS:.0f} s"
            answer = refusal(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            answer = Command(reply.code, reply.fields, reply.body, reply.remark)
        return [LateReply(peer.number, request, answer)]

    return [Call(connection, forwarded, _ANSWER_SECONDS, on_reply)]


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET): _reset,
    int(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS): _show_status,
    int(RequestCode.GET_CONSUMER_RUNNING_INFO): _show_running,
    int(RequestCode.CONSUME_MESSAGE_DIRECTLY): _consume_now,
}
