"""The clients of a process: one per cluster, kept from one Spark task to the next.

A Python worker of Spark runs many tasks, and a new client costs a connection, a route lookup and,
with TLS, a handshake. A client connects when it is first used.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Final

from downrange import Client
from downrange.memory import keep_freed_memory
from downrange.options import ClientOptions

if TYPE_CHECKING:
    from downrange.options.cluster import ConnectionOptions

_CLIENT_OPTIONS: Final = ClientOptions(sync_connections_max=2)
_lock: Final = threading.Lock()
#: By process as well: a forked worker must not use the sockets of its parent.
_clients: Final[dict[tuple[int, ConnectionOptions], Client]] = {}


def client_for(connection: ConnectionOptions) -> Client:
    """Return this process's client for a cluster, started.

    Raises:
        RocketMQError: No name server can be reached.
    """
    key = (os.getpid(), connection)
    with _lock:
        client = _clients.get(key)
        if client is None or client.state != "running":
            keep_freed_memory()
            client = Client(
                connection.name_server,
                options=connection.client_options(_CLIENT_OPTIONS),
                credentials=connection.credentials,
                tls=connection.tls_options,
            ).start()
            _clients[key] = client
        return client


def close_clients() -> None:
    """Close the clients of this process."""
    with _lock:
        own = [key for key in _clients if key[0] == os.getpid()]
        for key in own:
            _clients.pop(key).close()


atexit.register(close_clients)
