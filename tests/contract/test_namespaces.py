"""Namespaces: part of the names on servers, and never of the names that users see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.model import Message, QueueId
from downrange.options import ClientOptions, ProducerOptions, Trace
from downrange.wire.codes import RequestCode
from tests.contract.servers import members_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange.embedded import Interception
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

NAMESPACE = "MQ_INST_7"
SPACED = ClientOptions(namespace=NAMESPACE)
SEND = RequestCode.SEND_MESSAGE_V2


def test_names_have_the_namespace_on_the_server_and_not_for_the_user(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("orders")
    server.topic(queues=2, name=f"{NAMESPACE}%{topic}")
    sender = producer(server, client_options=SPACED)
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.queue.topic == topic
    (stored,) = server.read_all(f"{NAMESPACE}%{topic}", 1)
    assert stored.properties["INSTANCE_ID"] == NAMESPACE
    assert stored.message_id == receipt.message_id
    assert server.route(topic) is None


def test_a_missing_topic_is_created_in_the_namespace(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("created")
    producer(server, client_options=SPACED).send(Message(topic, b"1"))
    wait_until(lambda: server.route(f"{NAMESPACE}%{topic}"))
    assert server.route(topic) is None


def test_brokers_list_the_group_with_its_namespace(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    group = unique_name("group")
    sender = producer(server, group=group, client_options=SPACED)
    assert sender.group == group
    sender.send(Message(unique_name("created"), b"1"))
    wait_until(lambda: members_of(server, f"{NAMESPACE}%{group}") == [sender.client.core.client_id])
    assert members_of(server, group) == []
    sender.close()
    wait_until(lambda: not members_of(server, f"{NAMESPACE}%{group}"))


def test_queues_batches_and_oneway_messages_have_it_too(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("orders")
    server.topic(queues=2, name=f"{NAMESPACE}%{topic}")
    sender = producer(server, client_options=SPACED)
    queue = QueueId(topic, "broker-a", 1)
    assert sender.send(Message(topic, b"1"), queue=queue).queue == queue
    (receipt,) = sender.send_batch([Message(topic, b"2"), Message(topic, b"3")], queue=queue)
    assert receipt.queue == queue
    sender.send_oneway(Message(topic, b"4"), queue=lambda queues, message: queues[1])
    stored = server.read_all(f"{NAMESPACE}%{topic}", 4)
    assert [message.body for message in stored] == [b"1", b"2", b"3", b"4"]


def test_a_name_that_has_the_namespace_already_gets_no_second_one(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = f"{NAMESPACE}%{unique_name('orders')}"
    server.topic(queues=1, name=topic)
    producer(server, client_options=SPACED).send(Message(topic, b"1"))
    assert len(server.read_all(topic, 1)) == 1


def test_system_topics_have_no_namespace(embedded: Embedded, producer: MakeProducer) -> None:
    before = len(embedded.read_all("RMQ_SYS_TRACE_TOPIC", 0))
    sender = producer(
        embedded, client_options=SPACED, options=ProducerOptions(trace=Trace(batch_count=1))
    )
    sender.send(Message("orders", b"1"))
    sender.close()
    embedded.read_all("RMQ_SYS_TRACE_TOPIC", before + 1)
    assert embedded.route(f"{NAMESPACE}%RMQ_SYS_TRACE_TOPIC") is None


# ---- other fields of every request ---------------------------------------------------------------


class Requests:
    """An interception that records the fields of requests and does not change them."""

    def __init__(self) -> None:
        self.fields: list[dict[str, str]] = []

    def __call__(self, request: Command, peer: Peer) -> Interception | None:
        self.fields.append(dict(request.fields))
        return None


def fields_of_a_send(
    embedded: Embedded, producer: MakeProducer, options: ClientOptions
) -> dict[str, str]:
    """Send a message and return the fields of the request."""
    topic = embedded.topic()
    requests = Requests()
    embedded.cluster.intercept(SEND, requests)
    producer(embedded, client_options=options).send(Message(topic, b"1"))
    (fields,) = requests.fields
    return fields


def test_a_v2_namespace_is_sent_in_fields_of_its_own(
    embedded: Embedded, producer: MakeProducer
) -> None:
    fields = fields_of_a_send(embedded, producer, ClientOptions(namespace_v2="prod"))
    assert (fields["ns"], fields["nsd"]) == ("prod", "true")
    assert "%" not in fields["b"]


def test_unit_mode_and_stream_requests_are_sent_as_fields(
    embedded: Embedded, producer: MakeProducer
) -> None:
    plain = fields_of_a_send(embedded, producer, ClientOptions())
    assert plain.get("k", "false") == "false"
    assert "ReqT" not in plain
    options = ClientOptions(is_unit_mode=True, is_stream_request=True, unit="south")
    fields = fields_of_a_send(embedded, producer, options)
    assert (fields["k"], fields["ReqT"]) == ("true", "0")


def test_the_client_id_holds_address_instance_unit_and_stream(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    group = unique_name("group")
    options = ClientOptions(
        client_ip="192.0.2.7", instance="shop", unit="south", is_stream_request=True
    )
    sender = producer(server, group=group, client_options=options)
    sender.send(Message(server.topic(), b"1"))
    wait_until(lambda: members_of(server, group) == ["192.0.2.7@shop@south@STREAM"])


def test_vip_channel_uses_the_second_port_of_a_broker(
    server: Server, producer: MakeProducer
) -> None:
    host, _, port = server.brokers[0].rpartition(":")
    topic = server.topic()
    sender = producer(server, client_options=ClientOptions(vip_channel=True))
    sender.send(Message(topic, b"1"))
    assert f"{host}:{int(port) - 2}" in sender.client.stats().connections
    assert len(server.read_all(topic, 1)) == 1
