"""Python clients as child processes that end with whoever started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.peers import environment

_ROOT: Final = Path(__file__).parents[2]
_GRACE: Final = 60.0
_TOLD: Final = 2000


class ClientFailed(Exception):
    """A client ended in an error; the text ends with what it said."""


def run_module(module: str, argument: str, seconds: float) -> bytes:
    """Run a module with one argument and return what it printed.

    Args:
        module: Its name.
        argument: For it.
        seconds: How long it will work; it may take a minute more.

    Raises:
        ClientFailed: It ended in an error, or not at all.
    """
    # A session of its own: Ctrl-C reaches us alone, and we end it.
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
        raise ClientFailed(f"{module} did not end") from error
    if done.returncode:
        raise ClientFailed(done.stderr.decode(errors="replace")[-_TOLD:].strip())
    return done.stdout
