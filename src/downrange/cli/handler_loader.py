"""Finds the handler of `consume`, "module:name"; modules may lie in the working folder."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downrange.client.push_base import check_handler
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def load_handler(text: str, folder: Path) -> Callable[[Any], Any]:
    """Import a module and return its handler.

    Args:
        text: "module:name"; both may have dots.
        folder: Where modules are looked for first.

    Raises:
        OptionError: There is no such module, it cannot be imported, it has no such name, or the
            name is not a function.
    """
    name, _, attribute = text.partition(":")
    if not name or not attribute or "/" in name or name.endswith(".py"):
        hint = Path(name).stem or "orders"
        raise OptionError(
            f"HANDLER {text!r} is not MODULE:NAME, such as {hint}:{attribute or 'handle'}"
        )
    value: Any = _import(name, folder)
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise OptionError(
                f"HANDLER {text!r}: {_described(value)} has no attribute {part!r}"
            ) from None
    if not callable(value):
        raise OptionError(
            f"HANDLER {text!r} is a {type(value).__name__} and cannot be called; name a function "
            "of one message"
        )
    if isinstance(value, type):
        raise OptionError(
            f"HANDLER {text!r} is a class; name a function of one message, or an object that can "
            "be called"
        )
    try:
        check_handler(value)
    except OptionError as error:
        raise OptionError(f"HANDLER {text!r}: {error}") from None
    return value  # type: ignore[no-any-return]


def _import(name: str, folder: Path) -> ModuleType:
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself is missing, or one that it imports.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise OptionError(
                f"HANDLER: there is no module {error.name!r} in {place} or among the installed ones"
            ) from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> OptionError:
    traceback.print_exception(error)
    return OptionError(
        f"HANDLER: module {name!r} cannot be imported: {type(error).__name__}: {error}"
    )


def _described(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return f"module {name!r}" if isinstance(value, type(sys)) else f"{name or value!r}"
