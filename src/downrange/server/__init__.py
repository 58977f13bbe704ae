"""Name server and broker: `net` and `run` do I/O with asyncio, all other packages are pure."""

import logging

from downrange.server.run.broker_server import BrokerServer
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.name_server import NameServer

__all__ = ["BrokerServer", "ClusterOptions", "ClusterServer", "NameServer"]

# An embedded cluster prints nothing unless the program configures logging: a test that stops a
# broker does not need its warnings. Without this Python would print them, as it does for clients.
for _name in ("server", "broker", "nameserver", "access", "metrics"):
    logging.getLogger(f"downrange.{_name}").addHandler(logging.NullHandler())
