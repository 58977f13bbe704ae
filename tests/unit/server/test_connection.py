"""One connection without a socket: what it reads, writes, holds back, and when it cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from downrange.handling import Peer
from downrange.options import ListenerOptions
from downrange.server.connection import Connection
from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import pytest


class FakeTimer:
    """Keeps what shall happen later."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, run: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(run))
        return self.timers[-1]


class FakeTransport:
    """Keeps what was written, and says "enough" at the limit that it was given."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.writes: list[bytes] = []
        self.high = 0
        self.unread = 0
        self.is_reading = True
        self.state = "open"

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        before, self.unread = self.unread, self.unread + len(data)
        if before <= self.high < self.unread:
            self.connection.pause_writing()

    def drain(self) -> None:
        self.unread = 0
        self.connection.resume_writing()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def replies(self) -> list[Command]:
        frames = FrameSplitter()
        frames.receive(b"".join(self.writes))
        found: list[Command] = []
        while (frame := frames.next_frame()) is not None:
            found.append(decode(frame))
        return found


class FakeOwner:
    """Answers every request at once, or keeps those that ask for it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.kept: list[Command] = []
        self.body = b""

    def opened(self, connection: Connection) -> None:
        self.events.append("opened")

    def closed(self, connection: Connection) -> None:
        self.events.append("closed")

    def arrived(self, connection: Connection, request: Command) -> None:
        self.events.append(str(request.code))
        if request.code == RELEASE:
            connection.answer_late(self.kept.pop(), Command(0))
        if request.code == KEEP:
            connection.unanswered += 1
            self.kept.append(request)
        else:
            connection.answer(request, Command(0, body=self.body))


KEEP, RELEASE = 999, 998


class Stage:
    """A connection and all that is around it."""

    def __init__(self, **options: Any) -> None:
        self.owner = FakeOwner()
        self.loop = FakeLoop()
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        settings = ListenerOptions(**options)
        self.connection = Connection(self.owner, Peer(1, "10.0.0.7:4242"), settings, loop)
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def receive(self, *codes: int, **changes: Any) -> None:
        commands = [Command(code, request_id=n, **changes) for n, code in enumerate(codes)]
        self.connection.data_received(b"".join(map(encode, commands)))


def test_requests_of_one_read_are_answered_in_order_with_one_write() -> None:
    stage = Stage()
    stage.receive(1, 2, 3)
    assert stage.owner.events == ["opened", "1", "2", "3"]
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert len(stage.transport.writes) == 1


def test_large_replies_are_written_before_all_requests_are_handled() -> None:
    stage = Stage()
    stage.owner.body = bytes(40_000)
    stage.receive(1, 2, 3)
    assert len(stage.transport.writes) == 2


def test_a_one_way_request_gets_no_reply() -> None:
    stage = Stage()
    stage.receive(1, flags=int(CommandFlag.ONEWAY))
    assert stage.owner.events == ["opened", "1"]
    assert stage.transport.writes == []


def test_a_reply_of_the_peer_is_passed_over() -> None:
    stage = Stage()
    stage.receive(0, flags=int(CommandFlag.REPLY))
    assert stage.owner.events == ["opened"]
    assert stage.transport.state == "open"


def test_a_reply_that_cannot_be_written_becomes_its_reason() -> None:
    stage = Stage(frame_bytes_max=400)
    stage.owner.body = bytes(400)
    stage.receive(1)
    (reply,) = stage.transport.replies()
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "the limit of 400" in reply.remark


def test_requests_beyond_the_limit_wait_until_one_is_answered() -> None:
    stage = Stage(in_flight_max=2)
    stage.receive(KEEP, KEEP, KEEP, 1)
    assert len(stage.owner.kept) == 2
    assert not stage.transport.is_reading
    stage.connection.answer_late(stage.owner.kept[0], Command(0))
    assert len(stage.owner.kept) == 3
    assert not stage.transport.is_reading
    stage.connection.answer_late(stage.owner.kept[2], Command(0))
    assert stage.transport.is_reading
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 2, 3]


def test_a_request_that_answers_an_earlier_one_leaves_the_order_as_it_is() -> None:
    stage = Stage()
    stage.receive(KEEP, RELEASE, 1)
    assert [reply.request_id for reply in stage.transport.replies()] == [0, 1, 2]
    assert len(stage.transport.writes) == 1


def test_a_peer_that_leaves_replies_unread_is_not_read_until_it_takes_them() -> None:
    stage = Stage(unread_bytes_max=100_000)
    stage.owner.body = bytes(70_000)
    stage.receive(1, 2, 3, 4)
    assert stage.owner.events == ["opened", "1", "2"]
    assert not stage.transport.is_reading
    stage.transport.drain()
    assert stage.owner.events == ["opened", "1", "2", "3", "4"]
    assert stage.loop.timers[0].is_cancelled
    stage.transport.drain()
    assert stage.transport.is_reading


def test_a_peer_that_never_takes_its_replies_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(unread_bytes_max=10, unread_timeout=3.0)
    stage.receive(1)
    stage.loop.timers[0].run()
    assert stage.transport.state == "aborted"
    assert "10.0.0.7:4242" in caplog.text
    assert "unread for 3 s" in caplog.text


def test_broken_bytes_close_the_connection_after_what_came_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.connection.data_received(encode(Command(1)) + b"\xff" * 8)
    assert stage.owner.events == ["opened", "1"]
    assert stage.transport.state == "closed"
    assert "10.0.0.7:4242" in caplog.text
    stage.connection.data_received(encode(Command(2)))
    assert stage.owner.events == ["opened", "1"]


def test_a_push_is_written_at_once_and_asks_for_no_answer() -> None:
    stage = Stage()
    stage.connection.push(Command(40))
    (pushed,) = stage.transport.replies()
    assert (pushed.code, pushed.is_oneway, pushed.is_reply) == (40, True, False)


def test_after_the_end_nothing_is_written_and_nothing_breaks() -> None:
    stage = Stage()
    stage.receive(KEEP)
    stage.connection.connection_lost(None)
    stage.connection.answer_late(stage.owner.kept[0], Command(0))
    stage.connection.push(Command(40))
    stage.connection.close()
    stage.connection.abort()
    assert stage.transport.writes == []
    assert stage.owner.events == ["opened", str(KEEP), "closed"]


def test_bytes_either_way_are_a_sign_of_life() -> None:
    stage = Stage()
    stage.loop.now = 5.0
    stage.receive(KEEP)
    assert stage.connection.active_at == 5.0
    stage.loop.now = 7.0
    stage.connection.answer_late(stage.owner.kept[0], Command(0))
    assert stage.connection.active_at == 7.0
