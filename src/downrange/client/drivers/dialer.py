"""Opens the connections of a client, all with the same TLS settings, proxy and timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client.drivers.connect import connect_blocking, open_transport, tls_context

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from downrange.options import TLS, Proxy


class Dialer:
    """Opens connections, blocking and on an event loop.

    Args:
        tls: TLS settings; plain text without.
        proxy: A proxy for all connections.
        timeout: How long it may take to open a connection.

    Raises:
        OptionError: A file that `tls` names cannot be used.
    """

    def __init__(self, tls: TLS | None, proxy: Proxy | None, timeout: float) -> None:
        self._tls = None if tls is None else tls_context(tls)
        self._proxy = proxy
        self.timeout = timeout

    def connect(self, address: str, within: float) -> socket.socket:
        """Return a connected, blocking socket.

        Raises:
            ConnectFailed: The address cannot be reached in time.
        """
        return connect_blocking(
            address,
            tls_context=self._tls,
            proxy=self._proxy,
            timeout=max(min(within, self.timeout), 0.001),
        )

    async def open(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        address: str,
    ) -> None:
        """Connect a protocol on an event loop.

        Raises:
            ConnectFailed: The address cannot be reached in time.
        """
        await open_transport(
            loop,
            protocol,
            address,
            tls_context=self._tls,
            proxy=self._proxy,
            timeout=self.timeout,
        )
