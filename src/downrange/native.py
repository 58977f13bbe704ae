"""The native part: fast twins of hot functions, which may be missing.

`native/` has the twins in Rust, built into the module `downrange._native`. Python is the reference:
every native function has a twin here in Python, which is documented, which runs where there is no
binary, and which takes the same arguments, returns the same values and raises the same errors.

The module that owns a function defines it as `pure_x`, and publishes one of the two as `x`:

    def pure_java_hash(text: str) -> int:
        ...

    java_hash = twin(pure_java_hash)  # `_native.java_hash` if there is one

All other modules use `java_hash`. A class `PureX` has the twin `X` in the same way. Where the twin
in Python takes other arguments, its module asks for `native_only("x")`. Tests compare
`pure_java_hash` and `_native.java_hash` (tests/unit/native).

The choice is made once, at import. `DOWNRANGE_PURE=1` in the environment forces the Python path. It
is read here and not by the command line, as it must hold before any other module is imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from types import ModuleType

#: The version of the package. A binary of another version is not used.
VERSION: Final = "0.1.0"
#: Set to anything but 0, it forces the Python path.
PURE_VARIABLE: Final = "DOWNRANGE_PURE"
_MODULE: Final = "downrange._native"

_T = TypeVar("_T")


def _load() -> tuple[ModuleType | None, str]:
    """Return the native module, or None and the reason."""
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        return None, f"{PURE_VARIABLE} is set"
    return find_binary()


def find_binary() -> tuple[ModuleType | None, str]:
    """Return the native module, whatever the environment says, or None and the reason."""
    if "t" in getattr(sys, "abiflags", ""):  # it would try to load the binary, and fail badly
        return None, "free-threaded Python cannot load binaries of the stable interface"
    try:
        module = import_module(_MODULE)
    except ImportError as error:  # not built, inside a zip file, of another platform
        return None, f"the native part cannot be imported: {error}"
    if (found := getattr(module, "__version__", None)) != VERSION:
        return None, (
            f"the native part has version {found}, this package {VERSION}; "
            "install the package again, or run `make native` in a checkout"
        )
    return module, ""


#: The native module, or None; then `pure_reason` says why.
native, pure_reason = _load()


def twin(pure: _T) -> _T:
    """Return the native twin of `pure_x` or of a class `PureX`, or itself if there is none.

    Raises:
        ImportError: The native part has no `x`: it was not built again after a change.
    """
    full: str = getattr(pure, "__name__")  # noqa: B009 - a type variable has no attributes
    found = native_only(full.removeprefix("pure_").removeprefix("Pure"))
    return pure if found is None else cast("_T", found)


def native_only(name: str) -> Any:
    """Return a native function by its name, or None where Python runs.

    Raises:
        ImportError: The native part has no such function: it was not built again after a change.
    """
    if native is not None and not hasattr(native, name):
        raise ImportError(
            f"the native part has no {name}: it was built from other sources; run `make native`, "
            f"or set {PURE_VARIABLE}=1"
        )
    return getattr(native, name, None)


def path_in_use() -> str:
    """Return which path runs, and why if it is the slower one: for people."""
    return "native" if native is not None else f"pure Python: {pure_reason}"
