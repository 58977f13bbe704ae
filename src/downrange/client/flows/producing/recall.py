"""Recall: delete a timed message before it is due (brokers from 5.3.2 on)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.checks import check_text
from downrange.client.flows.names import without_namespace
from downrange.client.flows.producing.trace_buffer import trace_of_recall
from downrange.client.flows.routing.lookup import find_master_or_proxy
from downrange.errors import MalformedId, OptionError, server_error
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import RecallReply, RecallRequest
from downrange.wire.properties import PropertyKey
from downrange.wire.recall_handles import RecallHandle, parse_recall_handle
from downrange.wire.system_names import GROUP_TOPIC_PREFIXES

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.producer_state import ProducerState

_NOT_SUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def recall(producer: ProducerState, handle: str | None, timeout: float | None = None) -> Flow[str]:
    """Return the flow that recalls a timed message and returns its id.

    Raises:
        OptionError: The handle is missing or malformed, or its topic has no timed messages.
    """
    if handle is not None:
        check_text("handle", handle)
    if not handle:
        raise OptionError(
            "there is no recall handle: only brokers from 5.3.2 on return one, in the receipt of a "
            "message with deliver_at or deliver_in"
        )
    try:
        parsed = parse_recall_handle(handle)
    except MalformedId as error:
        raise OptionError(f"recall: {error}") from error
    if parsed.topic.startswith(GROUP_TOPIC_PREFIXES):
        raise OptionError(f"messages of {parsed.topic!r} cannot be recalled")
    deadline = producer.deadline(timeout)
    return producer.run_tracked(_recall(producer, handle, parsed, deadline), deadline)


def _recall(
    producer: ProducerState, handle: str, parsed: RecallHandle, deadline: float
) -> Flow[str]:
    client = producer.client
    broker = parsed.broker_name
    address = yield from find_master_or_proxy(client, parsed.topic, broker, deadline)
    header = RecallRequest(parsed.topic, handle, producer.group, broker)
    reply = yield from client.call(address, request_command(header), deadline)
    topic = without_namespace(parsed.topic, client.options.namespace)
    is_success = reply.code == ResponseCode.SUCCESS
    if producer.trace is not None:
        producer.trace.add(
            trace_of_recall(
                group=producer.plain_group,
                topic=topic,
                message_id=parsed.unique_id,
                is_success=is_success,
                region=reply.fields.get(PropertyKey.REGION),
                time_ms=client.clock.wall_ms(),
            )
        )
    if is_success:
        return RecallReply.from_fields(reply.fields).msg_id
    remark = reply.remark
    if reply.code == _NOT_SUPPORTED:
        remark = "it does not support recall; brokers from 5.3.2 on do"
    raise server_error(reply.code, remark, address, topic)
