"""A cluster with one process per server, so that each can be killed alone."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from downrange.wire.codes import ResponseCode
from tests.apache.ports import draw_name_server_port
from tests.embedded.brokers import connection, create_request, route
from tests.faults.processes import DEADLINE
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

#: The interval at which a broker registers with a name server that came back.
_CONFIG = "[broker]\nregister_interval = 1.0\n"


class ServerOfFleet:
    """One server, with the same port and folder after every start.

    Args:
        folder: The folder of its store; its log file is beside it.
        arguments: The arguments of `downrange`, without port and store.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        # No outgoing connection gets this port while the server is down.
        self.address = f"127.0.0.1:{draw_name_server_port()}"
        self._log = folder.with_name(f"{folder.name}.log")
        port = self.address.rpartition(":")[2]
        self._command = [sys.executable, "-m", "downrange", *arguments, "--port", port]
        self._command += ["--store", str(folder)]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait(self) -> None:
        """Wait until it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready "), self._log.read_text()

    def kill(self) -> None:
        """End it as `kill -9` does; does nothing if it has ended."""
        if self.process is not None:
            assert self.process.stdout is not None
            self.process.kill()
            self.process.wait(DEADLINE)
            self.process.stdout.close()
            self.process = None


class Fleet:
    """Name servers, and two brokers that register with all of them.

    Attributes:
        name_servers: The name servers.
        brokers: broker-a and broker-b.
    """

    def __init__(self, folder: Path, name_servers: int = 1) -> None:
        config = folder / "fleet.toml"
        config.write_text(_CONFIG)
        self.name_servers = [
            ServerOfFleet(folder / f"names-{number}", "nameserver")
            for number in range(name_servers)
        ]
        known = [part for one in self.name_servers for part in ("--nameserver", one.address)]
        self.brokers = [
            ServerOfFleet(folder / name, "broker", "--name", name, "--config", str(config), *known)
            for name in ("broker-a", "broker-b")
        ]

    @property
    def addresses(self) -> str:
        """The addresses of the name servers, in the form that clients accept."""
        return ";".join(one.address for one in self.name_servers)

    def create_topic(self, topic: str) -> None:
        """Create a topic of one queue on each broker, and wait for its route."""
        for broker in self.brokers:
            with connection(broker.address) as peer:
                assert peer.ask(create_request(topic)).code == ResponseCode.SUCCESS
        for one in self.name_servers:
            if one.process is not None:
                wait_until(
                    lambda one=one: route(one.address, topic) == ["broker-a", "broker-b"]  # type: ignore[misc]
                )


@contextmanager
def running_fleet(folder: Path, name_servers: int = 1) -> Generator[Fleet]:
    """Run a fleet, and check that no process is left."""
    fleet = Fleet(folder, name_servers)
    try:
        for rank in (fleet.name_servers, fleet.brokers):
            for server in rank:
                server.begin()
            for server in rank:
                server.wait()
        yield fleet
    finally:
        for server in (*fleet.name_servers, *fleet.brokers):
            server.kill()
