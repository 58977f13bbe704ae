"""A reply from a form has the same bytes as the plain command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import FrameTooLarge, Unencodable
from downrange.wire.codes import CommandFlag, HeaderCodec
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import FrameSplitter
from downrange.wire.send_replies import StoredForm, StoredReply

FORM = StoredForm(id_prefix="7F00000100002A9F", is_trace_on=True, region="DefaultRegion")
NUMBERS = st.integers(0, 2**63 - 1)
#: Strings that can arrive: without halves of surrogate pairs.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def a_reply(unique_key: str = "7F00000100010000", code: int = 0) -> StoredReply:
    return StoredReply(FORM, 3, unique_key, 4096, 17, code)


def plainly(reply: StoredReply, request: Command) -> bytes:
    command = reply.plain()
    command.request_id = request.request_id
    command.flags = int(CommandFlag.REPLY)
    command.codec = request.codec
    return encode(command)


@given(
    TEXTS,
    TEXTS,
    st.booleans(),
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 10, 12]),
    st.sampled_from(HeaderCodec),
)
def test_the_bytes_are_those_of_the_plain_command(
    unique_key: str,
    region: str,
    is_trace_on: bool,
    numbers: tuple[int, int, int],
    request_id: int,
    code: int,
    codec: HeaderCodec,
) -> None:
    form = StoredForm(id_prefix="0A00000200002A9F", is_trace_on=is_trace_on, region=region)
    queue_id, log_offset, queue_offset = numbers
    reply = StoredReply(form, queue_id, unique_key, log_offset, queue_offset, code)
    request = Command(310, request_id=request_id, codec=codec)
    assert reply.encode(request) == plainly(reply, request)


def test_a_reply_reads_back_with_all_its_fields() -> None:
    splitter = FrameSplitter()
    splitter.receive(a_reply().encode(Command(310, request_id=9)))
    frame = splitter.next_frame()
    assert frame is not None
    read = decode(frame)
    assert (read.code, read.request_id, read.flags) == (0, 9, int(CommandFlag.REPLY))
    assert read.fields == {
        "queueId": "3",
        "transactionId": "7F00000100010000",
        "msgId": "7F00000100002A9F0000000000001000",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "queueOffset": "17",
    }
    assert read.fields == a_reply().fields


def test_a_key_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(Unencodable, match="surrogate"):
        a_reply("\ud800").encode(Command(310))


def test_a_limit_below_the_frame_is_kept() -> None:
    with pytest.raises(FrameTooLarge):
        a_reply().encode(Command(310), 100)
