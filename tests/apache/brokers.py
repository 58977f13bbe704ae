"""One broker of a test cluster: its ports, files and process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.apache.ports import BrokerPorts
    from tests.apache.processes import ChildProcess


@dataclass(slots=True, kw_only=True)
class BrokerProcess:
    """One broker.

    Attributes:
        name: Broker name, "broker-a" for the first.
        ports: Its ports.
        folder: Its own folder.
        store: Root of its store files; complete and closed after `stop_broker`.
        log: The file with everything that the broker printed and logged.
        child: The process, None while stopped.
    """

    name: str
    ports: BrokerPorts
    folder: Path
    child: ChildProcess | None = None
    log_start: int = 0

    @property
    def address(self) -> str:
        """Return "127.0.0.1:port"."""
        return f"127.0.0.1:{self.ports.listen}"

    @property
    def store(self) -> Path:
        """Return the root of the store files."""
        return self.folder / "store"

    @property
    def log(self) -> Path:
        """Return the log file."""
        return self.folder / "broker.log"

    @property
    def configuration(self) -> Path:
        """Return the broker's properties file."""
        return self.folder / "broker.conf"

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self.child is not None and self.child.is_running
