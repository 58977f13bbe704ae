"""Request-reply: replies in time, late replies, no replies."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from downrange import Producer
from downrange.embedded import Cluster, cut, refuse
from downrange.errors import InvalidMessage, RequestTimedOut, SendFailed
from downrange.model import Message
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode, ResponseCode
from tests.contract.conftest import OPTIONS
from tests.contract.conftest import Embedded as EmbeddedServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.model import ReceivedMessage, SendReceipt
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server


def asked(server: Server, topic: str, body: bytes) -> ReceivedMessage:
    """Return the request with this body; None while there is none."""

    def look() -> ReceivedMessage | None:
        return next((one for one in server.read_all(topic, 0) if one.body == body), None)

    return wait_until(look)


def answering(
    server: Server,
    topic: str,
    body: bytes,
    reply: Callable[[ReceivedMessage], SendReceipt],
    pool: ThreadPoolExecutor,
) -> Callable[[], SendReceipt]:
    """Reply to a request in a thread; return a function that waits for the receipt."""
    return pool.submit(lambda: reply(asked(server, topic, body))).result


def test_a_request_is_answered(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    asker, answerer = producer(server), producer(server)
    long = b"12.5" * 2000  # travels compressed

    def reply(request: ReceivedMessage) -> SendReceipt:
        return answerer.reply(request, long, tags="t", keys=["k"], properties={"colour": "red"})

    with ThreadPoolExecutor(1) as pool:
        receipt = answering(server, topic, b"ACME", reply, pool)
        answer = asker.request(Message(topic, b"ACME"), timeout=20.0)
        assert answer.message_id == receipt().message_id
    assert (answer.body, answer.tags, answer.keys) == (long, "t", ["k"])
    assert answer.properties["colour"] == "red"
    assert answer.topic == "DefaultCluster_REPLY_TOPIC"
    (request,) = server.read_all(topic, 1)
    assert request.properties["REPLY_TO_CLIENT"] == asker.client.stats().client_id
    assert request.properties["TTL"] == "20000"


def test_a_request_without_a_reply_times_out_and_a_late_reply_is_counted(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    asker, answerer = producer(server), producer(server)
    asker.send(Message(topic, b"warm"))
    started = time.monotonic()
    with pytest.raises(RequestTimedOut, match=r"no reply came within 0\.5 s"):
        asker.request(Message(topic, b"ACME"), timeout=0.5)
    assert 0.4 < time.monotonic() - started < 3.0
    answerer.reply(asked(server, topic, b"ACME"), b"late")
    assert asker.client.stats().producers[asker.group].late_replies == 1


def test_requests_at_the_same_time_get_their_own_answers(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    asker, answerer = producer(server), producer(server)
    texts = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda text: asker.request(Message(topic, text), timeout=30.0), texts)
        for request in wait_until(lambda: server.read_all(topic, len(texts)))[::-1]:
            answerer.reply(request, b"re:" + request.body)
        assert [answer.body for answer in answers] == [b"re:" + text for text in texts]


def test_an_answer_may_come_through_a_broker_that_the_topic_is_not_on(
    producer: MakeProducer, unique_name: UniqueName
) -> None:
    with Cluster(brokers=2, broker=OPTIONS) as cluster:
        server = EmbeddedServer(cluster)
        both, server.brokers = server.brokers, server.brokers[:1]
        topic = server.topic(name=unique_name("topic"))
        asker, answerer = producer(server), producer(server)
        with ThreadPoolExecutor(1) as pool:
            through = set[str]()
            for number in range(6):
                body = b"%d" % number
                receipt = answering(
                    server, topic, body, lambda one: answerer.reply(one, b"yes"), pool
                )
                assert asker.request(Message(topic, body), timeout=10.0).body == b"yes"
                assert receipt().failures == ()
                through.add(receipt().queue.broker)
        assert len(through) == len(both) == 2
        asker.close()
        answerer.close()
        server.close()


def test_an_answer_finds_its_way_after_a_connection_was_cut(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    asker, answerer = producer(embedded), producer(embedded)
    with pytest.raises(RequestTimedOut):
        asker.request(Message(topic, b"no reply"), timeout=0.1)
    cuts = [cut()]
    embedded.cluster.intercept(
        RequestCode.SEND_MESSAGE_V2, lambda command, peer: cuts.pop() if cuts else None
    )
    # Submitted requests use the connection on which replies arrive.
    assert asker.submit(Message(topic, b"cut")).result(10.0).attempts == 2
    with ThreadPoolExecutor(1) as pool:
        receipt = answering(
            embedded, topic, b"again", lambda one: answerer.reply(one, b"yes"), pool
        )
        assert asker.request(Message(topic, b"again"), timeout=10.0).body == b"yes"
        assert receipt().failures == ()


def test_a_request_that_no_broker_takes_fails_at_once(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    asker = producer(embedded)
    refusal = refuse(ResponseCode.MESSAGE_ILLEGAL, "not this one")
    embedded.cluster.intercept(RequestCode.SEND_MESSAGE_V2, lambda command, peer: refusal)
    started = time.monotonic()
    with pytest.raises(SendFailed, match="not this one"):
        asker.request(Message(topic, b"1"), timeout=20.0)
    assert time.monotonic() - started < 10.0


def test_a_message_that_is_not_a_request_cannot_be_replied_to(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    sender.send(Message(topic, b"1"))
    (plain,) = embedded.read_all(topic, 1)
    with pytest.raises(InvalidMessage, match="was not sent with request") as caught:
        sender.reply(plain, b"yes")
    assert caught.value.code == 10007


def test_whoever_asked_may_be_gone(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    asker, answerer = producer(embedded), producer(embedded)
    with pytest.raises(RequestTimedOut):
        asker.request(Message(topic, b"1"), timeout=0.1)
    asker.close()
    with pytest.raises(SendFailed) as caught:
        answerer.reply(asked(embedded, topic, b"1"), b"yes", timeout=2.0)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_requests_work_in_a_namespace(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    embedded.topic(name=f"prod%{topic}")
    options = ClientOptions(namespace="prod")
    asker = producer(embedded, client_options=options)
    answerer = producer(embedded, client_options=options)
    with ThreadPoolExecutor(1) as pool:
        receipt = answering(
            embedded, f"prod%{topic}", b"1", lambda one: answerer.reply(one, b"yes"), pool
        )
        assert asker.request(Message(topic, b"1"), timeout=10.0).body == b"yes"
        assert receipt().queue.topic == "DefaultCluster_REPLY_TOPIC"


def test_a_request_can_be_submitted(embedded: Embedded, kind: Kind, producer: MakeProducer) -> None:
    if kind == "async":
        pytest.skip("a task does it")
    topic = embedded.topic()
    asker = producer(embedded)
    assert isinstance(asker, Producer)
    future = asker.submit_request(Message(topic, b"1"), timeout=10.0)
    asker.reply(asked(embedded, topic, b"1"), b"yes")
    assert future.result(10.0).body == b"yes"
