"""`group reset|skip|clone|export`: where a consumer group reads.

Each change is a preview by default; `--apply` does it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from downrange.cli.completion import complete_groups, complete_topics
from downrange.cli.confirmation import YES, confirm
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, NOT_FOUND, print_error
from downrange.cli.group_options import GROUP, JSON, JSON_LINES
from downrange.cli.parameters import READABLE_FILE, argument, command
from downrange.cli.read import find_queue
from downrange.cli.send_progress import counted
from downrange.errors import OptionError
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from downrange import Admin
    from downrange.client.flows.admin.reports import OffsetReset, ResetTarget
    from downrange.model import QueueId

ThingT = TypeVar("ThingT")
ResultT = TypeVar("ResultT")
_TOPIC: Final = argument("topic", help="Topic to reset.", shell_complete=complete_topics)
_TOPICS: Final = argument(
    "topics",
    metavar="[TOPIC]...",
    nargs=-1,
    required=False,
    help="Topics; all that the group has read unless given, without its retries.",
    shell_complete=complete_topics,
)
_APPLY: Final = click.option(
    "--apply", "is_applied", is_flag=True, help="Do it; without this, only show what would change."
)


@command(epilog=EPILOG)
@GROUP
@_TOPIC
@click.option(
    "--to",
    metavar="WHERE",
    help="earliest, latest, an offset, a time such as 2026-01-31T12:00, or an age such as 15m.",
)
@click.option("--shift", type=int, metavar="N", help="N messages on; back if below 0.")
@click.option(
    "--file",
    type=READABLE_FILE,
    metavar="FILE",
    help="JSON lines with broker, queue and offset, as `group export` prints them.",
)
@click.option("--queue", "-q", "queues", multiple=True, metavar="BROKER:NUMBER", help="Only it.")
@_APPLY
@YES
@JSON
@with_connection
def reset(
    connection: Connection,
    group: str,
    topic: str,
    to: str | None,
    shift: int | None,
    file: Path | None,
    queues: tuple[str, ...],
    is_applied: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Reset the offsets of a group in a topic: shows what would change, and --apply does it.

    Connected members learn of it, except by an offset, --shift or --file on a 4.9 broker, which
    refuses that while members are connected.
    """
    if sum(each is not None for each in (to, shift, file)) != 1:
        raise OptionError("give one of --to, --shift and --file")
    with connection.admin() as admin:
        target: ResetTarget
        if file is not None:
            target = read_offsets(file.read_text(encoding="utf-8"), admin.read_queues(topic))
        else:
            target = _parse_target(to, shift, datetime.now(UTC))
        plan = admin.plan_reset(group, topic, target)
        if queues:
            plan = _only(plan, [find_queue(text, _queues_of(plan)) for text in queues])
        _finish(admin, [plan], is_applied, yes, as_json)


def _parse_target(to: str | None, shift: int | None, now: datetime) -> ResetTarget:
    from downrange.client.flows.admin.reports import Shift

    if shift is not None:
        return Shift(shift)
    word = (to or "").strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    if word.isdecimal():
        return int(word)
    return parse_time("--to", to or "", now, "earliest, latest, an offset, ")


def read_offsets(text: str, queues: list[QueueId]) -> dict[QueueId, int]:
    """Read offsets of queues: JSON lines with broker, queue and offset.

    Raises:
        OptionError: A line is wrong; names it.
    """
    known = {(queue.broker, queue.number): queue for queue in queues}
    offsets: dict[QueueId, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
            place, offset = (entry["broker"], entry["queue"]), entry["offset"]
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                f"--file line {number}: not an object with broker, queue and offset: {line[:80]}"
            ) from error
        if offset is None:
            continue  # the group had no offset there
        if place not in known:
            raise OptionError(
                f"--file line {number}: the topic has no queue {place[1]} on {place[0]}"
            )
        offsets[known[place]] = offset
    if not offsets:
        raise OptionError("--file has no offset")
    return offsets


def _queues_of(plan: OffsetReset) -> list[QueueId]:
    return [each.queue for each in plan.queues]


def _only(plan: OffsetReset, chosen: Iterable[QueueId]) -> OffsetReset:
    """Return a plan for some of its queues; a time would reset all of them on a 4.9 broker."""
    import msgspec

    kept = set(chosen)
    queues = tuple(each for each in plan.queues if each.queue in kept)
    return msgspec.structs.replace(plan, queues=queues, at=None)


@command(epilog=EPILOG)
@GROUP
@_TOPICS
@_APPLY
@YES
@JSON
@with_connection
def skip(
    connection: Connection,
    group: str,
    topics: tuple[str, ...],
    is_applied: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Skip all messages that a group has not consumed yet: shows them, and --apply does it."""
    with connection.admin() as admin:
        chosen = _topics_of(admin, group, topics)
        plans = _for_each(
            "topics read", chosen, lambda each: admin.plan_reset(group, each, "latest")
        )
        _finish(admin, plans, is_applied, yes, as_json)


@command(epilog=EPILOG)
@argument("source", help="Group to copy from.", shell_complete=complete_groups)
@argument("target", help="Group to copy to.", shell_complete=complete_groups)
@_TOPICS
@_APPLY
@YES
@JSON
@with_connection
def clone(
    connection: Connection,
    source: str,
    target: str,
    topics: tuple[str, ...],
    is_applied: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Give a group the offsets of another: shows what would change, and --apply does it."""
    with connection.admin() as admin:
        admin.group_settings(target)  # an unknown group is an error
        chosen = _topics_of(admin, source, topics)
        plans = _for_each(
            "topics read", chosen, lambda each: admin.plan_clone(source, target, each)
        )
        _finish(admin, plans, is_applied, yes, as_json)


def _topics_of(admin: Admin, group: str, topics: tuple[str, ...]) -> list[str]:
    found = list(topics) or admin.group_topics(group)
    if not found:
        admin.group_settings(group)  # an unknown group is an error
        print_error(f"group {group!r} has not read any topic yet")
        raise click.exceptions.Exit(NOT_FOUND)
    return found


@command(epilog=EPILOG)
@GROUP
@_TOPIC
@JSON_LINES
@with_connection
def export(connection: Connection, group: str, topic: str) -> None:
    """Print the offsets of a group in a topic as JSON lines; `reset --file` restores them."""
    from downrange.cli.output import print_json

    with connection.admin() as admin:
        admin.group_settings(group)  # an unknown group is an error
        for queue in admin.read_queues(topic):
            offset = admin.group_offset(group, queue)
            facts = {"group": group, "topic": topic, "broker": queue.broker}
            print_json({**facts, "queue": queue.number, "offset": offset})


def _finish(
    admin: Admin, plans: list[OffsetReset], is_applied: bool, yes: bool, as_json: bool
) -> None:
    """Print plans, and apply them if that was asked for and confirmed."""
    if is_applied and not yes:
        for plan in plans:
            _print_plan(plan, as_json=False, to_errors=True)
        confirm("Apply this?")
    if not is_applied:
        _print_plans(plans, as_json)
        click.echo("nothing was changed; --apply does it", err=True)
        return
    done: list[OffsetReset] = []
    try:
        _for_each("topics reset", plans, lambda each: done.append(admin.apply_reset(each)))
    finally:
        _print_plans(done, as_json)


def _for_each(
    verb: str, things: Sequence[ThingT], function: Callable[[ThingT], ResultT]
) -> list[ResultT]:
    """Call a function with each of several things, and count them on a terminal."""
    results: list[ResultT] = []
    with counted(verb, len(things)) as count:
        for each in things:
            results.append(function(each))
            count(1)
    return results


def _print_plans(plans: Iterable[OffsetReset], as_json: bool) -> None:
    for plan in plans:
        _print_plan(plan, as_json=as_json)


def _print_plan(plan: OffsetReset, *, as_json: bool, to_errors: bool = False) -> None:
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table

    if to_errors:
        click.echo(tables.reset_title(plan), err=True)
    elif as_json:
        print_json(tables.reset_facts(plan))
    else:
        rows, title = tables.reset_rows(plan), tables.reset_title(plan)
        print_table(tables.RESET_COLUMNS, rows, title=title, numbers=tables.RESET_NUMBERS)
