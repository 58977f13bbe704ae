"""Commands: one request or reply, and the two encodings of its header.

The reference is Java's `RemotingCommand`. A JSON header is one object:

    {"code":310,"extFields":{"a":"group"},"flag":0,"language":"PYTHON","opaque":7,"remark":"...",
     "serializeTypeCurrentRPC":"JSON","version":479}

A binary header (Java: ROCKETMQ) is

    i16 code, i8 language, i16 version, i32 opaque, i32 flag,
    i32 length + remark (0 = none), i32 length + fields, each i16 length + name, i32 length + value

Every peer may use either one for any frame. Both are read as in Java: unknown members are ignored,
the last of two equal names wins, an empty string in a binary header means "absent".
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, Final

import msgspec

from downrange.errors import MalformedBody, MalformedCommand, Unencodable
from downrange.wire import fastjson
from downrange.wire.codes import OUR_VERSION, CommandFlag, HeaderCodec, Language
from downrange.wire.frames import Frame, join_frame
from downrange.wire.limits import FRAME_BYTES_MAX

_REPLY: Final = int(CommandFlag.REPLY)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = HeaderCodec.JSON
_BINARY: Final = HeaderCodec.BINARY


class Command(msgspec.Struct, gc=False):  # made per message, and never part of a cycle
    """One request or reply.

    Attributes:
        code: A request code, or a response code if `is_reply`; unknown numbers are kept.
        fields: The header's fields (Java: `extFields`); `headers` has typed access to them.
        body: Any bytes; empty means "no body".
        remark: A reply's error text; END_TRANSACTION uses it on a request.
        request_id: Pairs a reply with its request on one connection (Java: `opaque`).
        flags: `CommandFlag` bits.
        language: The language of the sender; None if it is unknown.
        version: The sender's release, as the ordinal of Java's version enum.
        codec: The encoding of the header.
    """

    code: int
    fields: dict[str, str] = {}  # msgspec copies an empty default per instance
    body: bytes = b""
    remark: str | None = None
    request_id: int = 0
    flags: int = 0
    language: Language | None = Language.PYTHON
    version: int = OUR_VERSION
    codec: HeaderCodec = HeaderCodec.JSON

    @property
    def is_reply(self) -> bool:
        """Whether this answers a request."""
        return self.flags & _REPLY != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this is a request that must not be answered."""
        return self.flags & _ONEWAY != 0


def encode(command: Command, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Write a command as one frame.

    A binary header has only 16 bits for the code. A command with a larger code (pop) is written
    with a JSON header, which every peer reads.

    Raises:
        Unencodable: A string cannot be encoded, or a number does not fit the binary header.
        FrameTooLarge: The frame is larger than `bytes_max`.
    """
    if command.codec is _BINARY and -0x8000 <= command.code <= 0x7FFF:
        return join_frame(_BINARY, _encode_binary(command), command.body, bytes_max)
    return join_frame(_JSON, _encode_json(command), command.body, bytes_max)


def decode(frame: Frame) -> Command:
    """Read a frame's header.

    Raises:
        MalformedCommand: The header cannot be read; the text says what and where.
    """
    if frame.codec is _BINARY:
        return _decode_binary(frame)
    return _decode_json(frame)


# ---- JSON ----------------------------------------------------------------------------------------

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _JsonHeader(msgspec.Struct, rename={"fields": "extFields", "request_id": "opaque"}, gc=False):
    """The members of a JSON header; the defaults are those of Java's class."""

    code: _Int32 = 0
    fields: dict[str, str] | None = None
    flag: _Int32 = 0
    language: str | int | None = "JAVA"
    request_id: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


class _OurJsonHeader(
    msgspec.Struct,
    rename={
        "fields": "extFields",
        "request_id": "opaque",
        "codec": "serializeTypeCurrentRPC",
    },
    omit_defaults=True,
    kw_only=True,
    gc=False,
):
    """A JSON header to write: in Java's order, with all members but the remark.

    A missing language would be read as JAVA, and Java reads the fields of a reply without checking
    that they exist.
    """

    code: int
    fields: dict[str, str]
    flag: int
    language: str | None
    request_id: int
    remark: str | None = None
    codec: str
    version: int


_LANGUAGES: Final[dict[str | int | None, Language]] = {
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}
_decode_header: Final = msgspec.json.Decoder(_JsonHeader).decode
_encode_header: Final = msgspec.json.Encoder().encode


_LANGUAGE_NAMES: Final = [language.name for language in Language]


def _encode_json(command: Command) -> bytes:
    language = command.language
    try:
        return _encode_header(
            _OurJsonHeader(
                code=command.code,
                fields=command.fields,
                flag=command.flags,
                language=None if language is None else _LANGUAGE_NAMES[language],
                request_id=command.request_id,
                remark=command.remark,
                codec="JSON",
                version=command.version,
            )
        )
    except UnicodeEncodeError as error:
        raise Unencodable("command header", f"half a surrogate pair in {error.object!r}") from error


def _decode_json(frame: Frame) -> Command:
    try:
        header = _decode_header(frame.header)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        header = _decode_tolerantly(frame.header)
    language = _LANGUAGES.get(header.language)
    if language is None and isinstance(header.language, str):
        language = _LANGUAGES.get(header.language.upper())
    return Command(
        header.code,
        header.fields or {},
        frame.body,
        header.remark,
        header.request_id,
        header.flag,
        language,
        header.version,
        _JSON,
    )


def _decode_tolerantly(data: bytes) -> _JsonHeader:
    """Read a header in the other forms that Java accepts, or with values that are not strings."""
    try:
        members: Any = fastjson.loads(data)
        if isinstance(members, dict) and isinstance(members.get("extFields"), dict):
            members["extFields"] = {
                _field_text(name): _field_text(value)
                for name, value in members["extFields"].items()
                if value is not None
            }
        return msgspec.convert(members, _JsonHeader, strict=False)
    except MalformedBody as error:
        raise MalformedCommand(f"JSON header, {error.where}", error.problem) from error
    except msgspec.ValidationError as error:
        raise MalformedCommand("JSON header", str(error)) from error


def _field_text(value: Any) -> str:
    """Return a field's value as Java's map of strings holds it: `true`, `5`, an object's JSON."""
    if isinstance(value, str):
        return value
    return fastjson.dumps(value).decode()


# ---- binary ------------------------------------------------------------------------------------

_BINARY_HEAD: Final = Struct(">hbhiii")  # code, language, version, opaque, flag, remark length
_I32: Final = Struct(">i")
_I16: Final = Struct(">h")


def _encode_binary(command: Command) -> bytes:
    language = Language.OTHER if command.language is None else command.language
    try:
        remark = (command.remark or "").encode()
        fields = b"".join(
            [
                b"%b%b%b%b" % (_I16.pack(len(name)), name, _I32.pack(len(value)), value)
                for name, value in (
                    (name.encode(), value.encode()) for name, value in command.fields.items()
                )
            ]
        )
        head = _BINARY_HEAD.pack(
            command.code,
            language,
            command.version,
            command.request_id,
            command.flags,
            len(remark),
        )
    except UnicodeEncodeError as error:
        raise Unencodable("command header", f"half a surrogate pair in {error.object!r}") from error
    except StructError as error:
        raise Unencodable("binary header", str(error)) from error
    return b"".join((head, remark, _I32.pack(len(fields)), fields))


def _decode_binary(frame: Frame) -> Command:
    data = frame.header
    end = len(data)
    if end < _BINARY_HEAD.size:
        raise MalformedCommand("binary header", f"{end} bytes are less than the fixed part")
    code, language, version, request_id, flags, size = _BINARY_HEAD.unpack_from(data)
    remark, at = _read_text(data, _BINARY_HEAD.size, size, "remark")
    size, at = _read_size(data, at, _I32, "fields")
    if at + size != end:
        raise MalformedCommand(
            f"binary header byte {at - 4}", f"fields of {size} bytes where {end - at} follow"
        )
    fields: dict[str, str] = {}
    while at < end:
        size, at = _read_size(data, at, _I16, "field name")
        name, at = _read_text(data, at, size, "field name")
        size, at = _read_size(data, at, _I32, "field value")
        value, at = _read_text(data, at, size, "field value")
        if name and value:
            fields[name] = value
    return Command(
        code,
        fields,
        frame.body,
        remark or None,
        request_id,
        flags,
        _LANGUAGES.get(language),
        version,
        _BINARY,
    )


def _read_size(data: bytes, at: int, form: Struct, what: str) -> tuple[int, int]:
    if at + form.size > len(data):
        raise MalformedCommand(f"binary header byte {at}", f"ends before the length of the {what}")
    return form.unpack_from(data, at)[0], at + form.size


def _read_text(data: bytes, at: int, size: int, what: str) -> tuple[str, int]:
    if not 0 <= size <= len(data) - at:
        raise MalformedCommand(
            f"binary header byte {at}", f"{what} of {size} bytes where {len(data) - at} follow"
        )
    try:
        return data[at : at + size].decode(), at + size
    except UnicodeDecodeError as error:
        raise MalformedCommand(
            f"binary header byte {at + error.start}", f"{what} is not UTF-8"
        ) from error
