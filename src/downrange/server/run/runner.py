"""Runs a server: until a signal arrives, or in a thread beside other code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from downrange.errors import MissingExtra
from downrange.extras import require
from downrange.memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

ResultT = TypeVar("ResultT")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Server(Protocol):
    """A server that can be run."""

    async def start(self) -> None:
        """Start serving."""
        ...

    async def stop(self) -> None:
        """Stop serving; does nothing if it never started."""
        ...


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if uvloop is installed, else asyncio's."""
    try:
        (uvloop,) = require("a faster event loop", "server", "uvloop")
    except MissingExtra:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_until_signal(server: Server, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop; a second signal ends the process at once.

    Args:
        server: The server.
        on_ready: Called when it serves.

    Raises:
        RocketMQError: The server cannot start.
    """

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stop_requested = asyncio.Event()

        def on_signal(number: int) -> None:
            if stop_requested.is_set():
                os._exit(128 + number)  # the shell's code for "killed by this signal"
            stop_requested.set()

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        try:
            await server.start()
            _tune_garbage_collector()
            keep_freed_memory()
            on_ready()
            await stop_requested.wait()
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


def _tune_garbage_collector() -> None:
    """Make the garbage collector run less often, and skip objects that stay for ever.

    A server allocates and frees dozens of objects per message, hardly any of them in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class ServerThread:
    """Runs a server in its own thread, for synchronous code; a context manager.

    Args:
        server: Started and stopped in the thread.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ServerThread:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def start(self) -> None:
        """Start the thread and the server, and wait until it serves; does nothing if it does.

        Raises:
            RocketMQError: The server cannot start; the thread has ended.
        """
        if self._loop is not None:
            return
        self._loop = new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="downrange-server", daemon=True
        )
        self._thread.start()
        try:
            self.run(self._server.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop the server and the thread; does nothing if they are stopped."""
        if self._loop is None:
            return
        try:
            self.run(self._server.stop())
        finally:
            self._end()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine in the server's event loop and return its result."""
        assert self._loop is not None, "not started"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None
