"""Output of the commands: tables for people, JSON for programs.

Two rules: control characters in texts from a server are escaped, so that a message cannot send
commands to the terminal. Outside a terminal, tables have no lines and no colors, so that other
programs can read them.
"""

from __future__ import annotations

import codecs
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from downrange.client.exports import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo

    from rich.console import Console
    from rich.table import Table

    from downrange.model import ReceivedMessage, SendReceipt

#: Width of rich's output that is not printed to a terminal.
_PIPE_WIDTH: Final = 10_000
#: What separates the columns of a plain table.
_GAP: Final = "  "
#: How many bytes of a body are shown in a line.
LINE_BYTES: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds of a unit, its letter, seconds of the next smaller one, its letter.
_SPANS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; times in it are `utc_text`."""
    # Without Unicode, the stream would write escapes such as \xfc, which JSON does not have.
    print(json.dumps(value, ensure_ascii=not has_unicode(), default=str), flush=True)


def has_unicode() -> bool:
    """Return whether standard output has all characters."""
    return (sys.stdout.encoding or "utf-8").lower().startswith("utf")


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
    """Print a table; outside a terminal, a line with the names and a line per row.

    Args:
        columns: Names of the columns.
        rows: One value per column; None is printed as an empty cell.
        title: Title of the table.
        numbers: Columns that are aligned to the right.
    """
    texts = _cells(rows)
    if not sys.stdout.isatty():
        _print_plain(title, [list(columns), *texts], [column in numbers for column in columns])
        return
    console().print(table_of(columns, rows=texts, title=title, numbers=numbers))


def _cells(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [["" if value is None else readable(str(value)) for value in row] for row in rows]


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    numbers: Sequence[str] = (),
) -> Table:
    """Return a table for a terminal; for the arguments see `print_table`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in _cells(rows):
        table.add_row(*row)
    return table


def print_gap() -> None:
    """Print an empty line between two plain tables; those on a terminal begin with one."""
    if not sys.stdout.isatty():
        print()


def print_facts(facts: dict[str, Any], *, title: str | None = None) -> None:
    """Print one name and value per line; values that are None are left out."""
    texts = [
        [name, readable(str(value), keep="\n")]
        for name, value in facts.items()
        if value is not None
    ]
    if not sys.stdout.isatty():
        _print_plain(title, texts, [False, False])
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for row in texts:
        table.add_row(*row)
    console().print(table)


def _print_plain(
    title: str | None, rows: Sequence[Sequence[str]], are_numbers: Sequence[bool]
) -> None:
    """Print rows in aligned columns; further lines of the last column are indented."""
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    last = max((len(row[-1]) for row in rows), default=0) if are_numbers[-1] else 0
    indent = " " * sum(width + len(_GAP) for width in widths)
    if title is not None:
        print(title)
    for row in rows:
        cells = [
            f"{text:{'>' if is_number else '<'}{width}}"
            for text, is_number, width in zip(row, are_numbers, [*widths, last], strict=True)
        ]
        print(_GAP.join(cells).rstrip().replace("\n", f"\n{indent}"))
    sys.stdout.flush()


# ---- messages and receipts -----------------------------------------------------------------------


def message_line(message: ReceivedMessage) -> str:
    """Return a message as one line for people."""
    queue = message.queue
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"key={key}" for key in message.keys]
    where = f"{queue.broker}/{queue.number}@{message.offset}"
    return " ".join(
        [
            local_text(message.stored_at_ms),
            *(readable(mark) for mark in (where, *marks)),
            body_text(message.body, LINE_BYTES),
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
    return f"{text}{'…' if has_unicode() else '...'} {len(body)} bytes" if is_cut else text


def readable(text: str, *, keep: str = "") -> str:
    """Return a text with its control characters escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode()
        for mark in text
    )


# ---- times ---------------------------------------------------------------------------------------


def local_text(at_ms: int) -> str:
    """Return a time in milliseconds since 1970 for people: local, with its zone."""
    return _time_text(at_ms, None, " ")


def utc_time(at: datetime | None) -> str | None:
    """Return a time in the one form of JSON."""
    return None if at is None else utc_text((at - _EPOCH) // timedelta(milliseconds=1))


def local_time(at: datetime | None) -> str | None:
    """Return a time for people."""
    return None if at is None else local_text((at - _EPOCH) // timedelta(milliseconds=1))


def span_text(span: timedelta | None) -> str | None:
    """Return a time span for people: 12s, 3m 20s, 2h 5m, 4d 3h."""
    if span is None:
        return None
    seconds = int(span.total_seconds())
    for size, unit, part, name in _SPANS:
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}" + (f" {rest}{name}" if rest else "")
    return f"{seconds}s"


def _time_text(at_ms: int, zone: tzinfo | None, separator: str) -> str:
    try:
        # Not fromtimestamp: a float would round the milliseconds.
        at = _EPOCH + timedelta(milliseconds=at_ms)
        return at.astimezone(zone).isoformat(sep=separator, timespec="milliseconds")
    except (OverflowError, ValueError):
        return str(at_ms)  # clients write any number there
