"""Routes: name servers, missing topics, and changes while a producer runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from downrange import Producer, TransactionProducer
from downrange.client.flows.effects import Flow, Gather
from downrange.client.flows.hooks import Hooks
from downrange.client.flows.routing.lookup import find_readable, find_route, find_writable
from downrange.embedded import Cluster
from downrange.errors import BrokerNotFound, ConnectFailed, OptionError, RouteNotFound
from downrange.model import Message, Outcome
from downrange.options import BrokerOptions, ClientOptions, NameServerOptions, ProducerOptions
from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.runner import ServerThread
from downrange.wire.codes import RequestCode
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import SERVERS, apache_server, embedded_server
from tests.contract.servers import dead_address, members_of
from tests.embedded.address_server import serving_addresses
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from downrange.client.flows.routing.routes import Route
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server

#: Routes are refreshed often.
FREQUENT_REFRESH = ClientOptions(route_refresh_interval=0.05)


def brokers_of(producer: Producer, topic: str, count: int = 8) -> set[str]:
    """Send some messages and return the brokers that stored them."""
    return {producer.send(Message(topic, b"1")).queue.broker for _ in range(count)}


def wait_for_the_first_refresh(producer: Producer) -> None:
    """Wait until the timer of routes has run: it requests known routes soon after the start."""

    def has_run() -> bool:
        timer = producer.client.stats().timers.get("routes")
        return timer is not None and timer.runs > 0

    wait_until(has_run)


class RouteRequests:
    """A hook that records the topics of route requests."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def __call__(self, address: str, request: Command) -> None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.topics.append(request.fields["topic"])


# ---- name servers --------------------------------------------------------------------------------


def test_a_name_server_that_is_down_is_skipped(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    for _ in range(4):  # the list is shuffled, so a dead address comes first in some
        sender = producer(f"{dead_address()};{server.name_server};{dead_address()}")
        sender.send(Message(topic, b"1"))
        assert sender.client.stats().name_servers[0] == server.name_server


def test_the_list_of_name_servers_can_be_changed(
    embedded: Embedded, producer: MakeProducer
) -> None:
    with Cluster() as other:
        sender = producer(embedded)
        sender.client.set_name_servers([other.name_server])
        assert sender.client.stats().name_servers == (other.name_server,)
        receipt = sender.send(Message("only_there", b"1"))
        assert receipt.queue.topic == "only_there"
        assert embedded.route("only_there") is None
        assert set(sender.client.stats().connections) >= {other.brokers[0]}


def test_known_topics_are_sent_to_while_all_name_servers_are_down(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    sender = producer(server, client_options=FREQUENT_REFRESH)
    sender.send(Message(topic, b"1"))
    wait_for_the_first_refresh(sender)
    sender.client.set_name_servers(dead_address())
    wait_until(lambda: sender.client.stats().timers["routes"].failures >= 2)
    for _ in range(5):
        sender.send(Message(topic, b"2"))
    with pytest.raises(ConnectFailed):
        sender.send(Message("unknown_topic", b"1"))


def test_concurrent_sends_share_one_route_request(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    requests = RouteRequests()
    sender = producer(server, hooks=Hooks(before_call=(requests,)))
    wait_for_the_first_refresh(sender)
    for future in [sender.submit(Message(topic, b"1")) for _ in range(40)]:
        future.result(LONG_TIMEOUT)
    assert requests.topics.count(topic) == 1


def test_lookups_for_different_purposes_share_one_request(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    requests = RouteRequests()
    sender = producer(server, hooks=Hooks(before_call=(requests,)))
    wait_for_the_first_refresh(sender)
    core = sender.client.core
    deadline = core.clock.now() + LONG_TIMEOUT

    def look_up() -> Flow[list[object]]:
        sending = find_writable(core, topic, deadline, default_topic=None, queue_count=1)
        reading = find_readable(core, topic, deadline)
        outcomes: list[object] = yield Gather(
            [sending, reading, find_route(core, topic, deadline)], 3
        )
        return outcomes

    one, *others = sender.client.run(look_up())
    assert others == [one, one]
    assert requests.topics.count(topic) == 1


def test_name_servers_can_come_from_an_address_server(
    embedded: Embedded, producer: MakeProducer
) -> None:
    with Cluster() as other, serving_addresses(f"{embedded.name_server}\n".encode()) as addresses:
        options = ClientOptions(discovery_url=addresses.url, discovery_interval=0.05)
        sender = producer(None, client_options=options)
        assert sender.client.stats().name_servers == (embedded.name_server,)
        sender.send(Message(embedded.topic(), b"1"))
        addresses.body = other.name_server.encode()
        wait_until(lambda: sender.client.stats().name_servers == (other.name_server,))
        addresses.status = 500
        runs = sender.client.stats().timers["discovery"].failures
        wait_until(lambda: sender.client.stats().timers["discovery"].failures > runs)
        assert sender.client.stats().name_servers == (other.name_server,)
        sender.send(Message("orders", b"1"))
        sender.close()


# ---- missing topics ------------------------------------------------------------------------------


def test_a_missing_topic_is_created_with_as_many_queues_as_asked_for(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    for queues, expected in ((2, 2), (4, 4), (100, 8)):  # the default topic has eight
        topic = unique_name("created")
        sender = producer(server, options=ProducerOptions(default_topic_queues=queues))
        numbers = {sender.send(Message(topic, b"1")).queue.number for _ in range(12)}
        assert numbers == set(range(expected))
        route = wait_until(lambda: server.route(topic))  # noqa: B023
        assert len(route.writable) == expected


def test_a_missing_topic_is_not_created_when_that_is_off(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("missing")
    sender = producer(server, options=ProducerOptions(auto_create="off"))
    with pytest.raises(RouteNotFound, match=f"downrange topic create {topic}") as caught:
        sender.send(Message(topic, b"1"))
    assert server.name_server in str(caught.value)
    assert (caught.value.topic, caught.value.code) == (topic, 10005)
    assert server.route(topic) is None


def test_a_default_topic_that_does_not_exist_gives_no_route(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    sender = producer(server, options=ProducerOptions(default_topic=unique_name("none")))
    with pytest.raises(RouteNotFound):
        sender.send(Message(unique_name("missing"), b"1"))


def test_a_topic_without_write_permission_gets_no_messages(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(perm=4)
    with pytest.raises(RouteNotFound, match="permission"):
        producer(server).send(Message(topic, b"1"))


# ---- changes -------------------------------------------------------------------------------------


def test_more_queues_are_used_as_soon_as_the_route_says_so(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic(queues=1)
    sender = producer(server, client_options=FREQUENT_REFRESH)
    assert {sender.send(Message(topic, b"1")).queue.number for _ in range(4)} == {0}
    server.topic(queues=3, name=topic)
    wait_until(
        lambda: {sender.send(Message(topic, b"1")).queue.number for _ in range(3)} == {0, 1, 2}
    )


def test_a_topic_that_loses_its_permission_gets_no_more_messages(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    sender = producer(server, client_options=FREQUENT_REFRESH)
    sender.send(Message(topic, b"1"))
    server.topic(perm=4, name=topic)

    def is_refused() -> bool:
        try:
            sender.send(Message(topic, b"1"))
        except RouteNotFound:
            return True
        except PermissionError:  # the broker changes before the route does
            return False
        return False

    wait_until(is_refused)


# ---- two brokers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SERVERS)
def two_brokers(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give a cluster of broker-a and broker-b."""
    if request.param == "embedded":
        with embedded_server(brokers=2) as ours:
            yield ours
        return
    with apache_server(lambda: ApacheCluster(request.param, brokers=2)) as apache:
        yield apache


def test_a_created_topic_ends_up_on_one_broker(
    two_brokers: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    """A known limitation of automatic topic creation, also with Java's producer."""
    topic = unique_name("flawed")
    sender = producer(two_brokers, client_options=FREQUENT_REFRESH)
    first = sender.send(Message(topic, b"1")).queue.broker
    wait_until(lambda: two_brokers.route_brokers(topic) == [first])
    wait_until(lambda: not known_route(sender, topic).is_borrowed)
    assert brokers_of(sender, topic) == {first}
    assert two_brokers.route_brokers(topic) == [first]


def test_a_topic_that_is_created_in_balance_is_on_every_broker(
    two_brokers: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("balanced")
    options = ProducerOptions(auto_create="balanced", default_topic_queues=3)
    sender = producer(two_brokers, client_options=FREQUENT_REFRESH, options=options)
    assert brokers_of(sender, topic) == {"broker-a", "broker-b"}
    route = two_brokers.route(topic)
    assert route is not None
    assert dict(route.write_counts) == {"broker-a": 3, "broker-b": 3}
    assert not known_route(sender, topic).is_borrowed


def test_an_existing_topic_stays_as_it_is_when_missing_ones_are_balanced(
    two_brokers: Server, producer: MakeProducer
) -> None:
    topic = two_brokers.topic(queues=1)
    sender = producer(two_brokers, options=ProducerOptions(auto_create="balanced"))
    sender.send(Message(topic, b"1"))
    route = two_brokers.route(topic)
    assert route is not None
    assert dict(route.write_counts) == {"broker-a": 1, "broker-b": 1}


def test_messages_go_to_all_brokers_by_turns(two_brokers: Server, producer: MakeProducer) -> None:
    topic = two_brokers.topic(queues=2)
    sender = producer(two_brokers)
    queues = [sender.send(Message(topic, b"1")).queue for _ in range(8)]
    assert queues[:4] == queues[4:]
    assert len(set(queues[:4])) == 4
    assert {queue.broker for queue in queues} == {"broker-a", "broker-b"}


def test_only_brokers_that_allow_it_are_written_to(
    two_brokers: Server, producer: MakeProducer
) -> None:
    topic = two_brokers.topic()
    probe.call(
        two_brokers.brokers[0],
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        two_brokers.topic_fields(topic, queues=4, perm=4),
    )
    wait_until(lambda: two_brokers.route_brokers(topic) == ["broker-b"])
    assert brokers_of(producer(two_brokers), topic) == {"broker-b"}


def test_a_broker_that_leaves_is_not_sent_to_until_it_is_back(producer: MakeProducer) -> None:
    with embedded_server(brokers=2) as ours:
        topic = ours.topic()
        sender = producer(ours, client_options=FREQUENT_REFRESH)
        assert brokers_of(sender, topic) == {"broker-a", "broker-b"}
        ours.cluster.stop_broker(0)
        wait_until(lambda: list(known_route(sender, topic).write_counts) == ["broker-b"])
        before = sender.client.stats().producers[sender.group].retried
        assert brokers_of(sender, topic) == {"broker-b"}
        assert sender.client.stats().producers[sender.group].retried == before
        ours.cluster.restart_broker(0)
        wait_until(lambda: brokers_of(sender, topic) == {"broker-a", "broker-b"})
        sender.close()


def known_route(producer: Producer, topic: str) -> Route:
    """Return the route that the producer uses."""
    route = producer.client.core.routes.get(topic)
    assert route is not None
    return route


# ---- order config --------------------------------------------------------------------------------


def test_an_order_config_sets_the_queues_of_a_topic(producer: MakeProducer) -> None:
    options = NameServerOptions(is_order_message_enabled=True)
    with embedded_server(brokers=2, nameserver=options) as ours:
        topic = ours.topic(queues=4)
        config = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": "broker-b:2"}
        assert probe.call(ours.name_server, RequestCode.PUT_KV_CONFIG, config).code == 0
        sender = producer(ours)
        queues = {sender.send(Message(topic, b"1")).queue for _ in range(8)}
        assert sorted((queue.broker, queue.number) for queue in queues) == [
            ("broker-b", 0),
            ("broker-b", 1),
        ]
        sender.close()


# ---- topics at the start, zones ------------------------------------------------------------------


def test_routes_of_the_given_topics_are_loaded_at_the_start(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topics = [server.topic(), unique_name("missing")]
    requests = RouteRequests()
    sender = producer(server, topics=topics, hooks=Hooks(before_call=(requests,)))
    assert set(topics) <= set(requests.topics)
    group = sender.group
    wait_until(lambda: sender.client.core.client_id in members_of(server, group))
    wait_for_the_first_refresh(sender)  # the next one is far away
    count = len(requests.topics)
    for topic in topics:
        sender.send(Message(topic, b"1"))
    assert len(requests.topics) == count


def test_a_transaction_producer_loads_routes_at_the_start_too(
    embedded: Embedded, make: Make, unique_name: UniqueName
) -> None:
    topic = embedded.topic()
    sender = make(
        TransactionProducer,
        embedded.name_server,
        group=unique_name("group"),
        check=lambda _: Outcome.COMMIT,
        topics=[topic],
    ).start()
    assert topic in sender.client.core.routes.topics()


def test_a_topic_that_cannot_be_loaded_at_the_start_is_logged(
    embedded: Embedded, producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    options = ProducerOptions(auto_create="off")
    producer(embedded, topics=["no_such_topic"], options=options)
    (record,) = [each for each in caplog.records if "at the start" in each.message]
    assert record.levelname == "WARNING"
    assert "no_such_topic" in record.message


@pytest.mark.parametrize("topics", ["orders", ["no blanks"]])
def test_wrong_topics_are_refused(make: Make, topics: list[str]) -> None:
    with pytest.raises(OptionError, match="topic"):
        make(Producer, "127.0.0.1:1", group="shop", topics=topics)


def test_a_client_in_zone_mode_uses_only_the_brokers_of_its_zone(
    server: Server, producer: MakeProducer, unique_name: UniqueName, tmp_path: Path
) -> None:
    """Our brokers register at the name server under test; 4.9 ignores zones."""
    topic = unique_name("topic")
    names = {zone: f"{zone}_{topic}" for zone in ("east", "west")}
    with ExitStack() as ends:
        for zone, name in names.items():
            options = BrokerOptions(
                name=name,
                cluster=f"cluster_{topic}",
                zone=zone,
                name_servers=(server.name_server,),
                is_topic_created=False,
            )
            broker = BrokerServer(tmp_path / zone, options)
            ends.enter_context(ServerThread(broker))
            fields = server.topic_fields(topic, 4, 6)
            assert probe.call(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
        wait_until(lambda: server.route_brokers(topic) == sorted(names.values()))
        everywhere = producer(server, client_options=ClientOptions(zone="east"))
        assert brokers_of(everywhere, topic) == set(names.values())
        here = producer(server, client_options=ClientOptions(zone="East", zone_mode=True))
        near = {names["east"]}
        assert brokers_of(here, topic) == (set(names.values()) if server.is_old else near)
        if not server.is_old:
            nowhere = producer(server, client_options=ClientOptions(zone="north", zone_mode=True))
            with pytest.raises(BrokerNotFound, match="no broker of zone 'north' is registered"):
                nowhere.send(Message(topic, b"1"))
    wait_until(lambda: not server.route_brokers(topic))
