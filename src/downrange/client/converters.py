"""Converters: from a value to the bytes of a body, and back to a value of a given type.

    body, content_type = Converters().encode(Order(id=7))
    order = Converters().decode(body, Order)

The first converter that accepts the value or type is used; your own come before the built-in ones.
One rule: a converter decodes what it has encoded to an equal value.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, get_origin, overload
from uuid import UUID

import msgspec

from downrange.checks import check_text, check_type, iterated, shown
from downrange.errors import MalformedBody, OptionError
from downrange.model import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

ValueT = TypeVar("ValueT")

#: The property with the content type of a body; the name is Spring's.
CONTENT_TYPE: Final = "contentType"
BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain;charset=UTF-8"
JSON: Final = "application/json"
#: In JSON, a text may contain it as well; then the value is searched for nothing.
_NULL: Final = b"null"


class Converter(Protocol):
    """Turns values of some types into bytes and back; write your own for your formats."""

    def can_encode(self, payload: object, /) -> bool:
        """Return whether it can encode this value."""
        ...

    def encode(self, payload: Any, /) -> tuple[bytes, str]:
        """Return the bytes of a value, and their content type."""
        ...

    def can_decode(self, kind: Any, /) -> bool:
        """Return whether it can decode to this type."""
        ...

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value of this type in the bytes."""
        ...


class BytesConverter:
    """Leaves bytes as they are."""

    def can_encode(self, payload: object, /) -> bool:
        """Accept bytes, byte arrays and memory views."""
        return isinstance(payload, bytes | bytearray | memoryview)

    def encode(self, payload: bytes | bytearray | memoryview, /) -> tuple[bytes, str]:
        """Return the bytes."""
        return bytes(payload), BYTES

    def can_decode(self, kind: Any, /) -> bool:
        """Accept bytes and byte arrays."""
        return kind is bytes or kind is bytearray

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the bytes."""
        return kind(body)


class TextConverter:
    """Writes text as UTF-8, without quotes."""

    def can_encode(self, payload: object, /) -> bool:
        """Accept text; members of a `StrEnum` are encoded as JSON."""
        return isinstance(payload, str) and not isinstance(payload, Enum)

    def encode(self, payload: str, /) -> tuple[bytes, str]:
        """Return the text in UTF-8."""
        return payload.encode(), TEXT

    def can_decode(self, kind: Any, /) -> bool:
        """Accept str."""
        return kind is str

    def decode(self, body: bytes, kind: Any, /) -> str:
        """Return the text."""
        return body.decode()


class PydanticConverter:
    """Writes pydantic models and dataclasses as JSON; pydantic validates what is read.

    They are recognized by the attributes that pydantic adds to their classes, so that this module
    does not import pydantic.
    """

    def can_encode(self, payload: object, /) -> bool:
        """Accept models and pydantic dataclasses."""
        return _is_pydantic(type(payload))

    def encode(self, payload: Any, /) -> tuple[bytes, str]:
        """Return the model as JSON."""
        kind: Any = type(payload)
        if hasattr(kind, "model_dump_json"):
            body: bytes = payload.model_dump_json().encode()
            if _NULL in body:
                _check_finite(payload.model_dump())
            return body, JSON
        adapter = _adapter_of(kind)
        body = adapter.dump_json(payload)
        if _NULL in body:
            _check_finite(adapter.dump_python(payload))
        return body, JSON

    def can_decode(self, kind: Any, /) -> bool:
        """Accept models and pydantic dataclasses."""
        return _is_pydantic(kind)

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the validated model."""
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(body)
        return _adapter_of(kind).validate_json(body)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _adapter_of(kind: type) -> Any:
    """Return pydantic's adapter of a class without methods for JSON."""
    return sys.modules["pydantic"].TypeAdapter(kind)


#: Types that JSON has, or that have one usual text in JSON.
_JSON_TYPES: Final = (
    *(bool, int, float, Decimal, str, Enum, Mapping, list, tuple, set, frozenset),
    *(datetime, date, time, timedelta, UUID, msgspec.Struct),
)


class JsonConverter:
    """Writes everything else as JSON: dicts, lists, numbers, dataclasses, structs, times.

    They may contain pydantic models.
    """

    def can_encode(self, payload: object, /) -> bool:
        """Accept values with a usual form in JSON; not None, which is mostly a mistake."""
        return isinstance(payload, _JSON_TYPES) or _has_fields(type(payload))

    def encode(self, payload: object, /) -> tuple[bytes, str]:
        """Return the value as JSON."""
        body = msgspec.json.encode(payload, enc_hook=_plain)
        if _NULL in body:
            _check_finite(msgspec.to_builtins(payload, enc_hook=_plain))
        return body, JSON

    def can_decode(self, kind: Any, /) -> bool:
        """Accept any type; `decode` raises when the body does not fit."""
        return True

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value, validated against the type."""
        return msgspec.json.decode(body, type=kind, dec_hook=_checked)


def _check_finite(value: object, where: str = "") -> None:
    """Refuse NaN and infinity: JSON does not have them, and encoders write null instead.

    Raises:
        ValueError: Names the place and the number.
    """
    if isinstance(value, float):
        if not isfinite(value):
            place = f" at {where}" if where else ""
            raise ValueError(f"JSON has no {value}{place}; use None or a string")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check_finite(each, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, each in enumerate(value):
            _check_finite(each, f"{where}[{index}]")


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def _plain(value: Any) -> Any:
    """Return a JSON form of a nested value of another type."""
    if isinstance(value, Mapping):
        return dict(value)
    if _is_pydantic(type(value)) and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} has no form in JSON")


def _checked(kind: Any, value: object) -> Any:
    """Return a nested value of a type that JSON does not have."""
    if _is_pydantic(kind) and hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{kind.__qualname__} has no form in JSON")


BUILT_IN: Final[tuple[Converter, ...]] = (
    BytesConverter(),
    TextConverter(),
    PydanticConverter(),
    JsonConverter(),
)


class Converters:
    """Finds the converter for a value, or for a type.

    Args:
        own: Converters of your own, which are tried first.

    Raises:
        OptionError: One of them lacks a method of `Converter`.

    Example:
        ```python
        for message in consumer.poll(timeout=1.0):
            order = Converters().receive(message, Order)
        ```
    """

    def __init__(self, own: Iterable[Converter] = ()) -> None:
        given = tuple(iterated("converters", own, "a list of converters"))
        for converter in given:
            _check_converter(converter)
        self._all: tuple[Converter, ...] = (*given, *BUILT_IN)

    def encode(self, payload: object) -> tuple[bytes, str]:
        """Return the bytes of a value, and their content type.

        Raises:
            OptionError: No converter accepts the value, or its converter fails.
        """
        for converter in self._all:
            if converter.can_encode(payload):
                try:
                    body, content_type = converter.encode(payload)
                    check_type("its body", body, bytes, "bytes")
                    check_text("its content type", content_type)
                    return body, content_type
                except Exception as error:  # a converter of the user may raise anything
                    raise OptionError(
                        f"a payload of type {_name_of(type(payload))} cannot be converted by "
                        f"{_name_of(type(converter))}: {_gist_of(error)}"
                    ) from error
        tried = ", ".join(_name_of(type(converter)) for converter in self._all)
        raise OptionError(
            f"a payload of type {_name_of(type(payload))} cannot be converted: {tried} do not "
            "take it; convert it to bytes or plain values, or give the template a converter"
        )

    def decode(self, body: bytes, kind: type[ValueT]) -> ValueT:
        """Return the value of a type in a body.

        Raises:
            MalformedBody: The body does not hold such a value.
        """
        # The last converter accepts every type, so one is always found.
        converter = next(one for one in self._all if one.can_decode(kind))
        try:
            value: ValueT = converter.decode(body, kind)
        except Exception as error:  # a converter of the user may raise anything
            raise MalformedBody(
                "message body",
                f"{_name_of(type(converter))} cannot read {len(body)} bytes as "
                f"{_name_of(kind)}: {_gist_of(error)}",
            ) from error
        return value

    @overload
    def receive(self, message: ReceivedMessage, as_type: None = None) -> Any: ...
    @overload
    def receive(self, message: ReceivedMessage, as_type: type[ValueT]) -> ValueT: ...
    def receive(self, message: ReceivedMessage, as_type: Any = None) -> Any:
        """Return the value in the body of a message.

        Args:
            message: A message from any sender.
            as_type: The type to convert to. Without one, the message's `contentType` decides: JSON
                becomes plain values, text a str, everything else bytes.

        Raises:
            MalformedBody: The body does not hold such a value.
        """
        check_type("message", message, ReceivedMessage, "a ReceivedMessage")
        if as_type is None:
            as_type = type_for(message.properties.get(CONTENT_TYPE))
        return self.decode(message.body, as_type)


def _check_converter(converter: object) -> None:
    methods = [name for name in vars(Converter) if not name.startswith("_")]
    missing = [name for name in methods if not callable(getattr(converter, name, None))]
    if isinstance(converter, type) and not missing:
        raise OptionError(
            f"converter {converter.__name__} is a class; give an object: {converter.__name__}()"
        )
    if missing:
        raise OptionError(
            f"each of converters must have the methods {', '.join(methods)}; {shown(converter)} "
            f"does not have {', '.join(missing)}"
        )


def type_for(content_type: str | None) -> Any:
    """Return the type that a body of this content type is decoded to by default."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == JSON:
        return Any
    return str if kind.startswith("text/") else bytes


def _name_of(kind: Any) -> str:
    if get_origin(kind) is not None or not hasattr(kind, "__qualname__"):
        return str(kind)
    return str(kind.__qualname__)


def _gist_of(error: Exception) -> str:
    """Return the first line of an error; pydantic quotes the body in those that follow."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
