"""One connection without a socket: ids, waiters, limits, and a peer that breaks the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import (
    FrameTooLarge,
    LinkClosed,
    MalformedCommand,
    MalformedFrame,
    OptionError,
    TooManyInFlight,
    Unencodable,
)
from downrange.wire.codes import CommandFlag, HeaderCodec
from downrange.wire.command import Command, encode
from downrange.wire.limits import IN_FLIGHT_MAX
from downrange.wire.link import (
    Event,
    Link,
    LinkBroken,
    ReplyArrived,
    RequestArrived,
)
from tests.unit.wire.command_reader import read
from tests.unit.wire.strategies import chunked, commands

BAD_FRAME = b"\xff\xff\xff\xff"
BAD_HEADER = b"\x00\x00\x00\x05\x00\x00\x00\x01{"


def reply_to(data: bytes, **members: Any) -> bytes:
    """Return the bytes of the peer's reply to a request."""
    return encode(Command(0, request_id=read(data).request_id, flags=1, **members))


# ---- requests and replies ------------------------------------------------------------------------


def test_a_reply_is_returned_with_its_waiter() -> None:
    link: Link[str] = Link()
    first = link.request(Command(1), "first")
    second = link.request(Command(2), "second")
    assert link.in_flight == 2
    (event,) = link.receive(reply_to(second, body=b"two"))
    assert isinstance(event, ReplyArrived)
    assert (event.waiter, event.command.body) == ("second", b"two")
    (event,) = link.receive(reply_to(first, body=b"one"))
    assert isinstance(event, ReplyArrived)
    assert event.waiter == "first"
    assert link.in_flight == 0


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_request_is_written_with_an_id_and_the_codec_of_the_link(codec: HeaderCodec) -> None:
    link: Link[None] = Link(codec=codec)
    command = Command(7, {"a": "b"}, b"body")
    written = read(link.request(command, None))
    assert written == command
    assert (written.request_id, written.codec, written.flags) == (1, codec, 0)


def test_ids_count_up_for_requests_and_one_way_requests_alike() -> None:
    link: Link[None] = Link()
    ids = [
        read(link.request(Command(1), None)).request_id,
        read(link.oneway(Command(1))).request_id,
        read(link.request(Command(1), None)).request_id,
    ]
    assert ids == [1, 2, 3]


def test_an_id_follows_the_largest_with_zero() -> None:
    link: Link[None] = Link()
    link._last_id = 2**31 - 2
    ids = [read(link.request(Command(1), None)).request_id for _ in range(3)]
    assert ids == [2**31 - 1, 0, 1]


def test_ids_that_are_in_flight_are_passed_over() -> None:
    link: Link[int] = Link()
    for waiter in range(3):
        link.request(Command(1), waiter)
    link._last_id = 2**31 - 1
    assert read(link.request(Command(1), 9)).request_id == 0
    assert read(link.request(Command(1), 10)).request_id == 4
    assert link.in_flight == 5


def test_a_one_way_request_is_marked_and_has_no_waiter() -> None:
    link: Link[None] = Link(codec=HeaderCodec.BINARY)
    written = read(link.oneway(Command(15)))
    assert written.flags == CommandFlag.ONEWAY
    assert written.codec is HeaderCodec.BINARY
    assert link.in_flight == 0


def test_the_limit_of_requests_in_flight_holds() -> None:
    link: Link[int] = Link(in_flight_max=2)
    first = link.request(Command(1), 1)
    link.request(Command(1), 2)
    with pytest.raises(TooManyInFlight, match="2 requests are in flight") as caught:
        link.request(Command(1), 3)
    assert caught.value.limit == 2
    link.oneway(Command(1))
    link.receive(reply_to(first))
    link.request(Command(1), 4)
    assert link.in_flight == 2


def test_java_limit_of_requests_in_flight_is_the_default() -> None:
    link: Link[None] = Link()
    link._in_flight = dict.fromkeys(range(IN_FLIGHT_MAX))
    with pytest.raises(TooManyInFlight, match="65535 requests"):
        link.request(Command(1), None)


def test_a_request_that_could_not_be_written_has_no_waiter() -> None:
    link: Link[None] = Link(frame_bytes_max=1000)
    with pytest.raises(FrameTooLarge):
        link.request(Command(1, body=bytes(1000)), None)
    with pytest.raises(Unencodable):
        link.request(Command(1, {"a": "\ud800"}), None)
    assert link.in_flight == 0
    assert not link.is_closed


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_reply_copies_the_id_and_codec_of_its_request(codec: HeaderCodec) -> None:
    link: Link[None] = Link()
    (event,) = link.receive(encode(Command(105, request_id=-77, codec=codec)))
    assert isinstance(event, RequestArrived)
    written = read(link.reply(event.command, Command(0, {"a": "b"}, flags=8, request_id=5)))
    assert (written.request_id, written.codec) == (-77, codec)
    assert written.flags == CommandFlag.REPLY
    assert written.fields == {"a": "b"}


def test_a_one_way_request_is_never_answered() -> None:
    link: Link[None] = Link()
    with pytest.raises(AssertionError, match="never answered"):
        link.reply(Command(40, flags=2), Command(0))


def test_a_request_of_the_peer_may_carry_the_id_of_one_of_ours() -> None:
    link: Link[str] = Link()
    ours = link.request(Command(1), "waiter")
    (event,) = link.receive(encode(Command(40, request_id=1, flags=2)))
    assert isinstance(event, RequestArrived)
    assert event.command.is_oneway
    assert link.in_flight == 1
    (event,) = link.receive(reply_to(ours))
    assert isinstance(event, ReplyArrived)


@pytest.mark.parametrize("request_id", [0, 2, -1, 2**31 - 1])
def test_a_reply_without_a_waiter_is_counted_and_dropped(request_id: int) -> None:
    link: Link[str] = Link()
    link.request(Command(1), "waiter")
    assert link.receive(encode(Command(0, request_id=request_id, flags=1))) == []
    assert link.late_replies == 1
    assert link.in_flight == 1


def test_the_second_reply_to_one_request_is_late() -> None:
    link: Link[str] = Link()
    reply = reply_to(link.request(Command(1), "waiter"))
    (event,) = link.receive(reply + reply)
    assert isinstance(event, ReplyArrived)
    assert link.late_replies == 1


def test_an_abandoned_request_gets_no_reply() -> None:
    link: Link[str] = Link()
    data = link.request(Command(1), "waiter")
    assert link.abandon(1) == "waiter"
    assert link.abandon(1) is None
    assert link.in_flight == 0
    assert link.receive(reply_to(data)) == []
    assert link.late_replies == 1


def test_a_waiter_may_be_none() -> None:
    link: Link[None] = Link()
    (event,) = link.receive(reply_to(link.request(Command(1), None)))
    assert isinstance(event, ReplyArrived)


# ---- the end -------------------------------------------------------------------------------------


def test_closing_returns_the_waiters_and_refuses_later_calls() -> None:
    link: Link[str] = Link()
    data = link.request(Command(1), "first")
    link.request(Command(1), "second")
    assert not link.is_closed
    assert link.close() == ["first", "second"]
    assert link.is_closed
    assert link.close() == []
    assert link.receive(reply_to(data)) == []
    assert link.late_replies == 0
    for call in (
        lambda: link.request(Command(1), "third"),
        lambda: link.oneway(Command(1)),
        lambda: link.reply(Command(1), Command(0)),
    ):
        with pytest.raises(LinkClosed, match="the connection is closed"):
            call()
    assert link.in_flight == 0


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (BAD_FRAME, MalformedFrame, "frame length: -1 leaves no room for a header word"),
        (b"\x7f\xff\xff\xff", FrameTooLarge, "frame length: 2147483651 bytes are more than"),
        (b"GET / HTTP/1.1", FrameTooLarge, "frame length: 1195725860 bytes are more than"),
        (b"\x16\x03\x01\x02\x00", FrameTooLarge, "frame length: 369295622 bytes are more than"),
        (BAD_HEADER, MalformedCommand, "JSON header, JSON character 1: the text ends too early"),
        (b"\x00\x00\x00\x04\x01\x00\x00\x00", MalformedCommand, "binary header: 0 bytes"),
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", MalformedFrame, "unknown header codec 2"),
    ],
)
def test_a_peer_that_breaks_the_protocol_breaks_the_link(
    bad: bytes, kind: type[Exception], message: str
) -> None:
    link: Link[str] = Link()
    link.request(Command(1), "waiter")
    (event,) = link.receive(bad)
    assert isinstance(event, LinkBroken)
    assert type(event.error) is kind
    assert message in str(event.error)
    assert event.waiters == ["waiter"]
    assert link.is_closed
    assert link.in_flight == 0


@pytest.mark.parametrize("bad", [BAD_FRAME, BAD_HEADER])
def test_good_frames_before_a_bad_one_are_given_first_and_nothing_after(bad: bytes) -> None:
    link: Link[str] = Link()
    answered = link.request(Command(1), "answered")
    link.request(Command(1), "waiting")
    good = encode(Command(40, request_id=5, flags=2))
    events = link.receive(good + reply_to(answered) + bad + good)
    assert [type(event) for event in events] == [RequestArrived, ReplyArrived, LinkBroken]
    assert isinstance(events[-1], LinkBroken)
    assert events[-1].waiters == ["waiting"]
    assert link.receive(good) == []
    assert link.receive(bad) == []


def test_a_frame_over_the_limit_of_the_link_breaks_it() -> None:
    link: Link[None] = Link(frame_bytes_max=100)
    (event,) = link.receive(encode(Command(1, body=bytes(100))))
    assert isinstance(event, LinkBroken)
    assert isinstance(event.error, FrameTooLarge)


@pytest.mark.parametrize("options", [{"frame_bytes_max": 7}, {"in_flight_max": 0}])
def test_limits_that_allow_nothing_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"{name}={options[name]}"):
        Link[None](**options)


# ---- chunking ------------------------------------------------------------------------------------


def events_of(chunks: list[bytes]) -> tuple[list[Event[int]], int]:
    link: Link[int] = Link()
    for waiter in range(5):
        link.request(Command(1), waiter)
    return [event for chunk in chunks for event in link.receive(chunk)], link.late_replies


@given(st.lists(commands, max_size=6), st.data())
def test_any_chunking_gives_the_same_events(sent: list[Command], data: st.DataObject) -> None:
    for command in sent:
        command.request_id %= 8  # so that some of them answer our requests
    stream = b"".join(map(encode, sent))
    events, late_replies = events_of([stream])
    assert len(events) + late_replies == len(sent)
    assert events_of(data.draw(chunked(stream))) == (events, late_replies)


@given(st.lists(commands, max_size=3), st.binary(max_size=40), st.data())
def test_any_bytes_in_any_chunking_give_the_same_events_and_never_raise(
    sent: list[Command], garbage: bytes, data: st.DataObject
) -> None:
    stream = b"".join(map(encode, sent)) + garbage
    whole, late_replies = events_of([stream])
    parts, parts_late_replies = events_of(data.draw(chunked(stream)))
    assert list(map(repr, parts)) == list(map(repr, whole))
    assert parts_late_replies == late_replies
    assert not any(isinstance(event, LinkBroken) for event in whole[:-1])
