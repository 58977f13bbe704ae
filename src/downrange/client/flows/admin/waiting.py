"""Messages that wait in brokers: for the delay of a level, or for a time of their own.

Names have no namespace here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.admin.clusters import all_masters, ask_each, ask_some
from downrange.client.flows.admin.members import time_of
from downrange.client.flows.admin.reports import TimedMessages
from downrange.client.flows.names import without_namespace
from downrange.wire.bodies import DelayOffsetsBody, TimedCountsBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow

#: A broker's code for a request of a later release.
_TOO_OLD: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def delay_offsets(
    core: ClientCore, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, dict[int, int]]]:
    """Return up to which offset brokers have delivered each delay level: broker -> level -> offset.

    The queue of a level in the topic `SCHEDULE_TOPIC_XXXX` is the level minus 1. A broker saves
    these offsets every few seconds, but answers with those of its memory.

    Raises:
        RocketMQError: A broker did not answer.
    """
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    code = int(RequestCode.GET_ALL_DELAY_OFFSET)
    replies = yield from ask_each(core, masters, lambda: Command(code), deadline)
    return {
        broker: decode_body(DelayOffsetsBody, reply.body).offset_table
        for broker, reply in replies.items()
    }


def timed_messages(
    core: ClientCore, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, tuple[TimedMessages, ...]]]:
    """Return how many messages wait for a time of their own: broker -> by topic.

    Brokers of 4.9 have no timer and are left out.

    Raises:
        RocketMQError: No broker answered.
    """
    masters = yield from all_masters(core, cluster=cluster, deadline=deadline)
    code = int(RequestCode.GET_TIMER_METRICS)
    replies, failures = yield from ask_some(
        core, masters, lambda: Command(code), deadline, nothing=_TOO_OLD
    )
    for error in failures.values():
        raise error
    return {
        broker: _timed(core, decode_body(TimedCountsBody, reply.body))
        for broker, reply in replies.items()
    }


def _timed(core: ClientCore, body: TimedCountsBody) -> tuple[TimedMessages, ...]:
    return tuple(
        TimedMessages(
            topic=without_namespace(topic, core.options.namespace),
            waiting=each.count,
            changed_at=time_of(each.time_stamp),
        )
        for topic, each in sorted(body.timing_count.items())
    )
