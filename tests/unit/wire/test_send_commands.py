"""A request from a form has the same bytes as the plain command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import FrameTooLarge, Unencodable
from downrange.wire.codes import HeaderCodec, RequestCode
from downrange.wire.command import encode
from downrange.wire.headers import SendRequestV2
from downrange.wire.link import Link
from downrange.wire.send_commands import SendCommand, SendForm

#: Any JSON string, with characters that must be escaped more often than by chance.
TEXTS = st.text() | st.text('%d"\\/\x00\x01\x02\x1f\x7f\n\u2028é\U0001f600 abc')
INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def forms(draw: st.DrawFn) -> SendForm:
    return SendForm(
        draw(st.sampled_from([310, 320, 325])),
        group=draw(TEXTS),
        topic=draw(TEXTS),
        default_topic=draw(TEXTS),
        default_topic_queues=draw(INT32),
        queue=draw(INT32),
        broker=draw(TEXTS),
        is_unit=draw(st.booleans()),
        is_batch=draw(st.booleans()),
    )


COMMANDS = st.builds(
    SendCommand,
    form=forms(),
    body=st.binary(),
    properties=TEXTS,
    sys_flag=INT32,
    born_ms=st.integers(-(2**63), 2**63 - 1),
    flag=INT32,
    request_id=INT32,
    flags=st.integers(0, 3),
    codec=st.sampled_from(HeaderCodec),
)


def form(**different: str) -> SendForm:
    texts = {"group": "shop", "topic": "orders", "default_topic": "TBW102", "broker": "a"}
    return SendForm(310, **(texts | different), default_topic_queues=4, queue=3)  # type: ignore[arg-type]


@given(COMMANDS)
def test_its_bytes_are_those_of_the_plain_command(command: SendCommand) -> None:
    assert command.encode() == encode(command.plain())


@given(COMMANDS)
def test_its_fields_are_those_of_the_header_class(command: SendCommand) -> None:
    fields = command.fields
    header = SendRequestV2.from_fields(fields)
    assert header.to_fields() == fields
    assert (header.sys_flag, header.born_timestamp) == (command.sys_flag, command.born_ms)
    assert (header.flag, header.properties) == (command.flag, command.properties)
    assert command.plain().code == command.code
    assert command.plain().is_oneway == command.is_oneway


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_link_treats_both_alike(codec: HeaderCodec) -> None:
    command = SendCommand(form(), b"body", "UNIQ_KEY\x01A\x02", 0, 1_700_000_000_000)
    ours: Link[None] = Link(codec=codec)
    plain: Link[None] = Link(codec=codec)
    assert ours.request(command, None) == plain.request(command.plain(), None)
    assert ours.oneway(command) == plain.oneway(command.plain())
    assert command.is_oneway
    assert command.code == RequestCode.SEND_MESSAGE_V2


def test_half_a_surrogate_pair_is_refused_as_in_a_plain_command() -> None:
    command = SendCommand(form(), b"", "a\x01\ud800\x02", 0, 0)
    with pytest.raises(Unencodable) as plain:
        encode(command.plain())
    with pytest.raises(Unencodable) as ours:
        command.encode()
    assert str(ours.value) == str(plain.value)
    with pytest.raises(Unencodable, match="half a surrogate pair"):
        form(broker="\udfff")


def test_a_frame_beyond_the_limit_is_refused() -> None:
    with pytest.raises(FrameTooLarge):
        SendCommand(form(), bytes(100), "", 0, 0).encode(bytes_max=100)
