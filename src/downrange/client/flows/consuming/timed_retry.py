"""A failed message that is delivered again after any number of seconds: by the timer of 5.x.

`send_back` knows only the levels of the broker. Here the message is sent to the retry topic of the
group as a new one, with the delay and the number of its attempts; its own id stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.prepare import COMPRESSIONS, Outgoing
from downrange.client.flows.producing.retry_loop import send_with_retries
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.model import Message, QueueId
from downrange.wire.codes import RequestCode
from downrange.wire.compression import flags_of
from downrange.wire.properties import PropertyKey, encode_properties
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.model import ReceivedMessage

#: What the broker, or an earlier delivery, added to a message.
_DROPPED: Final = frozenset(
    {
        *("DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
        *("REAL_TOPIC", "REAL_QID", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT"),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "__STARTDELIVERTIME"),
    }
)


def send_timed_retry(
    producer: ProducerState,
    group: str,
    message: ReceivedMessage,
    broker: str,
    after: float,
    retries_max: int | None,
    *,
    deadline: float,
) -> Flow[None]:
    """Send a message to the group's retry topic, to be delivered after a number of seconds.

    Args:
        producer: Sends it.
        group: The group, without the namespace.
        message: The message, with the topic that it was sent to.
        broker: The broker that it was read from.
        after: Seconds until it is delivered.
        retries_max: After how many deliveries it becomes a dead letter; None for the group's limit.
        deadline: When to give up.

    Raises:
        RocketMQError: The broker refused, or did not answer; it may have the message even so.
    """
    client = producer.client
    topic = with_namespace(RETRY_PREFIX + group, client.options.namespace)
    properties = {name: text for name, text in message.properties.items() if name not in _DROPPED}
    properties.setdefault(
        PropertyKey.RETRY_TOPIC, with_namespace(message.topic, client.options.namespace)
    )
    properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_id)
    properties[PropertyKey.RECONSUME_TIME] = str(message.delivery_attempts + 1)
    if retries_max is not None:
        properties[PropertyKey.MAX_RECONSUME_TIMES] = str(retries_max)
    properties[PropertyKey.TIMER_DELAY_MS] = str(round(after * 1000))
    outgoing = Outgoing(
        message=Message(topic, message.body, flag=message.flag),
        topic=topic,
        message_id=message.message_id,
        body=message.body,
        properties=encode_properties(properties),
        sys_flag=flags_of(COMPRESSIONS[message.compression]) if message.compression else 0,
        code=int(RequestCode.SEND_MESSAGE_V2),
        born_ms=message.born_at_ms,
    )
    yield from send_with_retries(
        producer,
        outgoing,
        RoundRobin(),
        deadline,
        producer.waiting_rules,
        QueueId(topic, broker, 0),
    )
