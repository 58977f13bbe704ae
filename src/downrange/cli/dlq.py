"""`dlq list|show|export|resend`: messages that a group failed to consume too often."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import click

from downrange.cli.command_groups import Group
from downrange.cli.confirmation import YES, confirm
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, FAILED, NOT_FOUND, print_error
from downrange.cli.group_options import GROUP, JSON
from downrange.cli.parameters import PATH, READABLE_FILE, argument
from downrange.cli.send_progress import RateLimit, counted
from downrange.errors import OptionError, RocketMQError
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from downrange import Admin
    from downrange.client.flows.admin.reports import DeadMessage
    from downrange.model import QueueId

_PAGE: Final = 100
_BEGIN: Final = click.option(
    "--begin", metavar="TIME", help="Died at this time or later; a time, or an age such as 12h."
)
_END: Final = click.option("--end", metavar="TIME", help="Died at this time or earlier.")
_MAX: Final = click.option(
    "--max", "-m", "max_count", type=click.IntRange(min=1), help="Maximum number."
)


@click.group(cls=Group)
def dlq() -> None:
    """Dead letters: list, show, export and send them again."""


@dlq.command("list", epilog=EPILOG)
@GROUP
@_BEGIN
@_END
@click.option(
    "--max", "-m", "max_count", type=click.IntRange(min=1), default=100, help="Maximum number."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per dead letter.")
@with_connection
def list_(
    connection: Connection,
    group: str,
    begin: str | None,
    end: str | None,
    max_count: int,
    as_json: bool,
) -> None:
    """List the dead letters of a group, by queue and offset."""
    from downrange.cli.output import local_time, print_json, print_table
    from downrange.client.exports import letter_facts

    with connection.admin() as admin:
        letters = list(read_letters(admin, group, begin, end, max_count + 1))
    shown = letters[:max_count]
    if as_json:
        for letter in shown:
            print_json(letter_facts(letter))
    else:
        print_table(
            ("id", "died", "topic", "tags", "keys", "body"),
            [
                (
                    each.message.offset_id,
                    local_time(each.died_at),
                    each.topic,
                    each.message.tags,
                    " ".join(each.message.keys),
                    _body(each, 60),
                )
                for each in shown
            ],
        )
    if len(letters) > max_count:
        click.echo(f"stopped after {max_count}; --max shows more", err=True)


@dlq.command(epilog=EPILOG)
@GROUP
@argument("letter_id", metavar="ID", help="Id from `dlq list`, or the id of the message.")
@JSON
@with_connection
def show(connection: Connection, group: str, letter_id: str, as_json: bool) -> None:
    """Show one dead letter with all of its fields."""
    from downrange.cli.output import print_facts, print_json
    from downrange.client.exports import letter_facts

    with connection.admin() as admin:
        letter = _selected(admin, group, (letter_id,))[0]
    facts = letter_facts(letter)
    if as_json:
        print_json(facts)
        return
    properties = {**facts.pop("properties"), **facts.pop("system_properties")}
    for name in ("body", "body_base64", "body_problem"):
        facts.pop(name, None)
    facts["keys"] = " ".join(letter.message.keys) or None
    print_facts({**facts, **properties, "body": _body(letter)})


def _body(letter: DeadMessage, limit: int | None = None) -> str:
    """Return a body for people, or why it cannot be decompressed."""
    from downrange.cli.output import body_text
    from downrange.client.stored_bodies import unpacked_body

    body, problem = unpacked_body(letter.message)
    return problem or body_text(body, limit)


@dlq.command(epilog=EPILOG)
@GROUP
@click.option("--output", "-o", type=PATH, metavar="FILE", help="File; standard output otherwise.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("jsonl", "csv")),
    default="jsonl",
    help="JSON lines, or CSV for spreadsheets.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this one; repeatable.")
@_BEGIN
@_END
@_MAX
@with_connection
def export(
    connection: Connection,
    group: str,
    output: Path | None,
    form: Literal["jsonl", "csv"],
    as_json: bool,
    ids: tuple[str, ...],
    begin: str | None,
    end: str | None,
    max_count: int | None,
) -> None:
    """Write the dead letters of a group as JSON lines or as CSV.

    `dlq resend --file` sends those of a file of JSON lines again, and `send --json-lines` any of
    its lines. In CSV, a quote is put before a cell that a spreadsheet would take for a formula.
    """
    if as_json and form == "csv":
        raise OptionError("--json is the form jsonl; leave it or --format csv out")
    with connection.admin() as admin:
        letters: Iterable[DeadMessage]
        if ids:
            letters = _selected(admin, group, ids)
        else:
            letters = read_letters(admin, group, begin, end, max_count)
        if output is None:
            for line in _export_lines(letters, form):
                click.echo(line, nl=False)
            return
        try:
            _export_to(output, letters, form)
        except RocketMQError:
            raise  # a timeout is an OSError, too
        except OSError as error:
            raise OptionError(f"--output {output} cannot be written: {error.strerror}") from error


def _export_to(output: Path, letters: Iterable[DeadMessage], form: Literal["jsonl", "csv"]) -> None:
    # newline="": lines of CSV end with CR and LF, which is part of them.
    with (
        output.open("w", encoding="utf-8", newline="") as file,
        counted("exported") as count,
    ):
        for number, line in enumerate(_export_lines(letters, form)):
            file.write(line)
            count(0 if number == 0 and form == "csv" else 1)


def _export_lines(letters: Iterable[DeadMessage], form: Literal["jsonl", "csv"]) -> Iterator[str]:
    from downrange.client.exports import letter_facts, letter_header, letter_line

    if form == "csv":
        yield letter_header()
        yield from map(letter_line, letters)
    else:
        for letter in letters:
            yield f"{json.dumps(letter_facts(letter))}\n"


@dlq.command(epilog=EPILOG)
@GROUP
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this one; repeatable.")
@click.option("--file", type=READABLE_FILE, metavar="FILE", help="Only those of an export.")
@_BEGIN
@_END
@_MAX
@click.option(
    "--to",
    type=click.Choice(("topic", "retry")),
    default="topic",
    help="The topic they were sent to, for all groups; or the retry topic, for this group only.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second.")
@click.option("--again", is_flag=True, help="Also those that an earlier run has sent.")
@click.option("--dry-run", is_flag=True, help="Only print how many would be sent.")
@YES
@click.option("--json", "as_json", is_flag=True, help="One JSON object per dead letter.")
@with_connection
def resend(
    connection: Connection,
    group: str,
    ids: tuple[str, ...],
    file: Path | None,
    begin: str | None,
    end: str | None,
    max_count: int | None,
    to: Literal["topic", "retry"],
    rate: float | None,
    again: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send dead letters again, with a mark by which the next run skips them.

    Body, keys, tags and properties stay the same. The exit code is 1 if some could not be sent.
    """
    chosen = ids if file is None else (*ids, *ids_of(file.read_text(encoding="utf-8")))
    if file is not None and not chosen:
        raise OptionError(f"--file {file} has no dead letter")
    with connection.admin() as admin:
        if chosen:
            letters = _selected(admin, group, chosen)
        else:
            letters = list(read_letters(admin, group, begin, end, max_count))
        if dry_run:
            click.echo(f"{len(letters)} dead letters of {group!r}; nothing was sent", err=True)
            return
        if letters and not yes:
            place = "their topics" if to == "topic" else "the retry topic of the group"
            question = f"Send {len(letters)} dead letters of {group!r} to {place}?"
            confirm(question)
        outcomes = _resend_all(admin, letters, to, rate, again, as_json)
    click.echo(
        f"{outcomes['sent']} sent, {outcomes['skipped']} sent by an earlier run, "
        f"{outcomes['failed']} failed",
        err=True,
    )
    if outcomes["failed"]:
        raise click.exceptions.Exit(FAILED)


def _resend_all(
    admin: Admin,
    letters: list[DeadMessage],
    to: Literal["topic", "retry"],
    rate: float | None,
    again: bool,
    as_json: bool,
) -> dict[str, int]:
    from downrange.cli.output import print_json

    outcomes = {"sent": 0, "skipped": 0, "failed": 0}
    limit = RateLimit(rate)
    with counted("sent", len(letters)) as count:
        for letter in letters:
            (result,) = admin.resend_dead_letters([letter], to=to, skip_resent=not again)
            outcomes[result.outcome] += 1
            count(1)
            if as_json:
                print_json(
                    {
                        "id": letter.message.offset_id,
                        "outcome": result.outcome,
                        "topic": result.topic,
                        "message_id": result.message_id,
                        "problem": result.problem,
                    }
                )
            elif result.problem is not None:
                print_error(f"{letter.message.offset_id}: {result.problem}")
            if result.outcome == "sent":
                limit.wait(1)
    return outcomes


# ---- reading -------------------------------------------------------------------------------------


def read_letters(
    admin: Admin, group: str, begin: str | None, end: str | None, max_count: int | None
) -> Iterator[DeadMessage]:
    """Yield the dead letters of a group, page by page."""
    now = datetime.now(UTC)
    first = None if begin is None else parse_time("--begin", begin, now)
    last = None if end is None else parse_time("--end", end, now)
    left = sys.maxsize if max_count is None else max_count
    after: dict[QueueId, int] | None = None
    while left > 0:
        page = admin.dead_letters(
            group,
            begin=first,
            end=last,
            after=after,
            max_count=min(left, _PAGE),
            decode_body=False,
        )
        yield from page.letters
        left -= len(page.letters)
        if page.is_complete:
            return
        after = page.next


def _selected(admin: Admin, group: str, ids: tuple[str, ...]) -> list[DeadMessage]:
    """Return dead letters by their ids, in this order; exits if one is missing."""
    found: dict[str, DeadMessage] = {}
    missing = set(ids)
    for letter in read_letters(admin, group, None, None, None):
        for name in {letter.message.offset_id, letter.message.message_id} & missing:
            found[name] = letter
            missing.discard(name)
        if not missing:
            return [found[name] for name in dict.fromkeys(ids)]
    print_error(f"group {group!r} has no dead letter {', '.join(sorted(missing))}")
    raise click.exceptions.Exit(NOT_FOUND)


def ids_of(text: str) -> tuple[str, ...]:
    """Return the ids of the dead letters in an export.

    Raises:
        OptionError: A line is wrong; names it.
    """
    ids: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                ids.append(str(json.loads(line)["offset_id"]))
            except (ValueError, TypeError, KeyError) as error:
                raise OptionError(
                    f"--file line {number} is not a line of `dlq export`: {line[:80]}"
                ) from error
    return tuple(ids)
