"""Shared by the exchange tests, in which our broker takes over the store of an Apache broker."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from downrange.options import BrokerOptions, ListenerOptions
from downrange.server import BrokerServer
from downrange.server.run.runner import ServerThread
from tests.apache.settings import STORE_SIZES
from tests.conversations.recorder import Facts

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster


def scene_arguments(cluster: ApacheCluster) -> tuple[Facts, dict[str, str]]:
    """Return the arguments of `live_scene`; they fit both brokers, which share the address."""
    (broker,) = cluster.brokers
    facts = Facts(cluster.version, "x", int(time.time() * 1000), broker.name, broker.address)
    return facts, {"name server": cluster.name_server, "broker": broker.address}


def our_broker(cluster: ApacheCluster, options: BrokerOptions | None = None) -> ServerThread:
    """Return our broker with the name, port and store of the cluster's stopped broker."""
    (broker,) = cluster.brokers
    host, _, port = broker.address.rpartition(":")
    options = dataclasses.replace(
        options or BrokerOptions(), name=broker.name, name_servers=(cluster.name_server,)
    )
    listener = ListenerOptions(host=host, port=int(port))
    return ServerThread(BrokerServer(broker.store, options, listener, store=STORE_SIZES))
