"""`/metrics`, `/health` and `/ready` of the servers of a process, on their event loop.

It starts before the servers and ends after them, so that `/ready` tells that a store is being
recovered. `/health` is answered as long as the event loop runs.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import resource
import shutil
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from downrange.options.servers import MetricsOptions, split_listen_address
from downrange.server.metrics import broker_metrics, name_server_metrics
from downrange.server.metrics.exposition import CONTENT_TYPE, write_dropped, write_families
from downrange.server.metrics.name_server_metrics import NameServerScrape
from downrange.server.metrics.scrape import BrokerScrape
from downrange.server.net.http_responder import HttpResponder, Page, ResponderLimits
from downrange.server.run.broker_loop import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from downrange.server.run.broker_server import BrokerServer
    from downrange.server.run.name_server import NameServer

_log: Final = logging.getLogger("downrange.metrics")
_STARTED: Final = time.time()


@dataclass(frozen=True, slots=True)
class Observed:
    """The servers of a process.

    Attributes:
        brokers: The brokers.
        name_servers: The name servers.
    """

    brokers: Sequence[BrokerServer] = field(default_factory=tuple)
    name_servers: Sequence[NameServer] = field(default_factory=tuple)


class MetricsServer:
    """Shows the figures of servers to Prometheus and to load balancers.

    Args:
        options: Address and limits.
        observed: Returns the servers; called for each page.

    Attributes:
        options: See above.

    Raises:
        OptionError: The address is not "host:port".
    """

    def __init__(self, options: MetricsOptions, observed: Callable[[], Observed]) -> None:
        self.options = options
        self._observed = observed
        host, port = split_listen_address(options.address)
        self._responder = HttpResponder(
            {"/metrics": self._metrics, "/health": self._health, "/ready": self._ready},
            host,
            port,
            ResponderLimits(
                connections_max=options.connections_max,
                header_bytes_max=options.header_bytes_max,
                timeout=options.timeout,
            ),
        )

    @property
    def address(self) -> str:
        """Where it listens, "host:port"; empty before the first start."""
        return self._responder.address

    async def start(self) -> None:
        """Listen; does nothing if it listens already.

        Raises:
            CannotListen: The address cannot be bound.
        """
        await self._responder.start()
        host = self.address.rpartition(":")[0].strip("[]")
        if not ipaddress.ip_address(host).is_loopback:
            _log.warning(
                "metrics on %s can be read from other machines, without an account", self.address
            )
        _log.info("metrics are on http://%s/metrics", self.address)

    async def stop(self) -> None:
        """Stop listening; does nothing if it is stopped."""
        await self._responder.stop()

    # ---- pages ----

    def _health(self) -> Page:
        return Page(200, "ok\n")

    def _ready(self) -> Page:
        observed = self._observed()
        reasons: list[str] = []
        if not observed.brokers and not observed.name_servers:
            reasons.append("the servers start")
        servers: list[BrokerServer | NameServer] = [*observed.name_servers, *observed.brokers]
        for server in servers:
            reason = server.unready_reason
            if reason is not None:
                reasons.append(f"{server.label}: {reason}")
        if reasons:
            return Page(503, "".join([f"not ready: {reason}\n" for reason in reasons]))
        return Page(200, "ready\n")

    def _metrics(self) -> Page:
        observed = self._observed()
        brokers = [_broker_scrape(each) for each in observed.brokers if each.is_serving]
        servers = [_name_server_scrape(each) for each in observed.name_servers if each.is_serving]
        limit, dropped = self.options.series_max, dict[str, int]()
        return Page(
            200,
            chain(
                chain.from_iterable([scrape.collect() for scrape in brokers]),
                write_families(broker_metrics.FAMILIES, brokers, limit, dropped),
                write_families(name_server_metrics.FAMILIES, servers, limit, dropped),
                write_dropped(dropped),
                _process_lines(),
            ),
            CONTENT_TYPE,
        )


def _broker_scrape(server: BrokerServer) -> BrokerScrape:
    try:
        disk_bytes = shutil.disk_usage(server.folder).used
    except OSError:
        disk_bytes = 0
    return BrokerScrape(
        server.state,
        server.request_times,
        wall_clock_ms(),
        connection_count=server.connection_count,
        refused_count=server.refused_count,
        denied_count=server.denied_count,
        disk_bytes=disk_bytes,
    )


def _name_server_scrape(server: NameServer) -> NameServerScrape:
    return NameServerScrape(
        server.state,
        server.address,
        connection_count=server.connection_count,
        refused_count=server.refused_count,
        denied_count=server.denied_count,
    )


def _process_lines() -> Iterator[str]:
    """Yield figures of the process under the names that all Prometheus clients use."""
    yield _line("process_cpu_seconds_total", "counter", "CPU time.", time.process_time())
    yield _line("process_start_time_seconds", "gauge", "Start since 1970.", _STARTED)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield _line("process_max_fds", "gauge", "The limit of open files.", files_max)
    memory = _resident_bytes()
    if memory is not None:
        yield _line("process_resident_memory_bytes", "gauge", "Memory in use.", memory)
    yield _line("target_info", "gauge", "Always 1.", 1)


def _line(name: str, kind: str, text: str, value: float) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n"


def _resident_bytes() -> int | None:
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):  # another system than Linux
        return None
