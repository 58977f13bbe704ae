"""Output of the commands: tables for people, JSON for programs.

One rule: control characters in texts from a server are escaped, so that a message cannot send
commands to the terminal.
"""

from __future__ import annotations

import base64
import codecs
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from downrange.client.flows.validation import RESERVED_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from downrange.model import ReceivedMessage, SendReceipt

#: Width of a table that is not printed to a terminal.
_PIPE_WIDTH: Final = 10_000
#: How many bytes of a body are shown in a line.
_LINE_BYTES: Final = 200


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text unchanged; outside a terminal, lines are not wrapped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    numbers: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        columns: Names of the columns.
        rows: One value per column; None is printed as an empty cell.
        title: Title of the table.
        numbers: Columns that are aligned to the right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*("" if value is None else readable(str(value)) for value in row))
    console().print(table)


def print_facts(facts: dict[str, Any], *, title: str | None = None) -> None:
    """Print one name and value per line; values that are None are left out."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, readable(str(value), keep="\n"))
    console().print(table)


# ---- messages and receipts -----------------------------------------------------------------------


def message_facts(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message for JSON; `send --json-lines` accepts them."""
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
        "born_at": time_of(message.born_at_ms, UTC),
        "born_host": message.born_host,
        "stored_at": time_of(message.stored_at_ms, UTC),
        "delivery_attempts": message.delivery_attempts,
        **_body_fact(message.body),
    }


def _body_fact(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def message_line(message: ReceivedMessage) -> str:
    """Return a message as one line for people."""
    queue = message.queue
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"key={key}" for key in message.keys]
    where = f"{queue.broker}/{queue.number}@{message.offset}"
    return " ".join(
        [
            time_of(message.stored_at_ms),
            *(readable(mark) for mark in (where, *marks)),
            body_text(message.body, _LINE_BYTES),
        ]
    )


def receipt_facts(receipt: SendReceipt) -> dict[str, Any]:
    """Return the fields of a receipt for printing, without those that are None."""
    facts = {
        "message_id": receipt.message_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker,
        "queue": receipt.queue.number,
        "offset": receipt.offset,
        "offset_id": receipt.offset_id,
        "status": receipt.status.name.lower(),
        "attempts": receipt.attempts,
        "recall_handle": receipt.recall_handle,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def batch_facts(receipt: SendReceipt) -> Iterator[dict[str, Any]]:
    """Yield the fields for each message of a request, in order."""
    facts = receipt_facts(receipt)
    ids = receipt.message_id.split(",")
    offset_ids = receipt.offset_id.split(",")
    for index, message_id in enumerate(ids):
        own = {"message_id": message_id, "offset": receipt.offset + index}
        if len(offset_ids) == len(ids):
            own["offset_id"] = offset_ids[index]
        yield {**facts, **own}


def body_text(body: bytes, limit: int | None = None) -> str:
    """Return a body for people: its text in one line, or its bytes in hexadecimal.

    Args:
        body: The body.
        limit: Maximum number of bytes to show; a longer body is cut and its size added.
    """
    part = body[:limit]
    is_cut = len(part) < len(body)
    try:
        # A character that was cut in the middle is left out.
        text = readable(codecs.getincrementaldecoder("utf-8")().decode(part, final=not is_cut))
    except UnicodeDecodeError:
        text = part.hex(" ", 4)
    return f"{text}… {len(body)} bytes" if is_cut else text


def readable(text: str, *, keep: str = "") -> str:
    """Return a text with its control characters escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode()
        for mark in text
    )


def time_of(at_ms: int, zone: Any = None) -> str:
    """Return a time in milliseconds since 1970 as text; in local time unless a zone is given."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
    text = at.isoformat(sep=" " if zone is None else "T", timespec="milliseconds")
    return text.replace("+00:00", "Z") if zone is UTC else text
