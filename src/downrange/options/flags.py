"""The fields of an options class that are flags of a command and keys of a config file."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, get_type_hints

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

#: Metadata of a field that only programs set: it is neither a flag nor a key.
PROGRAM_ONLY: Final = {"is_program_only": True}


def flag(text: str, *, metavar: str | None = None, name: str | None = None) -> dict[str, Any]:
    """Return the metadata of a dataclass field that is a flag.

    Args:
        text: The help text.
        metavar: The placeholder for the value; from the type if None.
        name: The flag's name if it differs from the field's.
    """
    return {"help": text, "metavar": metavar, "name": name}


def option_fields(kind: type[DataclassInstance]) -> list[Field[Any]]:
    """Return the fields of a class that are flags and keys.

    A field that is a dataclass itself is a table of its own, so it is not one of them.
    """
    hints = get_type_hints(kind)
    return [
        one
        for one in fields(kind)
        if one.init and not is_dataclass(hints[one.name]) and "is_program_only" not in one.metadata
    ]
