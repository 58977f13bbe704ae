"""How the data source reaches a cluster: options, and the clients that every process keeps.

A Python worker of Spark lives from one task to the next, so its clients do, too: making one costs a
connection, a look-up of routes and, with TLS, a handshake. Nothing connects before it is used.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from downrange.client.client import Client
from downrange.errors import OptionError
from downrange.memory import keep_freed_memory
from downrange.options import TLS, ClientOptions, Credentials

if TYPE_CHECKING:
    from downrange.spark.option_reader import OptionReader

_lock: Final = threading.Lock()
_clients: Final[dict[tuple[int, ConnectionOptions], Client]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Where a cluster is, and how to speak to it; travels to executors, so it pickles.

    Attributes:
        name_server: "host:port", several separated by ";".
        credentials: An account, where access is checked.
        tls: How to speak TLS; plain text without.
        namespace: Put before topics and groups, and taken off again.
        call_timeout: How long one request may take.
    """

    name_server: str
    credentials: Credentials | None = None
    tls: TLS | None = None
    namespace: str | None = None
    call_timeout: float = 10.0

    def client(self) -> Client:
        """Return this process's client, started.

        Raises:
            RocketMQError: No name server can be reached.
        """
        key = (os.getpid(), self)
        with _lock:
            client = _clients.get(key)
            if client is None or client.state != "running":
                keep_freed_memory()
                client = Client(
                    self.name_server,
                    options=ClientOptions(
                        call_timeout=self.call_timeout,
                        namespace=self.namespace,
                        sync_connections_max=2,
                    ),
                    credentials=self.credentials,
                    tls=self.tls,
                ).start()
                _clients[key] = client
            return client


def close_clients() -> None:
    """Close the clients of this process."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        for key in mine:
            _clients.pop(key).close()


atexit.register(close_clients)


def take_connection(reader: OptionReader) -> ConnectionOptions:
    """Take the options of a connection; secrets may come from the environment instead.

    Raises:
        OptionError: An option is missing, or makes no sense.
    """
    name_server = reader.text("nameServer", env="NAMESRV_ADDR")
    if name_server is None:
        raise OptionError(
            "option nameServer is missing: give the address of a name server, such as "
            "127.0.0.1:9876, or set the environment variable NAMESRV_ADDR"
        )
    return ConnectionOptions(
        name_server=name_server.replace(",", ";"),
        credentials=_take_credentials(reader),
        tls=_take_tls(reader),
        namespace=reader.text("namespace"),
        call_timeout=reader.milliseconds("callTimeoutMs", 10_000),
    )


def _take_credentials(reader: OptionReader) -> Credentials | None:
    access_key = reader.text("accessKey", env="DOWNRANGE_ACCESS_KEY")
    secret_key = reader.text("secretKey", env="DOWNRANGE_SECRET_KEY")
    token = reader.text("securityToken", env="DOWNRANGE_SECURITY_TOKEN")
    if (access_key is None) != (secret_key is None):
        raise OptionError("options accessKey and secretKey belong together; give both or neither")
    if access_key is None or secret_key is None:
        return None
    return Credentials(access_key, secret_key, token)


def _take_tls(reader: OptionReader) -> TLS | None:
    names = ("tls.ca", "tls.certificate", "tls.key", "tls.keyPassword")
    is_wanted = reader.boolean("tls.enabled", any(map(reader.has, names)))
    ca, certificate, key, password = map(reader.text, names)
    check_host = reader.boolean("tls.checkHost", True)
    verify = reader.boolean("tls.verify", True)
    if not is_wanted:
        return None
    return TLS(
        ca=ca,
        certificate=certificate,
        key=key,
        key_password=password,
        check_host=check_host,
        verify=verify,
    )
