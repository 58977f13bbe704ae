"""The asyncio side of the servers: sockets, signals, files; what to do is decided elsewhere."""

import logging

from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.name_server import NameServer

__all__ = ["BrokerServer", "ClusterOptions", "ClusterServer", "NameServer"]

# A library says nothing unless the program wants to hear it.
logging.getLogger("downrange").addHandler(logging.NullHandler())
