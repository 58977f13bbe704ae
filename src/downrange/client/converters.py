"""Converters: from a value to the bytes of a body, and back to a value of a wanted type.

    body, content_type = Converters().encode(Order(id=7))
    order = Converters().decode(body, Order)

The first converter that says it can is the one that does; your own come before those that are
built in. One rule: what a value was encoded to, the same converter decodes to an equal value.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, get_origin, overload
from uuid import UUID

import msgspec

from downrange.errors import MalformedBody, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.model import ReceivedMessage

ValueT = TypeVar("ValueT")

#: The property that says what a body holds, by the name that Spring gives it.
CONTENT_TYPE: Final = "contentType"
BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain;charset=UTF-8"
JSON: Final = "application/json"


class Converter(Protocol):
    """What turns some kinds of values into bytes and back; write your own for your formats."""

    def can_encode(self, payload: object, /) -> bool:
        """Say whether it takes this value."""
        ...

    def encode(self, payload: Any, /) -> tuple[bytes, str]:
        """Return the bytes of a value, and their content type."""
        ...

    def can_decode(self, kind: Any, /) -> bool:
        """Say whether it makes values of this type."""
        ...

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value of this type that the bytes hold."""
        ...


class BytesConverter:
    """Leaves bytes as they are."""

    def can_encode(self, payload: object, /) -> bool:
        """Take bytes, byte arrays and views of them."""
        return isinstance(payload, bytes | bytearray | memoryview)

    def encode(self, payload: bytes | bytearray | memoryview, /) -> tuple[bytes, str]:
        """Return the bytes."""
        return bytes(payload), BYTES

    def can_decode(self, kind: Any, /) -> bool:
        """Make bytes and byte arrays."""
        return kind is bytes or kind is bytearray

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the bytes."""
        return kind(body)


class TextConverter:
    """Writes text as UTF-8, without quotes."""

    def can_encode(self, payload: object, /) -> bool:
        """Take text; a member of an enum is for JSON, even where it is a text, too."""
        return isinstance(payload, str) and not isinstance(payload, Enum)

    def encode(self, payload: str, /) -> tuple[bytes, str]:
        """Return the text in UTF-8."""
        return payload.encode(), TEXT

    def can_decode(self, kind: Any, /) -> bool:
        """Make text."""
        return kind is str

    def decode(self, body: bytes, kind: Any, /) -> str:
        """Return the text."""
        return body.decode()


class PydanticConverter:
    """Writes pydantic's models and dataclasses as JSON, and has pydantic check what it reads.

    It knows them by what pydantic puts into their classes, so it never imports pydantic itself.
    """

    def can_encode(self, payload: object, /) -> bool:
        """Take models and pydantic's dataclasses."""
        return _is_pydantic(type(payload))

    def encode(self, payload: Any, /) -> tuple[bytes, str]:
        """Return the model as JSON."""
        kind: Any = type(payload)
        if hasattr(kind, "model_dump_json"):
            return payload.model_dump_json().encode(), JSON
        return _adapter_of(kind).dump_json(payload), JSON

    def can_decode(self, kind: Any, /) -> bool:
        """Make models and pydantic's dataclasses."""
        return _is_pydantic(kind)

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the model, checked."""
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(body)
        return _adapter_of(kind).validate_json(body)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _adapter_of(kind: type) -> Any:
    """Return what pydantic converts a class with that has no methods for it."""
    return sys.modules["pydantic"].TypeAdapter(kind)


#: What stands for itself in JSON, or has one usual text there.
_JSON_TYPES: Final = (
    *(bool, int, float, Decimal, str, Enum, Mapping, list, tuple, set, frozenset),
    *(datetime, date, time, timedelta, UUID, msgspec.Struct),
)


class JsonConverter:
    """Writes everything else as JSON: dicts, lists, numbers, dataclasses, structs, times.

    Models of pydantic may stand inside.
    """

    def can_encode(self, payload: object, /) -> bool:
        """Take what has a usual form in JSON; None is more often a mistake than a message."""
        return isinstance(payload, _JSON_TYPES) or _has_fields(type(payload))

    def encode(self, payload: object, /) -> tuple[bytes, str]:
        """Return the value as JSON."""
        return msgspec.json.encode(payload, enc_hook=_plain), JSON

    def can_decode(self, kind: Any, /) -> bool:
        """Make any type; whether the body is one shows when it is read."""
        return True

    def decode(self, body: bytes, kind: Any, /) -> Any:
        """Return the value, checked against the type."""
        return msgspec.json.decode(body, type=kind, dec_hook=_checked)


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def _plain(value: Any) -> Any:
    """Return what JSON can hold for a value inside that it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if _is_pydantic(type(value)) and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} has no form in JSON")


def _checked(kind: Any, value: object) -> Any:
    """Return a value inside of a type that JSON does not know."""
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
        own: Converters of your own, which are asked first.

    Example:
        ```python
        for message in consumer.poll(timeout=1.0):
            order = Converters().receive(message, Order)
        ```
    """

    def __init__(self, own: Iterable[Converter] = ()) -> None:
        self._all = (*own, *BUILT_IN)

    def encode(self, payload: object) -> tuple[bytes, str]:
        """Return the bytes of a value, and their content type.

        Raises:
            OptionError: No converter takes it, or the one that does cannot write it.
        """
        for converter in self._all:
            if converter.can_encode(payload):
                try:
                    return converter.encode(payload)
                except Exception as error:  # a converter may be the user's, and raise anything
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
        """Return the value of a type that a body holds.

        Raises:
            MalformedBody: The body holds no such value.
        """
        # The last one takes every type, so there always is one.
        converter = next(one for one in self._all if one.can_decode(kind))
        try:
            value: ValueT = converter.decode(body, kind)
        except Exception as error:  # a converter may be the user's, and raise anything
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
        """Return the value that a message holds.

        Args:
            message: A message, whoever sent it.
            as_type: The type that is wanted. Without one, JSON becomes plain values, text a str
                and everything else bytes, as the message's `contentType` says.

        Raises:
            MalformedBody: The body holds no such value.
        """
        if as_type is None:
            as_type = type_for(message.properties.get(CONTENT_TYPE))
        return self.decode(message.body, as_type)


def type_for(content_type: str | None) -> Any:
    """Return the type that a body of this content type is read as when none is wanted."""
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
