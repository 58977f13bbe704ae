"""Signed requests, TLS and proxies."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Client, ConsumerOptions, Producer, PushConsumer, Retry, SimpleConsumer
from downrange.embedded import Cluster
from downrange.errors import (
    ConnectFailed,
    NoPermission,
    PopNotSupported,
    SendNotPermitted,
    TlsFailed,
)
from downrange.model import Message
from downrange.options import (
    TLS,
    BrokerOptions,
    ClientOptions,
    Credentials,
    ListenerOptions,
    Proxy,
    SimpleOptions,
)
from downrange.tls import client_context, server_context
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import ACCOUNTS, cluster_or_skip
from tests.apache.security import make_tls_files
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import SERVERS
from tests.embedded.socks import SocksProxy
from tests.support.waiting import wait_until
from tests.unit.server.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from downrange import ReceivedMessage
    from tests.apache.security import TlsFiles
    from tests.contract.conftest import Embedded, Make, MakeProducer
    from tests.contract.servers import Server

USER = ACCOUNTS.others[0]
GOOD = Credentials(USER.access_key, USER.secret_key)
TOPIC = "OpenTopic"
USER_GROUP = "OpenGroup"


# ---- accounts ------------------------------------------------------------------------------------


def check_heartbeats(sender: Producer) -> None:
    """Wait for the first heartbeats, and check that none was refused."""

    def has_run() -> bool:
        timer = sender.client.stats().timers.get("heartbeats")
        return timer is not None and timer.runs > 0

    wait_until(has_run)
    assert sender.client.stats().timers["heartbeats"].failures == 0


def test_an_account_may_do_what_it_is_allowed_to(guarded: str, producer: MakeProducer) -> None:
    sender = producer(guarded, credentials=GOOD)
    first = sender.send(Message(TOPIC, b"1"))
    sender.send_oneway(Message(TOPIC, b"2"))
    assert sender.submit(Message(TOPIC, b"3")).result(LONG_TIMEOUT).message_id != first.message_id
    assert len(sender.send_batch([Message(TOPIC, b"4"), Message(TOPIC, b"5")])) == 2
    check_heartbeats(sender)


def test_a_group_consumer_signs_its_requests(
    guarded: str, producer: MakeProducer, make: Make
) -> None:
    bodies: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if message.body == body and not message.delivery_attempts:
            raise Retry(after=1)

    body = secrets.token_hex(5).encode()
    sender = producer(guarded, credentials=GOOD)
    sender.send(Message(TOPIC, body))
    consumer = make(
        PushConsumer,
        guarded,
        group=USER_GROUP,
        subscribe=TOPIC,
        handler=handle,
        options=ConsumerOptions(start="earliest"),
        credentials=GOOD,
    ).start()
    wait_until(lambda: bodies.count(body) == 2)
    wait_until(lambda: consumer.health().is_healthy)
    consumer.close()


def test_an_account_may_do_no_more_than_that(guarded: str, producer: MakeProducer) -> None:
    with pytest.raises(SendNotPermitted, match="ForeignTopic") as caught:
        producer(guarded, credentials=GOOD).send(Message("ForeignTopic", b"1"))
    assert all(isinstance(attempt.error, NoPermission) for attempt in caught.value.attempts)
    assert isinstance(caught.value, PermissionError)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        Credentials(USER.access_key, "another-secret"),
        Credentials("unknown-key", USER.secret_key),
    ],
    ids=["missing", "wrong-secret", "unknown-key"],
)
def test_unknown_accounts_may_do_nothing(
    guarded: str, producer: MakeProducer, wrong: Credentials | None
) -> None:
    sender = producer(guarded, credentials=wrong)
    with pytest.raises(SendNotPermitted, match="Check the access key"):
        sender.send(Message(TOPIC, b"1"))


def test_requests_of_every_kind_are_signed(guarded: str, producer: MakeProducer) -> None:
    for codec in ("json", "binary"):
        options = ClientOptions(header_codec=codec)
        sender = producer(guarded, credentials=GOOD, client_options=options)
        sender.send(Message(TOPIC, "größer als ASCII".encode(), properties={"name": "Käthe"}))


def test_the_zone_in_a_request_is_part_of_its_signature(
    guarded: str, producer: MakeProducer
) -> None:
    options = ClientOptions(zone="east")
    sender = producer(guarded, credentials=GOOD, client_options=options)
    assert sender.send(Message(TOPIC, b"1")).offset >= 0
    check_heartbeats(sender)


def test_secrets_appear_in_no_text(
    guarded: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    secret = Credentials(USER.access_key, "sesame-open-up", "token-of-trust")
    caplog.set_level(logging.DEBUG, "downrange")
    with make(Client, guarded, credentials=secret) as client:
        producer = make(Producer, client, group="g").start()
        with pytest.raises(SendNotPermitted) as caught:
            producer.send(Message(TOPIC, b"1"))
        texts = [repr(secret), repr(client), repr(producer), repr(client.stats())]
    texts += [str(caught.value), repr(caught.value), caplog.text]
    assert not [text for text in texts if "sesame" in text or "token-of" in text]


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SERVERS)
def encrypted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, TlsFiles]]:
    """Give the name server of a cluster that requires TLS, and its certificate files."""
    if request.param == "embedded":
        files = make_tls_files(tmp_path_factory.mktemp("tls"))
        with Cluster(
            tls=server_context(files.certificate, files.key),
            client_tls=client_context(ca=files.authority, is_name_checked=False),
            listener=ListenerOptions(host="0.0.0.0", tls_mode="enforcing"),
            broker=BrokerOptions(advertised_host="127.0.0.1"),
        ) as cluster:
            yield cluster.name_server.replace("0.0.0.0", "127.0.0.1"), files
        return
    with cluster_or_skip(lambda: ApacheCluster(request.param, tls="test")) as apache:
        assert apache.tls is not None
        yield apache.name_server, apache.tls


def test_a_trusted_server_is_used(encrypted: tuple[str, TlsFiles], producer: MakeProducer) -> None:
    name_server, files = encrypted
    sender = producer(name_server, tls=TLS(ca=files.authority))
    sender.send(Message("orders", b"1"))
    assert sender.submit(Message("orders", b"x" * 100_000)).result(LONG_TIMEOUT).attempts == 1
    sender.send_oneway(Message("orders", b"2"))


def test_a_group_consumer_uses_tls(
    encrypted: tuple[str, TlsFiles], producer: MakeProducer, make: Make
) -> None:
    name_server, files = encrypted
    tls, topic = TLS(ca=files.authority), f"topic_{secrets.token_hex(5)}"
    producer(name_server, tls=tls).send(Message(topic, b"1"))
    bodies: list[bytes] = []
    consumer = make(
        PushConsumer,
        name_server,
        group=topic,
        subscribe=topic,
        handler=lambda message: bodies.append(message.body),
        options=ConsumerOptions(start="earliest"),
        tls=tls,
    ).start()
    wait_until(lambda: bodies == [b"1"])
    consumer.close()


def test_a_simple_consumer_uses_tls(
    encrypted: tuple[str, TlsFiles],
    producer: MakeProducer,
    make: Make,
    request: pytest.FixtureRequest,
) -> None:
    name_server, files = encrypted
    tls, topic = TLS(ca=files.authority), f"topic_{secrets.token_hex(5)}"
    producer(name_server, tls=tls).send(Message(topic, b"1"))
    # The broker has created the topic; the name server may learn of it a moment later.
    wait_until(lambda: probe.route(name_server, topic, tls=files.client_context()))
    consumer = make(
        SimpleConsumer,
        name_server,
        group=topic,
        subscribe=topic,
        options=SimpleOptions(start="earliest"),
        tls=tls,
    )
    if request.node.callspec.params["encrypted"] == "4.9.4":
        with pytest.raises(PopNotSupported):
            consumer.start().receive(timeout=LONG_TIMEOUT)
        return
    (message,) = consumer.start().receive(timeout=LONG_TIMEOUT)
    assert message.body == b"1"
    consumer.ack([message])
    consumer.close()


def test_a_given_ssl_context_is_used(
    encrypted: tuple[str, TlsFiles], producer: MakeProducer
) -> None:
    name_server, files = encrypted
    own = client_context(ca=files.authority)
    producer(name_server, tls=TLS(context=own)).send(Message("orders", b"1"))


def test_a_server_that_is_not_trusted_is_refused(
    encrypted: tuple[str, TlsFiles], make: Make, tmp_path: Path
) -> None:
    name_server, _ = encrypted
    other_authority = make_authority(tmp_path, "other_authority").certificate
    with pytest.raises(TlsFailed, match="certificate") as caught:
        make(Producer, name_server, group="g", tls=TLS(ca=other_authority)).start()
    assert name_server in str(caught.value)


def test_a_certificate_must_name_the_host(
    encrypted: tuple[str, TlsFiles], make: Make, producer: MakeProducer
) -> None:
    """The certificate names localhost and 127.0.0.1, but not 127.0.0.2."""
    name_server, files = encrypted
    other_host = name_server.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(TlsFailed, match=r"127\.0\.0\.2"):
        make(Producer, other_host, group="g", tls=TLS(ca=files.authority)).start()
    unchecked = TLS(ca=files.authority, check_host=False)
    assert producer(other_host, tls=unchecked).state == "running"


def test_plain_text_is_refused_by_a_server_that_requires_tls(
    encrypted: tuple[str, TlsFiles], make: Make
) -> None:
    name_server, _ = encrypted
    options = ClientOptions(call_timeout=2.0)
    with pytest.raises(Exception, match=name_server) as caught:
        make(Producer, name_server, group="g", client_options=options).start()
    assert isinstance(caught.value, ConnectionError | TimeoutError)


def test_a_server_without_tls_is_refused_by_a_client_that_requires_it(make: Make) -> None:
    with Cluster(listener=ListenerOptions(tls_mode="disabled")) as cluster:
        producer: Any = make(Producer, cluster.name_server, group="g", tls=TLS(verify=False))
        with pytest.raises(ConnectFailed, match=cluster.name_server):
            producer.start()


# ---- proxies -------------------------------------------------------------------------------------


def test_everything_goes_through_a_proxy(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    with SocksProxy(account=("shop", "sesame")) as proxy:
        through = Proxy(proxy.address, "shop", "sesame")
        sender = producer(server, proxy=through)
        sender.send(Message(topic, b"1"))
        sender.submit(Message(topic, b"2")).result(LONG_TIMEOUT)
        sender.close()
        asked = {f"{host}:{port}" for host, port in proxy.asked}
    assert asked == {server.name_server, *server.brokers}
    assert len(server.read_all(topic, 2)) == 2


def test_a_refusal_of_the_proxy_names_the_proxy(embedded: Embedded, make: Make) -> None:
    with SocksProxy(account=("shop", "sesame")) as proxy:
        wrong = Proxy(proxy.address, "shop", "open-up")
        with pytest.raises(ConnectFailed, match=proxy.address) as caught:
            make(Producer, embedded.name_server, group="g", proxy=wrong).start()
    assert "open-up" not in str(caught.value)
