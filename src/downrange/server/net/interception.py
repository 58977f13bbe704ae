"""What a test may have done to a request in place of, or around, its handling.

A rule sees every request before the service does and returns one of these, or None to leave the
request alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from downrange.server.outputs import Peer
from downrange.wire.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Interception:
    """What becomes of one request; made by the functions of this module.

    Attributes:
        delay: How long the request waits first; later ones overtake it.
        is_handled: Whether the service gets to see it.
        is_answered: Whether the service's reply, late or not, reaches the peer.
        refusal: Code and remark of the error that is answered in place of handling it.
        is_cut: Whether the connection is cut in the end.
    """

    delay: float = 0.0
    is_handled: bool = True
    is_answered: bool = True
    refusal: tuple[int, str] | None = None
    is_cut: bool = False


Rule: TypeAlias = Callable[[Command, Peer], Interception | None]


def deliver(*, after: float) -> Interception:
    """Handle the request as ever, but only `after` seconds."""
    return Interception(delay=after)


def drop() -> Interception:
    """Pass over the request, as if it had been lost on its way."""
    return Interception(is_handled=False)


def refuse(code: int, remark: str, *, after: float = 0.0) -> Interception:
    """Answer with an error; the service never sees the request."""
    return Interception(delay=after, is_handled=False, refusal=(int(code), remark))


def cut(*, after: float = 0.0) -> Interception:
    """Cut the connection; the service never sees the request."""
    return Interception(delay=after, is_handled=False, is_cut=True)


def lose_reply(*, after: float = 0.0) -> Interception:
    """Handle the request, and lose the reply on its way back."""
    return Interception(delay=after, is_answered=False)


def handle_then_cut(*, after: float = 0.0) -> Interception:
    """Handle the request, and cut the connection before the reply gets out."""
    return Interception(delay=after, is_answered=False, is_cut=True)
