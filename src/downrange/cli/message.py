"""`message show|query|resend`: find messages by id or key, send one again."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from downrange.cli.command_groups import Group
from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, NOT_FOUND, print_error
from downrange.cli.parameters import argument
from downrange.cli.read import BODY_ONLY, JSON_LINES, choose_view, message_printer
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage

_TOPIC: Final = argument("topic", help="Topic of the message.", shell_complete=complete_topics)


@click.group(cls=Group)
def message() -> None:
    """Find messages by id or key; send one again."""


@message.command(epilog=EPILOG)
@_TOPIC
@argument("message_id", metavar="ID", help="Message id, or offset id.")
@click.option(
    "--since",
    metavar="TIME",
    show_default="3d",
    help="How far back to search for a message id: a time, or an age such as 12h.",
)
@JSON_LINES
@BODY_ONLY
@with_connection
def show(
    connection: Connection,
    topic: str,
    message_id: str,
    since: str | None,
    as_json: bool,
    body_only: bool,
) -> None:
    """Show one message with all of its fields."""
    from downrange.cli.output import print_json
    from downrange.client.exports import message_facts

    choose_view(as_json, body_only)
    begin = None if since is None else parse_time("--since", since, datetime.now(UTC))
    with connection.admin() as admin:
        found = admin.view_message(topic, message_id, since=begin)
    if body_only:
        sys.stdout.buffer.write(found.body)
        sys.stdout.flush()
    elif as_json:
        print_json(message_facts(found))
    else:
        _show(found)


def _show(found: ReceivedMessage) -> None:
    from downrange.cli.output import body_text, local_text, print_facts
    from downrange.client.exports import message_facts

    facts = message_facts(found)
    properties = {f"property {name}": value for name, value in facts.pop("properties").items()}
    system = {f"system {name}": value for name, value in facts.pop("system_properties").items()}
    facts.pop("body", None)
    facts.pop("body_base64", None)
    print_facts(
        {
            **facts,
            "keys": " ".join(found.keys) or None,
            "born_at": local_text(found.born_at_ms),
            "stored_at": local_text(found.stored_at_ms),
            **properties,
            **system,
            "body": body_text(found.body),
        }
    )


@message.command(epilog=EPILOG)
@_TOPIC
@click.option("--key", "-k", required=True, help="A key of the message.")
@click.option(
    "--max",
    "-m",
    "max_count",
    type=click.IntRange(min=1),
    default=32,
    help="Maximum number of messages; the newest are shown.",
)
@click.option(
    "--begin", metavar="TIME", help="Stored at this time or later; a time, or an age such as 12h."
)
@click.option("--end", metavar="TIME", help="Stored at this time or earlier.")
@JSON_LINES
@BODY_ONLY
@with_connection
def query(
    connection: Connection,
    topic: str,
    key: str,
    max_count: int,
    begin: str | None,
    end: str | None,
    as_json: bool,
    body_only: bool,
) -> None:
    """Find messages by key, in the order in which they were stored."""
    show_all = message_printer(choose_view(as_json, body_only))
    now = datetime.now(UTC)
    with connection.admin() as admin:
        found = admin.query_messages(
            topic,
            key,
            max_count=max_count,
            begin=None if begin is None else parse_time("--begin", begin, now),
            end=None if end is None else parse_time("--end", end, now),
        )
    show_all(found)
    if not found:
        print_error(f"no message of {topic!r} has the key {key!r}")
        raise click.exceptions.Exit(NOT_FOUND)


@message.command(epilog=EPILOG)
@_TOPIC
@argument("message_id", metavar="ID", help="Message id, or offset id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@with_connection
def resend(connection: Connection, topic: str, message_id: str, as_json: bool) -> None:
    """Send a copy of a message to its topic; all groups get it.

    Body, keys, tags and properties stay the same; a delay is not repeated. For one group only, see
    `group retry`.
    """
    from downrange.cli.output import print_facts, print_json

    with connection.admin() as admin:
        facts = {"topic": topic, "message_id": admin.send_again(topic, message_id)}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
