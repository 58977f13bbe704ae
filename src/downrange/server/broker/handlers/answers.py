"""The two ways to answer at once, and what a handler is."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from downrange.server.outputs import Output, Peer, Reply, refusal
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.server.broker.state import BrokerState
    from downrange.wire.codes import ResponseCode
    from downrange.wire.fields import Header

    #: A function of the broker, the request, its sender and the time. Without a `Reply` among its
    #: outputs the request is answered later, by a `LateReply`.
    Handler: TypeAlias = Callable[[BrokerState, Command, Peer, int], Iterable[Output]]


def succeed(
    header: Header | None = None, body: bytes = b"", remark: str | None = None
) -> list[Output]:
    """Answer that it is done."""
    return [Reply(Command(0, {} if header is None else header.to_fields(), body, remark))]


def refuse(code: ResponseCode, remark: str) -> list[Output]:
    """Answer no, and why."""
    return [Reply(refusal(code, remark))]
