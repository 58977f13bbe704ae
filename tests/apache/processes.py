"""Child processes that cannot outlive the test run.

Every child leads its own process group, so that Ctrl-C in the terminal reaches pytest alone and
fixtures can stop the servers cleanly. Three more mechanisms end the remaining children: `atexit`
kills them; on Linux the kernel kills the child when its parent dies for any reason; and on every
system a child whose standard input is a pipe may end with that pipe (the Java driver does).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Runs between fork and the real program. It is a separate program because a `preexec_fn` is not
# safe in a process that has threads. The parent may die before prctl is called, so the parent's id
# is checked afterwards.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent died")
os.execv(sys.argv[2], sys.argv[2:])
"""

_live: set[ChildProcess] = set()


class ChildProcess:
    """One running program with its output in a file.

    Attributes:
        name: For messages.
        output: File that receives standard error, and standard output unless it is piped.
        pid: Process id; also the id of its process group.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: Path,
        directory: Path,
        environment: dict[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        """Start the program.

        Args:
            name: For messages.
            command: Absolute path of the program, then its arguments.
            output: The file is appended to, so that a restart keeps the earlier log.
            directory: Working directory.
            environment: Replaces the environment.
            piped: Connect `stdin` and `stdout` instead of writing standard output to the file.
        """
        self.name = name
        self.output = output
        self._process = _launch(command, output, directory, environment, piped)
        self.pid = self._process.pid
        _live.add(self)

    @property
    def stdin(self) -> IO[bytes]:
        """Return the pipe to the program; only with `piped`."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Return the pipe from the program; only with `piped`."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        """Return whether the program has not ended yet."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or None while running."""
        return self._process.poll()

    def stop(self, timeout: float) -> bool:
        """Send SIGTERM, and kill the program if it does not end in time.

        Returns:
            True when it ended by itself.
        """
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        self.kill()
        return ended

    def wait(self, timeout: float) -> bool:
        """Wait for the end; return whether the program ended in time."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill the whole process group; does nothing if it has ended."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _live.discard(self)

    def tail(self, characters: int) -> str:
        """Return the end of the output file."""
        return tail_of(self.output, characters)

    def _signal(self, number: int) -> None:
        # After the leader was reaped its id may belong to another process.
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def tail_of(path: Path, characters: int) -> str:
    """Return the last characters of a text file, or "" when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - characters))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _launch(
    command: Sequence[str],
    output: Path,
    directory: Path,
    environment: dict[str, str] | None,
    piped: bool,
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE if piped else None

    def start() -> subprocess.Popen[bytes]:
        with output.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )

    started: Future[subprocess.Popen[bytes]] = Future()

    def deliver() -> None:
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    _launches().put(deliver)
    return started.result()


_launch_queue: SimpleQueue[Callable[[], None]] | None = None
_launch_queue_lock = threading.Lock()


def _launches() -> SimpleQueue[Callable[[], None]]:
    """Return the queue of the one thread that starts children.

    The kernel's parent-death signal is bound to the *thread* that forked: a child started in a
    short-lived thread would die with it. This thread lives as long as the process.
    """
    global _launch_queue
    with _launch_queue_lock:
        if _launch_queue is None:
            queue: SimpleQueue[Callable[[], None]] = SimpleQueue()

            def serve() -> None:
                while True:
                    queue.get()()

            threading.Thread(target=serve, name="apache-launcher", daemon=True).start()
            _launch_queue = queue
        return _launch_queue


def _kill_the_rest() -> None:
    for child in list(_live):
        child.kill()


atexit.register(_kill_the_rest)
