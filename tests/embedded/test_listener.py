"""The listener with a test service: late replies, pushes, errors."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from downrange.errors import CannotListen, OptionError
from downrange.options import ListenerOptions
from downrange.server.net import interception
from downrange.server.net.listener import Listener
from downrange.server.outputs import Call, Disconnect, LateReply, Note, OnReply, Output, Push, Reply
from downrange.server.outputs import Peer as Caller
from downrange.server.run.runner import ServerThread, run_until_signal
from downrange.wire.codes import HeaderCodec, ResponseCode
from downrange.wire.command import Command
from tests.conversations.peers import Peer, SocketChannel
from tests.embedded.peers import is_free
from tests.embedded.servers import DEADLINE, is_closed
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

ANSWER, KEEP, FAIL, FAIL_LATE, PUSH, LEAVE, FLOOD, ASK = range(1, 9)


class ScriptedService:
    """Behaves as the code of the request says."""

    def __init__(self) -> None:
        self.kept: list[tuple[Caller, Command]] = []
        self.lost: list[Caller] = []
        self.has_kept = threading.Event()

    def handle(self, request: Command, peer: Caller, now_ms: int) -> Iterable[Output]:
        match request.code:
            case 1:
                return [Note("answered"), Reply(Command(0, {"now": str(now_ms)}))]
            case 2:
                self.kept.append((peer, request))
                self.has_kept.set()
                return []
            case 3:
                raise RuntimeError("odd")
            case 4:
                return self._fail_late()
            case 7:
                return [Push(peer.number, Command(40, body=bytes(1_000_000)))] * 20
            case 5:
                return [Push(peer.number, Command(40)), Push(10**9, Command(40)), Reply(Command(0))]
            case 8:
                within = float(request.fields.get("within", DEADLINE))
                then = partial(self._pass_on, peer, request)
                return [Call(peer.number, Command(307), within, then)]
            case _:
                return [Reply(Command(0)), Disconnect(peer.number), Disconnect(10**9)]

    def _fail_late(self) -> Iterable[Output]:
        yield Reply(Command(0))
        raise RuntimeError("odd")

    def _pass_on(
        self, peer: Caller, request: Command, answer: Command | None, now_ms: int
    ) -> Iterable[Output]:
        """Reply with the peer's own reply to a call."""
        text = "nothing" if answer is None else answer.body.decode()
        return [LateReply(peer.number, request, Command(0, {"answer": text, "now": str(now_ms)}))]

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Caller, now_ms: int) -> Iterable[Output]:
        self.lost.append(peer)
        return [Note(f"lost {peer.address}", is_warning=True)]


@contextmanager
def _stage(**options: Any) -> Generator[tuple[ScriptedService, Listener, Peer, ServerThread]]:
    service = ScriptedService()
    listener = Listener(service, ListenerOptions(**options), clock_ms=lambda: 77)
    with ServerThread(listener) as thread:
        peer = Peer(SocketChannel(listener.address), HeaderCodec.JSON)
        try:
            yield service, listener, peer, thread
        finally:
            peer.close()


def test_handlers_get_the_listeners_clock() -> None:
    with _stage() as (_, _, peer, _):
        assert peer.ask(Command(ANSWER)).fields == {"now": "77"}


def test_the_vip_channel_is_two_ports_below_and_shares_service_and_limits() -> None:
    service = ScriptedService()
    options = ListenerOptions(connections_max=2)
    listener = Listener(service, options, clock_ms=lambda: 77, has_vip_port=True)
    with ServerThread(listener):
        host, _, port = listener.address.rpartition(":")
        vip_address = f"{host}:{int(port) - 2}"
        assert listener.vip_address == vip_address
        main = Peer(SocketChannel(listener.address), HeaderCodec.JSON)
        vip = Peer(SocketChannel(vip_address), HeaderCodec.JSON)
        assert main.ask(Command(ANSWER)).fields == vip.ask(Command(ANSWER)).fields == {"now": "77"}
        assert listener.connection_count == 2
        with socket.create_connection((host, int(port) - 2), DEADLINE) as third:
            assert is_closed(third), "the limit of connections counts both ports"
        for peer in (main, vip):
            peer.close()
    assert not listener.is_serving


def test_a_listener_has_no_vip_channel_unless_told() -> None:
    with _stage() as (_, listener, _, _):
        assert listener.vip_address is None


@contextmanager
def _below_a_free_port() -> Generator[int]:
    """Run a listener whose port plus 2 no other process uses; give its port."""
    while True:
        with _stage() as (_, listener, _, _):
            port = int(listener.address.rpartition(":")[2])
            if is_free(port + 2):
                yield port
                return


def test_a_vip_channel_that_is_in_use_is_named_with_the_next_step() -> None:
    with _below_a_free_port() as taken:
        listener = Listener(ScriptedService(), ListenerOptions(port=taken + 2), has_vip_port=True)
        with pytest.raises(CannotListen) as failed:
            ServerThread(listener).start()
        assert failed.value.address == f"127.0.0.1:{taken}"
        for text in (f"VIP channel of 127.0.0.1:{taken + 2}", "choose another port", "--vip"):
            assert text in str(failed.value)
        assert not listener.is_serving


def test_a_free_port_is_drawn_again_when_its_vip_channel_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bind_to, failures = Listener._bind_to, [1, 3]

    def bind(self: Listener, listening: socket.socket, address: Any) -> None:
        if address[1] and failures:
            failures.pop()
            raise OSError(errno.EADDRINUSE, "in use")
        bind_to(self, listening, address)

    monkeypatch.setattr(Listener, "_bind_to", bind)
    listener = Listener(ScriptedService(), ListenerOptions(), has_vip_port=True)
    with ServerThread(listener):
        assert listener.vip_address is not None
    assert failures == []


def test_a_restarted_listener_keeps_both_ports() -> None:
    listener = Listener(ScriptedService(), ListenerOptions(), has_vip_port=True)
    with ServerThread(listener) as thread:
        before = (listener.address, listener.vip_address)
        thread.run(listener.stop())
        thread.run(listener.start())
        assert (listener.address, listener.vip_address) == before


@pytest.mark.parametrize("port", [1, 2])
def test_a_port_that_leaves_no_room_for_the_vip_channel_is_refused(port: int) -> None:
    with pytest.raises(OptionError, match=f"port={port} leaves no port for the VIP channel"):
        Listener(ScriptedService(), ListenerOptions(port=port), has_vip_port=True)


def test_a_listener_that_polls_answers_and_stops_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if no other process needed the core: on a busy machine the listener stops polling.
    monkeypatch.setattr("downrange.busy_poll._yield_core", lambda: None)
    with _stage(busy_poll=0.2) as (_, listener, peer, _):
        busy_poll = listener._busy_poll
        assert busy_poll is not None

        def is_active_when_asked() -> bool:
            assert peer.ask(Command(ANSWER)).code == 0
            return busy_poll.is_active

        wait_until(is_active_when_asked)
        wait_until(lambda: not busy_poll.is_active)
        assert peer.ask(Command(ANSWER)).code == 0


def test_a_request_is_answered_late_and_others_overtake_it() -> None:
    with _stage() as (service, listener, peer, thread):
        call = peer.start(Command(KEEP))
        assert service.has_kept.wait(DEADLINE)
        assert peer.ask(Command(ANSWER)).code == 0

        async def answer() -> None:
            ((caller, request),) = service.kept
            gone = LateReply(10**9, request, Command(0))
            listener.perform([gone, LateReply(caller.number, request, Command(0, {"a": "b"}))])

        thread.run(answer())
        assert peer.finish(call).fields == {"a": "b"}


def test_requests_beyond_the_in_flight_limit_wait_for_late_replies() -> None:
    with _stage(in_flight_max=3) as (service, listener, peer, thread):
        calls = [peer.start(Command(KEEP)) for _ in range(10)]
        wait_until(lambda: len(service.kept) == 3)

        async def answer(number: int) -> int:
            caller, request = service.kept[number]
            listener.perform([LateReply(caller.number, request, Command(0))])
            return len(service.kept)

        for number, call in enumerate(calls):
            wait_until(lambda number=number: len(service.kept) > number)  # type: ignore[misc]
            assert thread.run(answer(number)) - (number + 1) <= 3
            assert peer.finish(call).code == 0
        assert len(service.kept) == 10


@pytest.mark.parametrize("code", [FAIL, FAIL_LATE])
def test_a_fault_of_a_handler_is_logged_and_the_connection_goes_on(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with _stage() as (_, _, peer, _):
        reply = peer.ask(Command(code))
        expected = (1, "RuntimeError: odd") if code == FAIL else (0, None)
        assert (reply.code, reply.remark) == expected
        assert peer.ask(Command(ANSWER)).code == ResponseCode.SUCCESS
    assert f"request {code} of 127.0.0.1" in caplog.text


def test_a_push_reaches_its_peer_and_one_to_an_unknown_peer_is_dropped() -> None:
    with _stage() as (_, _, peer, _):
        assert peer.ask(Command(PUSH)).code == 0
        assert peer.wait_request(40).is_oneway


def test_a_peer_is_called_and_its_reply_is_passed_on() -> None:
    with _stage() as (_, _, peer, _):
        call = peer.start(Command(ASK))
        peer.answer(peer.wait_request(307), Command(0, body=b"here"))
        assert peer.finish(call).fields == {"answer": "here", "now": "77"}


def test_a_call_to_a_peer_that_does_not_answer_times_out() -> None:
    with _stage() as (_, _, peer, _):
        call = peer.start(Command(ASK, {"within": "0.2"}))
        question = peer.wait_request(307)
        assert peer.finish(call).fields["answer"] == "nothing"
        peer.answer(question, Command(0, body=b"too late"))
        assert peer.ask(Command(ANSWER)).code == 0


def start_together(peer: Peer, *commands: Command) -> list[int]:
    """Send requests with one write; return the numbers of their calls."""
    channel, frames = peer._channel, list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "send", frames.append)
        calls = [peer.start(command) for command in commands]
    channel.send(b"".join(frames))
    return calls


def test_a_rule_delays_one_request_and_loses_the_reply_to_another() -> None:
    with _stage() as (service, listener, peer, _):
        fates = {ANSWER: interception.deliver(after=0.05), KEEP: interception.lose_reply()}
        listener.intercept = lambda request, caller: fates.get(request.code)
        assert listener.intercept is not None
        # In one write, so that no pause can be as long as the delay.
        delayed, _, pushed = start_together(peer, Command(ANSWER), Command(KEEP), Command(PUSH))
        assert peer.finish(pushed).code == 0
        assert peer.finish(delayed).code == 0
        assert len(service.kept) == 1
        listener.intercept = None
        assert peer.ask(Command(ANSWER)).code == 0


def test_an_abort_cuts_all_connections_and_accepts_none() -> None:
    with _stage() as (service, listener, peer, thread):
        assert peer.ask(Command(ANSWER)).code == 0

        async def abort() -> None:
            listener.abort()

        thread.run(abort())
        with pytest.raises((EOFError, ConnectionError)):
            peer.ask(Command(ANSWER))
        wait_until(lambda: len(service.lost) == 1)
        thread.run(listener.stop())
        with pytest.raises(ConnectionError):
            SocketChannel(listener.address)


def test_a_peer_is_disconnected_after_its_reply_and_lost_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with _stage() as (service, listener, peer, _):
        assert peer.ask(Command(LEAVE)).code == 0
        with pytest.raises((EOFError, ConnectionError)):
            peer.ask(Command(ANSWER))
        wait_until(lambda: service.lost)  # it stops being counted before that
        assert listener.connection_count == 0
        assert len(service.lost) == 1
    assert "lost 127.0.0.1" in caplog.text


def test_an_unanswered_request_does_not_delay_the_stop() -> None:
    with _stage(stop_timeout=0.1) as (service, _, peer, thread):
        peer.start(Command(KEEP))
        assert service.has_kept.wait(DEADLINE)
        thread.stop()
        assert len(service.lost) == 1


def test_a_peer_that_reads_no_replies_is_cut_by_the_stop() -> None:
    with _stage(stop_timeout=0.3, unread_timeout=600.0) as (_, listener, peer, thread):
        peer.notify(Command(FLOOD))
        wait_until(lambda: thread.run(_unread(listener)) > 1_000_000)
        begun = time.monotonic()
        thread.stop()
        assert 0.2 < time.monotonic() - begun < DEADLINE
        assert listener.connection_count == 0


async def _unread(listener: Listener) -> int:
    transports = [connection._transport for connection in listener._dispatcher.connections.values()]
    return sum(transport.get_write_buffer_size() for transport in transports if transport)


def test_start_and_stop_may_be_called_twice() -> None:
    with _stage() as (_, listener, peer, thread):
        first = listener.address
        thread.start()
        thread.run(listener.start())
        assert listener.address == first
        assert peer.ask(Command(ANSWER)).code == 0
        thread.run(listener.stop())
        thread.run(listener.stop())
        assert not listener.is_serving


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EACCES, "choose a port above 1023"), (errno.ENOBUFS, "No buffer space available")],
)
def test_an_address_that_cannot_be_bound_is_explained(
    number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    listener = Listener(ScriptedService(), ListenerOptions(port=80))
    monkeypatch.setattr(Listener, "_bind_to", refuse)
    with pytest.raises(CannotListen, match=text) as caught:
        ServerThread(listener).start()
    assert caught.value.address == "127.0.0.1:80"


def test_a_moment_without_file_handles_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = Listener._accept_one
    failures = [OSError(errno.EMFILE, "Too many open files")]

    async def scarce(self: Listener, listening: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return await accept(self, listening)

    monkeypatch.setattr(Listener, "_accept_one", scarce)
    with _stage() as (_, _, peer, _):
        assert peer.ask(Command(ANSWER)).code == 0
    assert "Too many open files" in caplog.text


def test_a_signal_stops_a_server_that_runs_in_the_foreground() -> None:
    listener = Listener(ScriptedService(), ListenerOptions())
    seen: list[bool] = []

    def ready() -> None:
        seen.append(listener.is_serving)
        os.kill(os.getpid(), signal.SIGTERM)

    run_until_signal(listener, ready)
    assert seen == [True]
    assert not listener.is_serving
