"""Typed headers: structs that are converted to the string fields of a command, and back.

The attributes of a header are the fields, the annotations their Java types:

    @request(RequestCode.GET_MAX_OFFSET)
    class MaxOffsetRequest(Header):
        topic: str                     # required: Java's @CFNotNull
        queue_id: Int32                # on the wire: queueId, as decimal string
        committed: bool | None = None  # optional: absent on the wire if None

Reading follows the Java classes: unknown fields are ignored, a missing optional one has its
default, booleans are true only for "true" in any case, integers are read like `Integer.parseInt`. A
missing required field or a wrong number raises an error; Java continues with null, fails on it, and
answers SYSTEM_ERROR.

The conversions are compiled once per class, as in `dataclasses`: a loop over field descriptions
costs three times as much per message (`benchmarks/wire.py`, docs/decisions/0003). They are compiled
on first use, since a process uses only some of the classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from downrange.errors import InvalidField, MissingField
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable

Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]

HeaderT = TypeVar("HeaderT", bound="Header")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all typed headers; the compiled conversions replace the methods declared here."""

    def to_fields(self) -> dict[str, str]:
        """Return the fields as on the wire; those that are None are left out."""
        _compile(type(self))
        return self.to_fields()

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        """Read the header from a command's fields.

        Raises:
            MissingField: A required field is absent.
            InvalidField: A number cannot be read, or is outside the range of its Java type.
        """
        _compile(cls)
        return cls.from_fields(fields)


#: Request code -> the header of its request, and of its reply.
REQUEST_HEADERS: Final[dict[int, type[Header]]] = {}
REPLY_HEADERS: Final[dict[int, type[Header]]] = {}
#: Header class -> its request code, unless another is given: the first one it was declared for.
_CODES: Final[dict[type[Header], int]] = {}


def request(*codes: int) -> Callable[[type[HeaderT]], type[HeaderT]]:
    """Declare a class as the header of requests with these codes."""

    def declare(cls: type[HeaderT]) -> type[HeaderT]:
        REQUEST_HEADERS.update(dict.fromkeys(codes, cls))
        _CODES[cls] = int(codes[0])  # encoding an enum member takes longer
        return cls

    return declare


def reply(*codes: int) -> Callable[[type[HeaderT]], type[HeaderT]]:
    """Declare a class as the header of successful replies to requests with these codes."""

    def declare(cls: type[HeaderT]) -> type[HeaderT]:
        REPLY_HEADERS.update(dict.fromkeys(codes, cls))
        return cls

    return declare


def request_command(header: Header, body: bytes = b"", *, code: int | None = None) -> Command:
    """Build the command of a request header; give `code` if the header is used for several."""
    return Command(_CODES[type(header)] if code is None else code, header.to_fields(), body)


# ---- numbers -----------------------------------------------------------------------------------

_DECIMAL: Final = re.compile(r"[+-]?\d+")


def int32(text: str) -> int:
    """Read a number as Java's `Integer.parseInt` does; raise `ValueError` with the reason."""
    return _ranged(text, 31)


def int64(text: str) -> int:
    """Read a number as Java's `Long.parseLong` does; raise `ValueError` with the reason."""
    return _ranged(text, 63)


def _ranged(text: str, bits: int) -> int:
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    value = int(text)
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"{text[:40]} does not fit {bits + 1} bits")
    return value


# ---- compiling ---------------------------------------------------------------------------------

# Most numbers are small, and most booleans are written in lower case: those are looked up. Large
# numbers are read inline; a call would cost as much as the reading.
_SMALL_INTS: Final = {str(number): number for number in range(1024)}
_TRUTHS: Final = {"true": True, "false": False}
_READERS: Final = {
    "str": "{0}",
    "bool": "(v if (v := truth(t := {0})) is not None else t.lower() == 'true')",
    "int32": "(v if (v := small(t := {0})) is not None else int32(t))",
    "int64": "(int(t) if (t := {0}).isdecimal() and len(t) < 19 else int64(t))",
}
_WRITERS: Final = {
    "str": "{0}",
    "bool": "'true' if {0} else 'false'",
    "int32": "f'{{{0}}}'",
    "int64": "f'{{{0}}}'",
}
_PARSERS: Final = {"int32": int32, "int64": int64}


def _compile(cls: type[Header]) -> None:
    """Compile `to_fields` and `from_fields` of a class."""
    members = struct_fields(cls)
    names: dict[str, Any] = {
        "cls": cls,
        "small": _SMALL_INTS.get,
        "truth": _TRUTHS.get,
        "int32": int32,
        "int64": int64,
        "missing": lambda error: MissingField(cls.__name__, error.args[0]),
        "invalid": lambda fields: _find_invalid(cls, members, fields),
    }
    exec(_writer_source(members) + _reader_source(members), names)
    type.__setattr__(cls, "to_fields", names["to_fields"])
    type.__setattr__(cls, "from_fields", staticmethod(names["from_fields"]))


def _writer_source(members: tuple[FieldInfo, ...]) -> str:
    def text(member: FieldInfo) -> str:
        return _WRITERS[_kind(member)].format(f"self.{member.name}")

    always = [member for member in members if not _is_nullable(member)]
    lines = [
        "def to_fields(self):",
        f"    fields = {{{', '.join(f'{m.encode_name!r}: {text(m)}' for m in always)}}}",
    ]
    for member in members:
        if _is_nullable(member):
            lines.append(f"    if self.{member.name} is not None:")
            lines.append(f"        fields[{member.encode_name!r}] = {text(member)}")
    return "\n".join([*lines, "    return fields", ""])


def _reader_source(members: tuple[FieldInfo, ...]) -> str:
    lines = ["def from_fields(fields):", "    get = fields.get", "    try:", "        return cls("]
    for member in members:
        key, read = repr(member.encode_name), _READERS[_kind(member)]
        if member.required:
            value = read.format(f"fields[{key}]")
        elif _kind(member) == "str" and member.default is None:
            value = f"get({key})"
        else:
            value = f"{member.default!r} if (text := get({key})) is None else {read.format('text')}"
        lines.append(f"            {member.name}={value},")
    return "\n".join(
        [
            *lines,
            "        )",
            "    except KeyError as error:",
            "        raise missing(error) from None",
            "    except ValueError as error:",
            "        raise invalid(fields) from error",
        ]
    )


def _kind(member: FieldInfo) -> str:
    """Return a key of `_READERS` for the member's annotation without None."""
    annotation = member.type
    if get_origin(annotation) is not Annotated and _is_nullable(member):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is Annotated:
        return str(get_args(annotation)[1])
    return str(annotation.__name__)


def _is_nullable(member: FieldInfo) -> bool:
    return not member.required and member.default is None


def _find_invalid(
    cls: type[Header], members: tuple[FieldInfo, ...], fields: dict[str, str]
) -> InvalidField:
    """Return the error that names the wrong field; the compiled reader does not know which."""
    for member in members:
        parse = _PARSERS.get(_kind(member))
        text = fields.get(member.encode_name)
        if parse is not None and text is not None:
            try:
                parse(text)
            except ValueError as error:
                return InvalidField(cls.__name__, member.encode_name, str(error))
    raise AssertionError(f"{cls.__name__} failed on fields that are all valid")
