"""Optional packages: which extra brings which feature, and a clear word when it is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from downrange.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

#: Extra -> the packages it brings, by the name they are imported under.
EXTRAS = {
    "server": ("uvloop", "yaml"),
    "cli": ("rich", "click"),
    "spark": ("pyspark", "pyarrow", "numpy"),
    "proxy": ("python_socks",),
    "dev": ("pytest", "hypothesis"),
}


def require(feature: str, extra: str, *needed: str) -> list[ModuleType]:
    """Import packages of an extra.

    Args:
        feature: What the user asked for, as the error text names it: "the command line".
        extra: The extra's name in pyproject.toml.
        needed: The packages to import, where it is not all of them: some are slow.

    Returns:
        The imported packages, in the order of `needed`, else of `EXTRAS`.

    Raises:
        MissingExtra: A package is not installed; the text says what to install.
    """
    packages = needed or EXTRAS[extra]
    try:
        return [import_module(package) for package in packages]
    except ImportError as error:
        if error.name not in packages:
            raise  # the package is there but broken: hiding that would send the user astray
        raise MissingExtra(feature, extra) from error


def check(feature: str, extra: str) -> None:
    """Look whether all packages of an extra are installed, without importing them.

    Raises:
        MissingExtra: One is not; the text says what to install.
    """
    if not all(find_spec(package) for package in EXTRAS[extra]):
        raise MissingExtra(feature, extra)
