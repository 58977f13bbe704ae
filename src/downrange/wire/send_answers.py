"""Replies to sends as a client reads them: many of one read at once, without a command for each.

A broker that stored a message replies with a few short fields and no body. Such replies arrive in
long runs when many sends are in flight. A `StoredAnswer` holds the fields of one of them and is
used instead of a `Command`; what it has is equal to that command's, which a test compares. Any
other reply ends the run and is read as a command: a refusal, a reply with a body, a binary header,
an unknown field.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Literal

import msgspec

from downrange.native import twin
from downrange.wire.limits import INT32_MAX

_WORDS: Final = Struct(">ii")
#: Replies to large batches are longer, and are read as commands.
ANSWER_LENGTH_MAX: Final = 64 * 1024
#: All digits of numbers up to this length fit 64 bits.
_DIGITS_MAX: Final = 18
#: How Java and we begin the header of a success.
ANSWER_BEGINNING: Final = b'{"code":0,"extFields":{"'


class StoredAnswer(msgspec.Struct, gc=False):
    """One reply: the message is stored.

    Attributes:
        request_id: The id of the request.
        queue_id: The number of the queue.
        queue_offset: The position in the queue; for a batch, that of the first message.
        msg_id: The broker's id of the message; for a batch, all ids, joined by commas.
        transaction_id: The id of the transaction, or the unique id.
        region: The broker's region.
        trace_on: Whether the broker allows traces: "true" or "false".
        recall_handle: Recalls a timed message.
    """

    request_id: int
    queue_id: int
    queue_offset: int
    msg_id: str
    transaction_id: str | None = None
    region: str | None = None
    trace_on: str | None = None
    recall_handle: str | None = None

    @property
    def code(self) -> int:
        """The response code: success."""
        return 0

    @property
    def remark(self) -> str | None:
        """The error text of the reply: none."""
        return None

    @property
    def body(self) -> bytes:
        """The body of the reply: none."""
        return b""

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields, as a new dictionary."""
        fields = {
            "msgId": self.msg_id,
            "queueId": f"{self.queue_id}",
            "queueOffset": f"{self.queue_offset}",
            "transactionId": self.transaction_id,
            "MSG_REGION": self.region,
            "TRACE_ON": self.trace_on,
            "recallHandle": self.recall_handle,
        }
        return {name: text for name, text in fields.items() if text is not None}


class _Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    msg_id: str
    queue_id: str
    queue_offset: str
    transaction_id: str | None = None
    region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: Literal["true", "false"] | None = msgspec.field(name="TRACE_ON", default=None)
    recall_handle: str | None = None


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    code: Literal[0]
    fields: _Fields = msgspec.field(name="extFields")
    flag: Literal[1]
    request_id: int = msgspec.field(name="opaque")
    language: str = "JAVA"
    codec: str = msgspec.field(name="serializeTypeCurrentRPC", default="JSON")
    version: int = 0


_decode: Final = msgspec.json.Decoder(_Header).decode


def pure_stored_answers(data: bytes, at: int, length_max: int) -> tuple[list[StoredAnswer], int]:
    """Read the replies from a position on, up to the first one that is not a plain success.

    Args:
        data: Frames that follow each other; the last one may be cut off.
        at: Where a frame begins.
        length_max: A longer frame, without its length word, is not a plain success.

    Returns:
        The replies, and the position behind them.
    """
    answers: list[StoredAnswer] = []
    end = len(data)
    while end - at >= _WORDS.size:
        length, word = _WORDS.unpack_from(data, at)
        begin, behind = at + 8, at + 4 + length
        # Without a body and with a JSON header, the second word is the first one less its own size.
        if word != length - 4 or length > length_max or behind > end:
            break
        if not data.startswith(ANSWER_BEGINNING, begin):
            break
        try:
            header = _decode(data[begin:behind])
        except (msgspec.MsgspecError, ValueError):
            break
        fields = header.fields
        number, offset = _number(fields.queue_id), _number(fields.queue_offset)
        if (
            not 0 <= header.request_id <= INT32_MAX
            or not ~INT32_MAX <= header.version <= INT32_MAX
            or not 0 <= number <= INT32_MAX
            or offset < 0
        ):
            break
        answers.append(
            StoredAnswer(
                header.request_id,
                number,
                offset,
                fields.msg_id,
                fields.transaction_id,
                fields.region,
                fields.trace_on,
                fields.recall_handle,
            )
        )
        at = behind
    return answers, at


def _number(text: str) -> int:
    """Return a number in its shortest form, without a sign; -1 for any other text."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        number = int(text)
        if len(text) == 1 or text[0] != "0":
            return number
    return -1


stored_answers: Final = twin(pure_stored_answers)
