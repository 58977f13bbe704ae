"""Messages that a consumer sends back for another delivery.

    36   send back: offset, group, delayLevel, maxReconsumeTimes, originTopic

Kept: the checks of 5.x in its order (Java: consumerSendMsgBack). The message is stored again in the
group's retry topic, after the delay of its level: the requested one, or 3 plus the number of its
retries. One that was tried often enough, or whose level is negative, becomes a dead letter. Its
born fields, flag and properties stay; ORIGIN_MESSAGE_ID identifies the first record.

Not read: originMsgId, which Apache only traces, and unitMode.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from downrange.server.broker.handlers.answers import (
    ensure_group,
    ensure_topic,
    refuse,
    sending_forbidden,
    succeed,
)
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.store_message import store_message
from downrange.server.broker.tables.topic_table import READ_WRITE, WRITE
from downrange.server.outputs import LateReply, Output, Peer, Reply, StorePending, refusal
from downrange.wire.codes import CLIENT_FLAGS, RequestCode, ResponseCode, SysFlag
from downrange.wire.command import Command
from downrange.wire.headers import SendBackRequest
from downrange.wire.limits import INT32_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.records import MAGIC_V1
from downrange.wire.system_names import FAQ, dead_letter_topic, retry_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.errors import RocketMQError
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import GroupConfig
    from downrange.wire.records import Record

_KEPT_FLAGS: Final = CLIENT_FLAGS | int(SysFlag.BORN_HOST_V6)
#: The level of a first retry if the request has none.
_FIRST_LEVEL: Final = 3


def _send_back(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = SendBackRequest.from_fields(request.fields)
    outputs: list[Output] = []
    group = ensure_group(state, header.group, now_ms, outputs)
    if group is None:
        remark = f"subscription group not exist, {header.group} {FAQ}"
        return refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not state.accepts_sends:
        return [*outputs, Reply(sending_forbidden(state))]
    if group.retry_queue_nums <= 0:
        return [*outputs, *succeed()]
    topic, queues = retry_topic(header.group), group.retry_queue_nums
    config = ensure_topic(state, topic, queues, READ_WRITE, now_ms, outputs)
    if not config.perm & WRITE:
        remark = f"the topic[{topic}] sending message is forbidden"
        return [*outputs, *refuse(ResponseCode.NO_PERMISSION, remark)]
    message = state.store.find_record(header.offset)
    # Access is granted by the topic in the request, so it must be the message's own. A message that
    # was sent back before is in the group's retry topic.
    if (
        message is None
        or not message.is_intact
        or (header.origin_topic and message.topic not in (header.origin_topic, topic))
    ):
        remark = f"look message by offset failed, {header.offset}"
        return [*outputs, *refuse(ResponseCode.SYSTEM_ERROR, remark)]
    properties = message.properties()
    retry = _retry(state, message, properties, header, group, now_ms, outputs)
    origin = properties.get(PropertyKey.RETRY_TOPIC, message.topic)
    is_dead = retry.topic_bytes != topic.encode()
    on_stored = partial(_answer, state, header.group, origin, is_dead, request, peer)
    # Unlike Java, wait for the flush: the consumer commits its offset after the message.
    refused = store_message(state, retry, properties, now_ms, on_stored, is_flush_awaited=True)
    return [*outputs, StorePending() if refused is None else Reply(refused)]


def _retry(
    state: BrokerState,
    message: Record,
    properties: dict[str, str],
    header: SendBackRequest,
    group: GroupConfig,
    now_ms: int,
    outputs: list[Output],
) -> Record:
    """Return the record of the next delivery, and change `properties` to those that it has."""
    properties.setdefault(PropertyKey.RETRY_TOPIC, message.topic)
    properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_id)
    properties[PropertyKey.WAIT] = "false"
    times_max = header.max_reconsume_times
    if times_max is None:
        times_max = group.retry_max_times
    if message.reconsume_times >= times_max or header.delay_level < 0:
        topic, queue_id = dead_letter_topic(header.group), 0
        ensure_topic(state, topic, 1, READ_WRITE, now_ms, outputs)
        level = 0
    else:
        topic = retry_topic(header.group)
        queue_id = state.next_number() % group.retry_queue_nums
        level = header.delay_level or _FIRST_LEVEL + message.reconsume_times
    properties[PropertyKey.DELAY] = str(level)
    return replace(
        message,
        magic=MAGIC_V1,
        queue_id=queue_id,
        sys_flag=message.sys_flag & _KEPT_FLAGS | state.host.sys_flag,
        store_ip=state.host.ip,
        store_port=state.host.port,
        reconsume_times=min(message.reconsume_times + 1, INT32_MAX),
        prepared_offset=0,
        topic_bytes=topic.encode(),
        property_bytes=join_properties(properties),
    )


def _answer(
    state: BrokerState,
    group: str,
    origin: str,
    is_dead: bool,
    request: Command,
    peer: Peer,
    error: RocketMQError | None,
    now_ms: int,
) -> Sequence[Output]:
    if error is None:
        state.statistics.sent_back(group, origin)
        if is_dead:
            state.statistics.events.dead_letter(origin, group)
    code = ResponseCode.SYSTEM_ERROR
    answer = Command(0) if error is None else refusal(code, str(error))
    return (LateReply(peer.number, request, answer),)


HANDLERS: Final[dict[int, Handler]] = {int(RequestCode.CONSUMER_SEND_MSG_BACK): _send_back}
