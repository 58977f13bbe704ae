"""Answers to sends, whose headers are written from a form instead of field by field.

All answers of a broker that a message is stored differ in four fields and the request id. A
`StoredForm` has the rest written already; `StoredReply` is what differs, and takes the place of the
`Command` that it stands for. Its bytes are those of that command, which `plain` returns and a test
compares.
"""

from __future__ import annotations

from typing import Final

import msgspec

from downrange.wire.codes import OUR_VERSION, CommandFlag, HeaderCodec
from downrange.wire.command import Command, encode
from downrange.wire.frames import join_frame
from downrange.wire.limits import FRAME_BYTES_MAX

_JSON: Final = HeaderCodec.JSON
_REPLY: Final = int(CommandFlag.REPLY)
_quoted: Final = msgspec.json.Encoder().encode


class StoredForm:
    """What all answers of one broker have in common, as a header with gaps.

    Args:
        id_prefix: What the offset ids of its records begin with.
        is_trace_on: Whether clients shall trace.
        region: The broker's region.

    Attributes:
        header: The JSON header, with places to fill by `%`: code, queue, unique key as JSON, log
            offset, queue offset, request id.
    """

    __slots__ = ("_id_prefix", "_region", "_trace_on", "header")

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

    def fields(
        self, *, queue_id: int, unique_key: str, log_offset: int, queue_offset: int
    ) -> dict[str, str]:
        """Return the fields of a header with these four filled in."""
        return {
            "queueId": f"{queue_id}",
            "transactionId": unique_key,
            "msgId": f"{self._id_prefix}{log_offset:016X}",
            "TRACE_ON": self._trace_on,
            "MSG_REGION": self._region,
            "queueOffset": f"{queue_offset}",
        }


class StoredReply(msgspec.Struct, gc=False):
    """One answer that a message is stored.

    Attributes:
        form: What it has in common with others.
        queue_id: The queue's number.
        unique_key: The message's unique id.
        log_offset: Where it lies in the log.
        queue_offset: Its number in the queue.
        code: Success, or what is not yet so.
    """

    form: StoredForm
    queue_id: int
    unique_key: str
    log_offset: int
    queue_offset: int
    code: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields; made anew each time, so changing them changes nothing."""
        return self.form.fields(
            queue_id=self.queue_id,
            unique_key=self.unique_key,
            log_offset=self.log_offset,
            queue_offset=self.queue_offset,
        )

    def plain(self) -> Command:
        """Return the command that it stands for."""
        return Command(self.code, self.fields)

    def encode(self, request: Command, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        """Write it as one frame, as the reply to a request, in the request's own header codec.

        Raises:
            Unencodable: The unique key cannot be written.
            FrameTooLarge: The frame passes `bytes_max`.
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
