"""How far a consumer group is behind: in messages, in time, and who reads what.

Offsets come from request 208. The age of the oldest message that is not consumed comes from request
303: the broker computes it with its own clock. Names have no namespace here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from downrange.checks import check_flag, check_name
from downrange.client.flows.admin.clusters import all_masters, ask_some, unanswered_of
from downrange.client.flows.admin.groups import group_settings
from downrange.client.flows.admin.members import members_at, running_states, time_of
from downrange.client.flows.admin.reports import GroupLag, QueueLag
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.validation import check_group
from downrange.errors import RocketMQError
from downrange.wire.bodies import ConsumeStatsBody, TimeSpansBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import ConsumeStatsRequest, ConsumeTimeSpanRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.model import QueueId
    from downrange.wire.bodies import ConsumeOffset, QueueTimeSpan

_NO_TOPIC: Final = int(ResponseCode.TOPIC_NOT_EXIST)
#: By how much the clocks of a client and a broker may differ.
_SKEW_MS: Final = 60_000


def group_lag(
    core: ClientCore,
    group: str,
    *,
    topic: str | None = None,
    cluster: str | None = None,
    with_owners: bool = False,
    deadline: float,
) -> Flow[GroupLag]:
    """Return how far a group is behind in each queue of the topics that it has read.

    Args:
        core: The client.
        group: The group.
        topic: Only this topic; all, with the retry topic, unless given.
        cluster: Only of this cluster.
        with_owners: Ask each member which queues it reads.
        deadline: When to give up.

    Raises:
        GroupNotFound: No broker has it.
        RocketMQError: No broker answered.
    """
    check_group(group)
    check_flag("with_owners", with_owners)
    if topic is not None:
        check_name("topic", topic)
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    namespace = core.options.namespace
    header = ConsumeStatsRequest(
        consumer_group=with_namespace(group, namespace),
        topic=None if topic is None else with_namespace(topic, namespace),
    )
    replies, failures = yield from ask_some(
        core, masters, lambda: request_command(header), deadline, nothing=_NO_TOPIC
    )
    bodies = {
        broker: decode_body(ConsumeStatsBody, reply.body) for broker, reply in replies.items()
    }
    progress = {
        queue: facts for body in bodies.values() for queue, facts in body.offset_table.items()
    }
    if not progress and not failures:
        yield from group_settings(core, group, cluster=cluster, deadline=deadline)
    spans = yield from _ask_times(core, header.consumer_group, bodies, masters, deadline)
    owners: dict[QueueId, str] = {}
    if with_owners:
        owners = yield from _ask_owners(core, group, masters, deadline)
    return GroupLag(
        group=group,
        queues=tuple(
            _queue_lag(core, queue, facts, spans.get(queue), owners)
            for queue, facts in sorted(progress.items())
        ),
        rate=sum(body.consume_tps for body in bodies.values()),
        unanswered=unanswered_of(masters, failures),
    )


def _ask_times(
    core: ClientCore,
    group: str,
    bodies: Mapping[str, ConsumeStatsBody],
    masters: Mapping[str, str],
    deadline: float,
) -> Flow[dict[QueueId, QueueTimeSpan]]:
    """Ask for the times of the queues that have lag; a broker that fails is left out."""
    asked: list[Flow[list[QueueTimeSpan]]] = []
    for broker, body in bodies.items():
        topics = {
            queue.topic
            for queue, facts in body.offset_table.items()
            if facts.broker_offset > facts.consumer_offset
        }
        asked += [
            _ask_spans(core, masters[broker], topic, group, deadline) for topic in sorted(topics)
        ]
    outcomes: list[list[QueueTimeSpan] | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    return {
        span.message_queue: span
        for outcome in outcomes
        if not isinstance(outcome, RocketMQError)
        for span in outcome
    }


def _ask_spans(
    core: ClientCore, address: str, topic: str, group: str, deadline: float
) -> Flow[list[QueueTimeSpan]]:
    command = request_command(ConsumeTimeSpanRequest(topic, group))
    reply = yield from core.ask(address, command, deadline, topic)
    return decode_body(TimeSpansBody, reply.body).consume_time_span_set


def _ask_owners(
    core: ClientCore, group: str, masters: Mapping[str, str], deadline: float
) -> Flow[dict[QueueId, str]]:
    """Return which member reads which queue; members that do not answer are left out."""
    found = yield from members_at(core, group, masters, False, deadline)
    states = yield from running_states(core, group, masters, found.members, deadline)
    return {
        each.queue: client_id
        for client_id, state in states.items()
        for each in state.queues
        if not each.is_given_up
    }


def _queue_lag(
    core: ClientCore,
    queue: QueueId,
    facts: ConsumeOffset,
    span: QueueTimeSpan | None,
    owners: Mapping[QueueId, str],
) -> QueueLag:
    shown = shown_queue(queue, core.options.namespace)
    age: timedelta | None = None
    if span is not None and facts.broker_offset > facts.consumer_offset:
        age = timedelta(milliseconds=_age_ms(span, core.clock.wall_ms()))
    in_flight = None
    if facts.pull_offset is not None:
        in_flight = max(facts.pull_offset - facts.consumer_offset, 0)
    return QueueLag(
        queue=shown,
        committed=facts.consumer_offset,
        end=facts.broker_offset,
        in_flight=in_flight,
        consumed_at=time_of(facts.last_timestamp),
        age=age,
        owner=owners.get(shown),
    )


def _age_ms(span: QueueTimeSpan, now_ms: int) -> int:
    """Return how long the oldest message has waited.

    The message at a group's offset may have expired. The broker then takes 0 or -1 for its time;
    the first message that is still there counts instead.
    """
    if span.min_time_stamp > 0 and now_ms - span.delay_time < span.min_time_stamp - _SKEW_MS:
        return max(now_ms - span.min_time_stamp, 0)
    return max(span.delay_time, 0)
