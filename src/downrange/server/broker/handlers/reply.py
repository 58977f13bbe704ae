"""Replies to request messages.

    324 325  reply: all fields of a send; the property REPLY_TO_CLIENT identifies the requester

The broker sends the reply to the requester's connection (request 326), which has 10 seconds to
accept it. Then it stores the reply in the reply topic, accepted or not, and answers its sender:
with 0 only if it was accepted.

Kept: texts, fields and order of 5.x (Java: ReplyMessageProcessor). A reply that cannot be stored is
answered like a stored one, with the id 0, since the requester has it. Changed: a reply must go to
an existing reply topic; Apache accepts any topic and creates it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.server.broker.record_fields import born_host, join_properties
from downrange.server.broker.store_message import store_message
from downrange.server.outputs import STORE_PENDING, Call, LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import CLIENT_FLAGS, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PushReplyRequest, SendReply, SendRequest, SendRequestV2
from downrange.wire.properties import PropertyKey, decode_properties
from downrange.wire.records import Record
from downrange.wire.system_names import FAQ, REPLY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.errors import RocketMQError
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

    ReplyHeader = SendRequest | SendRequestV2

PUSH_TIMEOUT: Final = 10.0
_NO_REQUESTER: Final = "reply message properties[REPLY_TO_CLIENT] is null"


def _reply_v1(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return _reply(state, request, SendRequest.from_fields(request.fields), peer, now_ms)


def _reply_v2(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return _reply(state, request, SendRequestV2.from_fields(request.fields), peer, now_ms)


def _reply(
    state: BrokerState, request: Command, header: ReplyHeader, peer: Peer, now_ms: int
) -> Sequence[Output]:
    refused = _check(state, header)
    if refused is not None:
        refused.fields = _region_fields(state)
        return (Reply(refused),)
    properties = decode_properties(header.properties or "")
    properties[PropertyKey.REGION] = state.options.region
    properties[PropertyKey.TRACE_ON] = state.broker_properties[PropertyKey.TRACE_ON]
    record = _record(state, request, header, peer, properties)
    storage = _ReplyStorage(state, request, peer, record, properties)
    requester = properties.get(PropertyKey.REPLY_TO_CLIENT)
    if requester is None:
        return storage.store(_NO_REQUESTER, now_ms)
    connection = state.clients.connection_of_client(requester)
    if connection is None:
        problem = f"push reply message fail, channel of <{requester}> not found."
        return storage.store(problem, now_ms)
    pushed = _push(state, header, peer, properties, now_ms)
    command = request_command(pushed, request.body)
    return (Call(connection, command, PUSH_TIMEOUT, partial(storage.pushed, requester)),)


def _check(state: BrokerState, header: ReplyHeader) -> Command | None:
    topic, queue_id = header.topic, header.queue_id
    if not topic.endswith(REPLY_SUFFIX):
        remark = f"Sending message to topic[{topic}] is forbidden."
        return refusal(ResponseCode.NO_PERMISSION, remark)
    config = state.topics.get(topic)
    if config is None:
        remark = f"topic[{topic}] not exist, apply first please!{FAQ}"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
        remark = f"request queueId[{queue_id}] is illegal, topic[{topic}] has fewer queues"
        return refusal(ResponseCode.INVALID_PARAMETER, remark)
    return None


def _record(
    state: BrokerState,
    request: Command,
    header: ReplyHeader,
    peer: Peer,
    properties: dict[str, str],
) -> Record:
    born, host = born_host(peer.address), state.host
    return Record(
        queue_id=max(header.queue_id, 0),
        flag=header.flag,
        sys_flag=header.sys_flag & CLIENT_FLAGS | born.sys_flag | host.sys_flag,
        born_ms=header.born_timestamp,
        born_ip=born.ip,
        born_port=born.port,
        store_ip=host.ip,
        store_port=host.port,
        reconsume_times=header.reconsume_times or 0,
        body=request.body,
        topic_bytes=header.topic.encode(),
        property_bytes=join_properties(properties),
    )


def _push(
    state: BrokerState,
    header: ReplyHeader,
    peer: Peer,
    properties: dict[str, str],
    now_ms: int,
) -> PushReplyRequest:
    sent = {str(PropertyKey.PUSH_REPLY_TIME): str(now_ms), **properties}
    return PushReplyRequest(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        born_host=peer.address,
        store_host=state.host.address,
        store_timestamp=now_ms,
        properties=join_properties(sent).decode(),
        reconsume_times=header.reconsume_times or 0,
        unit_mode=bool(header.unit_mode),
    )


class _ReplyStorage:
    """Stores a reply after it was sent to the requester, and answers its sender."""

    __slots__ = ("_peer", "_problem", "_properties", "_record", "_request", "_state")

    def __init__(
        self,
        state: BrokerState,
        request: Command,
        peer: Peer,
        record: Record,
        properties: dict[str, str],
    ) -> None:
        self._state = state
        self._request = request
        self._peer = peer
        self._record = record
        self._properties = properties
        self._problem: str | None = None

    def pushed(self, requester: str, reply: Command | None, now_ms: int) -> Sequence[Output]:
        if reply is not None and reply.code == 0:
            return self.store(None, now_ms)
        problem = f"push reply message to {requester}fail."  # without a blank, as in Java
        return self.store(problem, now_ms)

    def store(self, problem: str | None, now_ms: int) -> Sequence[Output]:
        self._problem = problem
        refused = store_message(self._state, self._record, self._properties, now_ms, self._stored)
        return STORE_PENDING if refused is None else self._answer("0", 0)

    def _stored(self, error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        if error is not None:
            return self._answer("0", 0)
        position = self._record.log_offset
        return self._answer(self._state.host.id_of(position), self._record.queue_offset)

    def _answer(self, message_id: str, queue_offset: int) -> Sequence[Output]:
        code = ResponseCode.SUCCESS if self._problem is None else ResponseCode.SYSTEM_ERROR
        header = SendReply(message_id, self._record.queue_id, queue_offset)
        fields = header.to_fields() | _region_fields(self._state)
        command = Command(int(code), fields, remark=self._problem)
        return (LateReply(self._peer.number, self._request, command),)


def _region_fields(state: BrokerState) -> dict[str, str]:
    """Return the two fields that every answer to a send has."""
    return {
        name: state.broker_properties[name] for name in (PropertyKey.REGION, PropertyKey.TRACE_ON)
    }


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.SEND_REPLY_MESSAGE): _reply_v1,
    int(RequestCode.SEND_REPLY_MESSAGE_V2): _reply_v2,
}
