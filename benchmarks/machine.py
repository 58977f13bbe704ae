"""The machine and the software versions that the figures depend on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from downrange.native import path_in_use


def facts(java: str) -> dict[str, str]:
    """Return the machine and the versions; `java` is the version of Java."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GB",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "uvloop": version_of("uvloop"),
        "hot path": path_in_use(),
        "java": java,
    }


def version_of(package: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _first(path: str, label: str) -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(label))
    return next(found, "unknown")
