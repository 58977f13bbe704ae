"""Clients: connected producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from downrange.console.cluster.pages.common import Note, Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A connected client in one of its groups.

    Attributes:
        client_id: Its id.
        role: "producer" or "consumer".
        group: The group.
        address: Its "host:port", as a broker sees it.
        language: Such as "JAVA" or "PYTHON".
        version: The release of its protocol.
        brokers: The brokers that it is connected to.
    """

    client_id: str
    role: str
    group: str
    address: str
    language: str | None
    version: str | None
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsPage:
    """A page of the connected clients.

    Attributes:
        paging: Which part it is. Columns: "name" (client id), "role", "group", "language",
            "version", "address".
        rows: The clients.
        producers: How many producers are connected.
        consumers: How many consumers are connected.
        notes: For example which groups were not asked.
    """

    paging: Paging
    rows: tuple[ClientRow, ...]
    producers: int
    consumers: int
    notes: tuple[Note, ...] = ()
