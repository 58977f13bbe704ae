"""Our replies compared with those of Apache 5.5.0 to the same bytes (tests/golden)."""

from __future__ import annotations

from pathlib import Path

import pytest

from downrange.server.outputs import Peer
from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from tests.conversations.recorder import Recording
from tests.unit.server.nameserver.registry_stage import answer, new_state

GOLDEN = Path(__file__).parents[3] / "golden" / "5.5.0"


def _is_for_name_servers_alone(recording: Recording) -> bool:
    return all("name server" in connection for connection, _, _ in recording.frames)


RECORDINGS = {
    path.stem: recording
    for path in sorted(GOLDEN.glob("*.jsonl"))
    if _is_for_name_servers_alone(recording := Recording.load(path))
}


@pytest.mark.parametrize("name", [name for name in RECORDINGS if "tolerated" not in name])
def test_our_answers_are_those_of_the_real_server(name: str) -> None:
    state = new_state()
    waiting: dict[str, Command] = {}
    compared = 0
    for connection, way, data in RECORDINGS[name].frames:
        command = _read(data)
        if way == "sent":
            peer = Peer(int(connection.split()[0]), connection)
            waiting[connection] = answer(state, command, peer=peer)
        else:
            ours = waiting.pop(connection)
            if "default_topic" in name and command.code == 0:
                continue  # the request names a topic of the recorded broker
            assert (ours.code, ours.remark) == (command.code, command.remark)
            assert (ours.fields, ours.body) == (command.fields, command.body)
            compared += 1
    assert compared > 0


def test_there_are_recordings_to_compare_with() -> None:
    assert len(RECORDINGS) >= 5


def _read(data: bytes) -> Command:
    frames = FrameSplitter()
    frames.receive(data)
    frame = frames.next_frame()
    assert frame is not None
    return decode(frame)
