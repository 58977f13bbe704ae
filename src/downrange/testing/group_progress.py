"""How far a consumer group is: what it has yet to consume, and what waits for a retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.admin.topics import topic_route
from downrange.client.flows.consuming.pull import pull
from downrange.errors import ServerError
from downrange.model import QueueId
from downrange.testing.topic_reader import find_all_masters, find_queue_ends
from downrange.wire.bodies import (
    ConsumerConnectionsBody,
    ConsumeStatsBody,
    DelayOffsetsBody,
    decode_body,
)
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import ConsumerConnectionsRequest, ConsumeStatsRequest
from downrange.wire.system_names import SCHEDULE_TOPIC, TOOLS_GROUP, retry_topic

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: Delayed messages of one level that are searched for retries of the group.
_SEARCHED_MAX: Final = 3200


class GroupProgress(msgspec.Struct):
    """What a group has yet to consume.

    Attributes:
        behind: Queue -> messages after the committed offset, for all queues of the group's topics.
        retries: Messages that failed, and wait for their next attempt in a delay level.
        members: Ids of the connected members.
        is_broadcast: Whether the members keep their offsets themselves.
    """

    behind: dict[QueueId, int] = {}
    retries: int = 0
    members: set[str] = set()
    is_broadcast: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the group has topics, and has consumed all of them."""
        return bool(self.behind) and not self.retries and not any(self.behind.values())


def find_progress(core: ClientCore, group: str, *, deadline: float) -> Flow[GroupProgress]:
    """Ask all brokers for the progress of a group.

    Raises:
        RocketMQError: A server did not answer, or refused.
    """
    progress = GroupProgress()
    masters = yield from find_all_masters(core, deadline=deadline)
    # Retries first: one that becomes due meanwhile is then seen in its retry topic.
    for broker, address in masters.items():
        progress.retries += yield from _count_retries(core, broker, address, group, deadline)
    for address in masters.values():
        yield from _add_offsets(core, address, group, progress, deadline)
        yield from _add_members(core, address, group, progress, deadline)
    return progress


def _add_offsets(
    core: ClientCore, address: str, group: str, progress: GroupProgress, deadline: float
) -> Flow[None]:
    """Add the topics for which a broker has offsets of the group."""
    command = request_command(ConsumeStatsRequest(group))
    reply = yield from core.ask(address, command, deadline)
    for queue, offsets in decode_body(ConsumeStatsBody, reply.body).offset_table.items():
        progress.behind[queue] = max(offsets.broker_offset - offsets.consumer_offset, 0)


def _add_members(
    core: ClientCore, address: str, group: str, progress: GroupProgress, deadline: float
) -> Flow[None]:
    """Add the topics that members subscribe to, and have not committed anything for yet."""
    command = request_command(ConsumerConnectionsRequest(group))
    try:
        reply = yield from core.ask(address, command, deadline)
    except ServerError:  # nobody of this group is connected here
        return
    body = decode_body(ConsumerConnectionsBody, reply.body)
    progress.members |= {member.client_id for member in body.connection_set}
    progress.is_broadcast |= body.message_model == "BROADCASTING"
    for topic in body.subscription_table:
        queues = yield from find_queue_ends(core, address, topic, deadline=deadline)
        for queue, ends in queues.items():
            progress.behind.setdefault(queue, ends.max_offset - ends.min_offset)


def _count_retries(
    core: ClientCore, broker: str, address: str, group: str, deadline: float
) -> Flow[int]:
    """Count the messages that a broker will put into the retry topic of the group."""
    reply = yield from core.ask(address, Command(int(RequestCode.GET_ALL_DELAY_OFFSET)), deadline)
    delivered = decode_body(DelayOffsetsBody, reply.body).offset_table
    queues = yield from find_queue_ends(core, address, SCHEDULE_TOPIC, deadline=deadline)
    route = yield from topic_route(core, SCHEDULE_TOPIC, deadline=deadline)
    core.routes.replace(route)  # for the pulls, which would use an older one
    count = 0
    for queue, ends in queues.items():
        begin = max(delivered.get(queue.number + 1, 0), ends.min_offset)
        end = min(ends.max_offset, begin + _SEARCHED_MAX)
        while begin < end:
            place = QueueId(SCHEDULE_TOPIC, broker, queue.number)
            batch = yield from pull(core, place, begin, group=TOOLS_GROUP, deadline=deadline)
            topics = [message.properties.get("REAL_TOPIC", "") for message in batch.messages]
            count += sum(topic.startswith(retry_topic(group)) for topic in topics)
            begin = max(batch.next_offset, begin + 1)
    return count
