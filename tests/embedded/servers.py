"""Our own servers for tests, and plain sockets for malformed input."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from downrange.options import ListenerOptions, NameServerOptions
from downrange.server import NameServer
from downrange.server.run.runner import ServerThread
from downrange.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicTableBody
from downrange.wire.codes import HeaderCodec, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import RegisterBrokerRequest, RouteRequest
from tests.conversations.peers import Peer, SocketChannel

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

#: Long enough for a busy machine; a test that passes does not wait for it.
DEADLINE = 60.0


@contextmanager
def serving(
    options: NameServerOptions | None = None, tls: ssl.SSLContext | None = None, **listening: Any
) -> Generator[NameServer]:
    """Run a name server on a free port of this machine."""
    server = NameServer(options, ListenerOptions(**listening), tls=tls)
    with ServerThread(server):
        yield server


@contextmanager
def connected(
    server: NameServer, codec: HeaderCodec = HeaderCodec.JSON, tls: ssl.SSLContext | None = None
) -> Generator[Peer]:
    """Open a connection that speaks the protocol."""
    peer = Peer(SocketChannel(server.address, tls), codec)
    try:
        yield peer
    finally:
        peer.close()


@contextmanager
def plain_socket(server: NameServer) -> Generator[socket.socket]:
    """Open a connection for arbitrary bytes."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as opened:
        yield opened


def register(peer: Peer, name: str, topics: list[TopicConfig], **changes: Any) -> None:
    """Register a broker that does not exist."""
    table = TopicTableBody(
        topic_config_table={topic.topic_name: topic for topic in topics},
        data_version=DataVersion(timestamp=1, counter=1, state_version=0),
    )
    settings: dict[str, Any] = {
        "broker_addr": "127.0.0.1:1",
        "cluster_name": "DefaultCluster",
        "ha_server_addr": "127.0.0.1:2",
        "broker_id": 0,
    }
    header = RegisterBrokerRequest(broker_name=name, **{**settings, **changes})
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
    assert peer.ask(request_command(header, body)).code == ResponseCode.SUCCESS


def route_code(server: NameServer, topic: str) -> int:
    """Return the code of a route request of a new client."""
    with connected(server) as peer:
        return peer.ask(request_command(RouteRequest(topic=topic))).code


def is_closed(opened: socket.socket) -> bool:
    """Read to the end; return whether the server closed the connection, in order or not."""
    opened.settimeout(DEADLINE)
    try:
        while opened.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    return True
