"""A RocketMQ cluster inside this process: for tests, demos and single machines.

    with Cluster() as cluster:
        print(cluster.name_server)     # "127.0.0.1:40123": any client can connect here

It consists of the real servers on real sockets: a name server, brokers, a durable store. Tests can
inject faults: `intercept` drops, delays or refuses chosen requests; `stop_broker`, `kill_broker`
and `restart_broker` end and start brokers. Inside `async with`, await these three:

    async with Cluster() as cluster:
        await cluster.kill_broker()
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import ssl
import tempfile
from typing import TYPE_CHECKING, Any, Final, cast

from downrange.checks import (
    check_between,
    check_count,
    check_flag,
    check_optional_text,
    check_type,
    check_whole,
    wrong_type,
)
from downrange.errors import ClientStateError, OptionError
from downrange.options import (
    BrokerOptions,
    ListenerOptions,
    MetricsOptions,
    NameServerOptions,
)
from downrange.server.access.file import AccessFile
from downrange.server.net.interception import (
    Interception,
    cut,
    deliver,
    drop,
    handle_then_cut,
    lose_reply,
    refuse,
)
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.runner import ServerThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from types import TracebackType

    from downrange.server.outputs import Peer
    from downrange.server.run.broker_server import BrokerServer
    from downrange.wire.command import Command

__all__ = [
    "Cluster",
    "Interception",
    "cut",
    "deliver",
    "drop",
    "handle_then_cut",
    "lose_reply",
    "refuse",
]

_EVERY_BROKER: Final = None


class Cluster:
    """A name server and brokers in this process.

    `with` runs the servers in a thread of their own, `async with` in the caller's event loop.

    Args:
        brokers: How many brokers.
        store: Folder of the store; a temporary folder, removed at the end, if not given.
        host: Address to listen on.
        nameserver_port: The name server's port; 0 picks a free one.
        broker_port: The first broker's port; 0 picks free ones.
        flush: "sync" acknowledges a message when it is durable, "async" before.
        vip: Whether brokers also listen on their port less 2, for clients with `vip_channel`.
        broker: All other settings of the brokers.
        nameserver: All other settings of the name server.
        listener: Limits of all servers.
        tls: Certificate and key of all servers.
        client_tls: How the brokers connect to the name server if it requires TLS.
        access: File of accounts, `plain_acl.yml` or TOML. Without one, access is not checked.
        metrics: Where metrics are shown, "127.0.0.1:0" or `MetricsOptions`; not at all by default.

    Raises:
        OptionError: Arguments contradict each other, or the file of accounts has an error.

    Example:
        ```python
        def test_orders_are_sent() -> None:
            with Cluster(brokers=2) as cluster:
                send_orders(cluster.name_server)
        ```
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        store: str | os.PathLike[str] | None = None,
        host: str | None = None,
        nameserver_port: int = 0,
        broker_port: int = 0,
        flush: str | None = None,
        vip: bool = False,
        broker: BrokerOptions | None = None,
        nameserver: NameServerOptions | None = None,
        listener: ListenerOptions | None = None,
        tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        access: str | os.PathLike[str] | None = None,
        metrics: str | MetricsOptions | None = None,
    ) -> None:
        check_count(1, "brokers", brokers)
        for name, path in (("store", store), ("access", access)):
            if path is not None:
                check_type(name, path, (str, os.PathLike), "a path")
        check_optional_text("host", host)
        check_flag("vip", vip)
        check_between(0, 65_535, "nameserver_port", nameserver_port)
        check_between(0, 65_535, "broker_port", broker_port)
        _check_options(
            broker=(broker, BrokerOptions),
            nameserver=(nameserver, NameServerOptions),
            listener=(listener, ListenerOptions),
            tls=(tls, ssl.SSLContext),
            client_tls=(client_tls, ssl.SSLContext),
        )
        if isinstance(metrics, str):
            metrics = MetricsOptions(address=metrics)
        _check_options(metrics=(metrics, MetricsOptions))
        broker = broker or BrokerOptions()
        listener = listener or ListenerOptions()
        if flush is not None:
            broker = dataclasses.replace(broker, flush=flush)  # type: ignore[arg-type]
        if vip:
            broker = dataclasses.replace(broker, is_vip_port_open=True)
        if host is not None:
            listener = dataclasses.replace(listener, host=host)
        self._options = ClusterOptions(
            store="to be replaced" if store is None else str(store),
            brokers=brokers,
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            listener=listener,
            nameserver=nameserver or NameServerOptions(),
            broker=broker,
            metrics=metrics,
        )
        self._tls = tls
        self._client_tls = client_tls
        self._access = None if access is None else AccessFile(os.fspath(access))
        self._is_temporary = store is None
        self._make()  # raises on wrong arguments here, not only in start()
        self._server: ClusterServer | None = None
        self._thread: ServerThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._temporary: str | None = None
        self._rules: dict[tuple[int, int], Callable[[Command, Peer], Interception | None]] = {}

    def __repr__(self) -> str:
        server, count = self._server, self._options.brokers
        where = "stopped" if server is None else f"{server.name_server.address} running"
        return f"<Cluster of {count} broker{'' if count == 1 else 's'} {where}>"

    # ---- start and stop --------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        """Start in a thread."""
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

    async def __aenter__(self) -> Cluster:
        """Start in this event loop."""
        if self._server is not None:
            raise ClientStateError(f"{self!r} is running already")
        server = self._open()
        self._loop = asyncio.get_running_loop()
        try:
            await server.start()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        assert self._server is not None
        try:
            await self._server.stop()
        finally:
            self._close()

    def start(self) -> None:
        """Start in a thread and wait until the servers serve. Does nothing if they do already.

        Raises:
            RocketMQError: A server cannot start; the text says why.
        """
        if self._server is not None:
            return
        self._thread = ServerThread(self._open())
        try:
            self._thread.start()
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Stop all servers. Does nothing if they are stopped already.

        Raises:
            ClientStateError: They run in an event loop, which the end of `async with` stops.
        """
        if self._loop is not None:
            raise ClientStateError(f"{self!r} stops at the end of its `async with` block")
        if self._thread is None:
            return
        try:
            self._thread.stop()
        finally:
            self._close()

    # ---- addresses and folders ---------------------------------------------------------------

    @property
    def name_server(self) -> str:
        """The address for clients, "host:port"."""
        return self._running.name_server.address

    @property
    def brokers(self) -> list[str]:
        """The brokers' addresses, "host:port" each."""
        return [broker.address for broker in self._running.brokers]

    @property
    def metrics_address(self) -> str | None:
        """Where metrics are shown, "host:port"; None if they are not."""
        metrics = self._running.metrics
        return None if metrics is None else metrics.address

    @property
    def store(self) -> str:
        """The folder of the store."""
        return self._running.options.store

    @property
    def server(self) -> ClusterServer:
        """The servers themselves."""
        return self._running

    # ---- faults ------------------------------------------------------------------------------

    def intercept(
        self,
        code: int,
        rule: Interception | Callable[[Command, Peer], Interception | None] | None,
        *,
        broker: int | None = _EVERY_BROKER,
    ) -> None:
        """Inject a fault into requests of one code.

        Args:
            code: The request code.
            rule: What to do with each such request, or a function that decides it per request.
                None removes the rule.
            broker: The number of the broker, counted from 0; all brokers if not given.

        Raises:
            OptionError: The broker does not exist, or an argument has the wrong type.

        Example:
            ```python
            cluster.intercept(RequestCode.SEND_MESSAGE_V2, lose_reply())
            ```
        """
        check_whole("code", code)
        given = cast("object", rule)
        if not (given is None or callable(given) or isinstance(given, Interception)):
            raise wrong_type("rule", rule, "an Interception, a function, or None")
        brokers = range(len(self._running.brokers)) if broker is None else [broker]
        for index in brokers:
            server = self._broker(index)
            if rule is None:
                self._rules.pop((index, int(code)), None)
            elif isinstance(rule, Interception):
                self._rules[index, int(code)] = lambda *_, always=rule: always
            else:
                self._rules[index, int(code)] = rule
            server.intercept = self._rule_of(index)

    def stop_broker(self, index: int = 0) -> Awaitable[None]:
        """Stop a broker cleanly: it flushes and unregisters from the name server.

        Args:
            index: The number of the broker, counted from 0.

        Returns:
            Inside `async with`, await it; otherwise the broker is stopped by now.

        Raises:
            OptionError: The broker does not exist.
        """
        return self._run(self._broker(index).stop())

    def kill_broker(self, index: int = 0) -> Awaitable[None]:
        """End a broker like a crash: cut its connections, flush nothing more.

        Args:
            index: The number of the broker, counted from 0.

        Returns:
            Inside `async with`, await it; otherwise the broker has ended by now.

        Raises:
            OptionError: The broker does not exist.
        """
        return self._run(self._broker(index).kill())

    def restart_broker(self, index: int = 0) -> Awaitable[None]:
        """Start a broker again on its store and its port, after stopping it if it still serves.

        Args:
            index: The number of the broker, counted from 0.

        Returns:
            Inside `async with`, await it; otherwise the broker serves by now.

        Raises:
            OptionError: The broker does not exist.
            RocketMQError: It cannot start; the text says why.
        """
        broker = self._broker(index)

        async def restart() -> None:
            await broker.stop()
            await broker.start()

        return self._run(restart())

    # ---- inside ------------------------------------------------------------------------------

    @property
    def _running(self) -> ClusterServer:
        if self._server is None:
            raise OptionError("the cluster is not started: use it in a with statement")
        return self._server

    def _broker(self, index: int) -> BrokerServer:
        brokers = self._running.brokers
        check_whole("broker", index)
        if not 0 <= index < len(brokers):
            raise OptionError(
                f"broker {index} does not exist: there are {len(brokers)}, counted from 0"
            )
        return brokers[index]

    def _rule_of(self, index: int) -> Callable[[Command, Peer], Interception | None] | None:
        rules = {code: rule for (broker, code), rule in self._rules.items() if broker == index}
        if not rules:
            return None

        def decide(request: Command, peer: Peer) -> Interception | None:
            rule = rules.get(request.code)
            return None if rule is None else rule(request, peer)

        return decide

    def _run(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Do work on the servers' event loop; return when it is done, or an awaitable for it."""
        loop = self._loop
        if loop is None:
            assert self._thread is not None
            self._thread.run(work)
            return _Done()
        try:
            is_inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            return loop.create_task(work)
        asyncio.run_coroutine_threadsafe(work, loop).result()  # called by another thread
        return _Done()

    def _make(self) -> ClusterServer:
        return ClusterServer(
            self._options, tls=self._tls, client_tls=self._client_tls, access=self._access
        )

    def _open(self) -> ClusterServer:
        if self._is_temporary:
            self._temporary = tempfile.mkdtemp(prefix="downrange-")
            self._options = dataclasses.replace(self._options, store=self._temporary)
        self._server = self._make()
        return self._server

    def _close(self) -> None:
        self._server = self._thread = self._loop = None
        self._rules.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


class _Done:
    """An awaitable for work that is done: awaiting it is allowed, and returns at once."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def _check_options(**settings: tuple[object, type]) -> None:
    """Check that each setting is None or of its type.

    Raises:
        OptionError: Names the setting and the type that it must have.
    """
    for name, (value, kind) in settings.items():
        if value is not None and not isinstance(value, kind):
            raise wrong_type(name, value, f"of type {kind.__name__}")
