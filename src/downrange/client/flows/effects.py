"""Flows: what a client does one step after the other, without doing it.

A flow is a generator. It yields an effect, a driver carries it out and sends the answer back, or
throws the error into the flow, which decides what comes next. The same flow so runs in a thread, on
an event loop, in a test that steps it by hand, and in a simulation.

    def ask_twice(core, address, command, deadline) -> Flow[Command]:
        try:
            return (yield Call(address, command, deadline))
        except ConnectionLost:
            yield Pause(0.1)
            return (yield Call(address, command, deadline))

Rules:
- Between two yields a flow is atomic under every driver. That is the whole locking story.
- A flow catches `RocketMQError`, never `Exception`: cancellation and Ctrl-C must pass through. What
  it holds it gives back in `finally`, without a yield there: a flow that is given up is closed.
- Deadlines travel, not timeouts: seconds on the clock of `Clock.now`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from downrange.wire.command import Command
from downrange.wire.send_commands import SendCommand

ResultT = TypeVar("ResultT")


class Call(msgspec.Struct, gc=False):
    """Send a command to a server. Answers its reply, a `Command`; None when it is one-way.

    The error is a `TransportError` (unreachable, lost, late), a `LinkError`, or a `WireError` when
    the command cannot be written. A reply that refuses is an answer like any other.
    """

    address: str
    command: Command | SendCommand
    deadline: float
    is_oneway: bool = False


class Pause(msgspec.Struct):
    """Wait so many seconds. Answers None."""

    seconds: float


class Once(msgspec.Struct):
    """Run a flow, unless one with the same key is running: then share its result or error."""

    key: Hashable
    flow: Callable[[], Flow[Any]]


class Gather(msgspec.Struct):
    """Run flows side by side, at most `limit` at a time.

    Answers a list in their order: a result each, or the `RocketMQError` it ended with.
    """

    flows: list[Flow[Any]]
    limit: int


class UserCall(msgspec.Struct):
    """Call a function of the user's. Answers what it returns; its error is thrown as it is.

    On an event loop the function may be a coroutine function. `may_block` says that it can take
    long: a driver whose thread others wait for then runs it in a pool.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    may_block: bool = False


class Wait(msgspec.Struct):
    """Wait until a signal fires. Answers True, or False when the deadline came first."""

    signal: Signal
    deadline: float


Effect: TypeAlias = Call | Pause | Once | Gather | UserCall | Wait
#: What a flow is; the answer's type is that of the effect, so annotate the name that takes it.
Flow: TypeAlias = Generator[Effect, Any, ResultT]


class Signal:
    """Something that happens once, and that flows wait for with `Wait`."""

    __slots__ = ("_listeners", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._listeners: list[Callable[[], None]] = []

    def fire(self) -> None:
        """Wake everyone who waits, and everyone who will; harmless the second time."""
        self.is_fired = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """For drivers: call this when it fires, from whichever thread; at once if it has."""
        if self.is_fired:
            listener()
        else:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """For drivers: do not call it any more."""
        if listener in self._listeners:
            self._listeners.remove(listener)


class Clock(Protocol):
    """The time."""

    def now(self) -> float:
        """Return seconds that never go back; only differences mean something."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        ...


class Randomness(Protocol):
    """Randomness."""

    def below(self, limit: int) -> int:
        """Return one of 0, 1, …, limit - 1."""
        ...

    def uuid(self) -> str:
        """Return a text that nobody else has, in the form of a UUID."""
        ...
