"""Replies captured from the Apache servers, read again without the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.wire.command import decode, encode
from downrange.wire.frames import Frame, FrameSplitter
from downrange.wire.ids import parse_offset_id
from downrange.wire.records import decode_record, encode_record, scan_segment
from tests.conversations.catalogue import CONVERSATIONS, conversations_of
from tests.conversations.recorder import Recording
from tests.conversations.scene import playback_scene
from tests.golden.capture import FOLDER, SEGMENT

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ["4.9.4", "5.5.0"]
RECORDINGS = [
    FOLDER / version / f"{name}.jsonl" for version in VERSIONS for name in conversations_of(version)
]


def _id_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def _frame_of(data: bytes) -> Frame:
    frames = FrameSplitter()
    frames.receive(data)
    frame = frames.next_frame()
    assert frame is not None
    return frame


def test_every_recording_belongs_to_a_conversation() -> None:
    assert {*FOLDER.glob("*/*.jsonl")} == {*RECORDINGS}


@pytest.mark.parametrize("path", RECORDINGS, ids=_id_of)
def test_conversation_sends_the_recorded_bytes_and_understands_the_answers(path: Path) -> None:
    with playback_scene(Recording.load(path)) as scene:
        CONVERSATIONS[path.stem](scene)


@pytest.mark.parametrize("path", RECORDINGS, ids=_id_of)
def test_recorded_frames_survive_reading_and_writing(path: Path) -> None:
    for _, _, data in Recording.load(path).frames:
        command = decode(_frame_of(data))
        assert decode(_frame_of(encode(command))) == command


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_commit_log_is_rewritten_byte_for_byte(version: str) -> None:
    data = (FOLDER / version / SEGMENT).read_bytes()
    records = list(scan_segment(data))
    assert len(records) > 40
    assert b"".join(encode_record(record) for record in records) == data
    assert sum(record.size for record in records) == len(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_commit_log_holds_what_was_read_over_the_wire(version: str) -> None:
    """Every record of a view by id or a pull is at its log offset in the file."""
    segment = (FOLDER / version / SEGMENT).read_bytes()
    stored = {record.log_offset: record for record in scan_segment(segment)}
    recording = Recording.load(FOLDER / version / "messages_are_found_by_id_and_key.jsonl")
    bodies = [
        command.body
        for _, way, data in recording.frames
        if way == "received" and (command := decode(_frame_of(data))).body
    ]
    seen = 0
    for body in bodies:
        at = 0
        while at < len(body):
            record = decode_record(body, at)
            assert stored[record.log_offset] == record
            assert parse_offset_id(record.offset_id).log_offset == record.log_offset
            at += record.size
            seen += 1
    assert seen >= 6
