"""A name server and two brokers, each in its own process, so that one can be killed.

One rule: no process is left running, whatever happens. The servers use free ports; a broker that
is restarted keeps its port.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Self

from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

BROKERS: Final = ("broker-a", "broker-b")
#: How long a server may take to start; long enough for a busy machine.
START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 10.0

# Brokers check open transactions after one second instead of the usual half minute, and the files
# are small enough for a small disk.
_SETTINGS: Final = """\
[broker]
is_trace_topic_created = true
transaction_timeout = 1.0
transaction_check_interval = 1.0

[store]
log_segment_bytes = 67108864
"""


class ServerFailed(RocketMQError):
    """A server of the demo did not start, or ended unexpectedly."""


class ServerProcess:
    """`downrange nameserver` or `downrange broker`, in the background.

    Args:
        name: Name of the server and of its log file.
        arguments: Its command line.
        folder: Folder of the log file.

    Attributes:
        name: Name of the server.
        log: Log file.
        address: Where it listens; empty until it is ready.
    """

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "downrange", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C must reach the demo alone, which then stops the servers
            )
        self.address = ""

    def wait_until_ready(self) -> Self:
        """Wait until the server prints its `ready` line.

        Raises:
            ServerFailed: It does not; names the log file.
        """
        output = self._process.stdout
        assert output is not None
        seen, _, _ = select.select([output], [], [], START_TIMEOUT)
        line = output.readline() if seen else ""
        if not line.startswith("ready "):
            logged = self.log.read_text(errors="replace").strip().splitlines()
            raise ServerFailed(
                f"the {self.name} of the demo did not start: "
                f"{logged[-1] if logged else 'it logged nothing'}\n  See {self.log}."
            )
        # ready broker=HOST:PORT store=DIR, or ready nameserver=HOST:PORT
        self.address = line.split()[1].partition("=")[2]
        return self

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL: it flushes nothing and closes nothing."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT)
        self._close()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not end in time."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
        self._close()

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()


class Servers:
    """The cluster of the demo; a context manager.

    Args:
        store: Folder of the brokers' stores.
        logs: Folder of the log files.
    """

    def __init__(self, store: Path, logs: Path) -> None:
        self._store = store
        self._logs = logs
        self._settings = store / "servers.toml"
        self._name_server: ServerProcess | None = None
        self._brokers: dict[str, ServerProcess] = {}

    def __enter__(self) -> Self:
        """Start all servers and wait until they are ready."""
        self._store.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_SETTINGS)
        try:
            self._name_server = ServerProcess(
                "nameserver", ("nameserver", "--port", "0", "--log-level", "warning"), self._logs
            )
            self._name_server.wait_until_ready()
            for name in BROKERS:
                self._brokers[name] = self._start_broker(name, port=0)
            for broker in self._brokers.values():
                broker.wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop all servers."""
        self._stop()

    @property
    def name_server(self) -> str:
        """Address of the name server."""
        assert self._name_server is not None, "use Servers in a with statement"
        return self._name_server.address

    @property
    def brokers(self) -> dict[str, str]:
        """Name -> address of each broker."""
        return {name: broker.address for name, broker in self._brokers.items()}

    def kill_broker(self, name: str) -> None:
        """Kill a broker, as a crash would."""
        self._brokers[name].kill()

    def restart_broker(self, name: str) -> float:
        """Start a broker again with its store and its port; return the duration in seconds.

        Raises:
            ServerFailed: It does not start.
        """
        started = time.monotonic()
        port = int(self._brokers[name].address.rpartition(":")[2])
        self._brokers[name] = self._start_broker(name, port)
        self._brokers[name].wait_until_ready()
        return time.monotonic() - started

    def check(self) -> None:
        """Check that all servers are running.

        Raises:
            ServerFailed: A server has ended; names it and its log file.
        """
        for server in (self._name_server, *self._brokers.values()):
            if server is not None and not server.is_running:
                raise ServerFailed(f"the {server.name} ended unexpectedly; see {server.log}")

    def _start_broker(self, name: str, port: int) -> ServerProcess:
        arguments = (
            *("broker", "--name", name, "--nameserver", self.name_server),
            *("--port", str(port), "--store", str(self._store / name)),
            *("--config", str(self._settings), "--log-level", "warning"),
        )
        return ServerProcess(name, arguments, self._logs)

    def _stop(self) -> None:
        for server in (*self._brokers.values(), self._name_server):
            if server is not None:
                server.stop()
        self._brokers.clear()
        self._name_server = None
