"""Snapshots of what a client and its producers have done; see `Client.stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from downrange.client.flows.client_core import TimerFacts
from downrange.client.flows.producing.producer_core import ProducerCore, producers_of
from downrange.client.flows.routing.health import HealthSnapshot

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore


class ProducerStats(msgspec.Struct, frozen=True):
    """Counters of a producer, in messages unless stated otherwise.

    Attributes:
        sent: Stored by a broker.
        failed: Given up after the last attempt.
        oneway: Sent without waiting for an answer.
        retried: Attempts beyond the first.
        late_replies: Replies to `request` that arrived after its timeout.
        checked: Transaction checks that were answered.
        checks_dropped: Transaction checks that were not answered; the broker repeats them.
        user_errors: Exceptions of your hooks, selectors, transaction checks and local work; each
            is logged with its traceback.
        in_flight: Messages that count against `in_flight_max` now.
        in_flight_bytes: Bytes of their bodies.
        waiting: Sends that wait for back-pressure.
        gathered_bytes: Bytes that wait to be sent in a batch.
        traces_waiting: Trace records that wait to be sent.
        traces_dropped: Trace records that were dropped.
    """

    sent: int
    failed: int
    oneway: int
    retried: int
    late_replies: int
    checked: int
    checks_dropped: int
    user_errors: int
    in_flight: int
    in_flight_bytes: int
    waiting: int
    gathered_bytes: int
    traces_waiting: int
    traces_dropped: int


class ClientStats(msgspec.Struct, frozen=True):
    """State of a client.

    Attributes:
        client_id: The id under which brokers know it.
        name_servers: Their addresses; the one in use is the first.
        connections: Address -> number of open connections.
        late_replies: Replies that arrived after the timeout of their requests.
        user_errors: Exceptions of your code, all producers together, hooks of requests and
            callbacks of futures included; each is logged with its traceback.
        timers: Timer name -> its runs and failures.
        topics: Topics whose routes are cached.
        brokers: Health of the brokers, where fault tolerance is on.
        producers: Group -> counters of its producer.
    """

    client_id: str
    name_servers: tuple[str, ...]
    connections: dict[str, int]
    late_replies: int
    user_errors: int
    timers: dict[str, TimerFacts]
    topics: tuple[str, ...]
    brokers: tuple[HealthSnapshot, ...]
    producers: dict[str, ProducerStats]


def client_stats(core: ClientCore, connections: dict[str, int], late_replies: int) -> ClientStats:
    """Return a snapshot of a client; to be called as one step, so that the figures agree."""
    now = core.clock.now()
    return ClientStats(
        client_id=core.client_id,
        name_servers=tuple(core.name_servers.addresses),
        connections=connections,
        late_replies=late_replies,
        user_errors=core.user_errors,
        timers={name: msgspec.structs.replace(facts) for name, facts in core.timers.items()},
        topics=tuple(core.routes.topics()),
        brokers=tuple(state for health in core.healths for state in health.snapshot(now)),
        producers={group: _producer_stats(one) for group, one in producers_of(core).items()},
    )


def _producer_stats(producer: ProducerCore) -> ProducerStats:
    counts, permits = producer.counts, producer.permits
    gathering, trace = producer.accumulator, producer.trace
    return ProducerStats(
        sent=counts.sent,
        failed=counts.failed,
        oneway=counts.oneway,
        retried=counts.retried,
        late_replies=counts.late_replies,
        checked=counts.checked,
        checks_dropped=counts.checks_dropped,
        user_errors=counts.user_errors,
        in_flight=permits.in_flight,
        in_flight_bytes=permits.in_flight_bytes,
        waiting=permits.waiting,
        gathered_bytes=0 if gathering is None else gathering.held_bytes,
        traces_waiting=0 if trace is None else len(trace),
        traces_dropped=0 if trace is None else trace.dropped_count,
    )
