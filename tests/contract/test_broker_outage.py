"""Brokers that are killed: one of two, then all of them, while the name server is up."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from typing import TYPE_CHECKING

import pytest

from downrange import Admin
from downrange.embedded import cut
from downrange.errors import BrokerNotFound, ConnectFailed, SendUnreachable
from downrange.model import Message
from downrange.options import ClientOptions, FaultTolerance, ProducerOptions
from downrange.wire.codes import RequestCode
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import cluster_or_skip
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import SERVERS, embedded_server, only_sync, server_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from downrange import Producer
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Kind, Make, MakeProducer
    from tests.contract.servers import Server


#: Only failures make a broker avoided; one that is slow on a busy machine is not.
FAULT_STYLES: dict[str, FaultTolerance] = {
    "off": FaultTolerance(style="off"),
    "5.x": FaultTolerance(style="5.x", latency_ms=(9_000,), avoid_ms=(60_000,)),
}
#: The route that a producer has when a broker is killed stays as it is.
ONE_REFRESH = ClientOptions(route_refresh_interval=3600.0)


class Outage:
    """A cluster of broker-a and broker-b, which can be killed."""

    def __init__(
        self, server: Server, kill: Callable[[int], object], start: Callable[[int], object]
    ) -> None:
        """Take the cluster, and how its brokers are killed and started."""
        self.server = server
        self._kill = kill
        self._start = start

    @contextlib.contextmanager
    def without(self, *brokers: int) -> Generator[None]:
        """Kill brokers, and start them again in the end."""
        for broker in brokers:
            self._kill(broker)
        try:
            yield
        finally:
            for broker in brokers:
                self._start(broker)
            wait_until(lambda: len(self.server.route_brokers("TBW102")) == 2, 60)


@pytest.fixture(scope="module", params=SERVERS)
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    """Give a cluster whose brokers can be killed."""
    if request.param == "embedded":
        with embedded_server(brokers=2) as ours:
            yield Outage(ours, ours.cluster.kill_broker, ours.cluster.restart_broker)
        return
    with cluster_or_skip(lambda: ApacheCluster(request.param, brokers=2)) as apache:
        server = server_of(apache)
        yield Outage(server, apache.kill_broker, apache.start_broker)
        server.close()


def _warm_up(producer: Producer, topic: str) -> None:
    """Send until the producer has used both brokers, so that it has a route and connections."""
    seen: set[str] = set()
    while len(seen) < 2:
        seen.add(producer.send(Message(topic, b"warm-up")).queue.broker)
    # There is no other refresh of the route (ONE_REFRESH), so it keeps both brokers.
    wait_until(lambda: producer.client.stats().timers["routes"].runs > 0)


@pytest.mark.parametrize("style", ["off", "5.x"])
def test_no_oneway_message_is_lost_while_one_of_two_brokers_is_dead(
    outage: Outage,
    producer: MakeProducer,
    kind: Kind,
    style: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = outage.server
    topic = server.topic(queues=1)
    options = ProducerOptions(fault_tolerance=FAULT_STYLES[style])
    sender = producer(server, options=options, client_options=ONE_REFRESH)
    _warm_up(sender, topic)
    caplog.set_level(logging.WARNING, "downrange.client")
    caplog.clear()  # an attempt of the warm-up may have failed
    dead = server.brokers[1]
    with outage.without(1):
        if kind == "async":  # the loop notices the end of the connection
            wait_until(lambda: dead not in sender.client.stats().connections)
        bodies = [f"{number}".encode() for number in range(6)]
        for body in bodies:
            sender.send_oneway(Message(topic, body))

        def arrived() -> list[bytes]:
            stored = [message.body for message in server.read_all(topic, 1)]
            return [body for body in stored if body != b"warm-up"]

        wait_until(lambda: server.route_brokers(topic) == ["broker-a"])
        wait_until(lambda: len(arrived()) >= 6)
        assert sorted(arrived()) == bodies  # Apache stores requests of one turn in any order
        stats = sender.client.stats().producers[sender.group]
        assert (stats.oneway, stats.failed) == (6, 0)
        assert stats.retried == 1 if style == "5.x" else stats.retried > 1
    failures = [line for line in caplog.messages if line.startswith("attempt 1 to send message")]
    assert len(failures) == stats.retried
    assert re.search(rf"broker broker-b at {dead} queue 0, after \d+\.\d\d\d s: ", failures[0])
    assert failures[0].endswith("ConnectFailed: connection refused")
    avoided = [line for line in caplog.messages if "broker-b is avoided" in line]
    assert len(avoided) == (style == "5.x")


def test_all_brokers_gone_is_reported_as_such(
    outage: Outage,
    producer: MakeProducer,
    make: Make,
    kind: Kind,
    unique_name: UniqueName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = outage.server
    topic = server.topic(queues=1)
    sender = producer(server, client_options=ONE_REFRESH)
    _warm_up(sender, topic)
    caplog.set_level(logging.DEBUG, "downrange.client")
    caplog.clear()
    with outage.without(0, 1):
        if kind == "async":  # the loop notices the ends of the connections
            wait_until(lambda: sender.client.stats().connections.keys().isdisjoint(server.brokers))
        with pytest.raises(SendUnreachable, match="was not stored after 3 attempts") as known:
            sender.send(Message(topic, b"1"))
        error = known.value
        assert (error.may_be_stored, error.retryable, error.code) == (False, True, 10001)
        assert error.message_id is not None
        assert error.message_id in str(error)
        assert error.elapsed >= 0.1
        assert "".join(traceback.format_exception(error)).count("direct cause") == 1
        warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
        starts = [f"attempt {number} to send message {error.message_id}" for number in (1, 2, 3)]
        assert [line[: len(start)] for line, start in zip(warnings, starts, strict=True)] == starts
        retried = f"send message {error.message_id} goes to broker"
        assert len([line for line in caplog.messages if retried in line]) == 2

        wait_until(lambda: server.route_brokers(topic) == [])
        for asked in (
            lambda: sender.send(Message(unique_name("missing"), b"1")),
            lambda: sender.send_oneway(Message(unique_name("missing"), b"1")),
            lambda: producer(server).send(Message(topic, b"1")),
            lambda: (
                make(Admin, server.name_server).start().topic_route(topic, timeout=LONG_TIMEOUT)
            ),
        ):
            with pytest.raises(BrokerNotFound, match="no broker is registered") as missing:
                asked()
            assert isinstance(missing.value, ConnectFailed)
            assert (missing.value.code, missing.value.retryable) == (10003, True)
            assert "topic create" not in str(missing.value)
    assert sender.send(Message(topic, b"2"), timeout=LONG_TIMEOUT).queue.topic == topic


@only_sync
def test_a_log_handler_may_send_with_the_producer_that_failed(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic, log_topic = embedded.topic(), embedded.topic()
    sender = producer(embedded)
    sender.send(Message(topic, b"warm-up"))
    cuts = [cut()]
    embedded.cluster.intercept(
        RequestCode.SEND_MESSAGE_V2, lambda request, peer: cuts.pop() if cuts else None
    )

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sender.send(Message(log_topic, record.getMessage()))

    logger, handler = logging.getLogger("downrange.client"), Forward(logging.WARNING)
    logger.addHandler(handler)
    try:
        receipt = sender.send(Message(topic, b"1"))
    finally:
        logger.removeHandler(handler)
    assert receipt.attempts == 2
    (line,) = embedded.read_all(log_topic, 1)
    assert f"send message {receipt.message_id} to '{topic}' failed".encode() in line.body
