"""Bodies and messages in the forms that pages show. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from downrange.client.stored_bodies import unpacked_body
from downrange.console.cluster import limits
from downrange.console.cluster.pages.messages import Body, MessageRow

if TYPE_CHECKING:
    from downrange import ReceivedMessage

_BYTES_PER_LINE: Final = 16
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def message_row(message: ReceivedMessage) -> MessageRow:
    """Return the line of a message, which may be as it is stored: with a compressed body."""
    body, problem = listed_body(message)
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
        body_bytes=len(body),
        preview="" if problem else preview(body),
        problem=problem,
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
    body, problem = unpacked_body(message)
    return (message if problem else replace(message, body=body)), problem


def listed_body(message: ReceivedMessage) -> tuple[bytes, str | None]:
    """Return a body as a list needs it: decompressed, or as stored, and why it could not be.

    A few bytes can decompress to very many, so a body that has more than `limits.LISTED_BODY_BYTES`
    is not decompressed for a list.
    """
    return unpacked_body(message, limits.LISTED_BODY_BYTES)


def preview_of(message: ReceivedMessage) -> str:
    """Return the start of a body as text on one line, or why it cannot be decompressed."""
    body, problem = listed_body(message)
    return problem or preview(body)


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
        value = json.loads(text)
        shown = json.dumps(value, indent=2, ensure_ascii=False)
        # Half of a surrogate pair is no character: it cannot be written to a page.
        return json.dumps(value, indent=2) if _SURROGATE.search(shown) else shown
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
