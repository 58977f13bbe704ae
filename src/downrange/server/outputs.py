"""What a handler sees of the world, and what it wants done there.

A handler is a function of state, request, peer and time, and returns outputs. It never writes to a
socket, a file or a log itself: the listener in `server` acts on the outputs, and so does a test or
a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from downrange.wire.command import Command
from downrange.wire.send_replies import StoredReply

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """How a broker is known to name servers and clients.

    Attributes:
        name: What the replicas of one broker have in common.
        cluster: Its cluster.
        broker_id: 0 is the master.
        address: Where clients reach it, "host:port".
        ha_address: Where slaves reach it, "host:port".
    """

    name: str
    cluster: str
    broker_id: int
    address: str
    ha_address: str


class Reply(msgspec.Struct, gc=False):  # made per message, and in no cycle
    """Answer the request that is being handled."""

    command: Command


class LateReply(msgspec.Struct, gc=False):
    """Answer a request that was handled earlier without a reply; `connection` is its number."""

    connection: int
    request: Command
    command: Command | StoredReply


class Push(msgspec.Struct):
    """Send a request of ours that is not answered; nothing happens when the peer is gone."""

    connection: int
    command: Command


class Call(msgspec.Struct):
    """Send a request of ours that wants an answer.

    Attributes:
        connection: Number of the connection that is asked.
        command: The request.
        timeout: How long the answer may take.
        on_reply: Gets the reply, or None when none came in time or the peer is gone, and the time;
            returns what to do next. It is called exactly once.
    """

    connection: int
    command: Command
    timeout: float
    on_reply: Callable[[Command | None, int], Iterable[Output]]


class Disconnect(msgspec.Struct):
    """Close a connection; nothing happens when it is gone."""

    connection: int


class Note(msgspec.Struct):
    """Tell the operator; a warning is something that he can act on."""

    text: str
    is_warning: bool = False


Output: TypeAlias = Reply | LateReply | Push | Call | Disconnect | Note


def refusal(code: ResponseCode, remark: str) -> Command:
    """Return a reply that says no, and why."""
    return Command(int(code), remark=remark)
