"""Runs Python clients as child processes, which end with the parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.server_pair import environment

_ROOT: Final = Path(__file__).parents[2]
_GRACE: Final = 60.0
_TOLD: Final = 2000


class ClientFailed(Exception):
    """A client ended with an error; the text ends with its output."""


def run_module(module: str, argument: str, seconds: float) -> bytes:
    """Run a module with one argument and return its output.

    Args:
        module: Name of the module.
        argument: Its argument.
        seconds: Expected duration; the module may take one minute more.

    Raises:
        ClientFailed: It ended with an error, or did not end in time.
    """
    # A new session: Ctrl-C reaches only this process, which then ends the child.
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, argument],
            capture_output=True,
            cwd=_ROOT,
            env=environment(),
            timeout=seconds + _GRACE,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClientFailed(f"{module} did not end in time") from error
    if done.returncode:
        raise ClientFailed(done.stderr.decode(errors="replace")[-_TOLD:].strip())
    return done.stdout
