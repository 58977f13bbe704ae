"""A failed attempt to send: how it is recorded, whether and when the next one follows, the error.

| Before retry | on another broker | on the same broker |
|---|---|---|
| 1 | no pause | `retry_backoff` |
| each further one | `retry_backoff`, then twice the pause before | the same |

A pause takes at most half of the time that is left, so that the attempt after it has time, too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from downrange.client.flows.effects import Flow, Pause
from downrange.client.flows.notices import AttemptFailed, AttemptRepeated
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import (
    CallTimeout,
    ClientStateError,
    ConnectFailed,
    NoPermission,
    RocketMQError,
    SendFailed,
    SendNotPermitted,
    SendTimedOut,
    SendUnreachable,
    ServerError,
    TransportError,
    WireError,
)
from downrange.model import Attempt

if TYPE_CHECKING:
    from downrange.client.flows.producing.prepare import Outgoing
    from downrange.client.flows.producing.producer_state import ProducerState, SendRules
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId

#: Doublings of the pause after which the deadline limits it in any case.
_DOUBLINGS_MAX: Final = 30
#: Seconds until a queue that no other broker serves yet is asked for again.
_MOVE_PAUSE: Final = 0.1


def is_retried(producer: ProducerState, rules: SendRules, error: RocketMQError) -> bool:
    """Return whether another attempt may follow one that ended with this error."""
    if isinstance(error, ServerError):
        return rules.is_refusal_retried and error.code in producer.options.retry_codes
    # A command that cannot be encoded, or a closed client, fails in the same way again.
    return not isinstance(error, WireError | ClientStateError)


def record_failure(
    producer: ProducerState,
    outgoing: Outgoing,
    failures: list[Attempt],
    queue: QueueId,
    address: str,
    error: RocketMQError,
    started: float,
) -> Flow[None]:
    """Add a failed attempt to the list, and publish it."""
    if isinstance(error, TransportError):
        # The text has all that is known. The frames and the cause would make tracebacks long, and
        # keep sockets and messages in memory as long as the receipt.
        error.__traceback__ = error.__cause__ = None
    client = producer.client
    attempt = Attempt(queue.broker, address, queue.number, error, client.clock.now() - started)
    failures.append(attempt)
    outgoing.failed += 1
    topic = outgoing.message.topic
    client.notices.append(AttemptFailed(topic, outgoing.message_id, outgoing.failed, attempt))
    yield from client.publish()


def pause_before_retry(
    producer: ProducerState,
    outgoing: Outgoing,
    failures: list[Attempt],
    broker: str,
    address: str,
    deadline: float,
) -> Flow[None]:
    """Count and publish a retry, and wait as `retry_backoff` says."""
    client = producer.client
    producer.counts.retried += 1
    left = deadline - client.clock.now()
    pause = min(backoff(producer.options.retry_backoff, failures, broker), left / 2)
    number = outgoing.failed + 1
    client.notices.append(AttemptRepeated(outgoing.message_id, number, broker, address, pause))
    yield from client.publish()
    if pause > 0:
        yield Pause(pause)


def backoff(first: float, failures: list[Attempt], broker: str) -> float:
    """Return how many seconds to wait before a retry, without regard to the deadline.

    Args:
        first: The option `retry_backoff`.
        failures: The failed attempts, at least one.
        broker: The broker that the retry goes to.
    """
    brokers = [attempt.broker for attempt in failures[:2]] + [broker]
    is_first_free = brokers[0] != brokers[1]
    doublings = len(failures) - 1 - is_first_free
    return first * 2.0 ** min(doublings, _DOUBLINGS_MAX) if doublings >= 0 else 0.0


def follow_queue(
    producer: ProducerState, route: Route, target: QueueId, deadline: float
) -> Flow[Route]:
    """Return the route of a static topic after a broker refused a queue that it no longer serves.

    The broker that serves it now registers at once. While the name server has no newer route, or
    does not answer, the old one is returned after a pause.
    """
    client = producer.client
    queue = route.shown(target)
    with contextlib.suppress(RocketMQError):
        fresh = yield from refresh_route(client, target.topic, deadline)
        if fresh is not None and fresh.targets:
            route = fresh
    if route.target_of(queue) in (None, target):
        left = deadline - client.clock.now()
        yield Pause(min(_MOVE_PAUSE, max(left, 0.0)))
    return route


def failure_of(
    topic: str, failures: list[Attempt], elapsed: float, message_id: str | None = None
) -> SendFailed:
    """Return the error for attempts that all failed; its class depends on their common cause."""
    errors = [attempt.error for attempt in failures]
    kind = SendFailed
    if not errors or isinstance(errors[-1], CallTimeout):
        kind = SendTimedOut
    elif all(isinstance(error, ConnectFailed) for error in errors):
        kind = SendUnreachable
    elif all(isinstance(error, NoPermission) for error in errors):
        kind = SendNotPermitted
    failed = kind(topic, failures, elapsed, message_id)
    failed.__cause__ = errors[-1] if errors else None
    return failed
