"""A name server with a network: listener, pure handlers, clock, and the key-value file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.errors import CorruptStore, MalformedBody, StoreError
from downrange.options import ListenerOptions, NameServerOptions
from downrange.server.access.denials import DenialLog
from downrange.server.nameserver.handlers import (
    NameServerOutput,
    NameServerState,
    SaveKeyValues,
    expire,
    handle,
    on_disconnect,
)
from downrange.server.net.listener import Listener, monotonic_ms
from downrange.server.outputs import LateReply, OnReply, Output, Peer, Reply, refusal
from downrange.server.run.metrics_server import MetricsServer, Observed
from downrange.wire.codes import ResponseCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from downrange.options import MetricsOptions
    from downrange.server.access.file import AccessFile
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.nameserver")

KEY_VALUE_FILE: Final = "kvConfig.json"


class NameServer:
    """One name server; several of them do not communicate with each other.

    Example:
        ```python
        server = NameServer(listener=ListenerOptions(port=9876))
        await server.start()
        print(server.address)
        await server.stop()
        ```

    Args:
        options: Settings of the name server.
        listener: Address and limits of its connections.
        tls: Certificate and key; see `ListenerOptions.tls_mode`.
        access: Access rules; without them every request is allowed.
        metrics: Where its metrics are shown; not at all if not given.

    Attributes:
        metrics: Shows the metrics; None if they are not shown, or by the cluster.

    Raises:
        OptionError: TLS is required and `tls` is missing.
    """

    def __init__(
        self,
        options: NameServerOptions | None = None,
        listener: ListenerOptions | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        access: AccessFile | None = None,
        metrics: MetricsOptions | None = None,
    ) -> None:
        self._options = options or NameServerOptions()
        self._access = access
        self.state = NameServerState(self._options)
        self._listener = Listener(self, listener or ListenerOptions(), tls=tls, logger=_log)
        self._denials = DenialLog()
        self.metrics: MetricsServer | None = None
        if metrics is not None:
            self.metrics = MetricsServer(metrics, lambda: Observed(name_servers=(self,)))
        self._scan_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._unsaved: bytes | None = None
        self._waiting: list[LateReply] = []

    @property
    def address(self) -> str:
        """Its address, "host:port"; empty before the first start."""
        return self._listener.address

    @property
    def is_serving(self) -> bool:
        """Whether it listens."""
        return self._listener.is_serving

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    @property
    def refused_count(self) -> int:
        """How many connections were refused because of a limit, since the start."""
        return self._listener.refused_count

    @property
    def denied_count(self) -> int:
        """How many requests the access rules denied, since the start."""
        return self._denials.count

    @property
    def label(self) -> str:
        """Its name, for people."""
        return "name server"

    @property
    def unready_reason(self) -> str | None:
        """Why it answers no requests now, or None."""
        return None if self.is_serving else "it does not serve"

    async def start(self) -> None:
        """Read the key-value file and listen; does nothing if it serves already.

        Raises:
            StoreError: The folder cannot be used, or its file cannot be read.
            CannotListen: The address cannot be bound.
        """
        if self.is_serving:
            return
        if self.metrics is not None:
            await self.metrics.start()
        try:
            await asyncio.to_thread(self._load)
            await self._listener.start()
        except BaseException:
            await self._stop_metrics()
            raise
        self.state.settings["listenPort"] = self.address.rpartition(":")[2]
        loop = asyncio.get_running_loop()
        self._scan_task = loop.create_task(self._scan())
        if self._access is not None:
            self._watch_task = loop.create_task(self._access.watch())
        _log.info("name server listens on %s", self.address)

    async def stop(self) -> None:
        """Save, send all replies, close all connections; does nothing if it is stopped."""
        if self._scan_task is None:
            return
        for task in (self._scan_task, self._watch_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._scan_task = self._watch_task = None
        if self._save_task is not None:
            await self._save_task
        await self._listener.stop()
        await self._stop_metrics()
        _log.info("name server on %s stopped", self.address)

    async def _stop_metrics(self) -> None:
        if self.metrics is not None:
            await self.metrics.stop()

    # ---- called by the dispatcher ----

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Check access and handle a request; a key-value change is confirmed once it is saved."""
        if self._access is not None:
            denial = self._access.check(request, peer)
            if denial is not None:
                self._denials.add(denial, request, peer)
                return [Reply(denial.reply())]
        outputs = handle(self.state, request, peer, now_ms)
        if self._options.store is None or not any(isinstance(o, SaveKeyValues) for o in outputs):
            return _without_saves(outputs)
        now: list[Output] = []
        for output in outputs:
            if isinstance(output, SaveKeyValues):
                self._unsaved = output.data
            elif isinstance(output, Reply):
                self._waiting.append(LateReply(peer.number, request, output.command))
            else:
                now.append(output)
        if self._save_task is None:
            self._save_task = asyncio.get_running_loop().create_task(self._save_all())
        return now

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Continue after a `Call`; name servers make none."""
        return callback(reply, now_ms)

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Remove the brokers of a connection that ended."""
        return _without_saves(on_disconnect(self.state, peer))

    # ---- internals ----

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self._options.scan_interval)
            self._listener.perform(_without_saves(expire(self.state, monotonic_ms())))

    async def _save_all(self) -> None:
        """Write the newest state until nothing is new; one write covers all waiting replies."""
        try:
            while self._unsaved is not None:
                data, self._unsaved = self._unsaved, None
                replies, self._waiting = self._waiting, []
                try:
                    await asyncio.to_thread(self._save, data)
                except OSError as error:
                    _log.error("%s cannot be written: %s", self._file, error)
                    remark = f"in force, but not saved: {error.strerror}"
                    for reply in replies:
                        reply.command = refusal(ResponseCode.SYSTEM_ERROR, remark)
                self._listener.perform(replies)
        finally:
            self._save_task = None

    @property
    def _file(self) -> Path:
        assert self._options.store is not None
        return Path(self._options.store) / KEY_VALUE_FILE

    def _load(self) -> None:
        if self._options.store is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            data = self._file.read_bytes() if self._file.exists() else b""
        except OSError as error:
            text = f"store folder {self._options.store} cannot be used: {error.strerror}"
            raise StoreError(text) from error
        if not os.access(self._file.parent, os.W_OK):
            raise StoreError(f"store folder {self._options.store} is not writable")
        if data:
            try:
                self.state.key_values.load(data)
            except MalformedBody as error:
                raise CorruptStore(str(self._file), 0, str(error)) from error

    def _save(self, data: bytes) -> None:
        """Replace the file atomically: after a crash either the old or the new one is there."""
        scratch = self._file.with_suffix(".tmp")
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._file)


def _without_saves(outputs: list[NameServerOutput]) -> list[Output]:
    return [output for output in outputs if not isinstance(output, SaveKeyValues)]
