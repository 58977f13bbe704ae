"""`serve`, `nameserver` and `broker`: servers in the foreground, until a signal ends them.

When a server serves, it prints exactly one line that begins with `ready`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from downrange.server.running import run_until_signal

if TYPE_CHECKING:
    from downrange.server import BrokerServer, ClusterServer, NameServer


def log_to_stderr(level: str) -> None:
    """Send all logs to standard error; standard output is for the one line that says ready."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


def run_name_server(server: NameServer) -> None:
    """Run a name server until SIGTERM or SIGINT.

    Raises:
        RocketMQError: It cannot serve; the text says why.
    """
    run_until_signal(server, lambda: _say(f"nameserver={server.address}"))


def run_broker(server: BrokerServer) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Raises:
        RocketMQError: It cannot serve; the text says why.
    """
    run_until_signal(server, lambda: _say(f"broker={server.address} store={server.folder}"))


def run_cluster(server: ClusterServer) -> None:
    """Run a cluster until SIGTERM or SIGINT.

    Raises:
        RocketMQError: It cannot serve; the text says why.
    """

    def tell() -> None:
        brokers = ",".join(broker.address for broker in server.brokers)
        name_server, store = server.name_server.address, server.options.store
        _say(f"nameserver={name_server} broker={brokers} store={store}")

    run_until_signal(server, tell)


def _say(what: str) -> None:
    print(f"ready {what}", flush=True)
