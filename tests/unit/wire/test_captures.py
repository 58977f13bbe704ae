"""Captured frames are read the same in chunks of any size, and written as the same bytes."""

from __future__ import annotations

import random

import pytest

from downrange.wire.codes import HeaderCodec
from downrange.wire.command import decode, encode
from downrange.wire.frames import FrameSplitter
from tests.unit.wire.command_reader import captured, commands_in
from tests.unit.wire.vectors import FRAMES

each_frame = pytest.mark.parametrize("name", FRAMES)


def random_chunks(data: bytes, seed: int) -> list[bytes]:
    source = random.Random(seed)
    cuts = sorted(source.randrange(len(data) + 1) for _ in range(source.randrange(1, 12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@each_frame
def test_a_captured_frame_reads_the_same_byte_by_byte(name: str) -> None:
    data = FRAMES[name]
    assert commands_in(data[i : i + 1] for i in range(len(data))) == [captured(name)]


@each_frame
def test_a_captured_frame_reads_the_same_in_any_chunks(name: str) -> None:
    expected = [captured(name)]
    for seed in range(20):
        assert commands_in(random_chunks(FRAMES[name], seed)) == expected, f"seed {seed}"


@each_frame
@pytest.mark.parametrize("tail_size", [1, 4, 7, 8, 60])
def test_a_captured_frame_is_given_when_the_next_has_begun(name: str, tail_size: int) -> None:
    following = FRAMES["send"]
    splitter = FrameSplitter()
    splitter.receive(FRAMES[name] + following[:tail_size])
    frame = splitter.next_frame()
    assert frame is not None
    assert decode(frame) == captured(name)
    assert splitter.next_frame() is None
    assert not splitter.is_idle
    splitter.receive(following[tail_size:])
    frame = splitter.next_frame()
    assert frame is not None
    assert decode(frame) == captured("send")


def test_all_captured_frames_in_one_stream_read_as_each_alone() -> None:
    expected = [captured(name) for name in FRAMES]
    stream = b"".join(FRAMES.values())
    assert commands_in([stream]) == expected
    for seed in range(20):
        assert commands_in(random_chunks(stream, seed)) == expected, f"seed {seed}"


@each_frame
@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_captured_command_survives_being_written_by_us(name: str, codec: HeaderCodec) -> None:
    command = captured(name)
    command.codec = codec
    assert commands_in([encode(command)]) == [command]
