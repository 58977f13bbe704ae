"""One attempt to send: the request to a broker, and the receipt from its reply.

A request is built for every message, so its constant part is cached: one `SendForm` per queue and
request code. Requests with full field names and those to retry topics are built field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.producing.trace_buffer import DEFAULT_REGION
from downrange.errors import server_error
from downrange.model import Attempt, QueueId, QueueOffset, SendReceipt, SendStatus
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.headers import SendReply, SendRequest, SendRequestV2
from downrange.wire.properties import PropertyKey, decode_properties, encode_properties
from downrange.wire.send_answers import StoredAnswer
from downrange.wire.send_commands import SendCommand, SendForm
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.producing.prepare import Outgoing
    from downrange.client.flows.producing.producer_state import ProducerState

_STATUSES: Final = {status.value: status for status in SendStatus}
#: Requests whose fields have full names; version 2 has names of one letter.
_V1_CODES: Final = frozenset(
    {int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)},
)
#: Most forms in the cache of a producer; then it is cleared. Queues change with their topics.
FORMS_MAX: Final = 4096


def send_command(
    producer: ProducerState, outgoing: Outgoing, queue: QueueId
) -> Command | SendCommand:
    """Return the request that sends a message to a queue.

    Raises:
        Unencodable: The broker's name cannot be encoded.
    """
    form = producer.forms.get((queue, outgoing.code))
    if form is None:
        if outgoing.code in _V1_CODES or outgoing.topic.startswith(RETRY_PREFIX):
            return _command(producer, outgoing, queue)
        form = _form_for(producer, outgoing, queue)
    return SendCommand(
        form,
        outgoing.body,
        outgoing.properties,
        outgoing.sys_flag,
        outgoing.born_ms,
        outgoing.message.flag,
    )


def plain_command(producer: ProducerState, outgoing: Outgoing, queue: QueueId) -> Command:
    """Return the same request in a form that hooks and the signature can add fields to.

    Raises:
        Unencodable: The broker's name cannot be encoded.
    """
    command = send_command(producer, outgoing, queue)
    return command.plain() if isinstance(command, SendCommand) else command


def _form_for(producer: ProducerState, outgoing: Outgoing, queue: QueueId) -> SendForm:
    options = producer.options
    form = SendForm(
        outgoing.code,
        group=producer.group,
        topic=outgoing.topic,
        default_topic=options.default_topic,
        default_topic_queues=options.default_topic_queues,
        queue=queue.number,
        broker=queue.broker,
        is_unit=producer.client.options.is_unit_mode,
        is_batch=outgoing.batch is not None,
    )
    if len(producer.forms) >= FORMS_MAX:
        producer.forms.clear()
    producer.forms[queue, outgoing.code] = form
    return form


def _command(producer: ProducerState, outgoing: Outgoing, queue: QueueId) -> Command:
    """Return the request with all fields, without a form.

    The two retry counts of a message for a retry topic are fields of the header (Java:
    DefaultMQProducerImpl.sendKernelImpl). They are removed from the properties: the record has
    the first one as a number, and the broker alone uses the second one.
    """
    options = producer.options
    properties, times, times_max = outgoing.properties, 0, None
    if outgoing.topic.startswith(RETRY_PREFIX):
        named = decode_properties(properties)
        times = int(named.pop(PropertyKey.RECONSUME_TIME, "0"))
        limit = named.pop(PropertyKey.MAX_RECONSUME_TIMES, None)
        times_max = None if limit is None else int(limit)
        properties = encode_properties(named)
    header_type = SendRequest if outgoing.code in _V1_CODES else SendRequestV2
    header = header_type(
        producer_group=producer.group,
        topic=outgoing.topic,
        default_topic=options.default_topic,
        default_topic_queue_nums=options.default_topic_queues,
        queue_id=queue.number,
        sys_flag=outgoing.sys_flag,
        born_timestamp=outgoing.born_ms,
        flag=outgoing.message.flag,
        properties=properties,
        reconsume_times=times,
        unit_mode=producer.client.options.is_unit_mode,
        batch=outgoing.batch is not None,
        max_reconsume_times=times_max,
        broker_name=queue.broker,
    )
    return Command(outgoing.code, header.to_fields(), outgoing.body)


def receipt_of(
    reply: Command | StoredAnswer,
    address: str,
    queue: QueueId,
    outgoing: Outgoing,
    failures: list[Attempt],
    *,
    has_trace: bool = False,
) -> SendReceipt:
    """Return the receipt in a broker's reply to a send.

    Args:
        reply: The reply; of a message that is stored, often in its short form.
        address: The broker's address.
        queue: The queue that it was sent to.
        outgoing: What was sent.
        failures: The attempts before this one.
        has_trace: Whether the producer traces messages of this topic.

    Raises:
        ServerError: The broker refused.
        MalformedCommand: The reply is a success without the offset of the message.
    """
    topic = outgoing.message.topic
    if type(reply) is StoredAnswer:
        if queue.topic != topic or queue.number != reply.queue_id:
            queue = QueueId(topic, queue.broker, reply.queue_id)
        return SendReceipt(
            message_id=outgoing.message_id,
            queue=queue,
            offset=QueueOffset(reply.queue_offset),
            offset_id=reply.msg_id,
            transaction_id=reply.transaction_id,
            recall_handle=reply.recall_handle,
            region=reply.region or DEFAULT_REGION,
            is_traced=has_trace and reply.trace_on != "false",
            failures=tuple(failures) if failures else (),
        )
    status = _STATUSES.get(reply.code)
    if status is None:
        raise server_error(reply.code, reply.remark, address, topic)
    fields = SendReply.from_fields(reply.fields)
    if queue.topic != topic or queue.number != fields.queue_id:
        queue = QueueId(topic, queue.broker, fields.queue_id)
    return SendReceipt(
        message_id=outgoing.message_id,
        queue=queue,
        offset=QueueOffset(fields.queue_offset),
        offset_id=fields.msg_id,
        status=status,
        transaction_id=fields.transaction_id,
        recall_handle=fields.recall_handle,
        region=fields.region or DEFAULT_REGION,
        is_traced=has_trace and fields.trace_on is not False,
        failures=tuple(failures) if failures else (),
    )
