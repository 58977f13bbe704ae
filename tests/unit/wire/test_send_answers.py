"""Replies to sends, read without a command for each: equal to what the commands say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.producing.attempt import receipt_of
from downrange.client.flows.producing.prepare import prepare
from downrange.errors import RocketMQError
from downrange.model import Message, QueueId
from downrange.wire.command import Command, encode
from downrange.wire.frames import FrameSplitter
from downrange.wire.link import Link, LinkBroken, ReplyArrived, RequestArrived
from downrange.wire.send_answers import ANSWER_LENGTH_MAX, StoredAnswer, pure_stored_answers
from tests.unit.client.flows.flow_steps import TOPIC, producer_with, route
from tests.unit.wire.command_reader import read
from tests.unit.wire.strategies import chunked, damaged, texts

if TYPE_CHECKING:
    from downrange.model import SendReceipt

FIELDS = {
    "queueId": "3",
    "transactionId": "TX",
    "msgId": "7F000001000055D80000000001403B62",
    "TRACE_ON": "true",
    "MSG_REGION": "DefaultRegion",
    "queueOffset": "123456",
}
OFFSETS = st.integers(0, 10**17).map(str)


def reply(
    request_id: int = 1, code: int = 0, flags: int = 1, body: bytes = b"", **fields: str
) -> bytes:
    """Return the frame of a reply to a send, with some fields changed."""
    return encode(Command(code, FIELDS | fields, body, request_id=request_id, flags=flags))


def framed(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def answers_in(data: bytes, at: int = 0) -> tuple[list[StoredAnswer], int]:
    return pure_stored_answers(data, at, ANSWER_LENGTH_MAX)


def receipt(answer: StoredAnswer | Command, has_trace: bool = True) -> SendReceipt:
    outgoing = prepare(producer_with(route("a")), Message(TOPIC, b"1"))
    outgoing.message_id = "ID"
    queue = QueueId(TOPIC, "a", 3)
    return receipt_of(answer, "a:10911", queue, outgoing, [], has_trace=has_trace)


# ---- one reply -----------------------------------------------------------------------------------


def test_a_plain_reply_is_read() -> None:
    data = reply(7)
    answers, end = answers_in(data)
    assert answers == [
        StoredAnswer(7, 3, 123456, FIELDS["msgId"], "TX", "DefaultRegion", "true", None)
    ]
    assert end == len(data)
    (answer,) = answers
    assert (answer.code, answer.remark, answer.body, answer.fields) == (0, None, b"", FIELDS)


@given(
    st.integers(0, 2**31 - 1),
    st.fixed_dictionaries(
        {"msgId": texts, "queueId": st.integers(0, 2**31 - 1).map(str), "queueOffset": OFFSETS},
        optional={
            "transactionId": texts,
            "MSG_REGION": texts,
            "TRACE_ON": st.sampled_from(["true", "false"]),
            "recallHandle": texts,
        },
    ),
    st.booleans(),
)
def test_a_receipt_is_that_of_the_command(
    request_id: int, fields: dict[str, str], has_trace: bool
) -> None:
    command = Command(0, fields, request_id=request_id, flags=1)
    (answer,), _ = answers_in(encode(command))
    assert answer.request_id == request_id
    assert answer.fields == fields
    assert receipt(answer, has_trace) == receipt(command, has_trace)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(reply(code=10), id="stored late"),
        pytest.param(reply(code=14), id="refused"),
        pytest.param(reply(flags=0), id="a request"),
        pytest.param(reply(flags=3), id="another flag"),
        pytest.param(reply(body=b"body"), id="body"),
        pytest.param(reply(batchUniqId="x"), id="an unknown field"),
        pytest.param(reply(queueId="-3"), id="negative queue"),
        pytest.param(reply(queueId="03"), id="leading zero"),
        pytest.param(reply(queueId="²"), id="another digit"),
        pytest.param(reply(queueId="2147483648"), id="large queue"),
        pytest.param(reply(queueOffset="1" * 19), id="large offset"),
        pytest.param(reply(queueOffset=""), id="no offset"),
        pytest.param(reply(TRACE_ON="maybe"), id="no flag"),
        pytest.param(reply(-1), id="negative id"),
        pytest.param(reply().replace(b'"version":', b'"version":9999999', 1), id="a cut-off frame"),
        pytest.param(framed(b'{"code":0,"extFields":{"x":1}}'), id="no string"),
        pytest.param(framed(b'{"code":0,"extFields":{"\xff":1}}'), id="not UTF-8"),
        pytest.param(framed(b'{"code":0}'), id="no fields"),
        pytest.param(framed(reply()[8:-1] + b"0000000000}"), id="large version"),
        pytest.param(reply()[:-1], id="incomplete"),
        pytest.param(reply()[:7], id="no header"),
        pytest.param(b"\0\0\0\3\xff\xff\xff\xff", id="impossible length"),
    ],
)
def test_anything_else_ends_the_run(data: bytes) -> None:
    first = reply(5)
    answers, end = answers_in(first + data)
    assert [answer.request_id for answer in answers] == [5]
    assert end == len(first)


def test_a_long_reply_is_read_as_a_command() -> None:
    data = reply(msgId="7" * ANSWER_LENGTH_MAX)
    assert answers_in(data) == ([], 0)


# ---- a link --------------------------------------------------------------------------------------

Seen = list[tuple[int, dict[str, str] | str]]


def seen_by(link: Link[int], chunks: list[bytes], *, reads_answers: bool) -> list[Any]:
    """Return what a link reads: answers or commands, each with its waiter."""
    seen: list[Any] = []
    for chunk in chunks:
        rest = chunk
        if reads_answers:
            for waiter, answer in link.receive_answers(chunk):
                seen.append((waiter, answer.code, answer.fields))
            rest = b""
        for event in link.receive(rest):
            if isinstance(event, ReplyArrived):
                seen.append((event.waiter, event.command.code, event.command.fields))
            elif isinstance(event, LinkBroken):
                seen.append((str(event.error), event.waiters))
            elif isinstance(event, RequestArrived):
                seen.append(event.command)
    return [seen, link.late_replies, link.in_flight, link.is_closed]


def link_with(in_flight: int, frame_bytes_max: int = 1 << 20) -> Link[int]:
    link: Link[int] = Link(frame_bytes_max=frame_bytes_max)
    for waiter in range(in_flight):
        link.request(Command(1), waiter)
    return link


ORIGINALS = (
    b"".join(reply(number) for number in range(1, 6)),
    reply(1) + reply(2, code=14) + reply(3) + encode(Command(40)) + reply(4),
    reply(9) + reply(2, body=b"body") + reply(1, MSG_REGION="é\\x"),
)


@given(st.data())
def test_a_link_that_reads_answers_reads_the_same(data: st.DataObject) -> None:
    stream = data.draw(st.sampled_from(ORIGINALS) | damaged(ORIGINALS))
    chunks = data.draw(chunked(stream))
    limit = data.draw(st.sampled_from([1 << 20, 200]))
    found = seen_by(link_with(5, limit), chunks, reads_answers=True)
    assert found == seen_by(link_with(5, limit), chunks, reads_answers=False)


def test_late_answers_are_counted() -> None:
    link = link_with(1)
    assert [waiter for waiter, _ in link.receive_answers(reply(9) + reply(1))] == [0]
    assert link.late_replies == 1
    assert not link.has_rest


def test_what_follows_answers_is_kept_for_receive() -> None:
    link = link_with(3)
    found = link.receive_answers(reply(1) + reply(2, code=14) + reply(3)[:20])
    assert [waiter for waiter, _ in found] == [0]
    assert link.has_rest
    (event,) = link.receive(b"")
    assert isinstance(event, ReplyArrived)
    assert event.command.code == 14
    assert [waiter for waiter, _ in link.receive_answers(reply(3)[20:])] == [2]


def test_a_closed_link_reads_no_answers() -> None:
    link = link_with(1)
    link.close()
    assert link.receive_answers(reply(1)) == []


def test_a_broken_splitter_has_no_answers() -> None:
    splitter = FrameSplitter()
    splitter.receive(b"\xff" * 8)
    with pytest.raises(RocketMQError):
        splitter.next_frame()
    splitter.receive(reply())
    assert splitter.next_answers() == []


def test_a_request_id_of_a_reply_is_read_back() -> None:
    assert read(reply(77)).request_id == 77
