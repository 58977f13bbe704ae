"""Reads commands from bytes, for tests of written or captured frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from tests.unit.wire.vectors import FRAMES

if TYPE_CHECKING:
    from collections.abc import Iterable


def commands_in(chunks: Iterable[bytes]) -> list[Command]:
    """Read the commands of a stream that ends with a complete frame."""
    splitter = FrameSplitter()
    commands: list[Command] = []
    for chunk in chunks:
        splitter.receive(chunk)
        while (frame := splitter.next_frame()) is not None:
            commands.append(decode(frame))
    assert splitter.is_idle
    return commands


def read(data: bytes) -> Command:
    """Read one command."""
    (command,) = commands_in([data])
    return command


def captured(name: str) -> Command:
    """Read a captured frame."""
    return read(FRAMES[name])
