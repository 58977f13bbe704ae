"""Server-sent events: the live overview, one poll for all viewers, and live tails of topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import StreamingResponse

from downrange.console import limits
from downrange.console.cluster.pages.common import as_values
from downrange.console.cluster.problems import TooManyViewers
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator

    from downrange.console.cluster.pages.overview import Overview, Series

#: Browsers open a stream again after this many milliseconds.
_RETRY: Final = b"retry: 2000\n\n"
_ALIVE: Final = b": alive\n\n"
#: A proxy must neither keep nor change events.
_HEADERS: Final = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}


class Streams:
    """Counts the open streams of each visitor, and ends all of them when the console stops."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End all streams: the server waits for open requests when it stops."""
        self._stopped.set()

    async def stopped(self) -> None:
        """Wait until streams must end."""
        await self._stopped.wait()

    @contextmanager
    def opened(self, owner: str) -> Generator[None]:
        """Count a stream while it is open.

        Args:
            owner: Whose stream it is: the address of the visitor.

        Raises:
            TooManyViewers: There are too many.
        """
        self.check(owner)
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    def check(self, owner: str) -> None:
        """Raise `TooManyViewers` if no stream can be opened."""
        if self._open.total() >= limits.STREAMS_MAX:
            raise TooManyViewers(
                f"{limits.STREAMS_MAX} event streams are open, the most that are allowed"
            )
        if self._open[owner] >= limits.STREAMS_OF_ONE_MAX:
            raise TooManyViewers(
                f"{limits.STREAMS_OF_ONE_MAX} event streams are open from your address: close "
                "some windows"
            )


class LiveOverview:
    """Encodes each overview once, for all viewers."""

    def __init__(self) -> None:
        self._last: Overview | None = None
        self._event = b""

    def event(self, overview: Overview) -> bytes:
        """Return an overview as an event: its figures, and the newest point of its series."""
        if overview is not self._last:
            values: dict[str, Any] = as_values(overview)
            del values["recent"], values["day"]
            values["point"] = newest_point(overview.recent)
            self._last, self._event = overview, event("overview", values)
        return self._event


def newest_point(series: Series) -> dict[str, float | None] | None:
    """Return the last point of a series by name; None if it has none."""
    if not series.times:
        return None
    columns = {name: values[-1] for name, values in series.columns.items()}
    return {"time": series.times[-1], **columns}


def event(name: str, value: object) -> bytes:
    """Return a value as an event. JSON has no line ends, so it is one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


def stream(
    streams: Streams, owner: str, events: AsyncIterator[bytes], check: Callable[[], None]
) -> StreamingResponse:
    """Return a response that sends events until they end, or the viewer goes.

    Args:
        streams: Counts the open streams.
        owner: Whose stream it is: the address of the visitor.
        events: The events.
        check: Raises a `RocketMQError` when the viewer may not see them any more; then the stream
            ends with this problem. It is called every 15 seconds.

    Raises:
        TooManyViewers: There are too many streams.
    """
    streams.check(owner)
    return StreamingResponse(
        _send(streams, owner, events, check), headers=_HEADERS, media_type="text/event-stream"
    )


async def _send(
    streams: Streams, owner: str, events: AsyncIterator[bytes], check: Callable[[], None]
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + limits.STREAM_SECONDS_MAX
    check_at = loop.time() + limits.STREAM_CHECK_SECONDS
    with streams.opened(owner):
        yield _RETRY
        waiting: asyncio.Task[bytes | None] | None = None
        stopped = asyncio.ensure_future(streams.stopped())
        try:
            while (now := loop.time()) < ends_at:
                if now >= check_at:
                    check()
                    check_at = now + limits.STREAM_CHECK_SECONDS
                waiting = waiting or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait(
                    {waiting, stopped},
                    timeout=check_at - now,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if stopped in done:
                    break
                if not done:
                    yield _ALIVE
                    continue
                finished, waiting = waiting, None
                following = finished.result()
                if following is None:
                    break
                yield following
        except RocketMQError as error:
            yield event("problem", {"kind": type(error).__name__, "text": str(error)})
        finally:
            running = {task for task in (waiting, stopped) if task is not None}
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)
