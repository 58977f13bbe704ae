"""Converters: values to bodies and back."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from downrange.client.converters import BYTES, JSON, TEXT, Converters, type_for
from downrange.errors import MalformedBody, OptionError


@dataclass
class Item:
    name: str
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item]
    paid_at: datetime | None = None


class Price(msgspec.Struct):
    cents: int


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


@dataclass
class Sale:
    customer: Customer
    price: Price


@pydantic.dataclasses.dataclass
class Visit:
    minutes: int = pydantic.Field(ge=0)


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "small"


CONVERTERS = Converters()
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize("payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_stay_as_they_are(payload: object) -> None:
    assert CONVERTERS.encode(payload) == (b"\x00\xff", BYTES)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_any_body_can_be_read_as_bytes(kind: type[bytes] | type[bytearray]) -> None:
    value = CONVERTERS.decode(b"\x00\xff", kind)
    assert type(value) is kind
    assert value == b"\x00\xff"


def test_text_becomes_utf_8_without_quotes() -> None:
    assert CONVERTERS.encode("grün") == ("grün".encode(), TEXT)
    assert CONVERTERS.decode("grün".encode(), str) == "grün"


@pytest.mark.parametrize(
    ("payload", "body", "kind"),
    [
        ({"id": 7, "tags": ["a"]}, b'{"id":7,"tags":["a"]}', dict),
        ([1, 2.5, None, True], b"[1,2.5,null,true]", list),
        ((1, "a"), b'[1,"a"]', tuple[int, str]),
        ({1}, b"[1]", set[int]),
        (frozenset({1}), b"[1]", frozenset[int]),
        (7, b"7", int),
        (7.5, b"7.5", float),
        (True, b"true", bool),
        (Decimal("1.10"), b'"1.10"', Decimal),
        (Colour.RED, b'"red"', Colour),
        (Size.SMALL, b'"small"', Size),
        (NOON, b'"2024-02-29T12:00:00Z"', datetime),
        (date(2024, 2, 29), b'"2024-02-29"', date),
        (NOON.timetz(), b'"12:00:00Z"', type(NOON.timetz())),
        (timedelta(seconds=90), b'"PT90S"', timedelta),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"', UUID),
        (Price(120), b'{"cents":120}', Price),
        ([Price(1)], b'[{"cents":1}]', list[Price]),
        (
            Order(7, [Item("pear")], NOON),
            b'{"id":7,"items":[{"name":"pear","count":1}],"paid_at":"2024-02-29T12:00:00Z"}',
            Order,
        ),
        (Customer(name="Ann", age=30), b'{"name":"Ann","age":30}', Customer),
        (Visit(minutes=5), b'{"minutes":5}', Visit),
        ([Customer(name="Ann", age=30)], b'[{"name":"Ann","age":30}]', list[Customer]),
        (
            Sale(Customer(name="Ann", age=30), Price(5)),
            b'{"customer":{"name":"Ann","age":30},"price":{"cents":5}}',
            Sale,
        ),
    ],
)
def test_value_becomes_json_and_comes_back_equal(payload: object, body: bytes, kind: Any) -> None:
    assert CONVERTERS.encode(payload) == (body, JSON)
    value = CONVERTERS.decode(body, kind)
    assert value == payload
    assert type(value) is type(payload)


def test_mapping_of_another_class_becomes_json_as_a_dict_does() -> None:
    assert CONVERTERS.encode(MappingProxyType({"a": 1})) == (b'{"a":1}', JSON)


def test_class_with_attrs_fields_becomes_json() -> None:
    """The attributes that attrs adds to a class are enough for msgspec; attrs is not needed."""

    class Field:
        name = "x"

    class Point:
        __attrs_attrs__ = (Field(),)
        __slots__ = ("x",)

        def __init__(self, x: int) -> None:
            self.x = x

    assert CONVERTERS.encode(Point(1)) == (b'{"x":1}', JSON)


@pytest.mark.parametrize("payload", [None, object(), Item, 1j])
def test_payload_that_no_converter_takes_is_refused_by_type_and_converters(payload: object) -> None:
    with pytest.raises(OptionError) as caught:
        CONVERTERS.encode(payload)
    text = str(caught.value)
    assert f"type {type(payload).__qualname__} cannot" in text
    assert "BytesConverter, TextConverter, PydanticConverter, JsonConverter do not take it" in text


@pytest.mark.parametrize("inside", [1j, Visit])
def test_payload_with_something_strange_inside_is_refused_by_what_that_is(inside: object) -> None:
    with pytest.raises(OptionError, match=r"type list .* by JsonConverter: TypeError: \w+ has no"):
        CONVERTERS.encode([inside])


@dataclass
class Reading:
    value: float
    note: str | None = None


class Sensor(pydantic.BaseModel):
    readings: list[float]
    note: str | None = None


@pydantic.dataclasses.dataclass
class Probe:
    value: float
    note: str | None = None


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (math.nan, "JSON has no nan;"),
        (-math.inf, "JSON has no -inf;"),
        ({"a": {"b": (1.0, math.inf)}}, r"JSON has no inf at \['a'\]\['b'\]\[1\]"),
        ({1: math.nan}, "JSON has no nan at "),
        (Reading(math.nan), r"JSON has no nan at \['value'\]"),
        ([Reading(1.0), Reading(math.nan)], r"JSON has no nan at \[1\]\['value'\]"),
        (Sensor(readings=[1.0, math.inf]), r"JSON has no inf at \['readings'\]\[1\]"),
        (Probe(math.nan), "JSON has no nan at "),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_by_its_place(
    payload: object, problem: str
) -> None:
    """Issue 14: NaN and infinity became null."""
    with pytest.raises(OptionError, match=problem):
        CONVERTERS.encode(payload)


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        ({"a": None, "b": 1.5, "c": {2.5}}, b'{"a":null,"b":1.5,"c":[2.5]}'),
        (Reading(1.0), b'{"value":1.0,"note":null}'),
        (Sensor(readings=[1.0]), b'{"readings":[1.0],"note":null}'),
        (Probe(1.0), b'{"value":1.0,"note":null}'),
        (["null"], b'["null"]'),
    ],
)
def test_null_stays_allowed(payload: object, body: bytes) -> None:
    assert CONVERTERS.encode(payload) == (body, JSON)


@pytest.mark.parametrize(
    ("encoded", "problem"),
    [
        (b"x", "not enough values"),
        (("x", "text/plain"), "its body must be bytes, not 'x'"),
        ((b"x", None), "its content type must be a str, not None"),
        (None, "cannot unpack"),
    ],
)
def test_a_converter_that_does_not_return_body_and_type_is_named(
    encoded: Any, problem: str
) -> None:
    class Odd(Shout):
        def encode(self, payload: str) -> tuple[bytes, str]:
            return encoded  # type: ignore[no-any-return]

    with pytest.raises(OptionError, match=f"by {Odd.__qualname__}: .*{problem}"):
        Converters([Odd()]).encode("text")


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b"\xff", str, "TextConverter cannot read 1 bytes as str: UnicodeDecodeError"),
        (b"{", dict, "JsonConverter cannot read 1 bytes as dict: DecodeError"),
        (b'{"cents":"x"}', Price, r"as Price: ValidationError: Expected `int`, got `str`.*cents"),
        (b"[1]", list[str], r"as list\[str\]: ValidationError"),
        (b'{"name":"secret","age":-1}', Customer, "PydanticConverter cannot .* as Customer"),
        (b'{"minutes":-1}', Visit, "PydanticConverter cannot .* as Visit"),
        (b"1", complex, "as complex: ValidationError: complex has no form in JSON"),
    ],
)
def test_body_that_does_not_fit_the_type_is_named_by_both(
    body: bytes, kind: Any, problem: str
) -> None:
    with pytest.raises(MalformedBody, match=problem) as caught:
        CONVERTERS.decode(body, kind)
    assert caught.value.__cause__ is not None
    assert "secret" not in str(caught.value)


def test_pydantic_says_what_it_writes() -> None:
    class Quiet(pydantic.BaseModel):
        shown: int
        hidden: int = pydantic.Field(exclude=True)

    assert CONVERTERS.encode(Quiet(shown=1, hidden=2)) == (b'{"shown":1}', JSON)


class Shout:
    """A converter of the user: upper case in bodies, lower case in values."""

    def can_encode(self, payload: object) -> bool:
        return isinstance(payload, str)

    def encode(self, payload: str) -> tuple[bytes, str]:
        return payload.upper().encode("ascii"), "text/x-shout"

    def can_decode(self, kind: Any) -> bool:
        return kind is str

    def decode(self, body: bytes, kind: Any) -> str:
        return body.decode("ascii").lower()


def test_own_converter_comes_before_those_that_are_built_in() -> None:
    converters = Converters([Shout()])
    assert converters.encode("hello") == (b"HELLO", "text/x-shout")
    assert converters.decode(b"HELLO", str) == "hello"
    assert converters.encode(7) == (b"7", JSON)


def test_error_of_an_own_converter_names_it_and_is_kept() -> None:
    converters = Converters([Shout()])
    with pytest.raises(OptionError, match=r"type str cannot .* by Shout: Unicode") as caught:
        converters.encode("grün")
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)
    with pytest.raises(MalformedBody, match="Shout cannot read 1 bytes as str"):
        converters.decode(b"\xff", str)


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        (JSON, Any),
        ("Application/JSON; charset=UTF-8", Any),
        (TEXT, str),
        ("text/html", str),
        (BYTES, bytes),
        ("image/png", bytes),
        (None, bytes),
    ],
)
def test_content_type_says_what_a_body_is_read_as(content_type: str | None, kind: object) -> None:
    assert type_for(content_type) is kind


def test_converting_does_not_import_pydantic() -> None:
    code = (
        "import sys; from downrange.client.converters import Converters; "
        "Converters().encode({'a': 1}); Converters().decode(b'1', int); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
