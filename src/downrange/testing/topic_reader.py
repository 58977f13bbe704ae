"""Reads the messages that a topic got since a moment, which the ends of the brokers' logs define.

A broker's commit log only grows. So a message is new if it is stored behind the end that the log
had at the start of the test. Clocks do not matter, nor whether the topic existed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.client.flows.admin.clusters import ask_each, cluster_facts
from downrange.client.flows.admin.topics import topic_route
from downrange.client.flows.consuming.pull import PullStatus, pull
from downrange.client.flows.effects import Pause
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import (
    RocketMQError,
    RouteNotFound,
    ServerError,
    TopicNotFound,
    TransportError,
)
from downrange.wire.bodies import KeyValueBody, TopicOffset, TopicStatsBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import TopicStatsRequest
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.pull import PullBatch
    from downrange.client.flows.effects import Flow
    from downrange.model import QueueId, ReceivedMessage

#: Broker -> the end of its commit log, in bytes.
LogEnds: TypeAlias = "Mapping[str, int]"
#: Messages of a topic that are kept in memory; a test with more fails.
MESSAGES_MAX: Final = 100_000
#: A server that is killed in a test must not stop all others from being read.
_ANSWER_TIMEOUT: Final = 3.0
#: The pause before a broker that has just started is asked again.
_START_PAUSE: Final = 0.3


def find_all_masters(core: ClientCore, *, deadline: float) -> Flow[dict[str, str]]:
    """Return the masters of all clusters: broker -> address."""
    facts = yield from cluster_facts(core, deadline=deadline)
    return {
        broker.name: broker.addresses[MASTER]
        for broker in facts.brokers
        if MASTER in broker.addresses
    }


def find_log_ends(core: ClientCore, *, deadline: float) -> Flow[dict[str, int]]:
    """Return the end of each broker's commit log.

    A 4.9 broker that was just started refuses to tell it for a second or more.

    Raises:
        RocketMQError: A server did not answer, or refuses until the deadline.
    """
    masters = yield from find_all_masters(core, deadline=deadline)
    replies = None
    while replies is None:
        try:
            replies = yield from ask_each(core, masters, _ask_figures, deadline)
        except ServerError:
            if core.clock.now() + _START_PAUSE >= deadline:
                raise
            yield Pause(_START_PAUSE)
    tables = {broker: decode_body(KeyValueBody, replies[broker].body).table for broker in replies}
    return {broker: int(table["commitLogMaxOffset"]) for broker, table in tables.items()}


def _ask_figures() -> Command:
    return Command(int(RequestCode.GET_BROKER_RUNTIME_INFO))


def find_queue_ends(
    core: ClientCore, address: str, topic: str, *, deadline: float
) -> Flow[dict[QueueId, TopicOffset]]:
    """Return the offsets of a topic's queues on one broker; none when it does not have the topic.

    Raises:
        RocketMQError: The broker did not answer.
    """
    try:
        reply = yield from core.ask(
            address, request_command(TopicStatsRequest(topic)), deadline, topic
        )
    except TopicNotFound:
        return {}
    return decode_body(TopicStatsBody, reply.body).offset_table


class TopicReader:
    """Reads the new messages of a topic; each call of `read` adds those that came since the last.

    Args:
        topic: The topic.
        since: Messages behind these ends are new; all messages of a broker that is not named.
        max_count: Stop after so many messages.

    Attributes:
        messages: What was read, queue by queue.
        exists: Whether the topic had a route at the last read.
        failures: Broker -> why it could not be read at the last read.
    """

    def __init__(self, topic: str, since: LogEnds, *, max_count: int = MESSAGES_MAX) -> None:
        self.topic = topic
        self.messages: list[ReceivedMessage] = []
        self.exists = False
        self.failures: dict[str, RocketMQError] = {}
        self._since = since
        self._max_count = max_count
        self._positions: dict[QueueId, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether there may be more messages than it reads."""
        return len(self.messages) >= self._max_count

    def in_order(self) -> list[ReceivedMessage]:
        """Return the messages as they were stored, brokers merged by time."""
        return sorted(
            self.messages,
            key=lambda message: (message.stored_at_ms, message.queue.broker, message.log_offset),
        )

    def read(self, core: ClientCore, *, deadline: float) -> Flow[None]:
        """Read what is new. Brokers that do not answer are noted in `failures`.

        Raises:
            RocketMQError: No name server answered, or a broker refused.
        """
        self.failures = {}
        try:
            route = yield from topic_route(core, self.topic, deadline=deadline)
        except RouteNotFound:
            self.exists = False
            return
        self.exists = True
        core.routes.replace(route)  # for the pulls, which would use an older one
        for broker, address in route.masters.items():
            limit = min(deadline, core.clock.now() + _ANSWER_TIMEOUT)
            try:
                yield from self._read_broker(core, address, limit)
            except TransportError as error:
                self.failures[broker] = error

    def _read_broker(self, core: ClientCore, address: str, deadline: float) -> Flow[None]:
        queues = yield from find_queue_ends(core, address, self.topic, deadline=deadline)
        for queue, ends in sorted(queues.items()):
            position = self._positions.get(queue)
            if position is None:
                position = yield from self._find_begin(core, queue, ends, deadline)
            yield from self._read_queue(core, queue, position, ends.max_offset, deadline)

    def _find_begin(
        self, core: ClientCore, queue: QueueId, ends: TopicOffset, deadline: float
    ) -> Flow[int]:
        """Return the first offset whose message is new, by bisection; usually it is the first."""
        log_end = self._since.get(queue.broker, 0)
        low, high = ends.min_offset, ends.max_offset
        probe = low
        while low < high:
            batch = yield from _pull(core, queue, probe, 1, deadline)
            if batch.messages and batch.messages[0].log_offset < log_end:
                low = batch.messages[0].offset + 1
            else:
                high = probe
            probe = (low + high) // 2
        return low

    def _read_queue(
        self, core: ClientCore, queue: QueueId, position: int, end: int, deadline: float
    ) -> Flow[None]:
        while position < end and not self.is_full:
            room = self._max_count - len(self.messages)
            batch = yield from _pull(core, queue, position, min(room, 32), deadline)
            self.messages += batch.messages
            if batch.status is PullStatus.NO_NEW or batch.next_offset <= position:
                break
            position = batch.next_offset
            self._positions[queue] = position  # now: the next pull may fail
        self._positions[queue] = position


def _pull(
    core: ClientCore, queue: QueueId, offset: int, count: int, deadline: float
) -> Flow[PullBatch]:
    return (
        yield from pull(core, queue, offset, group=TOOLS_GROUP, max_count=count, deadline=deadline)
    )
