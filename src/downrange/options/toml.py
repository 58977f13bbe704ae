"""TOML files as options: each table becomes a dataclass whose fields are the table's keys.

So an option is declared once, in its dataclass. Values are checked and converted by the types of
the fields. Errors name the file, the table and the key, and an unknown name is answered with the
one that was probably meant.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from downrange.errors import OptionError
from downrange.options.flags import option_fields
from downrange.options.hints import hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)


class TomlTables:
    """The tables of a TOML file.

    Args:
        tables: Keys and values by table.
        source: What errors name, such as "config file server.toml".
        known: The tables that the file may hold.

    Raises:
        OptionError: A table is not known, or a name of one has a value that is not a table.
    """

    def __init__(self, tables: Mapping[str, Any], source: str, known: Sequence[str]) -> None:
        for name, table in tables.items():
            if name not in known:
                raise OptionError(f"{source}: [{name}] is not known{hint(name, known)}")
            if not isinstance(table, dict):
                raise OptionError(
                    f"{source}: {name} must be a table; write [{name}] above its keys"
                )
        self._tables = tables
        self._source = source

    def has_table(self, name: str) -> bool:
        """Whether the file has this table."""
        return name in self._tables

    def has_key(self, table: str, key: str) -> bool:
        """Whether the file has this key in this table."""
        return key in self._tables.get(table, {})

    def values(self, kind: type[DataclassInstance], table: str) -> dict[str, Any]:
        """Return the checked values of a table, as keyword arguments of a dataclass.

        A missing table gives none.

        Raises:
            OptionError: A key is not a field of the class, or a value is not of the field's type.
        """
        return read_values(kind, self._tables.get(table, {}), f"{self._source}: [{table}] ")

    def build(self, kind: type[OptionsT], table: str, values: Mapping[str, Any]) -> OptionsT:
        """Build the options of a table from values that may have other sources, too.

        Raises:
            OptionError: A value that has no default is missing, or the class refuses a value.
        """
        if (missing := missing_field(kind, values)) is not None:
            raise OptionError(
                f"{self._source}: {missing} is missing: give it, or write it into [{table}]"
            )
        return kind(**values)

    def make(self, kind: type[OptionsT], table: str, /, **given: Any) -> OptionsT:
        """Build the options of a table; `given` values that are not None override the file.

        Raises:
            OptionError: See `values` and `build`.
        """
        overriding = {key: value for key, value in given.items() if value is not None}
        return self.build(kind, table, self.values(kind, table) | overriding)


def load_tables(path: str | Path, known: Sequence[str]) -> TomlTables:
    """Read a config file.

    Raises:
        OptionError: It cannot be read, is not TOML, or holds a table that is not known.
    """
    source = f"config file {path}"
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not even UTF-8
        raise OptionError(f"{source}: {error}") from error
    return TomlTables(tables, source, known)


def read_values(
    kind: type[DataclassInstance], table: Mapping[str, Any], where: str = ""
) -> dict[str, Any]:
    """Return the values of one table, checked and converted by the types of a dataclass.

    Fields that are dataclasses themselves are tables of their own, so they are not keys of this
    one.

    Args:
        kind: The dataclass.
        table: Its keys and values.
        where: What errors begin with, before the key.

    Raises:
        OptionError: A key is not a field of the class, or a value is not of the field's type.
    """
    hints = get_type_hints(kind)
    known = [one.name for one in option_fields(kind)]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise OptionError(f"{where}{key} is not known{hint(key, known)}")
        try:
            values[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as error:
            raise OptionError(f"{where}{key}: {error}") from None
    return values


def missing_field(kind: type[DataclassInstance], values: Mapping[str, Any]) -> str | None:
    """Return the first field that has neither a default nor a value, or None."""
    for one in fields(kind):
        is_required = one.default is MISSING and one.default_factory is MISSING
        if one.init and is_required and one.name not in values:
            return one.name
    return None
