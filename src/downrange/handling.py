"""What a handler sees of the world, and what it wants done there.

A handler is a function of state, request, peer and time, and returns outputs. It never writes to a
socket, a file or a log itself: the listener in `server` acts on the outputs, and so does a test or
a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from downrange.wire.command import Command

if TYPE_CHECKING:
    from downrange.wire.codes import ResponseCode


class Peer(NamedTuple):
    """One connection, as handlers know it.

    Attributes:
        number: Never used twice in a process, so it names the connection after its end too.
        address: Where the connection comes from, for texts: "10.0.0.7:41732".
    """

    number: int
    address: str


@dataclass(slots=True)
class Reply:
    """Answer the request that is being handled."""

    command: Command


@dataclass(slots=True)
class LateReply:
    """Answer a request that was handled earlier without a reply; `connection` is its number."""

    connection: int
    request: Command
    command: Command


@dataclass(slots=True)
class Push:
    """Send a request of ours that is not answered; nothing happens when the peer is gone."""

    connection: int
    command: Command


@dataclass(slots=True)
class Disconnect:
    """Close a connection; nothing happens when it is gone."""

    connection: int


@dataclass(slots=True)
class Note:
    """Tell the operator; a warning is something that he can act on."""

    text: str
    is_warning: bool = False


Output: TypeAlias = Reply | LateReply | Push | Disconnect | Note


def refusal(code: ResponseCode, remark: str) -> Command:
    """Return a reply that says no, and why."""
    return Command(int(code), remark=remark)
