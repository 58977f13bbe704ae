"""`downrange nameserver`: a server in the foreground, until a signal ends it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from downrange.server import NameServer
from downrange.server.running import run_until_signal

if TYPE_CHECKING:
    from downrange.options import ListenerOptions, NameServerOptions


def log_to_stderr(level: str) -> None:
    """Send all logs to standard error; standard output is for the one line that says ready."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form)


def serve_names(options: NameServerOptions, listening: ListenerOptions) -> None:
    """Run a name server until SIGTERM or SIGINT.

    Raises:
        RocketMQError: It cannot serve; the text says why.
    """
    server = NameServer(options, listening)
    run_until_signal(server, lambda: print(f"ready nameserver={server.address}", flush=True))
