"""`downrange serve` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

#: Long enough for a busy machine; a test that passes does not wait for it.
DEADLINE = 90.0
COMMAND = (sys.executable, "-m", "downrange", "serve")
FREE_PORTS = ("--nameserver-port", "0", "--broker-port", "0")


class ServerProcess:
    """A server that is ready.

    Args:
        store: Its folder; its log file is beside it.
        arguments: More arguments of its command line.
        prefix: A command that runs it.

    Attributes:
        process: The process.
        broker: Address of its broker.
        name_server: Address of its name server.
        seconds_to_ready: How long it took to start.
    """

    def __init__(
        self, store: Path, arguments: Sequence[str] = (), *, prefix: Sequence[str] = ()
    ) -> None:
        self._log = store.with_name(f"{store.name}.log")
        begun = time.monotonic()
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, "--store", str(store), *FREE_PORTS, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.seconds_to_ready = time.monotonic() - begun
        if not line.startswith("ready "):
            self.kill()
            raise AssertionError(f"not ready: {line}{self.log()}")
        words = dict(word.split("=", 1) for word in line.split()[1:])
        self.broker = words["broker"]
        self.name_server = words["nameserver"]

    def log(self) -> str:
        """Return its log, and that of earlier processes with the same folder."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """Stop it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        assert self.process.stdout is not None
        with self.process.stdout as output:
            assert output.read() == "", "it says more than one line"
        return self.process.wait(DEADLINE)


@contextmanager
def served(store: Path, *arguments: str, prefix: Sequence[str] = ()) -> Generator[ServerProcess]:
    """Run a server, and check that no process is left."""
    server = ServerProcess(store, arguments, prefix=prefix)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def end_of(*arguments: str, seconds: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected not to start."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
