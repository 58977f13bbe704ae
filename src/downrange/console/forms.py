"""Forms: a body of `application/x-www-form-urlencoded`, read with limits; each field is checked.

A field that is left empty counts as not given. Problems of a field are an `OptionError` that names
it; a form that cannot be read is an `UnreadableForm`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect

from downrange.console import limits
from downrange.console.failures import UnreadableForm
from downrange.errors import OptionError

if TYPE_CHECKING:
    from starlette.requests import Request

_KIND: Final = "application/x-www-form-urlencoded"
#: Fields that may be long.
_LONG: Final = ("body", "properties")
#: Numbers as people write them. Python's own functions also read "1_0", and digits of all scripts.
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Form:
    """The fields of a form.

    Args:
        fields: Names and values in the order of the form; a name may occur several times.

    Raises:
        UnreadableForm: A field is too long.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in fields:
            if len(value) > limits.FIELD_CHARACTERS_MAX and name not in _LONG:
                raise UnreadableForm(
                    f"{name[:80]}: has {len(value):,} characters, more than "
                    f"{limits.FIELD_CHARACTERS_MAX:,}"
                )
            self._fields.setdefault(name, []).append(value)

    @property
    def items(self) -> list[tuple[str, str]]:
        """All fields, for a form that sends them once more."""
        return [(name, value) for name, values in self._fields.items() for value in values]

    def text(self, name: str) -> str:
        """Return a text that must be given."""
        value = self.optional(name)
        if value is None:
            raise OptionError(f"{name}: is missing")
        return value

    def optional(self, name: str) -> str | None:
        """Return a text, or None if it is empty."""
        values = self._fields.get(name)
        return (values[-1] or None) if values else None

    def raw(self, name: str) -> str:
        """Return a text as it is, also empty."""
        return self._fields.get(name, [""])[-1]

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a name that are not empty."""
        return tuple(value for value in self._fields.get(name, []) if value)

    def number(self, name: str) -> int | None:
        """Return a whole number, or None if it is empty."""
        value = self.optional(name)
        if value is None:
            return None
        if not _WHOLE.fullmatch(value.strip()):
            raise OptionError(f"{name}: {value[:80]!r} is not a whole number")
        return int(value)

    def decimal(self, name: str) -> float | None:
        """Return a number, or None if it is empty."""
        value = self.optional(name)
        if value is None:
            return None
        if not _DECIMAL.fullmatch(value.strip()):
            raise OptionError(f"{name}: {value[:80]!r} is not a number")
        return float(value)

    def is_on(self, name: str) -> bool:
        """Return whether a box is ticked."""
        return self.optional(name) in ("yes", "on", "true", "1")

    def choice(self, name: str) -> bool | None:
        """Return yes, no, or None for "as it is"."""
        value = self.optional(name)
        if value is None:
            return None
        if value not in ("yes", "no"):
            raise OptionError(f"{name}: {value!r} is not yes or no")
        return value == "yes"

    def words(self, name: str) -> tuple[str, ...]:
        """Return texts that are separated by spaces, commas or lines."""
        return tuple((self.optional(name) or "").replace(",", " ").split())

    def pairs(self, name: str) -> dict[str, str]:
        """Return `name=value` lines."""
        found: dict[str, str] = {}
        for line in (self.optional(name) or "").splitlines():
            if not line.strip():
                continue
            key, sign, value = line.partition("=")
            if not sign or not key.strip():
                raise OptionError(f"{name}: the line {line[:80]!r} is not name=value")
            found[key.strip()] = value.strip()
        return found


async def read_form(request: Request) -> Form:
    """Read the form of a request.

    Raises:
        UnreadableForm: It is not a form, is not whole, has too many fields, or a field that is too
            long.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != _KIND:
        raise UnreadableForm(f"the content type of the request is {kind!r}, not {_KIND}")
    try:
        text = (await request.body()).decode("utf-8")
        fields = parse_qsl(
            text,
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=limits.FORM_FIELDS_MAX,
        )
    except ClientDisconnect:
        raise UnreadableForm("the connection ended before the form was whole") from None
    except UnicodeDecodeError:
        raise UnreadableForm("the form is not UTF-8") from None
    except ValueError:
        raise UnreadableForm(f"the form has more than {limits.FORM_FIELDS_MAX} fields") from None
    # Browsers send line ends as CR LF.
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])
