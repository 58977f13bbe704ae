"""Request-reply: replies that arrive, arrive late, or never arrive."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from downrange import Producer
from downrange.embedded import Cluster, cut, refuse
from downrange.errors import InvalidMessage, RequestTimedOut, RocketMQError, SendFailed
from downrange.model import Message
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode, ResponseCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import Embedded as EmbeddedServer
from tests.support.options import SHORT_TIMES
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.model import ReceivedMessage, SendReceipt
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server


def stored_request(server: Server, topic: str, body: bytes) -> ReceivedMessage:
    """Return the request with this body, after waiting until it is stored."""

    def look() -> ReceivedMessage | None:
        return next((one for one in server.read_all(topic, 0) if one.body == body), None)

    return wait_until(look)


def reply_in_thread(
    server: Server,
    topic: str,
    body: bytes,
    reply: Callable[[ReceivedMessage], SendReceipt],
    pool: ThreadPoolExecutor,
) -> Callable[[], SendReceipt]:
    """Reply to a request in a thread; return a function that waits for the receipt."""
    return pool.submit(lambda: reply(stored_request(server, topic, body))).result


def request_in_vain(requester: Producer, message: Message) -> None:
    """Send a request that gets no reply, and check that it ends in time.

    A busy machine may need a short time for the send alone, so the next time is longer.
    """
    error: RocketMQError | None = None
    for timeout in (0.3, 2.0, 10.0):
        started = time.monotonic()
        with pytest.raises(RocketMQError) as caught:
            requester.request(message, timeout=timeout)
        error = caught.value
        if isinstance(error, RequestTimedOut):
            assert timeout - 0.1 < time.monotonic() - started < timeout + LONG_TIMEOUT / 2
            assert f"no reply came within {timeout:g} s" in str(error)
            return
    raise AssertionError("not even the send ended in time") from error


def test_a_request_is_answered(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    requester, responder = producer(server), producer(server)
    long = b"12.5" * 2000  # travels compressed

    def reply(request: ReceivedMessage) -> SendReceipt:
        return responder.reply(request, long, tags="t", keys=["k"], properties={"colour": "red"})

    with ThreadPoolExecutor(1) as pool:
        receipt = reply_in_thread(server, topic, b"ACME", reply, pool)
        answer = requester.request(Message(topic, b"ACME"), timeout=20.0)
        assert answer.message_id == receipt().message_id
    assert (answer.body, answer.tags, answer.keys) == (long, "t", ["k"])
    assert answer.properties["colour"] == "red"
    assert answer.topic == "DefaultCluster_REPLY_TOPIC"
    (request,) = server.read_all(topic, 1)
    assert request.properties["REPLY_TO_CLIENT"] == requester.client.stats().client_id
    assert request.properties["TTL"] == "20000"


def test_a_request_without_a_reply_times_out_and_a_late_reply_is_counted(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    requester, responder = producer(server), producer(server)
    request_in_vain(requester, Message(topic, b"ACME"))
    responder.reply(stored_request(server, topic, b"ACME"), b"late")
    wait_until(lambda: requester.client.stats().producers[requester.group].late_replies == 1)


def test_requests_at_the_same_time_get_their_own_answers(
    server: Server, producer: MakeProducer
) -> None:
    topic = server.topic()
    requester, responder = producer(server), producer(server)
    texts = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(
            lambda text: requester.request(Message(topic, text), timeout=30.0), texts
        )
        for request in wait_until(lambda: server.read_all(topic, len(texts)))[::-1]:
            responder.reply(request, b"re:" + request.body)
        assert [answer.body for answer in answers] == [b"re:" + text for text in texts]


def test_a_reply_may_be_sent_through_a_broker_without_the_topic(
    producer: MakeProducer, unique_name: UniqueName
) -> None:
    with Cluster(brokers=2, broker=SHORT_TIMES) as cluster:
        server = EmbeddedServer(cluster)
        both, server.brokers = server.brokers, server.brokers[:1]
        topic = server.topic(name=unique_name("topic"))
        requester, responder = producer(server), producer(server)
        with ThreadPoolExecutor(1) as pool:
            through = set[str]()
            for number in range(6):
                body = b"%d" % number
                receipt = reply_in_thread(
                    server, topic, body, lambda one: responder.reply(one, b"yes"), pool
                )
                assert requester.request(Message(topic, body), timeout=LONG_TIMEOUT).body == b"yes"
                assert receipt().failures == ()
                through.add(receipt().queue.broker)
        assert len(through) == len(both) == 2
        requester.close()
        responder.close()
        server.close()


def test_a_reply_arrives_after_the_connection_was_cut_once(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    requester, responder = producer(embedded), producer(embedded)
    request_in_vain(requester, Message(topic, b"unanswered"))
    cuts = [cut()]
    embedded.cluster.intercept(
        RequestCode.SEND_MESSAGE_V2, lambda command, peer: cuts.pop() if cuts else None
    )
    # Submitted messages use the same connection as replies.
    assert requester.submit(Message(topic, b"cut")).result(LONG_TIMEOUT).attempts == 2
    with ThreadPoolExecutor(1) as pool:
        receipt = reply_in_thread(
            embedded, topic, b"again", lambda one: responder.reply(one, b"yes"), pool
        )
        assert requester.request(Message(topic, b"again"), timeout=LONG_TIMEOUT).body == b"yes"
        assert receipt().failures == ()


def test_a_request_that_every_broker_refuses_fails_at_once(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    requester = producer(embedded)
    refusal = refuse(ResponseCode.MESSAGE_ILLEGAL, "not this one")
    embedded.cluster.intercept(RequestCode.SEND_MESSAGE_V2, lambda command, peer: refusal)
    started = time.monotonic()
    with pytest.raises(SendFailed, match="not this one"):
        requester.request(Message(topic, b"1"), timeout=20.0)
    assert time.monotonic() - started < 10.0


def test_a_plain_message_cannot_be_replied_to(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded)
    sender.send(Message(topic, b"1"))
    (plain,) = embedded.read_all(topic, 1)
    with pytest.raises(InvalidMessage, match="was not sent with request") as caught:
        sender.reply(plain, b"yes")
    assert caught.value.code == 10007


def test_a_reply_fails_when_the_requester_is_closed(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    requester, responder = producer(embedded), producer(embedded)
    request_in_vain(requester, Message(topic, b"1"))
    requester.close()
    with pytest.raises(SendFailed) as caught:
        responder.reply(stored_request(embedded, topic, b"1"), b"yes", timeout=LONG_TIMEOUT)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_requests_work_in_a_namespace(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    embedded.topic(name=f"prod%{topic}")
    options = ClientOptions(namespace="prod")
    requester = producer(embedded, client_options=options)
    responder = producer(embedded, client_options=options)
    with ThreadPoolExecutor(1) as pool:
        receipt = reply_in_thread(
            embedded, f"prod%{topic}", b"1", lambda one: responder.reply(one, b"yes"), pool
        )
        assert requester.request(Message(topic, b"1"), timeout=LONG_TIMEOUT).body == b"yes"
        assert receipt().queue.topic == "DefaultCluster_REPLY_TOPIC"


def test_a_request_can_be_submitted(embedded: Embedded, kind: Kind, producer: MakeProducer) -> None:
    if kind == "async":
        pytest.skip("asyncio uses a task instead")
    topic = embedded.topic()
    requester = producer(embedded)
    assert isinstance(requester, Producer)
    future = requester.submit_request(Message(topic, b"1"), timeout=LONG_TIMEOUT)
    requester.reply(stored_request(embedded, topic, b"1"), b"yes")
    assert future.result(LONG_TIMEOUT).body == b"yes"
