"""How far all groups are behind in all topics: one request to each broker.

A group and a topic that a broker does not know any more are left out by the broker. Names have no
namespace here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.flows.admin.clusters import all_masters, ask_some, unanswered_of
from downrange.client.flows.admin.groups import is_shown
from downrange.client.flows.admin.members import time_of
from downrange.client.flows.admin.reports import AllProgress, TopicProgress
from downrange.client.flows.names import without_namespace
from downrange.wire.bodies import BrokerConsumeStatsBody, decode_body
from downrange.wire.fields import request_command
from downrange.wire.headers import BrokerConsumeStatsRequest

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.wire.bodies import ConsumeStatsBody


class _Sum:
    """The figures of a group in a topic, added up over brokers."""

    __slots__ = ("lag", "last_ms", "queues", "rate")

    def __init__(self) -> None:
        self.lag = 0
        self.rate = 0.0
        self.queues = 0
        self.last_ms = 0

    def add(self, stats: ConsumeStatsBody) -> None:
        self.rate += stats.consume_tps
        for facts in stats.offset_table.values():
            self.lag += max(facts.broker_offset - facts.consumer_offset, 0)
            self.queues += 1
            self.last_ms = max(self.last_ms, facts.last_timestamp)


def list_progress(
    core: ClientCore, *, cluster: str | None = None, deadline: float
) -> Flow[AllProgress]:
    """Return how far each group is behind in each topic, by group and topic.

    Args:
        core: The client.
        cluster: Only of this cluster.
        deadline: When to give up.

    Raises:
        RocketMQError: No broker answered.
    """
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    header = BrokerConsumeStatsRequest(is_order=False)
    replies, failures = yield from ask_some(
        core, masters, lambda: request_command(header), deadline
    )
    found: dict[tuple[str, str], _Sum] = {}
    for reply in replies.values():
        for entry in decode_body(BrokerConsumeStatsBody, reply.body).consume_stats_list:
            for group, each in entry.items():
                for stats in each if is_shown(core, group) else ():
                    # All queues of an entry are of one topic.
                    for topic in {queue.topic for queue in stats.offset_table}:
                        found.setdefault((group, topic), _Sum()).add(stats)
    namespace = core.options.namespace
    topics = tuple(
        TopicProgress(
            group=without_namespace(group, namespace),
            topic=without_namespace(topic, namespace),
            lag=each.lag,
            rate=each.rate,
            queues=each.queues,
            consumed_at=time_of(each.last_ms),
        )
        for (group, topic), each in sorted(found.items())
    )
    return AllProgress(topics=topics, unanswered=unanswered_of(masters, failures))
