"""The admin client: create, change and find topics, groups, queues and messages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin, Client, Producer
from downrange.embedded import Cluster
from downrange.errors import (
    ClientClosed,
    NotFound,
    NotStarted,
    OptionError,
    RouteNotFound,
    ServerError,
)
from downrange.model import Message, QueueId
from downrange.options import ClientOptions, ProducerOptions
from tests.contract.blocking import LONG_TIMEOUT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server


@pytest.fixture
def admin(make: Make) -> Callable[..., Admin]:
    """Give the function that starts admin clients of the front end."""

    def start(servers: Any, **settings: Any) -> Admin:
        settings.setdefault("client_options", ClientOptions(call_timeout=LONG_TIMEOUT))
        return make(Admin, getattr(servers, "name_server", servers), **settings).start()

    return start


def missing_topic(server: Server) -> str:
    """Return the name of a topic that does not exist."""
    return f"{server.topic(1)}_new"


def test_a_queue_that_does_not_exist_is_refused(
    server: Server, admin: Callable[..., Admin]
) -> None:
    """Issue 14: brokers answer 0 for any queue."""
    topic = server.topic(queues=2)
    administering = admin(server)
    broker = administering.read_queues(topic)[0].broker
    missing = QueueId(topic, broker, 2)
    at = datetime.now(UTC)
    for ask in (
        lambda: administering.max_offset(missing),
        lambda: administering.min_offset(missing),
        lambda: administering.search_offset(missing, at),
        lambda: administering.earliest_store_time(missing),
    ):
        with pytest.raises(OptionError, match=f"queue 2 of topic '{topic}' does not exist on"):
            ask()
    administering.update_topic(topic, read_queues=3, write_queues=3)
    assert administering.max_offset(missing) == 0


# ---- topics --------------------------------------------------------------------------------------


def test_a_topic_is_there_when_its_creation_returns(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = missing_topic(server)
    administering = admin(server)
    settings = administering.create_topic(topic, queues=3)
    assert (settings.topic, settings.read_queues, settings.write_queues) == (topic, 3, 3)
    assert len(administering.publish_queues(topic)) == 3
    assert len(administering.read_queues(topic)) == 3
    assert administering.topic_route(topic).writable == tuple(administering.publish_queues(topic))
    receipt = producer(server, options=ProducerOptions(auto_create="off")).send(
        Message(topic, b"1")
    )
    assert receipt.queue in administering.publish_queues(topic)


def test_a_topic_is_changed_and_keeps_the_rest(server: Server, admin: Callable[..., Admin]) -> None:
    topic = missing_topic(server)
    administering = admin(server)
    administering.create_topic(topic, queues=4, is_ordered=True)
    (changed,) = administering.update_topic(topic, write_queues=2).values()
    assert (changed.read_queues, changed.write_queues) == (4, 2)
    (settings,) = administering.topic_settings(topic).values()
    assert (settings.read_queues, settings.write_queues) == (4, 2)
    assert (settings.permission, settings.is_ordered) == (6, not server.is_old)
    assert len(administering.topic_route(topic).writable) == 2


def test_attributes_of_a_topic_can_be_set_and_taken_away(
    server: Server, admin: Callable[..., Admin]
) -> None:
    if server.is_old:
        pytest.skip("4.9 has no attributes")
    topic = missing_topic(server)
    administering = admin(server)
    administering.create_topic(topic, attributes={"message.type": "FIFO"})
    (settings,) = administering.topic_settings(topic).values()
    assert settings.attributes == {"message.type": "FIFO"}
    administering.update_topic(topic, attributes={"message.type": None})
    (settings,) = administering.topic_settings(topic).values()
    assert settings.attributes == {}


def test_a_deleted_topic_is_gone(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic()
    producer(server).send(Message(topic, b"1"))
    administering = admin(server)
    assert topic in {each.name for each in administering.list_topics()}
    administering.delete_topic(topic)
    assert topic not in {each.name for each in administering.list_topics()}
    with pytest.raises(RouteNotFound, match=topic):
        administering.topic_route(topic)
    administering.delete_topic(topic)


def test_system_topics_are_listed_with_their_kind(
    server: Server, admin: Callable[..., Admin]
) -> None:
    topic = server.topic()
    kinds = {each.name: each.kind for each in admin(server).list_topics()}
    assert kinds[topic] == "normal"
    assert kinds["TBW102"] == "system"
    assert kinds["DefaultCluster"] == "system"


def test_a_topic_of_the_system_cannot_be_changed(
    server: Server, admin: Callable[..., Admin]
) -> None:
    with pytest.raises(ServerError, match="TBW102"):
        admin(server).create_topic("TBW102")


def test_cluster_facts_list_the_brokers_and_their_release(
    server: Server, admin: Callable[..., Admin]
) -> None:
    facts = admin(server).cluster_facts(with_versions=True)
    assert list(facts.clusters) == ["DefaultCluster"]
    assert [broker.addresses[0] for broker in facts.brokers] == list(server.brokers)
    assert facts.brokers[0].version == (server.version or "5.5.0")
    assert admin(server).cluster_facts().brokers[0].version is None


def test_an_unknown_cluster_is_an_error_that_names_the_known_ones(
    server: Server, admin: Callable[..., Admin]
) -> None:
    with pytest.raises(OptionError, match="DefaultCluster"):
        admin(server).create_topic(missing_topic(server), cluster="elsewhere")


def test_topic_stats_count_the_messages_of_each_queue(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic(2)
    receipts = [producer(server).send(Message(topic, b"x")) for _ in range(3)]
    (message, *_) = server.read_all(topic, 3)
    stats = admin(server).topic_stats(topic)
    assert [state.queue.number for state in stats] == [0, 1]
    assert sum(state.count for state in stats) == len(receipts)
    stored_at = datetime.fromtimestamp(message.stored_at_ms / 1000, UTC)
    assert max(state.stored_at or stored_at for state in stats) >= stored_at


def test_a_topic_is_created_on_every_broker(make: Make, admin: Callable[..., Admin]) -> None:
    with Cluster(brokers=2) as cluster:
        administering = admin(cluster.name_server)
        settings = administering.create_topic("orders", queues=2)
        assert settings.brokers == ("broker-a", "broker-b")
        assert len(administering.publish_queues("orders")) == 4
        administering.update_topic("orders", write_queues=1, brokers=["broker-b"])
        counts = administering.topic_route("orders").write_counts
        assert counts == {"broker-a": 2, "broker-b": 1}
        administering.create_topic("single", brokers=["broker-b"])
        assert set(administering.topic_route("single").masters) == {"broker-b"}


def test_names_are_without_the_namespace(server: Server, admin: Callable[..., Admin]) -> None:
    topic = missing_topic(server)
    administering = admin(
        server, client_options=ClientOptions(namespace="prod", call_timeout=LONG_TIMEOUT)
    )
    assert administering.create_topic(topic).topic == topic
    assert server.route_brokers(f"prod%{topic}")
    names = {each.name for each in administering.list_topics() if each.kind == "normal"}
    assert topic in names
    assert not any(name.startswith("prod%") for name in names)
    assert administering.read_queues(topic)[0].topic == topic
    assert administering.topic_stats(topic)[0].queue.topic == topic
    assert {each.topic for each in administering.topic_settings(topic).values()} == {topic}


# ---- groups --------------------------------------------------------------------------------------


def test_progress_of_a_group_is_kept_until_the_group_is_deleted(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic(1)
    queue = producer(server).send(Message(topic, b"1")).queue
    server.read_all(topic, 1)
    group = f"group_of_{topic}"
    administering = admin(server)
    administering.create_group(group, retries=3)
    not_begun = 0 if server.is_old else None
    assert administering.group_offset(group, queue) == not_begun
    administering.set_group_offset(group, queue, 1)
    assert administering.group_offset(group, queue) == 1
    administering.set_group_offset(group, queue, 0)
    assert administering.group_offset(group, queue) == 0
    administering.set_group_offset(group, queue, 1)
    administering.delete_group(group)
    assert administering.group_offset(group, queue) == not_begun


# ---- queues and messages -------------------------------------------------------------------------


def test_offsets_and_times_of_a_queue(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic(1)
    administering = admin(server)
    (queue,) = administering.read_queues(topic)
    assert administering.max_offset(queue) == administering.min_offset(queue) == 0
    assert administering.earliest_store_time(queue) is None
    sending = producer(server)
    sending.send(Message(topic, b"old"))
    time.sleep(0.2)
    sending.send(Message(topic, b"new"))
    old, new = server.read_all(topic, 2)
    assert (administering.min_offset(queue), administering.max_offset(queue)) == (0, 2)
    old_at, new_at = (datetime.fromtimestamp(each.stored_at_ms / 1000, UTC) for each in (old, new))
    assert administering.earliest_store_time(queue) == old_at
    assert administering.search_offset(queue, old_at - timedelta(days=1)) == 0
    assert administering.search_offset(queue, new_at - timedelta(milliseconds=10)) == 1
    beyond = administering.search_offset(queue, new_at + timedelta(hours=1))
    assert beyond == (1 if server.is_old else 2)


def test_a_search_by_time_finds_the_first_of_many_messages_of_one_millisecond(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic(1)
    sending, administering = producer(server), admin(server)
    sending.send(Message(topic, b"before"))
    time.sleep(0.2)
    sending.send_batch([Message(topic, b"together") for _ in range(20)])
    messages = server.read_all(topic, 21)
    at_ms = messages[-1].stored_at_ms
    first = next(each.offset for each in messages if each.stored_at_ms == at_ms)
    assert first < 20  # else this test shows nothing
    (queue,) = administering.read_queues(topic)
    assert administering.search_offset(queue, messages[-1].stored_at) == first


def test_a_message_is_found_by_either_id(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic()
    receipt = producer(server).send(Message(topic, b"here", keys=["k"]))
    administering = admin(server)
    by_offset = administering.view_message(topic, receipt.offset_id)
    by_unique = wait_until(lambda: _found(administering, topic, receipt.message_id))
    for message in (by_offset, by_unique):
        assert (message.body, message.keys) == (b"here", ["k"])
        assert (message.queue, message.offset) == (receipt.queue, receipt.offset)
        assert message.message_id == receipt.message_id


def _found(administering: Admin, topic: str, message_id: str) -> Any:
    try:
        return administering.view_message(topic, message_id)
    except NotFound:
        return None  # indexes are written a moment later


def test_a_message_that_is_not_there_is_an_error(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic()
    receipt = producer(server).send(Message(topic, b"1"))
    administering = admin(server)
    with pytest.raises(NotFound, match="my-own-id"):
        administering.view_message(topic, "my-own-id")
    other = server.topic()
    with pytest.raises(NotFound):
        administering.view_message(other, receipt.offset_id)
    beyond = receipt.offset_id[:-16] + "00000FFFFFFFFFFF"
    with pytest.raises(NotFound):
        administering.view_message(topic, beyond)
    with pytest.raises(RouteNotFound, match="no_such_topic"):
        administering.view_message("no_such_topic", receipt.message_id)


def test_messages_are_found_by_key_and_time(
    server: Server, producer: MakeProducer, admin: Callable[..., Admin]
) -> None:
    topic = server.topic()
    sending = producer(server)
    for body, keys in (("1", ["k1"]), ("2", ["k1", "k2"]), ("3", ["k2"])):
        sending.send(Message(topic, body, keys=keys))
    administering = admin(server)

    def find(key: str, **settings: Any) -> list[bytes]:
        return [each.body for each in administering.query_messages(topic, key, **settings)]

    wait_until(lambda: len(find("k2")) == 2)
    assert find("k1") == [b"1", b"2"]
    assert find("k2", max_count=1) == [b"3"]
    assert find("k3") == []
    hour = timedelta(hours=1)
    assert find("k1", end=datetime.now(UTC) - hour) == []
    assert find("k1", begin=datetime.now(UTC) - hour, end=datetime.now(UTC) + hour) == [b"1", b"2"]


def test_a_queue_of_an_unknown_broker_is_an_error(
    server: Server, admin: Callable[..., Admin]
) -> None:
    queue = QueueId(server.topic(), "elsewhere", 0)
    with pytest.raises(RouteNotFound, match="'elsewhere'"):
        admin(server).max_offset(queue)


# ---- creating before the first message -----------------------------------------------------------


def test_a_missing_topic_is_created_on_all_brokers_when_balanced(make: Make) -> None:
    with Cluster(brokers=2) as cluster:
        options = ProducerOptions(auto_create="balanced", timeout=LONG_TIMEOUT)
        sending = make(Producer, cluster.name_server, group="shop", options=options).start()
        brokers = {sending.send(Message("orders", b"1")).queue.broker for _ in range(16)}
        assert brokers == {"broker-a", "broker-b"}


# ---- start and close -----------------------------------------------------------------------------


def test_an_admin_is_used_between_start_and_close_only(embedded: Embedded, make: Make) -> None:
    administering = make(Admin, embedded.name_server)
    with pytest.raises(NotStarted):
        administering.list_topics()
    administering.start()
    administering.start()
    administering.close()
    administering.close()
    for use in (administering.list_topics, administering.start):
        with pytest.raises(ClientClosed):
            use()


def test_an_admin_shares_a_client(embedded: Embedded, make: Make) -> None:
    with make(Client, embedded.name_server) as client:
        with make(Admin, client) as administering:
            assert administering.list_topics()
        assert client.state == "running"


def test_a_producer_creates_its_topic_and_finds_its_messages(
    server: Server, producer: MakeProducer
) -> None:
    topic = missing_topic(server)
    shop = producer(server, client_options=ClientOptions(call_timeout=LONG_TIMEOUT))
    shop.create_topic(topic, queues=2)
    queues = shop.publish_queues(topic)
    assert [queue.number for queue in queues] == [0, 1]
    receipt = shop.send(Message(topic, b"1", keys=["k-1"]), queue=queues[1], timeout=LONG_TIMEOUT)
    assert shop.min_offset(queues[1]) == 0
    wait_until(lambda: shop.max_offset(queues[1]) == 1)
    assert shop.earliest_store_time(queues[1]) is not None
    assert shop.search_offset(queues[1], datetime.now(UTC) - timedelta(hours=1)) == 0
    found = wait_until(lambda: shop.query_messages(topic, "k-1"))
    assert [message.body for message in found] == [b"1"]
    assert shop.view_message(topic, receipt.message_id).body == b"1"
