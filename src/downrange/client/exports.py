"""Messages and dead letters as JSON and CSV: what the command line and the console write.

A line of JSON can be sent again by `downrange send --json-lines`, and the lines of dead letters by
`downrange dlq resend --file`.
"""

from __future__ import annotations

import base64
import csv
import io
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from downrange.client.flows.validation import RESERVED_PROPERTIES
from downrange.client.stored_bodies import unpacked_body

if TYPE_CHECKING:
    from downrange.client.flows.admin.reports import DeadMessage
    from downrange.model import ReceivedMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The columns of dead letters in CSV.
LETTER_COLUMNS: Final = (
    *("group", "origin_topic", "origin_id", "died_at", "topic", "broker", "queue", "offset"),
    *("message_id", "offset_id", "tags", "keys", "born_at", "born_host", "stored_at"),
    *("delivery_attempts", "properties", "body", "body_base64", "body_problem"),
)
#: Spreadsheets take a cell that begins so for a formula.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def utc_text(at_ms: int) -> str:
    """Return a time in milliseconds since 1970 in the one form of JSON: 2026-01-31T12:00:00.000Z.

    A number that is not a time stays a number.
    """
    try:
        # Not fromtimestamp: a float would round the milliseconds.
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def message_facts(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for JSON; `send --json-lines` accepts them.

    With `body_problem`, the body cannot be decompressed, and `send --json-lines` refuses the line.
    """
    properties = message.properties
    return {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue": message.queue.number,
        "offset": message.offset,
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": {
            name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES
        },
        "system_properties": {
            name: value for name, value in properties.items() if name in RESERVED_PROPERTIES
        },
        "born_at": utc_text(message.born_at_ms),
        "born_host": message.born_host,
        "stored_at": utc_text(message.stored_at_ms),
        "delivery_attempts": message.delivery_attempts,
        **_body_facts(message),
    }


def _body_facts(message: ReceivedMessage) -> dict[str, str]:
    """Return the body, decompressed; or as it is stored, and why it cannot be decompressed."""
    body, problem = unpacked_body(message)
    if problem is not None:
        return {"body_base64": _base64(body), "body_problem": problem}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": _base64(body)}


def _base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def letter_facts(letter: DeadMessage) -> dict[str, Any]:
    """Return a dead letter for JSON: its message, and where it came from."""
    return {
        "group": letter.group,
        "origin_topic": letter.topic,
        "origin_id": letter.origin_id,
        "died_at": utc_text(letter.message.stored_at_ms),
        **message_facts(letter.message),
    }


def letter_header() -> str:
    """Return the first line of dead letters in CSV."""
    return _csv_line(LETTER_COLUMNS)


def letter_line(letter: DeadMessage) -> str:
    """Return a dead letter as a line of CSV.

    Keys are separated by spaces, properties are `name=value` lines. A quote is put before a cell
    that a spreadsheet would take for a formula.
    """
    facts = letter_facts(letter)
    facts["keys"] = " ".join(facts["keys"])
    facts["properties"] = "\n".join(f"{name}={text}" for name, text in facts["properties"].items())
    return _csv_line([_cell(facts.get(name)) for name in LETTER_COLUMNS])


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _csv_line(cells: Any) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
