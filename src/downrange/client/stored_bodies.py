"""Bodies of messages that were read as they are stored, with `decode_body=False`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import MalformedBody
from downrange.wire.compression import decompress, flags_named
from downrange.wire.limits import UNPACKED_BODY_BYTES_MAX

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage


def unpacked_body(
    message: ReceivedMessage, bytes_max: int = UNPACKED_BODY_BYTES_MAX
) -> tuple[bytes, str | None]:
    """Return the body of a message, decompressed; or as it is stored, and why it stays so.

    Args:
        message: The message; its `compression` names the format of the body.
        bytes_max: The most bytes that the body may decompress to.
    """
    try:
        return decompress(message.body, flags_named(message.compression), bytes_max), None
    except MalformedBody as error:
        return message.body, str(error)
