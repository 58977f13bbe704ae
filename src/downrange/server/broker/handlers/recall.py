"""The recall of timed messages.

370 RECALL_MESSAGE
    Reads: topic, recallHandle, producerGroup.
    Kept: the order of the checks and their codes; the marker that is stored in the timer's queue,
        as Apache writes it. The reply waits until the marker is stored.
    Skipped: the remark "not set any response code", which Apache sends along with success; a handle
        without a time is refused as invalid, where Apache refuses its time.

The broker does not check that the message exists: a marker without a message has no effect. A
handle is valid until the full second before the message's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedId
from downrange.server.broker.record_fields import born_host, join_properties
from downrange.server.broker.store_message import store_message
from downrange.server.outputs import STORE_PENDING, LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import RecallReply, RecallRequest
from downrange.wire.properties import PropertyKey
from downrange.wire.recall_handles import RecallHandle, parse_recall_handle
from downrange.wire.records import Record
from downrange.wire.system_names import group_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.errors import RocketMQError
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

_MARKER_TAG: Final = "_RECALL_TAG_"
_MARKER_BODY: Final = b"0"


def _recall(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = RecallRequest.from_fields(request.fields)
    checked = _checked(state, header, now_ms)
    if isinstance(checked, Command):
        return [Reply(_with_region(state, checked))]
    handle, born = checked, born_host(peer.address)
    properties = _marker_properties(handle, header, now_ms)
    record = Record(
        topic_bytes=handle.topic.encode(),
        body=_MARKER_BODY,
        property_bytes=join_properties(properties),
        sys_flag=state.host.sys_flag | born.sys_flag,
        born_ms=now_ms,
        born_ip=born.ip,
        born_port=born.port,
        store_ip=state.host.ip,
        store_port=state.host.port,
    )

    def on_stored(error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        if error is None:
            command = Command(0, RecallReply(msg_id=handle.unique_id).to_fields())
        else:
            command = refusal(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        return [LateReply(peer.number, request, _with_region(state, command))]

    refused = store_message(state, record, properties, now_ms, on_stored, is_flush_awaited=True)
    return STORE_PENDING if refused is None else [Reply(_with_region(state, refused))]


def _checked(state: BrokerState, header: RecallRequest, now_ms: int) -> RecallHandle | Command:
    """Return the handle of a valid request, or the refusal."""
    if not state.options.is_recall_enabled:
        remark = "recall failed, operation is forbidden"
        return refusal(ResponseCode.NO_PERMISSION, remark)
    if state.topics.get(header.topic) is None:
        remark = f"recall failed, the topic[{header.topic}] not exist"
        return refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
    try:
        handle = parse_recall_handle(header.recall_handle)
    except MalformedId:
        return refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    if handle.topic != header.topic:
        return refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != state.options.name:
        remark = "recall failed, broker service not available"
        return refusal(ResponseCode.ILLEGAL_OPERATION, remark)
    if not 0 < handle.deliver_ms - now_ms <= state.options.timer_delay_max * 1_000:
        return refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    return handle


def _marker_properties(handle: RecallHandle, header: RecallRequest, now_ms: int) -> dict[str, str]:
    properties: dict[str, str] = {
        PropertyKey.TIMER_DEL_UNIQKEY: handle.unique_id,
        PropertyKey.UNIQUE_KEY: handle.unique_id,
        PropertyKey.TIMER_DELIVER_MS: str(handle.deliver_ms),
        PropertyKey.BORN_TIMESTAMP: str(now_ms),
        PropertyKey.TAGS: _MARKER_TAG,
    }
    if header.producer_group and group_problem(header.producer_group) is None:
        properties[PropertyKey.PRODUCER_GROUP] = header.producer_group
    return properties


def _with_region(state: BrokerState, command: Command) -> Command:
    command.fields["MSG_REGION"] = state.options.region
    return command


HANDLERS: Final[dict[int, Handler]] = {int(RequestCode.RECALL_MESSAGE): _recall}
