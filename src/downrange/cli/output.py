"""Tables for people, JSON for programs.

One rule: what comes from a server is shown with its control characters escaped, so that a message
cannot play tricks with a terminal.
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
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from downrange.model import ReceivedMessage

#: How wide a table may be where nobody looks at it.
_PIPE_WIDTH: Final = 10_000
#: How much of a body is shown in a line.
_LINE_BYTES: Final = 200


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is, as wide as the terminal, or as it likes."""
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
        columns: Their names.
        rows: One value per column each; None is shown as nothing.
        title: What it is about.
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
    """Print names and values below each other; values that are None are left out."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, readable(str(value), keep="\n"))
    console().print(table)


# ---- messages ------------------------------------------------------------------------------------


def message_facts(message: ReceivedMessage) -> dict[str, Any]:
    """Return what is known of a message, for JSON; `send --json-lines` takes it back."""
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


def body_text(body: bytes, limit: int | None = None) -> str:
    """Return a body for people: its text in one line, or its bytes in hexadecimal.

    Args:
        body: The body.
        limit: Show so many bytes of it at most, and then how many there are.
    """
    part = body[:limit]
    is_cut = len(part) < len(body)
    try:
        # The cut may go through a character, which is then left out.
        text = readable(codecs.getincrementaldecoder("utf-8")().decode(part, final=not is_cut))
    except UnicodeDecodeError:
        text = part.hex(" ", 4)
    return f"{text}… {len(body)} bytes" if is_cut else text


def readable(text: str, *, keep: str = "") -> str:
    """Return a text with its control characters escaped, but for those to keep."""
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode()
        for mark in text
    )


def time_of(at_ms: int, zone: Any = None) -> str:
    """Return a time in milliseconds since 1970 as text; in local time unless told otherwise."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
    text = at.isoformat(sep=" " if zone is None else "T", timespec="milliseconds")
    return text.replace("+00:00", "Z") if zone is UTC else text
