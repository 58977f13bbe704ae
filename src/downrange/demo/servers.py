"""A name server and two brokers, each a process of its own, so that one can really be killed.

One rule: whatever happens, no process stays behind. Ports are free ones; a broker that comes back
takes the port it had.
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
#: How long a server may take to serve, also on a busy machine.
START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 10.0

# Producers are asked about open transactions soon, where a broker takes half a minute otherwise;
# and files are of a size that fits a small disk.
_SETTINGS: Final = """\
[broker]
is_trace_topic_created = true
transaction_timeout = 1.0
transaction_check_interval = 1.0

[store]
log_segment_bytes = 67108864
"""


class ServerFailed(RocketMQError):
    """A server of the demo did not start, or ended by itself."""


class ServerProcess:
    """`downrange nameserver` or `downrange broker`, in the background.

    Args:
        name: What it is called; its log has this name.
        arguments: Its command line.
        folder: Where its log goes.

    Attributes:
        name: What it is called.
        log: The file of what it says.
        address: Where it listens, once it is ready.
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
                process_group=0,  # Ctrl-C is for us; we end it in our own time
            )
        self.address = ""

    def wait_until_ready(self) -> Self:
        """Wait until it serves.

        Raises:
            ServerFailed: It does not begin to.
        """
        output = self._process.stdout
        assert output is not None
        seen, _, _ = select.select([output], [], [], START_TIMEOUT)
        line = output.readline() if seen else ""
        if not line.startswith("ready "):
            said = self.log.read_text(errors="replace").strip().splitlines()
            raise ServerFailed(
                f"the {self.name} of the demo does not serve: "
                f"{said[-1] if said else 'it said nothing'}\n  All of it is in {self.log}."
            )
        # ready broker=HOST:PORT store=DIR, or ready nameserver=HOST:PORT
        self.address = line.split()[1].partition("=")[2]
        return self

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as `kill -9` does: nothing is flushed, no goodbye is said."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT)
        self._close()

    def stop(self) -> None:
        """Ask it to stop, and kill it if it does not."""
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
        logs: Folder of what the servers log.
    """

    def __init__(self, store: Path, logs: Path) -> None:
        self._store = store
        self._logs = logs
        self._settings = store / "servers.toml"
        self._name_server: ServerProcess | None = None
        self._brokers: dict[str, ServerProcess] = {}

    def __enter__(self) -> Self:
        """Start all, and wait until they serve."""
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
        """Stop all."""
        self._stop()

    @property
    def name_server(self) -> str:
        """Where clients connect."""
        assert self._name_server is not None, "use it in a with statement"
        return self._name_server.address

    @property
    def brokers(self) -> dict[str, str]:
        """Name -> address of each broker."""
        return {name: broker.address for name, broker in self._brokers.items()}

    def kill_broker(self, name: str) -> None:
        """End a broker as a crash would."""
        self._brokers[name].kill()

    def restart_broker(self, name: str) -> float:
        """Start a broker again on its store and its port; return the seconds that took.

        Raises:
            ServerFailed: It does not start.
        """
        began = time.monotonic()
        port = int(self._brokers[name].address.rpartition(":")[2])
        self._brokers[name] = self._start_broker(name, port)
        self._brokers[name].wait_until_ready()
        return time.monotonic() - began

    def check(self) -> None:
        """See that all of them live.

        Raises:
            ServerFailed: One does not; names it and its log.
        """
        for server in (self._name_server, *self._brokers.values()):
            if server is not None and not server.is_running:
                raise ServerFailed(f"the {server.name} ended by itself; see {server.log}")

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
