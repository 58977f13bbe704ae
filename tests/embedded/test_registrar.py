"""The registration of a broker with several name servers: losses, refusals and removal."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import OptionError
from downrange.options import ListenerOptions
from downrange.server.net import interception
from downrange.server.net.listener import Listener
from downrange.server.net.remote import RemotePeer
from downrange.server.outputs import (
    BrokerIdentity,
    LateReply,
    OnReply,
    Output,
    Peer,
    Reply,
)
from downrange.server.run.name_server import NameServer
from downrange.server.run.registrar import Registrar
from downrange.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    RouteBody,
    TopicConfig,
    TopicTableBody,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import PutKeyValueRequest, RegisterBrokerRequest, RouteRequest
from downrange.wire.registration import registration_crc
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

#: Long enough for a busy machine; a test that passes does not wait for it.
WAIT = 60.0
REGISTER = int(RequestCode.REGISTER_BROKER)
IDENTITY = BrokerIdentity(
    name="broker-a",
    cluster="DefaultCluster",
    broker_id=0,
    address="127.0.0.1:10911",
    ha_address="127.0.0.1:10912",
)


class Topics:
    """The topics of a broker that does not exist."""

    def __init__(self, *names: str) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        self.add(*names)

    def add(self, *names: str) -> list[TopicConfig]:
        added = [TopicConfig(topic_name=name) for name in names]
        self._topics.update({topic.topic_name: topic for topic in added})
        self.version = DataVersion(timestamp=1, counter=self.version.counter + 1)
        return added

    def table(self) -> TopicTableBody:
        return TopicTableBody(topic_config_table=self._topics, data_version=self.version)


class RecordingNameServer:
    """Accepts every registration, and keeps it; while it is silent, also its reply."""

    def __init__(self) -> None:
        self.is_silent = False
        self.kept: list[LateReply] = []
        self.tables: list[TopicTableBody] = []
        self.codes: list[int] = []
        self.reply_body = b""

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        self.codes.append(request.code)
        if request.code == REGISTER:
            header = RegisterBrokerRequest.from_fields(request.fields)
            assert header.body_crc32 == registration_crc(request.body)
            assert b"null" not in request.body
            body = decode_body(RegisterBrokerBody, request.body)
            self.tables.append(body.topic_config_serialize_wrapper)
        reply = Command(0, body=self.reply_body)
        if self.is_silent:
            self.kept.append(LateReply(peer.number, request, reply))
            return ()
        return [Reply(reply)]

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        return ()

    @property
    def seen(self) -> list[list[str]]:
        """The topics of each registration."""
        return [sorted(table.topic_config_table) for table in self.tables]


@asynccontextmanager
async def _stage(
    topics: Topics, **settings: Any
) -> AsyncGenerator[tuple[RecordingNameServer, Listener, Registrar]]:
    service = RecordingNameServer()
    listener = Listener(service, ListenerOptions(stop_timeout=0.1))
    await listener.start()
    settings = {"announce_timeout": WAIT, **settings}
    registrar = Registrar(IDENTITY, [listener.address], topics.table, **settings)
    await registrar.start()
    try:
        yield service, listener, registrar
    finally:
        await registrar.stop()
        await listener.stop()


async def _route(server: NameServer, topic: str) -> RouteBody | None:
    remote = RemotePeer(server.address)
    reply = await remote.ask(request_command(RouteRequest(topic=topic)), WAIT)
    await remote.close()
    return decode_body(RouteBody, reply.body) if reply.code == ResponseCode.SUCCESS else None


def test_a_broker_has_routes_at_every_name_server_until_it_leaves() -> None:
    async def play() -> None:
        servers = [NameServer(), NameServer()]
        for server in servers:
            await server.start()
        topics = Topics("one", "two")
        registrar = Registrar(IDENTITY, [server.address for server in servers], topics.table)
        await registrar.start()
        for server in servers:
            route = await _route(server, "two")
            assert route is not None
            (replicas,) = route.broker_datas
            assert (replicas.broker_name, replicas.cluster) == ("broker-a", "DefaultCluster")
            assert replicas.broker_addrs == {0: "127.0.0.1:10911"}
        await registrar.announce(topics.add("three"), topics.version)
        for server in servers:
            assert await _route(server, "three") is not None
        await registrar.stop()
        for server in servers:
            assert await _route(server, "one") is None
            await server.stop()

    asyncio.run(play())


def test_the_whole_table_goes_first_then_only_what_changed() -> None:
    async def play() -> None:
        topics = Topics("one", "two")
        async with _stage(topics) as (service, _, registrar):
            added = topics.add("three")
            version = topics.version
            topics.add("four")
            await registrar.announce(added, version)
            await registrar.announce([TopicConfig(topic_name="four")])
            await registrar.announce()
        assert service.seen == [
            ["one", "two"],
            ["three"],
            ["four"],
            ["four", "one", "three", "two"],
        ]
        assert [table.data_version.counter for table in service.tables] == [1, 2, 3, 3]
        assert service.codes[-1] == RequestCode.UNREGISTER_BROKER

    asyncio.run(play())


def test_a_broker_registers_at_every_interval() -> None:
    async def play() -> None:
        async with _stage(Topics("one"), interval=0.01) as (service, _, _):
            await wait_until_async(lambda: len(service.tables) >= 4)
            assert set(map(tuple, service.seen)) == {("one",)}

    asyncio.run(play())


def test_a_lost_connection_is_followed_by_a_whole_registration() -> None:
    async def play() -> None:
        async with _stage(Topics("one", "two"), retry_interval=0.01) as (service, listener, _):
            listener._dispatcher.connections.popitem()[1].abort()
            await wait_until_async(lambda: len(service.tables) == 2)
        assert service.seen == [["one", "two"]] * 2

    asyncio.run(play())


def test_a_change_after_a_lost_connection_registers_the_whole_table() -> None:
    async def play() -> None:
        topics = Topics("one", "two")
        async with _stage(topics, retry_interval=60.0, interval=60.0) as (
            service,
            listener,
            registrar,
        ):
            (connection,) = listener._dispatcher.connections.values()
            connection.abort()
            await wait_until_async(lambda: not registrar._registrations[0].peer.is_connected)
            await registrar.announce(topics.add("three"), topics.version)
        assert service.seen == [["one", "two"], ["one", "three", "two"]]

    asyncio.run(play())


def test_an_unreachable_name_server_is_logged_once_and_used_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))  # taken until the name server is there
    port = unused.getsockname()[1]

    async def play() -> None:
        there = NameServer()
        await there.start()
        topics = Topics("one", "two")
        addresses = [there.address, f"127.0.0.1:{port}"]
        registrar = Registrar(
            IDENTITY, addresses, topics.table, retry_interval=0.01, announce_timeout=WAIT
        )
        await registrar.start()
        assert await _route(there, "one") is not None
        await registrar.announce(topics.add("three"), topics.version)
        assert await _route(there, "three") is not None
        service = RecordingNameServer()
        unused.close()
        listener = Listener(service, ListenerOptions(port=port, stop_timeout=0.1))
        await listener.start()
        await wait_until_async(lambda: f"127.0.0.1:{port} is back" in caplog.text)
        assert service.seen[0] == ["one", "three", "two"]
        await registrar.stop()
        await listener.stop()
        await there.stop()

    asyncio.run(play())
    assert caplog.text.count(f"name server 127.0.0.1:{port} cannot be used") == 1


def test_a_refusal_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with _stage(Topics("one"), retry_interval=0.01) as (service, listener, registrar):
            listener.intercept = lambda request, peer: interception.refuse(1, "crc32 not match")
            await registrar.announce()
            listener.intercept = None
            await wait_until_async(lambda: len(service.tables) == 2)
            # The reply is on its way when the server has the table.
            await wait_until_async(lambda: "is back" in caplog.text)

    asyncio.run(play())
    assert "refuses with code 1: crc32 not match; trying again" in caplog.text


def test_an_announcement_waits_for_its_timeout_and_continues_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("downrange.server.run.registrar._REGISTER_TIMEOUT", 10 * WAIT)

    async def play() -> None:
        topics = Topics("one", "two")
        async with _stage(topics, announce_timeout=0.02) as (service, listener, registrar):
            service.is_silent = True
            async with asyncio.timeout(WAIT):
                await registrar.announce(topics.add("three"), topics.version)
            await wait_until_async(lambda: service.kept)
            service.is_silent = False
            listener.perform(service.kept)
            # A registration that had not been finished would be followed by the whole table.
            await registrar.announce(topics.add("four"), topics.version)
            await wait_until_async(lambda: len(service.tables) == 3)
            assert service.seen[1:] == [["three"], ["four"]]

    asyncio.run(play())


def test_order_topics_of_a_name_server_are_passed_on() -> None:
    async def play() -> None:
        received: list[dict[str, str]] = []
        server = NameServer()
        await server.start()
        remote = RemotePeer(server.address)
        put = PutKeyValueRequest(namespace="ORDER_TOPIC_CONFIG", key="one", value="broker-a:4")
        await remote.ask(request_command(put), WAIT)
        await remote.close()
        topics = Topics("one", "two")
        registrar = Registrar(
            IDENTITY, [server.address], topics.table, on_order_topics=received.append
        )
        await registrar.start()
        assert received == [{"one": "broker-a:4"}]
        await registrar.stop()
        await server.stop()

    asyncio.run(play())


def test_an_error_in_on_order_topics_does_not_end_the_registration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(table: dict[str, str]) -> None:
        raise RuntimeError("odd")

    async def play() -> None:
        topics = Topics("one")
        async with _stage(topics, interval=0.01, on_order_topics=fail) as (service, _, _):
            service.reply_body = b'{"table":{}}'
            await wait_until_async(lambda: len(service.tables) >= 4)

    asyncio.run(play())
    assert "RuntimeError: odd" in caplog.text


def test_an_abandoned_broker_does_not_unregister() -> None:
    async def play() -> None:
        async with _stage(Topics("one")) as (service, listener, registrar):
            await registrar.abandon()
            await wait_until_async(lambda: listener.connection_count == 0)
        assert service.codes == [REGISTER]

    asyncio.run(play())


def test_an_unanswered_unregistration_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("downrange.server.run.registrar._UNREGISTER_TIMEOUT", 0.02)
    caplog.set_level("INFO")

    async def play() -> None:
        async with _stage(Topics("one")) as (_, listener, registrar):
            listener.intercept = lambda request, peer: interception.drop()
            await registrar.stop()

    asyncio.run(play())
    assert "broker broker-a could not unregister: 127.0.0.1" in caplog.text


def test_a_question_goes_to_the_next_name_server_until_one_replies() -> None:
    async def play() -> None:
        async with _stage(Topics("one")) as (service, listener, _):
            silent = Listener(RecordingNameServer(), ListenerOptions(stop_timeout=0.1))
            await silent.start()
            silent.intercept = lambda request, peer: interception.drop()
            addresses = ["127.0.0.1:1", silent.address, listener.address]
            asking = Registrar(IDENTITY, addresses, Topics("one").table)
            service.reply_body = b"found"
            request = Command(105, {"topic": "T"})
            reply = await asking.ask(request, WAIT)
            assert reply is not None
            assert (reply.code, reply.body) == (0, b"found")
            assert await asking.ask(request, WAIT) is not None
            assert service.codes.count(105) == 2
            assert await asking.ask(request, 0.01) is None  # the silent one is asked, no other
            assert service.codes.count(105) == 2
            await asking.abandon()
            assert await asking.ask(request, 5.0) is None
            await silent.stop()

    asyncio.run(play())


def test_without_name_servers_nothing_happens() -> None:
    async def play() -> None:
        registrar = Registrar(IDENTITY, [], Topics("one").table)
        await registrar.start()
        await registrar.announce()
        assert await registrar.ask(Command(105, {"topic": "T"}), 5.0) is None
        await registrar.stop()

    asyncio.run(play())


def test_an_invalid_address_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="'nowhere' is not an address"):
        Registrar(IDENTITY, ["nowhere"], Topics("one").table)
