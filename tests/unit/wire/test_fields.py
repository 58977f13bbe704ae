"""Typed headers: Java's rules for required and absent fields, and for numbers."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import InvalidField, MissingField
from downrange.wire import fields, headers
from downrange.wire.codes import RequestCode
from downrange.wire.fields import REPLY_HEADERS, REQUEST_HEADERS, Header, Int32, Int64
from tests.fuzz.corpus import header_kinds, sample
from tests.unit.wire import vectors
from tests.unit.wire.strategies import int32s, int64s, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

HeaderT = TypeVar("HeaderT", bound=Header)

each_kind = pytest.mark.parametrize("kind", header_kinds(), ids=lambda kind: str(kind.__name__))


class EveryKindHeader(Header):
    """One field of each kind, required, with a default, and optional."""

    some_text: str
    small: Int32
    large: Int64
    is_on: bool
    text_default: str = "x"
    small_default: Int32 = -1
    is_default: bool = True
    text_option: str | None = None
    small_option: Int32 | None = None
    large_option: Int64 | None = None
    is_option: bool | None = None
    renamed: str | None = msgspec.field(name="bname", default=None)


REQUIRED = {"someText": "t", "small": "1", "large": "2", "isOn": "true"}


class Pool(NamedTuple):
    """Values for headers, one after the other."""

    texts: list[str]
    int32s: list[int]
    int64s: list[int]
    booleans: list[bool]

    def fill(self, kind: type[HeaderT]) -> HeaderT:
        """Make a header; the next boolean decides whether an optional field is absent."""
        sources: dict[str, Iterator[object]] = {
            "str": cycle(self.texts),
            "int32": cycle(self.int32s),
            "int64": cycle(self.int64s),
            "bool": cycle(self.booleans),
        }
        return kind(
            **{
                name: next(sources[member_kind])
                for name, member_kind, is_required in members_of(kind)
                if is_required or next(sources["bool"])
            }
        )


@cache
def members_of(kind: type[Header]) -> list[tuple[str, str, bool]]:
    """Return name, type and whether it is required of each member."""
    return [(m.name, fields._kind(m), m.required) for m in msgspec.structs.fields(kind)]


@cache
def names_of(kind: type[Header]) -> list[str]:
    """Return the names of the fields on the wire."""
    return [member.encode_name for member in msgspec.structs.fields(kind)]


pools = st.builds(
    Pool,
    texts=st.lists(texts, min_size=1, max_size=4),
    int32s=st.lists(int32s, min_size=1, max_size=4),
    int64s=st.lists(int64s, min_size=1, max_size=4),
    booleans=st.lists(st.booleans(), min_size=1, max_size=9),
)


@given(pools)
def test_every_header_survives_writing_and_reading(pool: Pool) -> None:
    for kind in header_kinds():
        header = pool.fill(kind)
        assert kind.from_fields(header.to_fields()) == header


@given(
    st.lists(
        texts | int64s.map(str) | st.sampled_from(["", "true", "1e5", "٣", "+", "9" * 5000]),
        min_size=1,
        max_size=9,
    )
)
def test_every_header_reads_or_refuses_any_texts(values: list[str]) -> None:
    for kind in header_kinds():
        given_fields = dict(zip(names_of(kind), cycle(values), strict=False))
        found: Header | InvalidField
        try:
            found = kind.from_fields(given_fields)
        except InvalidField as error:
            found = error
        if isinstance(found, Header):
            assert kind.from_fields(found.to_fields()) == found
        else:
            assert found.where == kind.__name__
            assert found.field in given_fields


@each_kind
def test_a_header_without_its_required_fields_is_refused(kind: type[Header]) -> None:
    members = msgspec.structs.fields(kind)
    full = sample(kind).to_fields()
    assert set(full) == {member.encode_name for member in members}
    for member in members:
        rest = {name: text for name, text in full.items() if name != member.encode_name}
        if member.required:
            with pytest.raises(MissingField) as caught:
                kind.from_fields(rest)
            assert caught.value.field == member.encode_name
            assert str(caught.value) == f"{kind.__name__}: field '{member.encode_name}' is missing"
        else:
            assert getattr(kind.from_fields(rest), member.name) == member.default


def test_every_registered_code_is_a_request_code() -> None:
    for code in {*REQUEST_HEADERS, *REPLY_HEADERS}:
        assert RequestCode(code)


def test_absent_fields_are_their_defaults() -> None:
    header = EveryKindHeader.from_fields(REQUIRED)
    assert header == EveryKindHeader(some_text="t", small=1, large=2, is_on=True)


def test_fields_that_are_none_are_not_written() -> None:
    assert EveryKindHeader.from_fields(REQUIRED).to_fields() == {
        **REQUIRED,
        "textDefault": "x",
        "smallDefault": "-1",
        "isDefault": "true",
    }


def test_unknown_fields_are_passed_over() -> None:
    header = EveryKindHeader.from_fields({**REQUIRED, "unknown": "?", "some_text": "no", "": ""})
    assert header == EveryKindHeader.from_fields(REQUIRED)


def test_a_field_is_known_by_its_name_on_the_wire() -> None:
    assert EveryKindHeader.from_fields({**REQUIRED, "bname": "b"}).renamed == "b"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("TRUE", True),
        ("True", True),
        ("tRuE", True),
        ("false", False),
        ("", False),
        ("1", False),
        ("yes", False),
        (" true", False),
        ("true ", False),
    ],
)
def test_a_boolean_is_true_for_the_word_in_any_case_only(text: str, value: bool) -> None:
    header = EveryKindHeader.from_fields({**REQUIRED, "isOn": text, "isOption": text})
    assert (header.is_on, header.is_option) == (value, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("-0", 0),
        ("007", 7),
        ("0000000000000000000000000000000000005", 5),
        ("\uff11\uff12", 12),
        ("٣", 3),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("+2147483647", 2147483647),
    ],
)
def test_a_number_is_what_java_parses(text: str, value: int) -> None:
    header = EveryKindHeader.from_fields({**REQUIRED, "small": text, "largeOption": text})
    assert (header.small, header.large_option) == (value, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 5",
        "5 ",
        "5_0",
        "0x5",
        "5.0",
        "5e0",
        "+",
        "-",
        "+-5",
        "--5",
        "five",
        "²",
        "5\n",
        "\x005",
    ],
)
@pytest.mark.parametrize("name", ["small", "large", "smallOption", "largeOption", "smallDefault"])
def test_a_text_that_java_does_not_parse_is_refused(text: str, name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        EveryKindHeader.from_fields({**REQUIRED, name: text})
    assert caught.value.field == name
    assert str(caught.value) == f"EveryKindHeader: field '{name}': {text!r} is not a whole number"


@pytest.mark.parametrize(
    ("name", "text", "bits"),
    [
        ("small", "2147483648", 32),
        ("small", "-2147483649", 32),
        ("smallOption", "99999999999", 32),
        ("large", "9223372036854775808", 64),
        ("large", "-9223372036854775809", 64),
        ("largeOption", "9" * 4000, 64),
    ],
)
def test_a_number_beyond_its_java_type_is_refused(name: str, text: str, bits: int) -> None:
    with pytest.raises(InvalidField, match=f"field '{name}': {text[:40]} does not fit {bits} bits"):
        EveryKindHeader.from_fields({**REQUIRED, name: text})


def test_a_number_of_more_digits_than_python_converts_is_refused() -> None:
    with pytest.raises(InvalidField, match="field 'large': "):
        EveryKindHeader.from_fields({**REQUIRED, "large": "9" * 5000})


@given(int32s, int64s)
def test_every_number_of_a_java_type_is_carried(small: int, large: int) -> None:
    header = EveryKindHeader(some_text="", small=small, large=large, is_on=False)
    again = EveryKindHeader.from_fields(header.to_fields())
    assert (again.small, again.large) == (small, large)


def test_the_first_of_several_bad_numbers_is_named() -> None:
    with pytest.raises(InvalidField, match="field 'small': 'x'"):
        EveryKindHeader.from_fields({**REQUIRED, "large": "y", "small": "x"})


def test_a_request_goes_out_with_the_first_code_of_its_header() -> None:
    header = headers.MaxOffsetRequest(topic="T", queue_id=3)
    command = fields.request_command(header, b"body")
    assert (command.code, command.body) == (RequestCode.GET_MAX_OFFSET, b"body")
    assert command.fields == {"topic": "T", "queueId": "3", "committed": "true"}


def test_a_request_can_have_another_code_of_its_header() -> None:
    header = sample(headers.SendRequestV2)
    assert fields.request_command(header).code == RequestCode.SEND_MESSAGE_V2
    batch = fields.request_command(header, code=RequestCode.SEND_BATCH_MESSAGE)
    assert batch.code == RequestCode.SEND_BATCH_MESSAGE


def test_a_recall_handle_is_carried_as_it_is() -> None:
    request = headers.RecallRequest(topic="TopicTest", recall_handle=vectors.RECALL_HANDLE)
    assert request.to_fields()["recallHandle"] == vectors.RECALL_HANDLE
    assert headers.RecallRequest.from_fields(request.to_fields()) == request


def test_a_header_gets_its_own_conversions_when_it_is_first_used() -> None:
    class Read(Header):
        topic: str

    class Written(Header):
        topic: str

    for kind in (Read, Written):
        assert "from_fields" not in vars(kind)
    assert Read.from_fields({"topic": "T"}) == Read(topic="T")
    assert Written(topic="T").to_fields() == {"topic": "T"}
    for kind in (Read, Written):
        assert "from_fields" in vars(kind)
        assert "to_fields" in vars(kind)


def test_a_header_that_refuses_good_fields_is_our_own_bug() -> None:
    class Picky(Header):
        topic: str
        queue_id: Int32

        def __post_init__(self) -> None:
            raise ValueError("never content")

    with pytest.raises(AssertionError, match="Picky failed on fields that are all valid"):
        Picky.from_fields({"topic": "T", "queueId": "1"})
