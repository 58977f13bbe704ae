"""Commands through both header codecs, as Java writes and reads them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import FrameTooLarge, MalformedCommand, Unencodable
from downrange.wire.codes import OUR_VERSION, CommandFlag, HeaderCodec, Language
from downrange.wire.command import Command, decode, encode
from downrange.wire.frames import Frame
from tests.unit.wire import vectors
from tests.unit.wire.command_reader import read
from tests.unit.wire.strategies import commands


def from_json(text: str | bytes) -> Command:
    header = text.encode() if isinstance(text, str) else text
    return decode(Frame(HeaderCodec.JSON, header, b""))


def from_binary(header: bytes) -> Command:
    return decode(Frame(HeaderCodec.BINARY, header, b""))


@given(commands)
def test_a_command_survives_writing_and_reading(command: Command) -> None:
    assert read(encode(command)) == command


def test_a_new_command_is_a_python_request_of_our_version() -> None:
    command = Command(5)
    assert (command.language, command.version) == (Language.PYTHON, OUR_VERSION)
    assert not command.is_reply
    assert not command.is_oneway
    assert Command(5).fields is not command.fields


@pytest.mark.parametrize("flags", range(4))
def test_flags_say_what_a_command_is(flags: int) -> None:
    command = Command(1, flags=flags)
    assert command.is_reply == bool(flags & CommandFlag.REPLY)
    assert command.is_oneway == bool(flags & CommandFlag.ONEWAY)


# ---- JSON ----------------------------------------------------------------------------------------


def test_a_json_header_is_written_as_java_writes_it() -> None:
    command = Command(105, {"topic": "T"}, language=Language.JAVA, version=0)
    assert encode(command)[8:] == vectors.JSON_HEADER
    assert from_json(vectors.JSON_HEADER) == command


def test_members_of_a_json_header_are_in_alphabetical_order() -> None:
    written = encode(Command(1, {"a": "b"}, remark='"quoted"\n'))[8:]
    members: dict[str, Any] = msgspec.json.decode(written)
    assert list(members) == sorted(members)
    assert members["remark"] == '"quoted"\n'


def test_an_empty_json_object_is_java_defaults() -> None:
    command = from_json("{}")
    assert command == Command(0, language=Language.JAVA, version=0)


@pytest.mark.parametrize(
    "text",
    [
        '{"version":5,"opaque":7,"code":106,"extFields":{"a":"b"}}',
        '{"code":106,"opaque":7,"version":5,"extFields":{"a":"b"},"unknown":{"x":[1,{}]}}',
        '{"code":"106","opaque":"7","version":"5","extFields":{"a":"b"}}',
        '{"code":1,"code":106,"opaque":7,"version":5,"extFields":{"a":"x","a":"b"}}',
        "{'code':106,'opaque':7,'version':5,'extFields':{'a':'b'}}",
        '{"code":106,"opaque":7,"version":5,"extFields":{"a":"b",},}',
        '{code:106,opaque:7,version:5,extFields:{a:"b"}}',
        '/* one */{"code":106,"opaque":7,// two\n"version":5,"extFields":{"a":"b"}}',
        ' {"code" : 106 , "opaque" : 7 , "version" : 5 , "extFields" : {"a" : "b"} } ',
        '{"code":106,"opaque":7,"version":5,"extFields":{"a":"b","n":null}}',
        '{"code":106,"opaque":7,"version":5,"extFields":{"\\u0061":"\\u0062"},"remark":null}',
        '{"code":106.0,"opaque":7,"version":5,"extFields":{"a":"b"}}',
    ],
)
def test_a_json_header_is_read_in_every_form_that_java_takes(text: str) -> None:
    expected = Command(106, {"a": "b"}, request_id=7, language=Language.JAVA, version=5)
    assert from_json(text) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5", "5"),
        ("-5", "-5"),
        ("true", "true"),
        ("false", "false"),
        ("1.5", "1.5"),
        ("99999999999999999999999", "99999999999999999999999"),
        ("[1, 2]", "[1,2]"),
        ('{"x": null, "a": {"y": 1}}', '{"a":{"y":1},"x":null}'),
        ('{{"b": 1}: 2}', '{{"b":1}:2}'),
    ],
)
def test_a_field_value_that_is_not_a_string_becomes_its_json(value: str, text: str) -> None:
    assert from_json(f'{{"extFields":{{"a":{value}}}}}').fields == {"a": text}


def test_a_field_whose_value_is_null_is_absent() -> None:
    assert from_json('{"extFields":{"a":null,"b":"c"}}').fields == {"b": "c"}
    assert from_json('{"extFields":null}').fields == {}


def test_field_names_that_are_numbers_or_objects_become_text() -> None:
    assert from_json('{"extFields":{0:"a",{"x":1}:"b"}}').fields == {"0": "a", '{"x":1}': "b"}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('"PYTHON"', Language.PYTHON),
        ('"python"', Language.PYTHON),
        ('"Node_js"', Language.NODE_JS),
        ("0", Language.JAVA),
        ("12", Language.RUST),
        ('"COBOL"', None),
        ("99", None),
        ("-1", None),
        ("null", None),
        ('""', None),
    ],
)
def test_a_language_is_known_by_name_in_any_case_or_number(
    text: str, language: Language | None
) -> None:
    assert from_json(f'{{"language":{text}}}').language is language


def test_an_unknown_language_is_written_as_none_or_other() -> None:
    command = Command(1, language=None)
    assert b'"language":null' in encode(command)
    command.codec = HeaderCodec.BINARY
    assert read(encode(command)).language is Language.OTHER


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 10**30])
def test_a_number_beyond_32_bits_in_a_json_header_is_refused(name: str, number: int) -> None:
    for text in (f"{number}", f'"{number}"'):
        with pytest.raises(MalformedCommand, match=rf"JSON header: .* at `\$\.{name}`"):
            from_json(f'{{"{name}":{text}}}')


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), -1, 0])
def test_every_32_bit_request_id_is_read(number: int) -> None:
    assert from_json(f'{{"opaque":{number}}}').request_id == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON header, JSON character 0: the text ends too early"),
        ("null", "JSON header: Expected `object`, got `null`"),
        ("[]", "JSON header: Expected `object`, got `array`"),
        ("{", "JSON header, JSON character 1: the text ends too early"),
        ('{"code":105', "JSON header, JSON character 11: expected ',', found ''"),
        ('{"code":"x"}', "JSON header: Expected `int`, got `str` - at `$.code`"),
        ('{"code":1.5}', "JSON header: Expected `int`, got `float` - at `$.code`"),
        ('{"extFields":[]}', "JSON header: Expected `object | null`, got `array` - at `$.extF"),
        ('{"extFields":"a"}', "JSON header: Expected `object | null`, got `str` - at `$.extF"),
        ('{"remark":5}', "JSON header: Expected `str | null`, got `int` - at `$.remark`"),
        ('{"language":[]}', "at `$.language`"),
        ("{}x", "JSON header, JSON character 2: there is text after the value"),
    ],
)
def test_a_json_header_that_is_wrong_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(MalformedCommand) as caught:
        from_json(text)
    assert message in str(caught.value)


def test_a_json_header_that_is_not_utf_8_is_refused_with_its_place() -> None:
    with pytest.raises(MalformedCommand, match="JSON header, JSON byte 11: not UTF-8"):
        from_json(b'{"remark":"\xff"}')


@pytest.mark.parametrize("depth", [101, 600, 990, 100_000])
@pytest.mark.parametrize("place", ['{"extFields":{"a":%s}}', '{"extFields":%s}', "%s"])
def test_a_json_header_nested_too_deep_is_refused(depth: int, place: str) -> None:
    with pytest.raises(MalformedCommand, match=r"JSON header.*: (nested deeper|Expected)"):
        from_json(place % ("[" * depth + "]" * depth))


def test_an_unknown_member_may_have_any_value() -> None:
    assert from_json('{"x":' + "[" * 90 + "]" * 90 + ',"code":3}').code == 3


# ---- binary --------------------------------------------------------------------------------------


def test_a_binary_header_is_written_and_read_byte_for_byte() -> None:
    command = Command(
        105,
        {"topic": "T"},
        remark="r",
        language=Language.JAVA,
        version=0,
        codec=HeaderCodec.BINARY,
    )
    assert encode(command) == vectors.BINARY_REQUEST
    assert read(vectors.BINARY_REQUEST) == command


@pytest.mark.parametrize("code", [0x8000, 200050, -0x8001])
def test_a_code_that_a_binary_header_cannot_hold_goes_out_in_a_json_header(code: int) -> None:
    again = read(encode(Command(code, codec=HeaderCodec.BINARY)))
    assert (again.code, again.codec) == (code, HeaderCodec.JSON)


def test_empty_texts_in_a_binary_header_are_absent() -> None:
    command = Command(1, {"a": "", "": "b", "c": "d"}, remark="", codec=HeaderCodec.BINARY)
    again = read(encode(command))
    assert again.fields == {"c": "d"}
    assert again.remark is None


def test_the_last_of_two_equal_names_in_a_binary_header_wins() -> None:
    fields = b"\x00\x01a\x00\x00\x00\x01x" + b"\x00\x01a\x00\x00\x00\x01y"
    header = bytes(17) + len(fields).to_bytes(4, "big") + fields
    assert from_binary(header).fields == {"a": "y"}


@pytest.mark.parametrize(("number", "language"), [(3, Language.PYTHON), (77, None), (-1, None)])
def test_a_binary_header_names_its_language_by_number(
    number: int, language: Language | None
) -> None:
    header = bytes(2) + number.to_bytes(1, "big", signed=True) + bytes(18)
    assert from_binary(header).language is language


_HEAD = bytes(13)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "binary header: 0 bytes are less than the fixed part"),
        (bytes(16), "binary header: 16 bytes are less than the fixed part"),
        (_HEAD + b"\x00\x00\x00\x05abc", "binary header byte 17: remark of 5 bytes where 3 follow"),
        (_HEAD + b"\xff\xff\xff\xff", "binary header byte 17: remark of -1 bytes where 0 follow"),
        (_HEAD + b"\x7f\xff\xff\xff", "remark of 2147483647 bytes where 0 follow"),
        (
            _HEAD + b"\x00\x00\x00\x02\xc3\x28" + bytes(4),
            "binary header byte 17: remark is not UTF-8",
        ),
        (
            _HEAD + b"\x00\x00\x00\x03ab\xff" + bytes(4),
            "binary header byte 19: remark is not UTF-8",
        ),
        (_HEAD + bytes(6), "binary header byte 17: ends before the length of the fields"),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x05abc",
            "binary header byte 17: fields of 5 bytes where 3 follow",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x01abc",
            "binary header byte 17: fields of 1 bytes where 3 follow",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x01a",
            "binary header byte 21: ends before the length of the field name",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x03\xff\xffa",
            "binary header byte 23: field name of -1 bytes where 1 follow",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x05\x00\x01a\x00\x00",
            "binary header byte 24: ends before the length of the field value",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x08\x00\x01a\x00\x00\x00\x09b",
            "binary header byte 28: field value of 9 bytes where 1 follow",
        ),
        (
            _HEAD + bytes(4) + b"\x00\x00\x00\x08\x00\x01a\x00\x00\x00\x01\x80",
            "binary header byte 28: field value is not UTF-8",
        ),
    ],
)
def test_a_binary_header_with_wrong_lengths_is_refused_with_its_place(
    header: bytes, message: str
) -> None:
    with pytest.raises(MalformedCommand) as caught:
        from_binary(header)
    assert message in str(caught.value)


# ---- what cannot be written ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize(
    "command",
    [
        Command(1, {"a": "\ud800"}),
        Command(1, {"\udfff": "a"}),
        Command(1, remark="x\ud83d"),
    ],
)
def test_half_a_surrogate_pair_cannot_be_written(command: Command, codec: HeaderCodec) -> None:
    command.codec = codec
    with pytest.raises(Unencodable, match="command header: half a surrogate pair in"):
        encode(command)


@pytest.mark.parametrize(
    "command",
    [
        Command(1, {"n" * 32768: "v"}),
        Command(1, version=40000),
        Command(1, request_id=2**31),
        Command(1, flags=-(2**31) - 1),
    ],
)
def test_what_does_not_fit_a_binary_header_cannot_be_written(command: Command) -> None:
    command.codec = HeaderCodec.BINARY
    with pytest.raises(Unencodable, match="binary header: "):
        encode(command)


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_command_over_the_frame_limit_cannot_be_written(codec: HeaderCodec) -> None:
    with pytest.raises(FrameTooLarge, match="more than the limit of 1000"):
        encode(Command(1, body=bytes(1000), codec=codec), 1000)


@given(st.binary(max_size=60), st.sampled_from(HeaderCodec))
def test_any_bytes_as_a_header_are_read_or_refused(data: bytes, codec: HeaderCodec) -> None:
    where = ""
    try:
        where = decode(Frame(codec, data, b"")).codec.name
    except MalformedCommand as error:
        where = error.where
    assert where.upper().startswith(codec.name)
