"""The asyncio side of the servers: sockets, signals, files; what to do is decided elsewhere."""

from downrange.server.nameserver import NameServer

__all__ = ["NameServer"]
