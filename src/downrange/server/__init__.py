"""The asyncio side of the servers: sockets, signals, files; what to do is decided elsewhere."""

from downrange.server.broker import BrokerServer
from downrange.server.cluster import ClusterOptions, ClusterServer
from downrange.server.nameserver import NameServer

__all__ = ["BrokerServer", "ClusterOptions", "ClusterServer", "NameServer"]
