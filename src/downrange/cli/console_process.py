"""The console as a child process of `serve` or `demo`.

Its standard input is a pipe to which nothing is written. When the parent ends, by whatever means,
the pipe ends, and with it the console.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, Self

from downrange.cli.config_file import AccessSettings, load_settings, no_settings
from downrange.errors import OptionError, RocketMQError
from downrange.extras import check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from downrange.cli.server_flags import CommonFlags

_STOP_TIMEOUT: Final = 5.0


class ConsoleFailed(RocketMQError):
    """The console did not start; its own message is above."""


def console_arguments(
    flags: CommonFlags, *, port: int, store: Path, trace_report: str | None = None
) -> list[str]:
    """Return the arguments of a console for a cluster that `serve` runs.

    Args:
        flags: The flags of `serve`.
        port: The port of the console.
        store: The folder of the cluster.
        trace_report: The address of a report of `downrange pipeline trace`.

    Raises:
        OptionError: The console cannot reach a cluster with these flags.
        MissingExtra: The packages of the console are not installed.
    """
    check("the console", "console")
    settings = no_settings() if flags.config is None else load_settings(flags.config)
    file = None if flags.acl is None else str(flags.acl)
    access = settings.make(AccessSettings, "access", file=file)
    if flags.tls_mode == "enforcing":
        raise OptionError(
            "--console with --tls-mode enforcing: start `downrange console` by hand, with --tls "
            "and --ca"
        )
    arguments = ["--port", str(port), "--audit", str(store / "console" / "audit.jsonl")]
    if access.file is not None:
        arguments += ["--acl", str(access.file)]
    if trace_report is not None:
        arguments += ["--trace-report", trace_report]
    arguments += ["--log-format", flags.log_format]
    for level in flags.log_level:
        arguments += ["--log-level", level]
    return arguments


class ConsoleProcess:
    """A console that runs in a process of its own; a context manager.

    Args:
        arguments: Arguments of `downrange console`.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "downrange", "console", "--until-eof", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C must reach the parent alone, which then stops the console
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the process."""
        self.stop()

    def wait_until_ready(self) -> str:
        """Return the address of the console when it serves.

        Raises:
            ConsoleFailed: It has ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # ends when the process does
        if not line.startswith("ready console="):
            raise ConsoleFailed("the console did not start; its own message is above")
        return line.strip().partition("=")[2]

    def stop(self) -> None:
        """Stop the process: with SIGTERM, and with SIGKILL if that takes too long."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ConsoleBesideServer:
    """Starts a console when a server is ready, in a thread: the server serves meanwhile.

    Args:
        arguments: Arguments of `downrange console`, without the name server.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._thread: threading.Thread | None = None
        self._process: ConsoleProcess | None = None
        self._failure: RocketMQError | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the console."""
        if self._process is not None:
            self._process.stop()
        if self._thread is not None:
            self._thread.join()

    def start(self, name_server: str, on_ready: Callable[[str], None]) -> None:
        """Start the console; call back with its address from another thread."""
        self._process = process = ConsoleProcess([*self._arguments, name_server])

        def wait() -> None:
            try:
                on_ready(process.wait_until_ready())
            except RocketMQError as error:
                self._failure = error
                os.kill(os.getpid(), signal.SIGTERM)  # the server stops as on any signal

        self._thread = threading.Thread(target=wait, name="console", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a console that did not start."""
        if self._failure is not None:
            raise self._failure
