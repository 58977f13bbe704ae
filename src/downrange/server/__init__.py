"""Name server and broker: `net` and `run` do I/O with asyncio, all other packages are pure."""

import logging

from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.name_server import NameServer

__all__ = ["BrokerServer", "ClusterOptions", "ClusterServer", "NameServer"]

# A library logs nothing unless the program configures logging.
logging.getLogger("downrange").addHandler(logging.NullHandler())
