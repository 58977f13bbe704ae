"""Recordings of conversations: made during a live run, played back without a server.

A recording is JSON lines. The first line holds the inputs of the conversation (server version, name
prefix, time); each other line is a frame: connection, direction, and its bytes in hexadecimal.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conversations.peers import Channel


@dataclass(frozen=True, slots=True)
class Facts:
    """The inputs of a conversation that make it send the same bytes again."""

    server: str
    prefix: str
    now_ms: int
    broker: str
    broker_address: str


@dataclass(slots=True)
class Recording:
    """The frames of one conversation, in order."""

    facts: Facts
    frames: list[tuple[str, str, bytes]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the recording."""
        lines = [json.dumps(asdict(self.facts))]
        lines += [
            json.dumps({"connection": connection, way: frame.hex()})
            for connection, way, frame in self.frames
        ]
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a recording."""
        first, *lines = path.read_text().splitlines()
        recording = cls(Facts(**json.loads(first)))
        for line in lines:
            entry = json.loads(line)
            way = "sent" if "sent" in entry else "received"
            recording.frames.append((entry["connection"], way, bytes.fromhex(entry[way])))
        return recording


class RecordingChannel:
    """Forwards frames and keeps them."""

    def __init__(self, channel: Channel, connection: str, recording: Recording) -> None:
        self._channel = channel
        self._connection = connection
        self._recording = recording

    def send(self, frame: bytes) -> None:
        self._recording.frames.append((self._connection, "sent", frame))
        self._channel.send(frame)

    def receive(self, seconds: float) -> bytes:
        frame = self._channel.receive(seconds)
        self._recording.frames.append((self._connection, "received", frame))
        return frame

    def close(self) -> None:
        self._channel.close()


class PlaybackChannel:
    """Returns the recorded frames, and checks that the sent frames equal the recorded ones."""

    def __init__(self, sent: deque[bytes], received: deque[bytes]) -> None:
        self._sent = sent
        self._received = received

    def send(self, frame: bytes) -> None:
        assert self._sent, f"more is sent than was recorded: {frame!r}"
        assert frame == self._sent.popleft()

    def receive(self, seconds: float) -> bytes:
        if not self._received:
            raise TimeoutError(f"nothing more was recorded, not even in {seconds} s")
        return self._received.popleft()

    def close(self) -> None:
        assert not self._sent, f"{len(self._sent)} recorded frames were not sent again"


class Playback:
    """Gives access to the connections of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._sent: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self._received: defaultdict[str, deque[bytes]] = defaultdict(deque)
        for connection, way, frame in recording.frames:
            (self._sent if way == "sent" else self._received)[connection].append(frame)

    def channel(self, connection: str) -> PlaybackChannel:
        """Return the connection of this name."""
        return PlaybackChannel(self._sent[connection], self._received[connection])
