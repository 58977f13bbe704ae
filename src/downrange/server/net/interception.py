"""Faults that tests inject into the handling of a request.

A rule gets every request before the service and returns an `Interception`, or None for normal
handling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from downrange.server.outputs import Peer
from downrange.wire.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Interception:
    """The treatment of one request; made by the functions of this module.

    Attributes:
        delay: Seconds before anything else happens; later requests overtake this one.
        is_handled: Whether the service gets the request.
        is_answered: Whether the peer gets the service's reply, late or not.
        refusal: Code and remark of an error reply that replaces the handling.
        is_cut: Whether the connection is cut afterwards.
    """

    delay: float = 0.0
    is_handled: bool = True
    is_answered: bool = True
    refusal: tuple[int, str] | None = None
    is_cut: bool = False


Rule: TypeAlias = Callable[[Command, Peer], Interception | None]


def deliver(*, after: float) -> Interception:
    """Handle the request normally, `after` seconds later."""
    return Interception(delay=after)


def drop() -> Interception:
    """Ignore the request, as if it was lost on the network."""
    return Interception(is_handled=False)


def refuse(code: int, remark: str, *, after: float = 0.0) -> Interception:
    """Reply with an error; the service does not get the request."""
    return Interception(delay=after, is_handled=False, refusal=(int(code), remark))


def cut(*, after: float = 0.0) -> Interception:
    """Cut the connection; the service does not get the request."""
    return Interception(delay=after, is_handled=False, is_cut=True)


def lose_reply(*, after: float = 0.0) -> Interception:
    """Handle the request, and drop the reply."""
    return Interception(delay=after, is_answered=False)


def handle_then_cut(*, after: float = 0.0) -> Interception:
    """Handle the request, and cut the connection instead of replying."""
    return Interception(delay=after, is_answered=False, is_cut=True)
