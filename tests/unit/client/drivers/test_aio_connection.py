"""Connections on an event loop: requests, replies, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from downrange.client.drivers import aio_connection
from downrange.client.drivers.aio_connection import Connection
from downrange.client.flows.effects import Flow, Pause
from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    TooManyInFlight,
    Unencodable,
)
from downrange.options import ClientOptions
from downrange.wire.codes import HeaderCodec
from downrange.wire.command import Command
from tests.support.waiting import WAIT_TIMEOUT, wait_until_async
from tests.unit.client.drivers.peers import (
    PATIENCE,
    FakeDialer,
    Peer,
    aio_driver,
    asking,
    refused,
    silence,
    with_driver,
)
from tests.unit.client.flows.flow_steps import route

if TYPE_CHECKING:
    from downrange.client.drivers.aio import AioDriver


# ---- requests and replies ------------------------------------------------------------------------


def test_a_request_is_answered_over_a_connection_that_is_kept() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        for body in (b"1", b"2"):
            assert (await driver.run(asking(driver, body))).body == body
        assert len(dialer.peers) == 1
        assert driver.addresses() == {"a:1": 0}

    with_driver(main)


def test_replies_close_to_each_other_keep_the_loop_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("downrange.busy_poll._yield_core", lambda: None)

    async def main(driver: AioDriver, _: FakeDialer) -> None:
        assert driver.busy_poll is not None
        async with asyncio.timeout(PATIENCE):
            while not driver.busy_poll.is_active:
                await driver.run(asking(driver))
        await wait_until_async(lambda: not driver.busy_poll or not driver.busy_poll.is_active)

    with_driver(main, options=ClientOptions(busy_poll=0.2))


def test_requests_of_one_turn_share_a_connection_and_a_write() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        writes: list[bytes] = []
        connection = driver.connection("a:1")
        transport: Any = connection._transport

        class Spy:
            def write(self, data: bytes) -> None:
                writes.append(data)
                transport.write(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

        connection._transport = Spy()  # type: ignore[assignment]
        replies = await asyncio.gather(*(driver.run(asking(driver, b"%d" % n)) for n in range(5)))
        assert [reply.body for reply in replies] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(writes) == 1

    with_driver(main)


def test_servers_have_a_connection_each() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await asyncio.gather(*(driver.run(asking(driver, address=f"{n}:1")) for n in "ab"))
        assert set(driver.addresses()) == {"a:1", "b:1"}

    with_driver(main)


def test_connections_are_counted_while_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))

        def grow(connection: Connection) -> int:
            """Make a connection while another is looked at, as the loop of another thread may."""
            driver._connections[f"b:{len(driver._connections)}"] = connection
            return 0

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "in_flight", property(grow))
            patch.setattr(Connection, "late_replies", property(grow))
            assert driver.addresses() == {"a:1": 0}
            assert driver.late_count() == 0
        for address in [one for one in driver._connections if one != "a:1"]:
            del driver._connections[address]

    with_driver(main)


def test_headers_are_written_as_the_options_say() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        assert dialer.peers[0].requests[0].codec is HeaderCodec.BINARY

    with_driver(main, options=ClientOptions(header_codec="binary"))


def test_no_more_requests_wait_on_a_connection_than_allowed() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        waiting = asyncio.ensure_future(driver.run(asking(driver)))
        await asyncio.sleep(0)
        with pytest.raises(TooManyInFlight):
            await driver.run(asking(driver))
        waiting.cancel()

    with_driver(main, FakeDialer(silence), ClientOptions(in_flight_max=1))


@pytest.mark.parametrize("is_oneway", [False, True])
def test_a_command_that_cannot_be_written_is_an_error_of_its_caller_alone(is_oneway: bool) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        with pytest.raises(Unencodable):
            await driver.run(asking(driver, is_oneway=is_oneway, fields={"a": "\ud800"}))
        await driver.run(asking(driver))
        assert len(dialer.peers) == 1

    with_driver(main)


# ---- late ----------------------------------------------------------------------------------------


def test_a_request_without_an_answer_is_late_at_its_deadline() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))  # to connect may take longer
        started = driver.clock.now()
        with pytest.raises(CallTimeout, match=r"a:1: no answer within \d+\.\d+ s"):
            await driver.run(asking(driver, timeout=0.02))
        assert 0.02 <= driver.clock.now() - started < WAIT_TIMEOUT
        assert driver.addresses() == {"a:1": 0}

    with_driver(main, FakeDialer(silence))


def test_a_silent_server_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        monkeypatch.setattr(aio_connection, "_SILENCE", PATIENCE)
        await driver.run(asking(driver, is_oneway=True))  # to connect may take longer
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, timeout=0.01))
        assert driver.addresses() == {"a:1": 0}
        monkeypatch.setattr(aio_connection, "_SILENCE", 0.5)
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, timeout=0.5))
        assert driver.addresses() == {}

    with_driver(main, FakeDialer(silence))


@pytest.mark.parametrize("is_answered", [True, False])
def test_after_a_stall_of_this_process_replies_are_read_before_calls_are_late(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """All calls of a connection were late although their replies waited in the socket."""
    monkeypatch.setattr(aio_connection, "_STALL", -1.0)  # each sweep counts as one after a stall
    is_stalled = threading.Event()

    def answer(_: Peer, __: Command) -> Command | None:
        assert is_stalled.wait(PATIENCE)
        return Command(0) if is_answered else None

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        calls = [asyncio.create_task(driver.run(asking(driver, timeout=2.0))) for _ in range(9)]
        await wait_until_async(lambda: dialer.peers and dialer.peers[0].requests)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()

        def stall() -> None:
            """Keep the loop until the replies are there and all calls are late."""
            loop.remove_reader(ours)
            is_stalled.set()
            assert not threading.Event().wait(2.1)

        with ours, theirs:
            loop.add_reader(ours, stall)
            theirs.send(b"x")
            found = await asyncio.gather(*calls, return_exceptions=True)
        kinds = {type(each) for each in found}
        assert kinds == ({Command} if is_answered else {CallTimeout})

    async def with_this_driver() -> None:
        dialer = FakeDialer(answer)
        async with aio_driver(dialer) as driver:
            await main(driver, dialer)

    # This loop calls timers after what it has read from one socket, and before the next.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(with_this_driver())


def test_each_request_is_late_at_its_own_deadline() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        order: list[int] = []

        async def ask(name: int, timeout: float) -> None:
            with pytest.raises(CallTimeout):
                await driver.run(asking(driver, timeout=timeout))
            order.append(name)

        # One sweep finds those whose deadlines pass during a stall of this process.
        await asyncio.gather(ask(3, 0.7), ask(1, 0.1), ask(2, 0.4))
        assert order == [1, 2, 3]

    with_driver(main, FakeDialer(silence))


def test_a_reply_that_comes_too_late_is_counted() -> None:
    asked: list[tuple[Peer, Command]] = []

    def keep(peer: Peer, command: Command) -> Command | None:
        asked.append((peer, command))
        return None if command.body == b"late" else Command(0)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))  # a call that is late while connecting is never written
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, b"late", timeout=0.01))
        await wait_until_async(lambda: len(asked) == 2)
        peer, command = asked[1]
        peer.reply(command, Command(0))
        await driver.run(asking(driver))
        assert driver.late_count() == 1
        peer.cut()
        await wait_until_async(lambda: not driver.addresses())
        assert driver.late_count() == 1

    with_driver(main, FakeDialer(keep))


def test_a_request_whose_caller_was_cancelled_waits_no_more() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        task = asyncio.ensure_future(driver.run(asking(driver)))
        await wait_until_async(lambda: driver.addresses() == {"a:1": 1})
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert driver.addresses() == {"a:1": 0}

    with_driver(main, FakeDialer(silence))


# ---- lost ----------------------------------------------------------------------------------------


def test_a_connection_that_ends_fails_its_calls_and_is_opened_again() -> None:
    def cut_first(peer: Peer, command: Command) -> Command | None:
        if command.body != b"cut":
            return Command(0)
        peer.cut()
        return None

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        driver.core.registered.add("a:1")
        calls = [driver.run(asking(driver, b"cut")), driver.run(asking(driver, b"cut"))]
        first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, ConnectionLost)
        assert isinstance(second, ConnectionLost)
        assert first is not second
        assert driver.core.registered == set()  # the broker knows us by that connection
        await driver.run(asking(driver))
        assert len(dialer.peers) == 2

    with_driver(main, FakeDialer(cut_first))


def test_a_server_that_cannot_be_reached_fails_all_calls() -> None:
    dialer = FakeDialer()
    dialer.failure = refused()

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        calls = [driver.run(asking(driver)), driver.run(asking(driver, is_oneway=True))]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in outcomes] == [ConnectFailed] * 2
        dialer.failure = None
        await driver.run(asking(driver))

    with_driver(main, dialer)


def test_an_internal_error_while_connecting_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    dialer = FakeDialer()
    dialer.failure = ZeroDivisionError("oops")

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        with pytest.raises(ConnectionLost, match="ZeroDivisionError"):
            await driver.run(asking(driver))

    with caplog.at_level(logging.ERROR, "downrange.drivers"):
        with_driver(main, dialer)
    assert "connecting to a:1 failed" in caplog.text


def test_a_server_that_breaks_the_protocol_is_disconnected() -> None:
    def nonsense(peer: Peer, command: Command) -> None:
        peer.push(b"\xff" * 8)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        with pytest.raises(ConnectionLost, match="frame"):
            await driver.run(asking(driver))
        assert driver.addresses() == {}
        await wait_until_async(dialer.peers[0].is_ended.is_set)

    with_driver(main, FakeDialer(nonsense))


# ---- one way -------------------------------------------------------------------------------------


def test_a_one_way_request_is_over_when_it_is_on_its_way() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        for _ in range(2):  # while connecting, and when connected
            await driver.run(asking(driver, b"x", is_oneway=True))
        await wait_until_async(lambda: len(dialer.peers[0].requests) == 2)
        assert all(request.is_oneway for request in dialer.peers[0].requests)

    with_driver(main, FakeDialer(silence))


def test_a_one_way_request_waits_while_the_peer_does_not_read() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))
        connection = driver.connection("a:1")
        connection.pause_writing()
        waiting = asyncio.ensure_future(driver.run(asking(driver, b"1", is_oneway=True)))
        await asyncio.sleep(0.005)
        assert not waiting.done()
        connection.resume_writing()
        await waiting
        await wait_until_async(lambda: len(dialer.peers[0].requests) == 2)

    with_driver(main, FakeDialer(silence))


def test_a_one_way_request_waits_no_longer_than_its_deadline() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))
        driver.connection("a:1").pause_writing()
        longer = asyncio.ensure_future(driver.run(asking(driver, timeout=0.04, is_oneway=True)))
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, timeout=0.01, is_oneway=True))
        with pytest.raises(CallTimeout):
            await longer

    with_driver(main, FakeDialer(silence))


def test_a_one_way_request_that_was_late_is_never_written() -> None:
    """Its message goes to another broker then, so it must not be sent here as well."""

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))
        connection = driver.connection("a:1")
        connection.pause_writing()
        in_time = asyncio.ensure_future(driver.run(asking(driver, b"2", is_oneway=True)))
        with pytest.raises(CallTimeout):
            await driver.run(asking(driver, b"1", timeout=0.01, is_oneway=True))
        connection.resume_writing()
        await in_time
        peer = dialer.peers[0]
        await wait_until_async(lambda: len(peer.requests) == 2)
        assert [request.body for request in peer.requests] == [b"", b"2"]

    with_driver(main, FakeDialer(silence))


def test_a_one_way_request_to_a_connection_that_is_ending_is_an_error() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))
        connection = driver.connection("a:1")
        assert connection._transport is not None
        connection._transport.close()
        with pytest.raises(ConnectionLost):
            await driver.run(asking(driver, b"1", is_oneway=True))

    with_driver(main, FakeDialer(silence))


def test_the_beginning_and_the_end_of_a_connection_are_logged_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        driver.connection("a:1").close("it was not used")

    with caplog.at_level(logging.DEBUG, "downrange.drivers"):
        with_driver(main)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "connected to a:1"),
        ("DEBUG", "end of the connection to a:1: the connection was closed: it was not used"),
    ]


def test_a_one_way_request_may_be_cancelled() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        task = asyncio.ensure_future(driver.run(asking(driver, is_oneway=True)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await driver.run(asking(driver))

    with_driver(main)


def test_much_is_sent_to_a_peer_that_reads_slowly() -> None:
    dialer = FakeDialer()
    dialer.is_reading = False

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver, is_oneway=True))
        await asyncio.sleep(0)
        await driver.run(asking(driver, b"x" * 2_000_000, is_oneway=True))
        connection = driver.connection("a:1")
        await wait_until_async(lambda: connection._is_paused)
        last = asyncio.ensure_future(driver.run(asking(driver, b"last", is_oneway=True)))
        await asyncio.sleep(0.005)
        assert not last.done()
        dialer.peers[0].start()
        await last
        await wait_until_async(lambda: len(dialer.peers[0].requests) == 3)

    with_driver(main, dialer)


# ---- requests of the server's --------------------------------------------------------------------


def test_a_request_of_the_servers_is_answered() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        await driver.run(asking(driver))
        dialer.peers[0].ask(Command(999))
        await wait_until_async(lambda: dialer.peers[0].replies)
        assert dialer.peers[0].replies[0].code == 3

    with_driver(main)


@pytest.mark.parametrize("how", ["silent", "oneway", "broken"])
def test_a_request_of_the_servers_may_have_no_answer(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str] = []

    def handle(address: str, command: Command) -> Flow[Command | None]:
        yield Pause(0.0)
        handled.append(address)
        if how == "broken":
            raise ZeroDivisionError
        return None if how == "silent" else Command(0)

    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        driver.core.handlers[39] = handle
        await driver.run(asking(driver))
        request = Command(39)
        if how == "oneway":
            request.flags |= 2
        dialer.peers[0].ask(request)
        await wait_until_async(lambda: handled)
        await driver.run(asking(driver))
        assert dialer.peers[0].replies == []

    with caplog.at_level(logging.WARNING, "downrange.drivers"):
        with_driver(main)
    assert handled == ["a:1"]
    assert ("request 39 of a:1 could not be answered" in caplog.text) == (how == "broken")


def test_a_broker_gets_a_heartbeat_when_a_connection_to_it_opens() -> None:
    async def main(driver: AioDriver, dialer: FakeDialer) -> None:
        driver.core.routes.replace(route("a"))
        driver.core.add_producer("shop", object())
        await driver.run(asking(driver, address="a:10911"))
        await wait_until_async(lambda: driver.core.registered)
        assert [request.code for request in dialer.peers[0].requests] == [11, 34]

    with_driver(main)
