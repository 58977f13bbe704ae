"""Requests that wait for the route of a topic, which the broker gets from a name server.

A broker knows only its own queues of a topic. All requests that wait for the same topic share one
lookup. Their number is bounded, because a connection has a limited number of unanswered requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from downrange.errors import MalformedBody
from downrange.model import QueueId
from downrange.server.outputs import AskNameServer, Output
from downrange.wire.bodies import RouteBody, decode_body
from downrange.wire.codes import Permission, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest
from downrange.wire.limits import QUEUES_MAX

if TYPE_CHECKING:
    from downrange.wire.command import Command

#: Takes the topic's readable queues on all brokers, or None if they are not known; answers.
OnQueues: TypeAlias = Callable[[list[QueueId] | None], Output]

#: Seconds for a lookup. Java's client waits 3 s for the reply to the request behind it.
LOOKUP_TIMEOUT: Final = 2.0


class RouteLookups:
    """The lookups that have begun."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[OnQueues]] = {}

    def find(self, topic: str, on_queues: OnQueues) -> list[Output]:
        """Call back with the queues of a topic; return the request to a name server, if needed."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(on_queues)
            return []
        self._waiting[topic] = [on_queues]

        def on_reply(reply: Command | None, now_ms: int) -> list[Output]:
            queues = _queues_of(topic, reply)
            return [answer(queues) for answer in self._waiting.pop(topic)]

        request = request_command(RouteRequest(topic=topic, accept_standard_json_only=True))
        return [AskNameServer(request, LOOKUP_TIMEOUT, on_reply)]


def _queues_of(topic: str, reply: Command | None) -> list[QueueId] | None:
    """Return the readable queues in a route, or None if there is none."""
    if reply is None or reply.code != ResponseCode.SUCCESS:
        return None
    try:
        route = decode_body(RouteBody, reply.body)
    except MalformedBody:
        return None
    return [
        QueueId(topic, part.broker_name, number)
        for part in route.queue_datas
        if part.perm & Permission.READ
        for number in range(min(part.read_queue_nums, QUEUES_MAX))
    ]
