"""Metadata of option fields that are also command-line flags: the text and names of the flag."""

from __future__ import annotations

from typing import Any


def flag(text: str, *, metavar: str | None = None, name: str | None = None) -> dict[str, Any]:
    """Return the metadata of a dataclass field that is a flag.

    Args:
        text: The help text.
        metavar: The placeholder for the value; from the type if None.
        name: The flag's name if it differs from the field's.
    """
    return {"help": text, "metavar": metavar, "name": name}
