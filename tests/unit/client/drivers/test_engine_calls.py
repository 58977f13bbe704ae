"""Calls that threads hand to the engine when all connections of their own are in use."""

from __future__ import annotations

import threading
import time

import pytest

from downrange.client.flows.effects import Call, Flow, UserCall
from downrange.errors import CallTimeout, ConnectFailed, ConnectionLost, FrameTooLarge
from downrange.options import ClientOptions
from downrange.wire.command import Command
from downrange.wire.limits import FRAME_BYTES_MAX
from tests.unit.client.drivers.peers import PATIENCE, FakeDialer, refused, silence, thread_driver

NO_OWN = ClientOptions(sync_connections_max=0)


def calling(
    command: Command, timeout: float = PATIENCE, *, is_oneway: bool = False
) -> Flow[Command]:
    reply: Command = yield Call("a:1", command, time.monotonic() + timeout, is_oneway)
    return reply


def test_many_threads_get_the_answers_to_their_own_calls() -> None:
    answers: dict[int, bytes] = {}
    with thread_driver(options=NO_OWN) as driver:

        def ask(number: int) -> None:
            for _ in range(10):
                answers[number] = driver.run(calling(Command(11, body=b"%d" % number))).body

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert driver.connections() == {"a:1": 1}
    assert answers == {number: b"%d" % number for number in range(8)}


def test_a_one_way_call_returns_when_it_is_written() -> None:
    dialer = FakeDialer()
    with thread_driver(dialer, NO_OWN) as driver:
        for body in (b"before there is a connection", b"after"):
            assert driver.run(calling(Command(11, body=body), is_oneway=True)) is None
        assert driver.run(calling(Command(11, body=b"last"))).body == b"last"
        bodies = [request.body for request in dialer.peers[0].requests]
    assert bodies == [b"before there is a connection", b"after", b"last"]


def test_a_thread_gets_what_its_call_ended_with() -> None:
    dialer = FakeDialer(silence)
    with thread_driver(dialer, NO_OWN) as driver:
        with pytest.raises(CallTimeout):
            driver.run(calling(Command(11), 0.01))
        with pytest.raises(FrameTooLarge):
            driver.run(calling(Command(11, body=bytes(FRAME_BYTES_MAX))))
        dialer.serve = lambda peer, _: peer.cut()
        with pytest.raises(ConnectionLost):
            driver.run(calling(Command(11)))
        dialer.failure = refused()
        with pytest.raises(ConnectFailed):
            driver.run(calling(Command(11)))


def test_closing_the_client_fails_the_calls_of_threads() -> None:
    errors: list[BaseException] = []
    dialer = FakeDialer(silence)
    with thread_driver(dialer, NO_OWN) as driver:

        def ask() -> None:
            with pytest.raises(ConnectionLost) as lost:
                driver.run(calling(Command(11)))
            errors.append(lost.value)

        thread = threading.Thread(target=ask)
        thread.start()
        dialer.wait_for_request()
        driver.close()
        thread.join()
    assert len(errors) == 1


def test_a_function_on_the_engine_makes_its_calls_itself() -> None:
    with thread_driver(options=NO_OWN) as driver:

        def ask() -> bytes:
            return driver.run(calling(Command(11, body=b"inside"))).body

        def asking() -> Flow[bytes]:
            return (yield UserCall(ask))  # type: ignore[no-any-return]

        assert driver.submit(asking()).result(PATIENCE) == b"inside"
