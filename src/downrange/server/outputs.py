"""The outputs of handlers, and the values that handlers share with listeners.

A handler is a function of state, request, peer and time, and returns outputs. It never writes to a
socket or to the server's log itself: the dispatcher in `server/net` acts on the outputs, and so
does a test or a simulation. Three outputs are for the broker: `TablesChanged`, `StorePending` and
`FlushAwaited`. `Broker` acts on these and passes on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from downrange.wire.command import Command
from downrange.wire.send_replies import StoredForm, StoredReply
from downrange.wire.send_runs import SendRun

if TYPE_CHECKING:
    from downrange.wire.codes import ResponseCode


class Peer(NamedTuple):
    """One connection, as handlers see it.

    Attributes:
        number: Unique in the process, also after the connection has ended.
        address: The remote address as text: "10.0.0.7:41732".
    """

    number: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """How a broker registers with name servers.

    Attributes:
        name: Shared by all replicas of one broker.
        cluster: The cluster's name.
        broker_id: 0 is the master.
        address: For clients, "host:port".
        ha_address: For slaves, "host:port".
        zone: The zone of the broker; name servers filter routes by it.
    """

    name: str
    cluster: str
    broker_id: int
    address: str
    ha_address: str
    zone: str | None = None


# ---- for the listener --------------------------------------------------------------------------


class Reply(msgspec.Struct, gc=False):  # made per message, and never part of a reference cycle
    """Answer the request that is being handled."""

    command: Command


class LateReply(msgspec.Struct, gc=False):
    """Answer a request that was handled earlier without a reply; `connection` is its number."""

    connection: int
    request: Command
    command: Command | StoredReply


class LateReplies(msgspec.Struct, gc=False):
    """Answer all sends of a run that was handled earlier.

    Attributes:
        connection: Number of the connection.
        run: The sends; their messages are stored.
        form: The fields that all replies have.
        code: Written when the replies are: until then, it may still become another one.
    """

    connection: int
    run: SendRun
    form: StoredForm
    code: int = 0


class Held(msgspec.Struct, frozen=True, gc=False):
    """The request is held until there is a message: it does not count as one without a reply.

    What is held has a limit of its own. A consumer of thousands of queues holds as many pulls on
    one connection, and its heartbeats must be read all the same.
    """


class Push(msgspec.Struct):
    """Send a one-way request to a client; ignored if the connection has ended."""

    connection: int
    command: Command


class Call(msgspec.Struct):
    """Send a request to a client and await its reply.

    Attributes:
        connection: Number of the connection.
        command: The request.
        timeout: Seconds to wait for the reply.
        on_reply: Given to the service's `on_reply` exactly once.
    """

    connection: int
    command: Command
    timeout: float
    on_reply: OnReply


class AskNameServer(msgspec.Struct):
    """Send a request to a name server and await its reply.

    Attributes:
        command: The request.
        timeout: Seconds to wait for the reply, of one name server after the other.
        on_reply: Given to the service's `on_reply` exactly once; None if none of them replied.
    """

    command: Command
    timeout: float
    on_reply: OnReply


class Disconnect(msgspec.Struct):
    """Close a connection; ignored if it has ended."""

    connection: int


class Note(msgspec.Struct):
    """Write a line to the server's log; a warning is one that an operator can act on."""

    text: str
    is_warning: bool = False


# ---- for the broker ----------------------------------------------------------------------------


class TablesChanged(msgspec.Struct, frozen=True, gc=False):
    """Hold the reply until topics and groups are saved and announced up to a version.

    It stands before the `Reply` or the `StorePending` of the same request.

    Attributes:
        version: `BrokerState.tables_version` after the change.
        is_confirmed: Whether the reply confirms the change, as after creating a topic. Such a
            reply becomes a failure if the tables cannot be saved in time. Other replies, such as
            that to the first pull of a group, are sent unchanged.
    """

    version: int
    is_confirmed: bool = False


class StorePending(msgspec.Struct, frozen=True, gc=False):
    """Commit the write queue at the end of this turn.

    The records of this request are in the last entry of the queue, whose `on_stored` answers the
    request.
    """


class FlushAwaited(msgspec.Struct, frozen=True, gc=False):
    """Hold the next reply until all that is in the log now is durable.

    For records that a handler has stored itself, without the write queue.
    """


HELD: Final = Held()
#: All outputs of a plain send, made once.
STORE_PENDING: Final[tuple[Output]] = (StorePending(),)


Output: TypeAlias = (
    Reply
    | LateReply
    | LateReplies
    | Held
    | Push
    | Call
    | AskNameServer
    | Disconnect
    | Note
    | TablesChanged
    | StorePending
    | FlushAwaited
)
#: Takes the reply to a `Call` or an `AskNameServer` and the time; None if no reply came in time or
#: the connection ended.
OnReply: TypeAlias = Callable[[Command | None, int], Iterable[Output]]


def refusal(code: ResponseCode, remark: str) -> Command:
    """Return a reply that refuses a request and says why."""
    return Command(int(code), remark=remark)
