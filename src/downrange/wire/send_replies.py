"""Replies to sends whose headers are filled into a template instead of written field by field.

The replies of one broker to successful sends differ only in the code, four fields and the request
id. A `StoredForm` is the header with gaps for these; a `StoredReply` holds the values for the gaps
and is used instead of a `Command`. Its bytes are equal to those of that command, which `plain`
returns; a test compares them.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

import msgspec

from downrange.wire.codes import OUR_VERSION, CommandFlag, HeaderCodec, Language
from downrange.wire.command import Command, encode
from downrange.wire.frames import join_frame
from downrange.wire.limits import FRAME_BYTES_MAX

_JSON: Final = HeaderCodec.JSON
_REPLY: Final = int(CommandFlag.REPLY)
_quoted: Final = msgspec.json.Encoder().encode
_LANGUAGE_AND_VERSION: Final = Struct(">bh")
_FLAGS_AND_REMARK: Final = Struct(">ii")
_I32: Final = Struct(">i")
_I16: Final = Struct(">h")


def _name(name: str) -> bytes:
    """Return the name of a field of a binary header."""
    return _I16.pack(len(name)) + name.encode()


def _field(name: str, value: str) -> bytes:
    """Return a field of a binary header."""
    data = value.encode()
    return _name(name) + _I32.pack(len(data)) + data


class StoredForm:
    """The header of all replies of one broker, with gaps to fill.

    Args:
        id_prefix: The first part of the offset ids of its records.
        is_trace_on: Whether clients should trace.
        region: The broker's region.

    Attributes:
        header: The JSON header, with gaps to fill by `%`: code, queue, unique key as JSON, log
            offset, queue offset, request id.
        json_parts: The same, cut at the gaps, for the native part.
        binary_parts: The binary header, cut at its gaps: code, request id, length of all fields,
            and the values of queue, unique key, log offset and queue offset.
    """

    __slots__ = ("_id_prefix", "_region", "_trace_on", "binary_parts", "header", "json_parts")

    def __init__(self, *, id_prefix: str, is_trace_on: bool, region: str) -> None:
        self._id_prefix = id_prefix
        self._trace_on = "true" if is_trace_on else "false"
        self._region = region
        self.header = (
            b'{"code":%%d,"extFields":{"queueId":"%%d","transactionId":%%b,"msgId":"%b%%016X",'
            b'"TRACE_ON":"%b","MSG_REGION":%b,"queueOffset":"%%d"},"flag":%d,"language":"PYTHON",'
            b'"opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
            % (
                id_prefix.encode(),
                self._trace_on.encode(),
                _quoted(region).replace(b"%", b"%%"),
                _REPLY,
                OUR_VERSION,
            )
        )
        parts = re.split(rb"(?<!%)%(?:d|b|016X)", self.header)
        self.json_parts = [part.replace(b"%%", b"%") for part in parts]
        constant = _field("TRACE_ON", self._trace_on) + _field("MSG_REGION", region)
        self.binary_parts = [
            _LANGUAGE_AND_VERSION.pack(Language.PYTHON, OUR_VERSION),
            _FLAGS_AND_REMARK.pack(_REPLY, 0),
            _name("queueId"),
            _name("transactionId"),
            _name("msgId") + _I32.pack(len(id_prefix) + 16) + id_prefix.encode(),
            constant + _name("queueOffset"),
        ]

    def fields(
        self, *, queue_id: int, unique_key: str, log_offset: int, queue_offset: int
    ) -> dict[str, str]:
        """Return the header's fields with these four values."""
        return {
            "queueId": f"{queue_id}",
            "transactionId": unique_key,
            "msgId": f"{self._id_prefix}{log_offset:016X}",
            "TRACE_ON": self._trace_on,
            "MSG_REGION": self._region,
            "queueOffset": f"{queue_offset}",
        }


class StoredReply(msgspec.Struct, gc=False):
    """One reply to a send whose message is stored.

    Attributes:
        form: The header with gaps.
        queue_id: The queue's number.
        unique_key: The message's unique id.
        log_offset: The position in the log.
        queue_offset: The position in the queue.
        code: SUCCESS, or a code that says what the broker was not in time for.
    """

    form: StoredForm
    queue_id: int
    unique_key: str
    log_offset: int
    queue_offset: int
    code: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields, as a new dictionary; changing it does not change the reply."""
        return self.form.fields(
            queue_id=self.queue_id,
            unique_key=self.unique_key,
            log_offset=self.log_offset,
            queue_offset=self.queue_offset,
        )

    def plain(self) -> Command:
        """Return the same reply as a `Command`."""
        return Command(self.code, self.fields)

    def encode(self, request: Command, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        """Encode it as the reply to a request, in the header codec of the request.

        Raises:
            Unencodable: The unique key cannot be encoded.
            FrameTooLarge: The frame is larger than `bytes_max`.
        """
        key = self.unique_key
        if request.codec is not _JSON or not key.isascii():
            return self._encode_plainly(request, bytes_max)
        header = self.form.header % (
            self.code,
            self.queue_id,
            _quoted(key),
            self.log_offset,
            self.queue_offset,
            request.request_id,
        )
        return join_frame(_JSON, header, b"", bytes_max)

    def _encode_plainly(self, request: Command, bytes_max: int) -> bytes:
        command = self.plain()
        command.request_id = request.request_id
        command.flags = _REPLY
        command.codec = request.codec
        return encode(command, bytes_max)
