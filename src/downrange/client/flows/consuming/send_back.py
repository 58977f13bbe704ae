"""How a failed message is delivered again: the broker keeps it, with a delay, in the retry topic.

`CONSUMER_SEND_MSG_BACK` names the message by its position in the commit log, so the body does not
travel. The delay is one of the broker's levels: 0 lets the broker choose by the number of attempts,
a negative one means the dead-letter topic. A delay in seconds becomes the first level that is long
enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.names import named_queue, with_namespace
from downrange.client.flows.routing.lookup import find_master_or_proxy
from downrange.wire.fields import request_command
from downrange.wire.headers import SendBackRequest

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.model import QueueId, ReceivedMessage

#: The level that sends a message to the dead-letter topic.
DEAD_LETTER_LEVEL: Final = -1
#: The level with which the broker chooses the delay, by the number of attempts.
BROKERS_CHOICE: Final = 0
#: Seconds of the default delay levels of brokers, from level 1 on (messageDelayLevel).
LEVEL_SECONDS: Final = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1200, 1800, 3600, 7200),
)
#: The broker adds this to the attempts when it chooses the level.
_FIRST_RETRY_LEVEL: Final = 3


def level_for(after: float | None) -> int:
    """Return the delay level for a number of seconds: the first that is at least as long."""
    if after is None:
        return BROKERS_CHOICE
    longer = (level for level, seconds in enumerate(LEVEL_SECONDS, 1) if seconds >= after)
    return next(longer, len(LEVEL_SECONDS))


def usual_delay(attempts: int) -> int:
    """Return the seconds until a broker delivers a message again that failed so often before."""
    index = min(_FIRST_RETRY_LEVEL - 1 + attempts, len(LEVEL_SECONDS) - 1)
    return LEVEL_SECONDS[index]


def delay_of(level: int, attempts: int) -> int:
    """Return the seconds until a broker delivers a message again that was sent back.

    Args:
        level: The delay level, not the one of dead letters.
        attempts: How often the message failed before.
    """
    return usual_delay(attempts) if level == BROKERS_CHOICE else LEVEL_SECONDS[level - 1]


def send_back(
    core: ClientCore,
    group: str,
    message: ReceivedMessage,
    read_from: QueueId,
    level: int,
    retries_max: int | None,
    *,
    is_unit_mode: bool,
    deadline: float,
) -> Flow[None]:
    """Have the broker deliver a message again, or keep it as a dead letter.

    Args:
        core: The client.
        group: The group, without the namespace.
        message: The message.
        read_from: The queue that it was read from, without the namespace; perhaps one of the
            retry topic.
        level: The delay; see the module.
        retries_max: After how many deliveries it becomes a dead letter; None for the group's limit.
        is_unit_mode: A mark of the request.
        deadline: When to give up.

    Raises:
        RocketMQError: The broker refused, or did not answer; it may have the message even so.
    """
    namespace = core.options.namespace
    queue = named_queue(read_from, namespace)
    address = yield from find_master_or_proxy(core, queue.topic, queue.broker, deadline)
    header = SendBackRequest(
        offset=message.log_offset,
        group=with_namespace(group, namespace),
        delay_level=level,
        origin_msg_id=message.message_id,
        origin_topic=queue.topic,
        unit_mode=is_unit_mode,
        max_reconsume_times=retries_max,
        broker_name=queue.broker,
    )
    yield from core.ask(address, request_command(header), deadline, message.topic)
