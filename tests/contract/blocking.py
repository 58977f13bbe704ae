"""Makes asyncio objects usable like their sync twins, so that a test is written once.

Every call runs on an event loop in a thread of its own, and the caller waits for what it returns.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

ResultT = TypeVar("ResultT")
#: Seconds to wait for work of milliseconds on a busy machine.
PATIENCE = 30.0


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        """Start it."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="contract", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Run a coroutine on the loop; return the future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine on the loop and wait for it."""
        return self.submit(work).result(PATIENCE)

    def close(self) -> None:
        """End loop and thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class Blocking:
    """An asyncio object seen from another thread.

    `submit` and `submit_batch`, which asyncio does not need, are tasks of `send` and `send_batch`.

    Args:
        inner: The object.
        loop: Where it lives.
    """

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        """See the class."""
        self._inner = inner
        self._loop = loop

    @property
    def inner(self) -> Any:
        """The object itself."""
        return self._inner

    def submit(self, *args: Any, **settings: Any) -> Future[Any]:
        """Send in a task of its own."""
        return self._loop.submit(self._call(self._inner.send, args, settings))

    def submit_batch(self, *args: Any, **settings: Any) -> Future[Any]:
        """Send a list in a task of its own."""
        return self._loop.submit(self._call(self._inner.send_batch, args, settings))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return self._shown(value)
        return lambda *args, **settings: self._loop.run(self._call(value, args, settings))

    def __enter__(self) -> Any:
        """Enter on the loop."""
        return self._loop.run(self._call(self._inner.__aenter__, (), {}))

    def __exit__(self, *how: object) -> bool | None:
        """Leave on the loop."""
        return bool(self._loop.run(self._call(self._inner.__aexit__, how, {})))

    def __iter__(self) -> Iterator[Any]:
        """Iterate, each step on the loop."""
        steps = aiter(self._inner)

        async def step() -> Any:
            return await anext(steps)

        while True:
            try:
                yield self._shown(self._loop.run(step()))
            except StopAsyncIteration:
                return

    def __repr__(self) -> str:
        return repr(self._inner)

    async def _call(
        self, function: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        result = function(
            *map(unwrapped, args), **{name: unwrapped(value) for name, value in settings.items()}
        )
        return self._shown(await result if inspect.isawaitable(result) else result)

    def _shown(self, value: Any) -> Any:
        """Return a value for a test; an object with coroutines of its own is wrapped as well."""
        if value is self._inner:
            return self
        is_async = hasattr(value, "__aenter__") or hasattr(value, "__aiter__")
        return Blocking(value, self._loop) if is_async and not isinstance(value, type) else value


def unwrapped(value: Any) -> Any:
    """Return the object behind a `Blocking`; anything else as it is."""
    return value.inner if isinstance(value, Blocking) else value
