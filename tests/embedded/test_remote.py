"""Requests of a server to another one: connecting, pipelining, deadlines, losses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    LinkClosed,
    OptionError,
    WireError,
)
from downrange.options import ListenerOptions
from downrange.server.net import interception
from downrange.server.net.listener import Listener
from downrange.server.net.remote import RemotePeer
from downrange.server.outputs import Call, LateReply, OnReply, Output, Peer, Push, Reply
from downrange.wire.codes import ResponseCode
from downrange.wire.command import Command
from downrange.wire.signatures import SIGNATURE, signature
from tests.apache.security import make_tls_files
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from pathlib import Path

ECHO, KEEP, RELEASE, ASK_BACK = range(1, 5)
#: Long enough for a busy machine; a test that passes does not wait for it.
WAIT = 60.0


class EchoService:
    """Echoes requests; keeps those with the code KEEP until it gets RELEASE."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.kept: list[LateReply] = []
        self.answers: list[Command | None] = []

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        self.requests.append(request)
        reply = Command(0, dict(request.fields), request.body)
        if request.code == KEEP:
            self.kept.append(LateReply(peer.number, request, reply))
            return ()
        if request.code == RELEASE:
            return [*self.kept, Reply(reply)]
        if request.code == ASK_BACK:
            late = LateReply(peer.number, request, reply)
            return [
                Push(peer.number, Command(40)),
                Call(peer.number, Command(307), WAIT, self._then(late)),
            ]
        return [Reply(reply)]

    def _then(self, late: LateReply) -> Any:
        def then(answer: Command | None, now_ms: int) -> Iterable[Output]:
            self.answers.append(answer)
            return [late]

        return then

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        return ()


@asynccontextmanager
async def _stage(
    server_tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", **settings: Any
) -> AsyncGenerator[tuple[EchoService, Listener, RemotePeer]]:
    service = EchoService()
    listener = Listener(service, ListenerOptions(host=host, stop_timeout=0.1), tls=server_tls)
    await listener.start()
    remote = RemotePeer(listener.address, **settings)
    try:
        yield service, listener, remote
    finally:
        await remote.close()
        await listener.stop()


def test_calls_share_one_connection_and_do_not_wait_for_each_other() -> None:
    async def play() -> None:
        async with _stage() as (service, listener, remote):
            assert not remote.is_connected
            kept = [
                asyncio.create_task(remote.ask(Command(KEEP, body=b"%d" % n), WAIT))
                for n in range(3)
            ]
            assert (await remote.ask(Command(ECHO, body=b"echo"), WAIT)).body == b"echo"
            await remote.oneway(Command(ECHO, body=b"one-way"))
            await remote.ask(Command(RELEASE), WAIT)
            assert [(await call).body for call in kept] == [b"0", b"1", b"2"]
            assert listener.connection_count == 1
            assert remote.is_connected
            assert service.requests[4].is_oneway

    asyncio.run(play())


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_names_and_ipv6_addresses_are_reached(host: str) -> None:
    async def play() -> None:
        async with _stage(host=host) as (_, listener, _):
            port = listener.address.rpartition(":")[2]
            remote = RemotePeer(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            assert (await remote.ask(Command(ECHO), WAIT)).code == 0
            await remote.close()

    asyncio.run(play())


def test_a_call_that_is_not_answered_in_time_fails_and_the_connection_goes_on() -> None:
    async def play() -> None:
        async with _stage() as (_, listener, remote):
            with pytest.raises(CallTimeout, match=f"{listener.address}: no answer within 0.05 s"):
                await remote.ask(Command(KEEP), 0.05)
            await remote.ask(Command(RELEASE), WAIT)  # the late reply is ignored
            assert (await remote.ask(Command(ECHO), WAIT)).code == 0
            assert listener.connection_count == 1

    asyncio.run(play())


def test_calls_fail_when_the_connection_is_lost_and_the_next_connects_anew() -> None:
    async def play() -> None:
        async with _stage() as (_, listener, remote):
            lost: list[bool] = []
            remote.on_lost = lambda: lost.append(remote.is_connected)
            listener.intercept = lambda request, peer: (
                interception.cut() if request.code == ECHO else None
            )
            kept = asyncio.create_task(remote.ask(Command(KEEP), WAIT))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionLost, match=listener.address):
                await remote.ask(Command(ECHO), WAIT)
            with pytest.raises(ConnectionLost):
                await kept
            assert lost == [False]
            listener.intercept = None
            assert (await remote.ask(Command(ECHO), WAIT)).code == 0

    asyncio.run(play())


def test_a_peer_that_breaks_the_protocol_is_cut() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff" * 8)
        await reader.read()
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        remote = RemotePeer(f"127.0.0.1:{port}")
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await remote.ask(Command(ECHO), WAIT)
        await remote.close()
        server.close()
        await server.wait_closed()

    asyncio.run(play())


def test_an_unreachable_peer_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"

        async def play() -> None:
            remote = RemotePeer(address)
            with pytest.raises(ConnectFailed, match=f"{address}: cannot connect: "):
                await remote.ask(Command(ECHO), WAIT)
            with pytest.raises(ConnectFailed):
                await remote.oneway(Command(ECHO))
            assert not remote.is_connected

        asyncio.run(play())


def test_a_peer_that_does_not_accept_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        # Connections that are not accepted fill the backlog; the next SYN gets no answer.
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)

        async def play() -> None:
            remote = RemotePeer(f"127.0.0.1:{address[1]}", connect_timeout=0.1)
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.1 s"):
                await remote.ask(Command(ECHO), WAIT)
            with pytest.raises(CallTimeout, match=r"no answer within 0\.05 s"):
                await remote.ask(Command(ECHO), 0.05)
            with pytest.raises(CallTimeout, match=r"no answer within 0\.1 s"):
                await remote.oneway(Command(ECHO))

        try:
            asyncio.run(play())
        finally:
            for one in waiting:
                one.close()


def test_requests_of_the_other_side_are_refused_in_order() -> None:
    async def play() -> None:
        async with _stage() as (service, _, remote):
            assert (await remote.ask(Command(ASK_BACK), WAIT)).code == 0
            (answer,) = service.answers
            assert answer is not None
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    asyncio.run(play())


def test_commands_are_signed_when_credentials_are_given() -> None:
    async def play() -> None:
        async with _stage(credentials=("key", "secret")) as (service, _, remote):
            await remote.ask(Command(ECHO, {"a": "b"}, b"body"), WAIT)
            await remote.oneway(Command(ECHO))
            await remote.ask(Command(ECHO), WAIT)
            for request in service.requests:
                assert request.fields["AccessKey"] == "key"
                expected = signature(request.fields, request.body, "secret")
                assert request.fields[SIGNATURE] == expected

    asyncio.run(play())


def test_tls_is_spoken_and_a_wrong_certificate_is_a_failure_to_connect(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)

    async def play() -> None:
        async with _stage(server, tls=files.client_context()) as (_, listener, remote):
            assert (await remote.ask(Command(ECHO), WAIT)).code == 0
            stranger = RemotePeer(listener.address, tls=ssl.create_default_context())
            with pytest.raises(ConnectFailed, match=r"(?i)certificate"):
                await stranger.ask(Command(ECHO), WAIT)

    asyncio.run(play())


def test_a_command_that_cannot_be_sent_fails_alone() -> None:
    async def play() -> None:
        async with _stage() as (_, _, remote):
            with pytest.raises(WireError):
                await remote.ask(Command(ECHO, body=bytes(20_000_000)), WAIT)
            assert (await remote.ask(Command(ECHO), WAIT)).code == 0

    asyncio.run(play())


def test_after_close_calls_fail_and_on_lost_is_not_called() -> None:
    async def play() -> None:
        async with _stage() as (_, _, remote):
            lost: list[int] = []
            remote.on_lost = lambda: lost.append(1)
            kept = asyncio.create_task(remote.ask(Command(KEEP), WAIT))
            await remote.ask(Command(ECHO), WAIT)
            await remote.close()
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await kept
            with pytest.raises(LinkClosed):
                await remote.ask(Command(ECHO), WAIT)
            assert lost == []

    asyncio.run(play())


def test_closing_while_a_call_connects_leaves_no_connection() -> None:
    async def play() -> None:
        async with _stage() as (_, listener, remote):
            call = asyncio.create_task(remote.ask(Command(ECHO), WAIT))
            await asyncio.sleep(0)
            await remote.close()
            with pytest.raises(LinkClosed):
                await call
            await wait_until_async(lambda: listener.connection_count == 0)

    asyncio.run(play())


def test_a_peer_that_does_not_close_its_side_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("downrange.server.net.remote._CLOSE_TIMEOUT", 0.05)

    async def play() -> None:
        async with _stage() as (_, listener, remote):
            await remote.ask(Command(ECHO), WAIT)
            channel = remote._channel
            assert channel is not None
            monkeypatch.setattr(channel._ended, "set", lambda: None)
            await remote.close()
            await wait_until_async(lambda: listener.connection_count == 0)

    asyncio.run(play())


@pytest.mark.parametrize("text", ["host", "::1:9"])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        RemotePeer(text)
