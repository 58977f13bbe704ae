"""A whole cluster in one process: a name server, and brokers that register with it."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from downrange.errors import OptionError
from downrange.options import (
    BrokerOptions,
    ListenerOptions,
    MetricsOptions,
    NameServerOptions,
)
from downrange.options.servers import VIP_DISTANCE, check_vip_port
from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.metrics_server import MetricsServer, Observed
from downrange.server.run.name_server import NameServer
from downrange.store.message_store import StoreOptions
from downrange.store.retention import RetentionOptions

if TYPE_CHECKING:
    import ssl

    from downrange.server.access.file import AccessFile

#: The wildcard address -> an address to connect to.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
#: Between the ports of two brokers: Apache's tools also use port numbers next to a broker's.
_PORT_STEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Settings of a cluster.

    Attributes:
        store: Folder of the store; with several brokers, each has a sub-folder.
        brokers: The number of brokers.
        nameserver_port: The name server's port; 0 picks a free one.
        broker_port: The first broker's port; 0 picks free ones.
        listener: Address and limits of all servers; its port is not used.
        nameserver: Settings of the name server.
        broker: Settings of the brokers; names and name servers are filled in.
        store_files: Sizes of the store's files.
        retention: How long messages are kept.
        metrics: Where the metrics of all servers are shown; not at all if None.
    """

    store: str
    brokers: int = 1
    nameserver_port: int = 0
    broker_port: int = 0
    listener: ListenerOptions = field(default_factory=ListenerOptions)
    nameserver: NameServerOptions = field(default_factory=NameServerOptions)
    broker: BrokerOptions = field(default_factory=BrokerOptions)
    store_files: StoreOptions = field(default_factory=StoreOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    metrics: MetricsOptions | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            OptionError: Names the option and its value.
        """
        if self.brokers < 1:
            raise OptionError(f"brokers={self.brokers} must be at least 1")
        if not self.store:
            raise OptionError("store='' must be a folder")
        ports = [self.port_of(index) for index in range(self.brokers)]
        for port in (self.nameserver_port, *ports):
            dataclasses.replace(self.listener, port=port)
        if self.broker.is_vip_port_open:
            check_vip_port("broker_port", self.broker_port)
            if self.nameserver_port and self.nameserver_port + VIP_DISTANCE in ports:
                raise OptionError(
                    f"nameserver_port={self.nameserver_port} is the VIP channel of the broker on "
                    f"port {self.nameserver_port + VIP_DISTANCE}: choose another port for one of "
                    "them"
                )

    def port_of(self, index: int) -> int:
        """Return the port of a broker; 0 picks a free one."""
        return self.broker_port and self.broker_port + index * _PORT_STEP

    def folder_of(self, index: int) -> str:
        """Return the store folder of a broker."""
        return self.store if self.brokers == 1 else str(Path(self.store) / self.name_of(index))

    def name_of(self, index: int) -> str:
        """Return the name of a broker: the given one, or broker-a, broker-b and so on."""
        if self.brokers == 1:
            return self.broker.name
        return f"broker-{chr(ord('a') + index)}" if index < 26 else f"broker-{index + 1}"


class ClusterServer:
    """One name server and some brokers.

    Args:
        options: Settings.
        tls: Certificate and key of all servers.
        client_tls: For the brokers' connections to the name server, if it needs TLS.
        credentials: Access key and secret that the brokers sign with.
        access: Access rules; without them every request is allowed.

    Attributes:
        name_server: The name server.
        brokers: The brokers.
        metrics: Shows the metrics of all servers; None if they are not shown.
    """

    def __init__(
        self,
        options: ClusterOptions,
        *,
        tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        access: AccessFile | None = None,
    ) -> None:
        self.options = options
        listener = dataclasses.replace(options.listener, port=options.nameserver_port)
        name_server_store = options.nameserver.store or str(Path(options.store) / "namesrv")
        self.name_server = NameServer(
            dataclasses.replace(options.nameserver, store=name_server_store),
            listener,
            tls=tls,
            access=access,
        )
        self._tls = tls
        self._client_tls = client_tls
        self._credentials = credentials
        self._access = access
        self.brokers: list[BrokerServer] = []
        self.metrics: MetricsServer | None = None
        if options.metrics is not None:
            self.metrics = MetricsServer(
                options.metrics, lambda: Observed(self.brokers, (self.name_server,))
            )

    async def start(self) -> None:
        """Start the name server, then all brokers at once.

        Raises:
            RocketMQError: A server cannot start; the others are stopped.
        """
        if self.metrics is not None:
            await self.metrics.start()
        try:
            await self.name_server.start()
            if not self.brokers:
                self.brokers = [self._make_broker(index) for index in range(self.options.brokers)]
            await asyncio.gather(*(broker.start() for broker in self.brokers))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all brokers, then the name server; does nothing if they are stopped.

        Raises:
            StoreError: A store cannot be closed; all servers are stopped nevertheless.
        """
        stopping = [broker.stop() for broker in self.brokers]
        ends = await asyncio.gather(*stopping, return_exceptions=True)
        await self.name_server.stop()
        if self.metrics is not None:
            await self.metrics.stop()
        for end in ends:
            if end is not None:
                raise end

    def _make_broker(self, index: int) -> BrokerServer:
        options = self.options
        name_servers = (_reachable(self.name_server.address), *options.broker.name_servers)
        return BrokerServer(
            options.folder_of(index),
            dataclasses.replace(
                options.broker, name=options.name_of(index), name_servers=name_servers
            ),
            dataclasses.replace(options.listener, port=options.port_of(index)),
            store=options.store_files,
            retention=options.retention,
            tls=self._tls,
            name_server_tls=self._client_tls,
            credentials=self._credentials,
            access=self._access,
            is_measured=self.metrics is not None,
        )


def _reachable(address: str) -> str:
    """Replace a wildcard address by loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"
