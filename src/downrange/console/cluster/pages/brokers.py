"""Brokers and name servers: settings, what they say about themselves, disks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from downrange.console.cluster.pages.common import ClusterState, Note
    from downrange.console.cluster.pages.overview import BrokerRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerRow:
    """A name server.

    Attributes:
        address: Its address.
        is_up: Whether it answers.
        problem: Why it does not.
        settings: Its settings; empty when it does not tell them.
    """

    address: str
    is_up: bool
    problem: str | None
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersPage:
    """All brokers and name servers.

    Attributes:
        state: Whether the cluster answers.
        brokers: As of the last poll.
        name_servers: Each one that the console knows.
        notes: What is not known.
    """

    state: ClusterState
    brokers: tuple[BrokerRow, ...]
    name_servers: tuple[NameServerRow, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk of a broker.

    Attributes:
        what: "commit log" or "queue index".
        path: Its folder, as the broker's settings name it; None when they do not.
        used: Its used part, 0 to 1.
        total: Size as the broker says it, such as "233.5 GiB".
        free: Free space as the broker says it.
    """

    what: str
    path: str | None
    used: float | None
    total: str | None
    free: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetail:
    """One broker.

    Attributes:
        row: Its line of the list.
        addresses: Replica id -> address; 0 is the master.
        disks: Its disks.
        figures: What it says about itself, by Java's names.
        settings: Its settings, by the names of Apache's broker.conf. Values of names that look
            like secrets are replaced by "(hidden)".
        notes: What is not known.
    """

    row: BrokerRow
    addresses: dict[int, str]
    disks: tuple[Disk, ...]
    figures: dict[str, str]
    settings: dict[str, str]
    notes: tuple[Note, ...] = ()
