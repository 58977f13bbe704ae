"""A broker with one connection on a store in memory, whose sends take a chosen path.

The paths are "single" (one request after the other), "pure" (runs in Python) and "native" (runs in
the native part). The same bytes in must lead to the same files and the same bytes out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from downrange import native as choice
from downrange.errors import StoreError
from downrange.options import BrokerOptions, ListenerOptions
from downrange.server.broker.broker import Broker
from downrange.server.broker.transactions import plain_ends
from downrange.server.net.connection import Connection
from downrange.server.net.dispatcher import Dispatcher
from downrange.server.outputs import Peer
from downrange.store import key_index
from downrange.store.files import MemoryFiles
from downrange.store.key_slots import PureKeySlots
from downrange.store.message_store import StoreOptions
from downrange.wire import batches, link
from downrange.wire.ended_runs import pure_ended_run
from downrange.wire.send_runs import pure_take_sends
from tests.unit.server.broker.broker_stage import NOW_MS, open_state
from tests.unit.server.stage import FakeLoop, FakeTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    import pytest

    from downrange.server.outputs import OnReply, Output
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

#: All paths that can run here.
PATHS = ("single", "pure") if choice.native is None else ("single", "pure", "native")
#: Files so small that a run crosses from one to the next.
SMALL = StoreOptions(
    log_segment_bytes=6_000,
    queue_segment_units=40,
    key_slots=31,
    key_entries=90,
    queue_memory_units=30,
    key_memory_entries=40,
)
PEERS = (Peer(1, "10.0.0.7:4242"), Peer(1, "[2001:db8::7]:4242"))


def take_path(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Let sends take a path from now on."""
    if path == "native":
        assert choice.native is not None
        monkeypatch.setattr(link, "take_sends", choice.native.take_sends)
        monkeypatch.setattr(plain_ends, "ended_run", choice.native.ended_run)
        monkeypatch.setattr(batches, "take_batch", choice.native.take_batch)
        monkeypatch.setattr(key_index, "KeySlots", choice.native.KeySlots)
    else:
        monkeypatch.setattr(link, "take_sends", pure_take_sends)
        monkeypatch.setattr(plain_ends, "ended_run", pure_ended_run)
        monkeypatch.setattr(batches, "take_batch", None)
        monkeypatch.setattr(key_index, "KeySlots", PureKeySlots)


class SendStage:
    """A broker, its driver and one peer.

    Attributes:
        runs: How many runs the broker took.
        now_ms: The time.
        transport: Keeps what was written.
    """

    def __init__(
        self,
        *,
        takes_runs: bool,
        sizes: StoreOptions = SMALL,
        peer: Peer = PEERS[0],
        topics: Iterable[str] = ("orders", "bills", "日志"),
        in_flight_max: int = 4096,
        **options: Any,
    ) -> None:
        self.now_ms = NOW_MS
        self.runs = 0
        self.files = MemoryFiles()
        self.state = open_state(BrokerOptions(**options), self.files, sizes=sizes)
        self.state.prepare(NOW_MS)
        for topic in topics:
            self.state.topics.ensure(topic, 4, 6, NOW_MS)
        self.broker = Broker(self.state)
        self.dispatcher = Dispatcher(
            self,
            clock_ms=lambda: self.now_ms,
            logger=logging.getLogger("downrange.test"),
            on_closed=lambda _: None,
            handle_run=self._handle_run if takes_runs else None,
        )
        loop = cast("asyncio.AbstractEventLoop", FakeLoop())
        limits = ListenerOptions(in_flight_max=in_flight_max)
        self.connection = Connection(self.dispatcher, peer, limits, loop)
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    @property
    def written(self) -> bytes:
        """All bytes that the peer got."""
        return b"".join(self.transport.writes)

    def read(self, data: bytes) -> None:
        """Read bytes of the peer."""
        self.connection.data_received(data)

    def commit(self) -> None:
        """End the turn of the broker."""
        self.dispatcher.perform(self.broker.commit(self.now_ms))

    def flush(self) -> None:
        """Make the log durable."""
        flush = self.state.store.begin_log_flush()
        flush.run()
        self.state.store.finish_log_flush(flush)
        self.dispatcher.perform(self.broker.log_flushed(flush.end))

    def publish(self) -> None:
        """Save the tables."""
        self.dispatcher.perform(self.broker.published(self.broker.tables_version))

    def tick(self, forward_ms: int) -> None:
        """Advance the time."""
        self.now_ms += forward_ms
        self.dispatcher.perform(self.broker.tick(self.now_ms))

    def contents(self) -> dict[str, bytes | None]:
        """Flush everything, and return all files of the store."""
        self.state.store.flush()
        paths = list(self.files._files)
        return {path: self.files.read_all(path) for path in sorted(paths)}

    # ---- as the service ----

    def _handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        is_taken = self.broker.handle_run(run, peer, now_ms)
        self.runs += is_taken
        return is_taken

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        return self.broker.handle(request, peer, now_ms)

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        return self.broker.on_reply(callback, reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        return self.broker.on_disconnect(peer, now_ms)


class FailingLog:
    """Lets appends to a store's log fail, as a broken disk does."""

    def __init__(self, stage: SendStage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        log = stage.state.store.log
        append = type(log).append

        def fail(this: Any, records: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreError("broken")
            append(this, records)

        monkeypatch.setattr(type(log), "append", fail)
