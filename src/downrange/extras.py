"""Extras: optional packages, and an error that says what to install when one is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from downrange.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

#: Extra -> the packages it installs, by their import names.
EXTRAS = {
    "server": ("uvloop", "yaml"),
    "cli": ("rich", "click"),
    "spark": ("pyspark", "pyarrow", "numpy"),
    "proxy": ("python_socks",),
    "otel": ("opentelemetry",),
    "console": ("starlette", "uvicorn", "jinja2"),
    "dev": ("pytest", "hypothesis"),
}


def require(feature: str, extra: str, *needed: str) -> list[ModuleType]:
    """Import packages of an extra.

    Args:
        feature: The subject of the error text, such as "the command line".
        extra: The extra's name in pyproject.toml.
        needed: The packages to import; all of the extra if not given. Some are slow to import.

    Returns:
        The imported packages, in the order of `needed`, or of `EXTRAS`.

    Raises:
        MissingExtra: A package is not installed; the text says what to install.
    """
    packages = needed or EXTRAS[extra]
    try:
        return [import_module(package) for package in packages]
    except ImportError as error:
        if error.name not in packages:
            raise  # the package is installed but broken: "install it" would be wrong advice
        raise MissingExtra(feature, extra) from error


def check(feature: str, extra: str) -> None:
    """Check that all packages of an extra are installed, without importing them.

    Raises:
        MissingExtra: One is not; the text says what to install.
    """
    if not all(find_spec(package) for package in EXTRAS[extra]):
        raise MissingExtra(feature, extra)
