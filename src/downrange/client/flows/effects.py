"""Flows: generators that yield effects for a driver to perform.

The driver performs an effect and sends its result back into the flow, or throws the error into it;
the flow decides what comes next. So the same flow runs in a thread, on an event loop, in a test
that steps it by hand, and in a simulation.

    def ask_twice(core, address, command, deadline) -> Flow[Command]:
        try:
            return (yield Call(address, command, deadline))
        except ConnectionLost:
            yield Pause(0.1)
            return (yield Call(address, command, deadline))

Rules:
- Between two yields a flow is atomic under every driver. There is no other locking in flows.
- A flow catches `RocketMQError`, never `Exception`: cancellation and Ctrl-C must pass through. It
  releases what it holds in `finally`, without a yield there: a cancelled flow is closed.
- Functions take deadlines, not timeouts: seconds on the clock of `Clock.now`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from downrange.wire.command import Command
from downrange.wire.send_commands import SendCommand

ResultT = TypeVar("ResultT")
#: The usual limit of a `Gather` whose flows call servers.
CALLS_AT_ONCE: Final = 16


class Call(msgspec.Struct, gc=False):
    """Send a command to a server. The result is its reply, a `Command`; None when it is one-way.

    The error is a `TransportError` (unreachable, lost, late), a `LinkError`, or a `WireError` when
    the command cannot be encoded. A reply with an error code is a result, not an error.
    """

    address: str
    command: Command | SendCommand
    deadline: float
    is_oneway: bool = False


class Pause(msgspec.Struct):
    """Wait for a number of seconds. The result is None."""

    seconds: float


class Once(msgspec.Struct):
    """Run a flow, or join the running one with the same key and share its result or error."""

    key: Hashable
    flow: Callable[[], Flow[Any]]


class Gather(msgspec.Struct):
    """Run flows concurrently, at most `limit` at a time.

    The result is a list in their order: the result of each, or the `RocketMQError` it ended with.
    """

    flows: list[Flow[Any]]
    limit: int


class UserCall(msgspec.Struct):
    """Call user code outside the atomic step. The result is what it returns; its error is thrown.

    On an event loop the function may be a coroutine function. With `may_block` it may take long;
    a driver that serves other flows in the same thread then runs it in a thread pool. If it has not
    ended at the deadline, such a driver throws a `TimeoutError`, and its result is lost.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    may_block: bool = False
    deadline: float | None = None


class Wait(msgspec.Struct):
    """Wait until a signal fires. The result is True, or False when the deadline came first."""

    signal: Signal
    deadline: float


Effect: TypeAlias = Call | Pause | Once | Gather | UserCall | Wait
#: The type of a flow. The result of a yield is untyped, so annotate the name that takes it.
Flow: TypeAlias = Generator[Effect, Any, ResultT]


class Signal:
    """An event that happens once; flows wait for it with `Wait`."""

    __slots__ = ("_listeners", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._listeners: list[Callable[[], None]] = []

    def fire(self) -> None:
        """Wake all flows that wait for it, now and later; a second call does nothing."""
        self.is_fired = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function when it fires, from any thread; at once if it has. For drivers."""
        if self.is_fired:
            listener()
        else:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Remove a function that `listen` added. For drivers."""
        if listener in self._listeners:
            self._listeners.remove(listener)


class Clock(Protocol):
    """The time, monotonic and of the day."""

    def now(self) -> float:
        """Return seconds that never go back; only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        ...


class Randomness(Protocol):
    """A source of random numbers and ids."""

    def below(self, limit: int) -> int:
        """Return one of 0, 1, …, limit - 1."""
        ...

    def uuid(self) -> str:
        """Return a new random UUID as text."""
        ...
