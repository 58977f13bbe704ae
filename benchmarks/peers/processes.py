"""Environments and processes of the clients."""

from __future__ import annotations

import hashlib
import json
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
_UV = Path(sys.executable).with_name("uv")
_INSTALL_TIMEOUT = 600.0
_START_TIMEOUT = 60.0
#: How much longer than asked a client may take.
_SPARE = 60.0


class Failed(Exception):
    """A client cannot be installed or run; the text says why."""


def install(packages: tuple[str, ...]) -> Path:
    """Return the Python of an environment with these packages; our own for none.

    Raises:
        Failed: They cannot be installed.
    """
    if not packages:
        return Path(sys.executable)
    place = FOLDER / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        _uv("venv", "--quiet", "--clear", "--python", version, str(place))
        _uv("pip", "install", "--quiet", "--python", str(python), *packages)
        (place / "complete").touch()
    return python


def _uv(*arguments: str) -> None:
    done = subprocess.run(
        [str(_UV), *arguments], capture_output=True, text=True, timeout=_INSTALL_TIMEOUT
    )
    if done.returncode != 0:
        raise Failed(_last_line(done.stderr))


class Worker:
    """The process of a client.

    Attributes:
        topic: Where it sends to.
        sent: All messages that were acknowledged.
    """

    def __init__(
        self, python: Path, module: str, addresses: dict[str, str], topic: str, body_bytes: int
    ) -> None:
        """Start it; the first `run` waits until it is connected."""
        self.topic = topic
        self.sent = 0
        self._log = FOLDER / f"{topic}.log"
        FOLDER.mkdir(parents=True, exist_ok=True)
        arguments = [module, json.dumps(addresses), topic, str(body_bytes)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.peers.worker", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # `_read` asks the kernel whether there is more
            )
        self._is_ready = False

    def run(self, way: str, seconds: float) -> tuple[int, float, float]:
        """Send for some seconds; return messages, seconds and seconds of CPU.

        Raises:
            Failed: The process ended, or took too long.
        """
        if not self._is_ready:
            self._read(_START_TIMEOUT)
            self._is_ready = True
        try:
            cast("IO[bytes]", self._process.stdin).write(f"{way} {seconds}\n".encode())
            cast("IO[bytes]", self._process.stdin).flush()
        except OSError as error:
            raise Failed(self._reason()) from error
        answer = json.loads(self._read(seconds + _SPARE))
        self.sent += answer["sent"]
        return answer["sent"], answer["seconds"], answer["cpu"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _read(self, timeout: float) -> str:
        """Return a line of results."""
        output = cast("IO[bytes]", self._process.stdout)
        line, deadline = b"", time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(deadline - time.monotonic()):
                    raise Failed(f"no result in {timeout:.0f} s; {self._reason()}")
                if not (byte := output.read(1)):
                    raise Failed(self._reason())
                line += byte
        return line.decode()

    def _reason(self) -> str:
        return _last_line(self._log.read_text(errors="replace"))


def _last_line(text: str) -> str:
    """Return the last line that is not empty, without paths of this machine."""
    lines = [line.strip() for line in text.replace(str(ROOT), "…").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
