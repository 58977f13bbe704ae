"""Send requests whose headers are filled into a template instead of written field by field.

The sends of one producer to one queue differ only in four fields, the request id and the body. A
`SendForm` is the header with gaps for these; a `SendCommand` holds the values for the gaps and is
used instead of a `Command`. Its bytes are equal to those of that command, which `plain` returns; a
test compares them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from downrange.errors import Unencodable
from downrange.native import twin
from downrange.wire.codes import OUR_VERSION, CommandFlag, HeaderCodec
from downrange.wire.command import Command, encode
from downrange.wire.frames import join_frame
from downrange.wire.limits import FRAME_BYTES_MAX

_JSON: Final = HeaderCodec.JSON
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_quoted: Final = msgspec.json.Encoder().encode

#: Fields that differ from send to send: system flag, born time, the user's flag, properties.
_OWN_FIELDS: Final = {"f": b'"\0"', "g": b'"\0"', "h": b'"\0"', "i": b"\0"}
#: The six gaps in their order, as `%` fills them.
_GAPS: Final = (b"%d", b"%d", b"%d", b"%b", b"%d", b"%d", b"")


class SendForm:
    """The header of all sends of one producer to one queue, with gaps to fill.

    Args:
        code: The request code.
        group: The producer's group.
        topic: The topic.
        default_topic: The topic whose settings a broker uses to create the topic.
        default_topic_queues: How many queues the created topic gets.
        queue: The queue's number.
        broker: The broker's name.
        is_unit: Whether the client is in unit mode.
        is_batch: Whether bodies are batches.

    Attributes:
        code: The request code.
        header: The JSON header, with gaps to fill by `%`: the system flag, the born time, the
            user's flag, the properties as JSON; then the command's flags and the request id.
        parts: The same header, cut at the six gaps.
    """

    __slots__ = ("_fields", "code", "header", "parts")

    def __init__(
        self,
        code: int,
        *,
        group: str,
        topic: str,
        default_topic: str,
        default_topic_queues: int,
        queue: int,
        broker: str,
        is_unit: bool = False,
        is_batch: bool = False,
    ) -> None:
        self.code = code
        # As in `SendRequestV2`, in its order.
        self._fields = {
            "a": group,
            "b": topic,
            "c": default_topic,
            "d": f"{default_topic_queues}",
            "e": f"{queue}",
            "f": "",
            "g": "",
            "h": "",
            "i": "",
            "j": "0",
            "k": "true" if is_unit else "false",
            "m": "true" if is_batch else "false",
            "n": broker,
        }
        self.parts = tuple(_header_with_gaps(code, self._fields).split(b"\0"))
        self.header = b"".join(
            part.replace(b"%", b"%%") + gap for part, gap in zip(self.parts, _GAPS, strict=True)
        )

    def fields(self, *, sys_flag: int, born_ms: int, flag: int, properties: str) -> dict[str, str]:
        """Return the header's fields with these four values."""
        return self._fields | {
            "f": f"{sys_flag}",
            "g": f"{born_ms}",
            "h": f"{flag}",
            "i": properties,
        }


class SendCommand(msgspec.Struct, gc=False):
    """One send request.

    Attributes:
        form: The header with gaps.
        body: The message's body, or a batch.
        properties: The property string.
        sys_flag: The bits for compression, transaction and so on.
        born_ms: When the message was made.
        flag: The user's flag.
        request_id, flags, codec: As in `Command`.
    """

    form: SendForm
    body: bytes
    properties: str
    sys_flag: int
    born_ms: int
    flag: int = 0
    request_id: int = 0
    flags: int = 0
    codec: HeaderCodec = HeaderCodec.JSON

    @property
    def code(self) -> int:
        """The request code."""
        return self.form.code

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields, as a new dictionary; changing it does not change the command."""
        return self.form.fields(
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            flag=self.flag,
            properties=self.properties,
        )

    @property
    def is_oneway(self) -> bool:
        """Whether the request must not be answered."""
        return self.flags & _ONEWAY != 0

    def plain(self) -> Command:
        """Return the same request as a `Command`."""
        return Command(
            self.form.code,
            self.fields,
            self.body,
            request_id=self.request_id,
            flags=self.flags,
            codec=self.codec,
        )

    def encode(self, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        """Encode it as one frame.

        Raises:
            Unencodable: A string cannot be encoded.
            FrameTooLarge: The frame is larger than `bytes_max`.
        """
        if self.codec is not _JSON:
            return encode(self.plain(), bytes_max)
        return send_frame(
            self.form,
            self.sys_flag,
            self.born_ms,
            self.flag,
            self.properties,
            self.flags,
            self.request_id,
            self.body,
            bytes_max,
        )


def pure_send_frame(
    form: SendForm,
    sys_flag: int,
    born_ms: int,
    flag: int,
    properties: str,
    flags: int,
    request_id: int,
    body: bytes,
    bytes_max: int,
) -> bytes:
    """Fill the gaps of a form, and return the frame with a body; see `SendCommand`.

    Raises:
        Unencodable: The properties cannot be encoded.
        FrameTooLarge: The frame is larger than `bytes_max`.
    """
    try:
        quoted = _quoted(properties)
    except UnicodeEncodeError as error:
        raise _half_a_pair(error) from error
    header = form.header % (sys_flag, born_ms, flag, quoted, flags, request_id)
    return join_frame(_JSON, header, body, bytes_max)


send_frame: Final = twin(pure_send_frame)


def _header_with_gaps(code: int, fields: dict[str, str]) -> bytes:
    """Return the header with NUL bytes in its gaps; JSON has no other ones."""
    try:
        written = b",".join(
            b'"%b":%b' % (name.encode(), _OWN_FIELDS.get(name) or _quoted(text))
            for name, text in fields.items()
        )
    except UnicodeEncodeError as error:
        raise _half_a_pair(error) from error
    return (
        b'{"code":%d,"extFields":{%b},"flag":\0,"language":"PYTHON","opaque":\0,'
        b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (code, written, OUR_VERSION)
    )


def _half_a_pair(error: UnicodeEncodeError) -> Unencodable:
    return Unencodable("command header", f"half a surrogate pair in {error.object!r}")
