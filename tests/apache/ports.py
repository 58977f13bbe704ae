"""Free loopback ports for servers that need several with fixed distances.

A broker listens on its port, on the port two below (for clients that keep sends apart from pulls)
and on a replication port. Ports are drawn at random below the range that the kernel uses for
outgoing connections. Two test runs may still draw the same ports, so the code that starts a server
must be able to draw again.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

# Above the well-known servers, below the ephemeral ports of Linux (32768) and of others (49152).
_LOWEST, _HIGHEST = 12_000, 31_000
_DRAWS_MAX = 1_000

_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The three ports of a broker."""

    listen: int
    fast: int
    replication: int


def draw_name_server_port() -> int:
    """Return a free port."""
    return _draw((0,))


def draw_broker_ports() -> BrokerPorts:
    """Return three free ports for a broker."""
    listen = _draw((-2, 0, 1))
    return BrokerPorts(listen=listen, fast=listen - 2, replication=listen + 1)


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of all interfaces now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Netty does; otherwise a port with closed connections in TIME_WAIT would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _draw(distances: tuple[int, ...]) -> int:
    for _ in range(_DRAWS_MAX):
        base = _random.randrange(_LOWEST, _HIGHEST)
        if all(is_free(base + distance) for distance in distances):
            return base
    raise RuntimeError(f"no free ports between {_LOWEST} and {_HIGHEST}")
