"""The program that checks rules of Prometheus: where it is, and how to get it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

#: Debian's package of it; it also has the server.
PACKAGE = "prometheus"


def own_promtool() -> Path:
    """Return where `scripts/ensure_promtool.py` puts it: beside the interpreter."""
    return Path(sys.executable).parent / "promtool"


def find_promtool() -> str | None:
    """Return the program; None if it is missing."""
    own = own_promtool()
    return str(own) if os.access(own, os.X_OK) else shutil.which("promtool")


def promtool_hint() -> str:
    """Return how to get it."""
    return f"promtool was not found: `make promtool`, or on Debian: apt-get install {PACKAGE}"
