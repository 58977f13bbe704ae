"""Use asyncio objects like their sync counterparts, so that each test is written once.

Every call runs on an event loop in another thread, and the caller waits for its result.
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
#: For operations that normally take milliseconds; long enough for a busy machine.
LONG_TIMEOUT = 30.0


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        """Start the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="contract", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Run a coroutine on the loop; return the future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine on the loop and wait for it."""
        return self.submit(work).result(LONG_TIMEOUT)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LONG_TIMEOUT)
        self.loop.close()


class Blocking:
    """An asyncio object used from another thread.

    The asyncio classes have no `submit` and `submit_batch`; here these run `send` and `send_batch`
    in tasks.

    Args:
        inner: The object.
        loop: The loop that it belongs to.
    """

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        """See the class."""
        self._inner = inner
        self._loop = loop

    @property
    def inner(self) -> Any:
        """Return the wrapped object."""
        return self._inner

    def submit(self, *args: Any, **settings: Any) -> Future[Any]:
        """Send a message in a task."""
        return self._loop.submit(self._call(self._inner.send, args, settings))

    def submit_batch(self, *args: Any, **settings: Any) -> Future[Any]:
        """Send a list in a task."""
        return self._loop.submit(self._call(self._inner.send_batch, args, settings))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return self._wrap(value)
        return lambda *args, **settings: self._loop.run(self._call(value, args, settings))

    def __enter__(self) -> Any:
        """Enter the context on the loop."""
        return self._loop.run(self._call(self._inner.__aenter__, (), {}))

    def __exit__(self, *how: object) -> bool | None:
        """Leave the context on the loop."""
        return bool(self._loop.run(self._call(self._inner.__aexit__, how, {})))

    def __iter__(self) -> Iterator[Any]:
        """Iterate; each step runs on the loop."""
        steps = aiter(self._inner)

        async def step() -> Any:
            return await anext(steps)

        while True:
            try:
                yield self._wrap(self._loop.run(step()))
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
        return self._wrap(await result if inspect.isawaitable(result) else result)

    def _wrap(self, value: Any) -> Any:
        """Return a value for the test; asyncio objects are wrapped as well."""
        if value is self._inner:
            return self
        is_async = hasattr(value, "__aenter__") or hasattr(value, "__aiter__")
        return Blocking(value, self._loop) if is_async and not isinstance(value, type) else value


def unwrapped(value: Any) -> Any:
    """Return the object inside a `Blocking`; any other value unchanged."""
    return value.inner if isinstance(value, Blocking) else value
