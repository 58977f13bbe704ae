"""Frames from chunks of any size, and a bounded buffer."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import FrameTooLarge, MalformedFrame, Unencodable, WireError
from downrange.wire.codes import HeaderCodec
from downrange.wire.frames import Frame, FrameSplitter, join_frame
from downrange.wire.limits import FRAME_BYTES_MAX
from tests.unit.wire.strategies import chunked

frames = st.builds(
    Frame, codec=st.sampled_from(HeaderCodec), header=st.binary(), body=st.binary(max_size=40)
)


def split(*chunks: bytes, bytes_max: int = FRAME_BYTES_MAX) -> list[Frame]:
    splitter = FrameSplitter(bytes_max)
    found: list[Frame] = []
    for chunk in chunks:
        splitter.receive(chunk)
        while (frame := splitter.next_frame()) is not None:
            found.append(frame)
    return found


@given(st.lists(frames, max_size=6), st.data())
def test_a_splitter_gives_the_same_frames_in_any_chunking(
    originals: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(
        join_frame(frame.codec, frame.header, frame.body, FRAME_BYTES_MAX) for frame in originals
    )
    assert split(*data.draw(chunked(stream))) == originals


@given(st.lists(frames, min_size=1, max_size=4))
def test_a_splitter_is_idle_only_at_a_frames_end(originals: list[Frame]) -> None:
    splitter = FrameSplitter()
    assert splitter.is_idle
    for frame in originals:
        data = join_frame(frame.codec, frame.header, frame.body, FRAME_BYTES_MAX)
        splitter.receive(data[:-1])
        assert splitter.next_frame() is None
        assert not splitter.is_idle
        splitter.receive(data[-1:])
        assert splitter.next_frame() == frame
        assert splitter.is_idle


def test_a_frame_is_written_as_length_header_word_header_and_body() -> None:
    written = join_frame(HeaderCodec.BINARY, b"head", b"body!", 100)
    assert written == pack(">iBBH", 13, 1, 0, 4) + b"head" + b"body!"


def test_parts_of_a_frame_are_bytes_whatever_the_chunking() -> None:
    data = join_frame(HeaderCodec.JSON, b"{}", b"x", 100)
    for chunks in ([data], [data[:9], data[9:]], [data[:3], data[3:10], data[10:] + data[:1]]):
        frame = split(*chunks)[0]
        assert (type(frame.header), type(frame.body)) == (bytes, bytes)


def test_a_splitter_lets_go_of_a_read_that_it_has_cut_up() -> None:
    splitter = FrameSplitter()
    splitter.receive(join_frame(HeaderCodec.JSON, b"{}", bytes(1000), 2000))
    splitter.next_frame()
    assert len(splitter._buffer) == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1, 3])
def test_a_length_without_room_for_the_header_word_is_refused(length: int) -> None:
    for more in (b"", bytes(4), b"\xff" * 4, bytes(100)):
        with pytest.raises(MalformedFrame, match=f"frame length: {length} leaves no room"):
            split(pack(">i", length) + more)


@pytest.mark.parametrize("more", [b"", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", bytes(200)])
def test_a_frame_over_the_limit_is_refused_by_its_length_word_alone(more: bytes) -> None:
    with pytest.raises(FrameTooLarge, match="101 bytes are more than the limit of 100") as caught:
        split(pack(">i", 97) + more, bytes_max=100)
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    data = join_frame(HeaderCodec.JSON, b"{}", bytes(90), 100)
    assert len(data) == 100
    assert split(data, bytes_max=100) == [Frame(HeaderCodec.JSON, b"{}", bytes(90))]


def test_a_writer_refuses_a_frame_over_the_limit() -> None:
    with pytest.raises(FrameTooLarge, match="101 bytes are more than the limit of 100"):
        join_frame(HeaderCodec.JSON, b"{}", bytes(91), 100)


def test_a_writer_refuses_a_header_whose_length_needs_more_than_24_bits() -> None:
    with pytest.raises(Unencodable, match="frame header: 16777216 bytes do not fit 24 bits"):
        join_frame(HeaderCodec.JSON, bytes(1 << 24), b"", 1 << 25)


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize("header_size", [13, 100, 0xFFFFFF])
def test_a_header_longer_than_its_frame_is_refused(codec: int, header_size: int) -> None:
    problem = f"a header of {header_size} bytes in a frame of length 16"
    with pytest.raises(MalformedFrame, match=f"frame header word: {problem}"):
        split(pack(">iI", 16, codec << 24 | header_size) + bytes(12))


@pytest.mark.parametrize("codec", [2, 3, 0x7F, 0x80, 0xFF])
def test_an_unknown_header_codec_is_refused(codec: int) -> None:
    with pytest.raises(MalformedFrame, match=f"unknown header codec {codec}$"):
        split(pack(">iI", 16, codec << 24) + bytes(12))


@pytest.mark.parametrize("codec", HeaderCodec)
def test_codec_and_header_length_stay_apart_when_the_limit_is_raised(codec: HeaderCodec) -> None:
    """Above 16 MiB a header word with the binary mark could pass for a JSON header's length."""
    frame = Frame(codec, b"header", bytes(17 * 1024 * 1024))
    limit = 64 * 1024 * 1024
    assert split(join_frame(frame.codec, frame.header, frame.body, limit), bytes_max=limit) == [
        frame
    ]


def test_an_unknown_header_codec_is_refused_when_the_limit_is_raised() -> None:
    with pytest.raises(MalformedFrame, match="unknown header codec 2"):
        split(pack(">iI", 2**30, 2 << 24), bytes_max=2**31)


def test_a_splitter_gives_good_frames_before_it_fails_and_keeps_failing_after() -> None:
    splitter = FrameSplitter()
    good = Frame(HeaderCodec.JSON, b"{}", b"")
    data = join_frame(good.codec, good.header, good.body, 100)
    splitter.receive(data + pack(">i", -5))
    assert splitter.next_frame() == good
    errors: list[WireError] = []
    for _ in range(2):
        with pytest.raises(MalformedFrame) as caught:
            splitter.next_frame()
        errors.append(caught.value)
        splitter.receive(data)
    assert all(one is other for one, other in pairwise(errors))


def test_a_splitter_holds_no_more_than_one_frame_and_one_read() -> None:
    """A peer that announces a large frame and sends it slowly cannot make us allocate it."""
    splitter = FrameSplitter()
    tracemalloc.start()
    try:
        splitter.receive(pack(">ii", FRAME_BYTES_MAX - 4, 10))
        for _ in range(100):
            splitter.receive(bytes(100))
            assert splitter.next_frame() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_bytes_after_an_error_are_dropped() -> None:
    splitter = FrameSplitter(100)
    splitter.receive(b"\x7f\xff\xff\xff")
    with pytest.raises(FrameTooLarge):
        splitter.next_frame()
    splitter.receive(bytes(1000))
    assert splitter.is_idle
    with pytest.raises(FrameTooLarge):
        splitter.next_frame()


def test_a_large_frame_in_many_reads_is_followed_by_others() -> None:
    frames = FrameSplitter()
    large = join_frame(HeaderCodec.JSON, b"{}", b"b" * 300_000, FRAME_BYTES_MAX)
    data = large + join_frame(HeaderCodec.JSON, b"{}", b"next", FRAME_BYTES_MAX) * 2
    bodies: list[int] = []
    for at in range(0, len(data), 50_000):
        frames.receive(data[at : at + 50_000])
        assert frames.next_run(lambda *_: None) is None
        while (frame := frames.next_frame()) is not None:
            bodies.append(len(frame.body))
    assert bodies == [300_000, 4, 4]
    assert frames.is_idle
