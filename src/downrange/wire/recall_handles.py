"""Recall handles: name a timed message, for its producer to recall it (5.3.2 and later).

A handle is URL-safe base64, padded, of five words with blanks between:

    v1 topic broker-name deliver-time-ms unique-id

The time is one millisecond after the message's TIMER_OUT_MS. Clients read topic and broker from it;
the broker reads the rest.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from downrange.errors import MalformedId

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """The parts of a handle."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_id: str

    def __str__(self) -> str:
        words = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_id}"
        return urlsafe_b64encode(words.encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle:
    """Read a handle; the padding may be missing.

    Raises:
        MalformedId: The text is not a handle.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        words = b64decode(padded, altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_ms, unique_id = words.split(" ", 4)
        handle = RecallHandle(topic, broker_name, int(deliver_ms), unique_id)
    except ValueError as error:  # base64, UTF-8, the number of words, the number itself
        raise MalformedId(f"recall handle {text[:80]!r}", "cannot be read") from error
    if version != _VERSION:
        raise MalformedId(f"recall handle {text[:80]!r}", f"is of version {version[:8]!r}")
    if not unique_id or not unique_id.isprintable():
        raise MalformedId(f"recall handle {text[:80]!r}", "has no message id")
    return handle
