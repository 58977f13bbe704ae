"""The asyncio side of the servers: sockets, signals, files; what to do is decided elsewhere."""

import logging

from downrange.server.broker import BrokerServer
from downrange.server.cluster import ClusterOptions, ClusterServer
from downrange.server.nameserver import NameServer

__all__ = ["BrokerServer", "ClusterOptions", "ClusterServer", "NameServer"]

# A library says nothing unless the program wants to hear it.
logging.getLogger("downrange").addHandler(logging.NullHandler())
