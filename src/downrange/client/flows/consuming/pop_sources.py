"""The places that a consumer pops from: each broker of each subscribed topic, and who has messages.

A pop that waits at a broker takes messages when they arrive, wanted or not. With several brokers
that would be wrong: messages of the second answer would be invisible in a client that has enough.
So nothing waits in a pop. A watch per source waits in a notification request (200054), which takes
nothing, and marks the source as ready. Only ready sources are popped, without waiting.

    not ready --watch: the broker has messages--> ready --a pop finds nothing--> not ready

A watch runs in the background, one per source for all calls of `receive`. It never lasts longer
than a call wants to wait, and at most `WATCH_MAX`: a broker tells one waiting member of a group of
a message, so a watch that no call needs would delay the others.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from downrange.client.flows.consuming.pop import wait_for_messages
from downrange.client.flows.effects import Flow, Pause
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.pull import Filter
    from downrange.client.flows.routing.routes import Route
    from downrange.options import SimpleOptions

#: Called with a source and the error when its requests begin to fail, and with None when they
#: succeed again.
Report: TypeAlias = "Callable[[PopSource, RocketMQError | None], None]"
#: The longest time of one watch, in seconds.
WATCH_MAX: Final = 5.0
#: Seconds that a reply may take beyond the time of the watch.
_ANSWER_MARGIN: Final = 10.0
#: A broker that answers so long before the end of the watch has not waited: its clock is ahead, so
#: that it finds the request too old. The source is then popped again and again, with pauses.
_EARLY: Final = 0.1
#: Seconds between two watches of a broker that says it has messages, when a pop finds none.
_MISS_PAUSE: Final = 0.05
_MISS_PAUSE_MAX: Final = 1.0


class SourceHealth(msgspec.Struct, frozen=True):
    """One broker of one topic.

    Attributes:
        topic: The topic.
        broker: The broker's name.
        failure: Why the last request failed; None when it succeeded.
        answered_ago: Seconds since the last answer; None if there was none yet.
    """

    topic: str
    broker: str
    failure: RocketMQError | None
    answered_ago: float | None


class PopSource:
    """One broker of one topic.

    Args:
        topic: The topic, without the namespace.
        broker: The broker's name.
        message_filter: Which messages of the topic.

    Attributes:
        is_ready: Whether a pop may find messages.
        is_watched: Whether a watch runs.
        asked_at: When the last watch began, on the client's clock.
        answered_at: When the broker answered last; None if it never did.
        failure: Why the last request failed; None when it succeeded.
        pause: Seconds before the next watch.
    """

    __slots__ = (
        "answered_at",
        "asked_at",
        "broker",
        "failure",
        "is_ready",
        "is_watched",
        "message_filter",
        "pause",
        "topic",
    )

    def __init__(self, topic: str, broker: str, message_filter: Filter) -> None:
        self.topic = topic
        self.broker = broker
        self.message_filter = message_filter
        self.is_ready = False
        self.is_watched = False
        self.asked_at = -inf
        self.answered_at: float | None = None
        self.failure: RocketMQError | None = None
        self.pause = 0.0

    def found(self, now: float, *, has_more: bool) -> None:
        """Note a pop with messages."""
        self.answered_at = now
        self.is_ready = has_more
        self.pause = 0.0

    def missed(self, now: float) -> None:
        """Note a pop without messages, although the broker or the last pop promised some."""
        self.answered_at = now
        self.is_ready = False
        self.pause = min(max(_MISS_PAUSE, 2 * self.pause), _MISS_PAUSE_MAX)

    def failed(self, error: RocketMQError, options: SimpleOptions) -> None:
        """Note a request that failed."""
        self.failure = error
        self.is_ready = False
        self.pause = min(max(options.retry_backoff, 2 * self.pause), options.retry_backoff_max)

    def recovered(self, report: Report) -> None:
        """Note that a failure is over, if there was one."""
        if self.failure is not None:
            self.failure = None
            report(self, None)

    def health(self, now: float) -> SourceHealth:
        """Return a snapshot."""
        ago = None if self.answered_at is None else now - self.answered_at
        return SourceHealth(self.topic, self.broker, self.failure, ago)


def brokers_of(route: Route) -> list[str]:
    """Return the brokers that have queues to read, in a fixed order."""
    return sorted({broker for queue in route.readable if (broker := route.broker_of(queue))})


def watch(
    core: ClientCore,
    group: str,
    source: PopSource,
    until: float,
    options: SimpleOptions,
    report: Report,
) -> Flow[None]:
    """Wait until a source is ready, at most for a time; note the outcome in the source.

    Args:
        core: The client.
        group: The group, without the namespace.
        source: The source.
        until: When no call waits any more, on the client's clock.
        options: Pauses after failures.
        report: Called when requests begin to fail, and with None when they succeed again.
    """
    if source.pause:
        yield Pause(source.pause)
    longest = WATCH_MAX
    if source.failure is not None:
        yield from _refresh(core, source.topic)
        longest = 0.0  # first see whether it answers
    started = core.clock.now()
    poll = min(max(until - started, 0.0), longest)
    try:
        answer = yield from wait_for_messages(
            core,
            group,
            source.topic,
            source.broker,
            poll=poll,
            message_filter=source.message_filter,
            deadline=started + poll + _ANSWER_MARGIN,
        )
    except RocketMQError as error:
        if source.failure is None:
            report(source, error)
        source.failed(error, options)
        return
    now = core.clock.now()
    source.answered_at = now
    if answer.has_messages:
        source.is_ready = True  # the pop shows whether a failure is over
        return
    source.recovered(report)
    source.is_ready = now - started < poll / 2 - _EARLY
    source.pause = _MISS_PAUSE_MAX if source.is_ready else 0.0


def _refresh(core: ClientCore, topic: str) -> Flow[None]:
    """Refresh the route, in case the broker has moved."""
    deadline = core.clock.now() + core.options.call_timeout
    try:
        yield from refresh_route(core, with_namespace(topic, core.options.namespace), deadline)
    except RocketMQError:
        return  # the next request fails and reports it
