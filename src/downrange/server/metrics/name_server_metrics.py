"""Metrics of name servers; Apache's name server has none, so the names are our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.metrics.exposition import Family, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.server.nameserver.handlers import NameServerState


class NameServerScrape:
    """A name server at the time of a page.

    Args:
        state: Its state.
        address: Where it listens.
        connection_count: Open connections.
        refused_count: Connections that were refused since the start.
        denied_count: Requests that were denied since the start.

    Attributes:
        base: The labels that all its samples have.
    """

    def __init__(
        self,
        state: NameServerState,
        address: str,
        *,
        connection_count: int = 0,
        refused_count: int = 0,
        denied_count: int = 0,
    ) -> None:
        self.state = state
        self.connection_count = connection_count
        self.refused_count = refused_count
        self.denied_count = denied_count
        self.base = labels(node_id=address, node_type="nameserver")


def _family(
    name: str, text: str, figure: Callable[[NameServerScrape], int]
) -> Family[NameServerScrape]:
    def samples(scrape: NameServerScrape) -> Iterator[str]:
        yield f"{name}{{{scrape.base}}} {figure(scrape)}\n"

    return Family(name, "counter" if name.endswith("_total") else "gauge", text, samples)


FAMILIES: Final[list[Family[NameServerScrape]]] = [
    _family(
        "downrange_nameserver_brokers",
        "Broker processes that are registered.",
        lambda scrape: len(scrape.state.registry.live_brokers()),
    ),
    _family(
        "downrange_nameserver_topics",
        "Topics of all brokers.",
        lambda scrape: scrape.state.registry.topic_count,
    ),
    _family(
        "downrange_nameserver_connections",
        "Open connections.",
        lambda scrape: scrape.connection_count,
    ),
    _family(
        "downrange_nameserver_refused_connections_total",
        "Connections that were refused because of a limit.",
        lambda scrape: scrape.refused_count,
    ),
    _family(
        "downrange_nameserver_denied_requests_total",
        "Requests that the access rules denied.",
        lambda scrape: scrape.denied_count,
    ),
]
