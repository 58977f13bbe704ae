"""Bodies and messages in the forms that pages show. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from downrange.console.cluster import limits
from downrange.console.cluster.pages.messages import Body, MessageRow
from downrange.errors import MalformedBody
from downrange.wire.compression import Compression, decompress, flags_of
from downrange.wire.limits import UNPACKED_BODY_BYTES_MAX

if TYPE_CHECKING:
    from downrange import ReceivedMessage

_BYTES_PER_LINE: Final = 16


def message_row(message: ReceivedMessage) -> MessageRow:
    """Return the line of a message."""
    return MessageRow(
        topic=message.topic,
        broker=message.queue.broker,
        queue=message.queue.number,
        offset=message.offset,
        message_id=message.message_id,
        offset_id=message.offset_id,
        tags=message.tags,
        keys=tuple(message.keys),
        stored_at=message.stored_at,
        born_at=message.born_at,
        body_bytes=len(message.body),
        preview=preview(message.body),
    )


def preview(body: bytes) -> str:
    """Return the start of a body as text on one line; what cannot be printed becomes a dot."""
    # A character has at most four bytes.
    text = body[: limits.PREVIEW_CHARS * 4].decode(errors="replace")[: limits.PREVIEW_CHARS]
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "." for letter in text
    )


def decoded(message: ReceivedMessage) -> tuple[ReceivedMessage, str | None]:
    """Return a message with its body decompressed, or as it is, and why it could not be."""
    if message.compression is None:
        return message, None
    flags = flags_of(Compression[message.compression.upper()])
    try:
        body = decompress(message.body, flags, UNPACKED_BODY_BYTES_MAX)
    except MalformedBody as error:
        return message, str(error)
    return replace(message, body=body), None


def body_of(message: ReceivedMessage, problem: str | None = None) -> Body:
    """Return a body in each form that it has.

    Args:
        message: The message; its `compression` says how the body was compressed on its way.
        problem: Why the body could not be decompressed.
    """
    body = message.body
    shown = body[: limits.BODY_SHOWN_BYTES]
    is_cut = len(body) > len(shown)
    text = _text_of(body, shown, is_cut)
    return Body(
        size=len(body),
        compression=message.compression,
        text=text,
        json=None if text is None or is_cut else _json_of(text),
        hex=hex_lines(body[: limits.HEX_SHOWN_BYTES]),
        is_cut=is_cut,
        problem=problem,
    )


def _text_of(body: bytes, shown: bytes, is_cut: bool) -> str | None:
    """Return the part of a body that is shown as text; None if the whole is not UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return None
    # A cut may split a character, whose bytes are left out.
    return shown.decode(errors="ignore" if is_cut else "strict")


def _json_of(text: str) -> str | None:
    """Return a text as indented JSON; None if it is not an object or a list."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def hex_lines(body: bytes) -> str:
    """Return bytes as lines of offset, hexadecimal numbers and printable letters."""
    lines: list[str] = []
    for at in range(0, len(body), _BYTES_PER_LINE):
        part = body[at : at + _BYTES_PER_LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{_BYTES_PER_LINE * 3}} {letters}")
    return "\n".join(lines)
