"""Brokers and name servers that are killed while a producer sends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from downrange.errors import SendUnreachable
from downrange.model import Message
from downrange.options import ClientOptions, FaultTolerance, ProducerOptions
from tests.faults.fleet import Fleet, running_fleet
from tests.faults.load import read_queue
from tests.faults.producers import KINDS, Kind, Load, producing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange import Producer

#: Short intervals, so that tests need not wait for a route refresh.
EAGER = ClientOptions(route_refresh_interval=0.2, connect_timeout=30, call_timeout=30)
#: A route stays as it was found.
LASTING = ClientOptions(route_refresh_interval=600, connect_timeout=30, call_timeout=30)
#: For a busy machine; a server that was killed refuses connections at once.
TIMEOUT = 30.0
#: With the default table a failed broker is avoided for ten minutes.
FORGIVING = FaultTolerance(style="4.x", latency_ms=(1000,), avoid_ms=(500,))
PROBING = FaultTolerance(style="5.x", detect_interval=0.5, detect_timeout=5.0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), name_servers=2) as fleet:
        yield fleet


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("sync", "off"), ("async", "off"), ("sync", FORGIVING), ("async", PROBING)],
    ids=["sync-off", "async-off", "sync-4.x", "async-5.x"],
)
def test_sends_go_on_and_nothing_is_lost_when_a_broker_is_killed(
    fleet: Fleet, kind: Kind, tolerance: FaultTolerance
) -> None:
    """No send fails, since each has two more attempts; all acknowledged messages are found."""
    topic = f"killed-{kind}-{id(tolerance)}"
    fleet.create_topic(topic)
    options = ProducerOptions(fault_tolerance=tolerance, timeout=TIMEOUT)
    broker = fleet.brokers[1]
    client = replace(EAGER, route_refresh_interval=2.0)
    with producing(kind, fleet.addresses, options=options, client_options=client) as producer:
        with Load(producer, topic) as load:
            load.wait_for(100, "broker-a")
            load.wait_for(100, "broker-b")
            # A refresh of the route just after the kill would leave no send to try again.
            _wait_for_refreshes(producer)
            broker.kill()
            load.wait_for(200, "broker-a")
            broker.start()
            load.wait_for(50, "broker-b")
        retried = producer.client.stats().producers["faults"].retried
    assert load.failures == []
    assert load.longest_pause() < options.timeout
    assert retried > 0
    stored = [record.body for one in fleet.brokers for record in read_queue(one.address, topic)]
    assert {one.body for one in load.sent} <= set(stored)
    print(
        f"\n{kind}: {len(load.sent)} sent, {retried} retried, "
        f"longest pause {load.longest_pause() * 1000:.0f} ms"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_sends_continue_with_cached_routes_while_all_name_servers_are_down(
    fleet: Fleet, kind: Kind
) -> None:
    topic, later = f"cached-{kind}", f"cached-later-{kind}"
    fleet.create_topic(topic)
    options = ProducerOptions(timeout=TIMEOUT)
    with producing(kind, fleet.addresses, options=options, client_options=EAGER) as producer:
        with Load(producer, topic, threads=2) as load:
            load.wait_for(50)
            for one in fleet.name_servers:
                one.kill()
            failures = producer.client.stats().timers["routes"].failures
            wait_until(lambda: producer.client.stats().timers["routes"].failures > failures)
            load.wait_for(50, "broker-a")
            load.wait_for(50, "broker-b")
            for one in fleet.name_servers:
                one.start()
            # The brokers register again, and the producer reconnects.
            fleet.create_topic(later)
            wait_until(lambda: producer.send(Message(later, b"found")).queue.topic == later)
            # A refresh that began before that may fail now.
            _wait_for_refreshes(producer)
            failures = producer.client.stats().timers["routes"].failures
            _wait_for_refreshes(producer)
            assert producer.client.stats().timers["routes"].failures == failures
        assert load.failures == []


def _wait_for_refreshes(producer: Producer) -> None:
    """Wait for two refreshes of the routes; the second one has begun after this call."""
    runs = producer.client.stats().timers["routes"].runs
    wait_until(lambda: producer.client.stats().timers["routes"].runs > runs + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_another_name_server_takes_over_when_the_one_in_use_is_killed(
    fleet: Fleet, kind: Kind
) -> None:
    topic = f"taken-over-{kind}"
    options = ProducerOptions(timeout=TIMEOUT)
    with producing(kind, fleet.addresses, options=options, client_options=EAGER) as producer:
        used, other = producer.client.stats().name_servers
        (dying,) = (one for one in fleet.name_servers if one.address == used)
        dying.kill()
        try:
            fleet.create_topic(topic)
            assert producer.send(Message(topic, b"1")).attempts == 1
            assert producer.client.stats().name_servers == (other, used)
            runs = producer.client.stats().timers["routes"].runs
            wait_until(lambda: producer.client.stats().timers["routes"].runs > runs)
            assert topic in producer.client.stats().topics
        finally:
            dying.start()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tolerance", ["off", PROBING], ids=["off", "5.x"])
def test_oneway_messages_go_to_the_other_broker_when_one_is_killed(
    fleet: Fleet, kind: Kind, tolerance: FaultTolerance
) -> None:
    topic = f"oneway-{kind}-{id(tolerance)}"
    fleet.create_topic(topic)
    options = ProducerOptions(fault_tolerance=tolerance, timeout=TIMEOUT)
    alive, dying = fleet.brokers
    with producing(kind, fleet.addresses, options=options, client_options=LASTING) as producer:
        seen: set[str] = set()
        while len(seen) < 2:
            seen.add(producer.send(Message(topic, b"warm-up")).queue.broker)
        # A broker that was just started may be slow, and so be avoided.
        wait_until(lambda: all(one.is_available for one in producer.client.stats().brokers))
        # The next refresh of the route comes late; until then it has both brokers.
        wait_until(lambda: producer.client.stats().timers["routes"].runs > 0)
        dying.kill()
        try:
            if kind == "async":  # the loop notices the end of the connection
                wait_until(lambda: dying.address not in producer.client.stats().connections)
            bodies = [f"{number}".encode() for number in range(6)]
            for body in bodies:
                producer.send_oneway(Message(topic, body))
            wait_until(
                lambda: set(bodies) <= {record.body for record in read_queue(alive.address, topic)}
            )
            stats = producer.client.stats().producers["faults"]
            assert (stats.oneway, stats.failed) == (6, 0)
            assert stats.retried >= 1
        finally:
            dying.start()


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_do_not_burn_at_once_while_all_brokers_refuse_connections(
    fleet: Fleet, kind: Kind
) -> None:
    topic = f"spaced-{kind}"
    fleet.create_topic(topic)
    options = ProducerOptions(retries=4, retry_backoff=0.05, timeout=TIMEOUT)
    with producing(kind, fleet.addresses, options=options, client_options=LASTING) as producer:
        producer.send(Message(topic, b"warm-up"))
        for broker in fleet.brokers:
            broker.kill()
        try:
            if kind == "async":  # the loop notices the ends of the connections
                dead = {broker.address for broker in fleet.brokers}
                wait_until(lambda: not dead & set(producer.client.stats().connections))
            with pytest.raises(SendUnreachable) as caught:
                producer.send(Message(topic, b"1"))
            pauses = 0.05 + 0.1 + 0.2  # none before the first retry, on the other broker
            assert pauses <= caught.value.elapsed < options.timeout
            assert len(caught.value.attempts) == 5
            assert not caught.value.may_be_stored
        finally:
            for broker in fleet.brokers:
                broker.start()
