"""`message show|query`: messages by their ids and keys."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from downrange.cli.connecting import Connection, with_connection
from downrange.cli.outcomes import EPILOG, NOT_FOUND, complain
from downrange.cli.reading import BodyOnly, Json, parse_time, printer, view_of

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage

app = typer.Typer(help="Find messages by id or key.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="Where it was sent to.")]


@app.command(epilog=EPILOG)
@with_connection
def show(
    connection: Connection,
    topic: Topic,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its unique id, or its offset id.")
    ],
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How far back to look for a unique id: a time, or how long ago, such as 12h.",
            show_default="3d",
        ),
    ] = None,
    as_json: Json = False,
    body_only: BodyOnly = False,
) -> None:
    """Show one message with everything that is known of it."""
    from downrange.cli.printing import message_facts, print_json

    view_of(as_json, body_only)
    begin = None if since is None else parse_time("--since", since, datetime.now(UTC))
    with connection.admin() as admin:
        message = admin.view_message(topic, message_id, since=begin)
    if body_only:
        sys.stdout.buffer.write(message.body)
        sys.stdout.flush()
    elif as_json:
        print_json(message_facts(message))
    else:
        _show(message)


def _show(message: "ReceivedMessage") -> None:
    from downrange.cli.printing import body_text, message_facts, print_facts, time_of

    facts = message_facts(message)
    properties = {f"property {name}": value for name, value in facts.pop("properties").items()}
    system = {f"system {name}": value for name, value in facts.pop("system_properties").items()}
    facts.pop("body", None)
    facts.pop("body_base64", None)
    print_facts(
        {
            **facts,
            "keys": " ".join(message.keys) or None,
            "born_at": time_of(message.born_at_ms),
            "stored_at": time_of(message.stored_at_ms),
            **properties,
            **system,
            "body": body_text(message.body),
        }
    )


@app.command(epilog=EPILOG)
@with_connection
def query(
    connection: Connection,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", "-k", help="One of its keys.")],
    max_count: Annotated[
        int, typer.Option("--max", "-m", min=1, help="The newest of them, so many at most.")
    ] = 32,
    begin: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stored then or later; or how long ago, such as 12h."),
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Stored then or earlier.")] = None,
    as_json: Json = False,
    body_only: BodyOnly = False,
) -> None:
    """Find messages by a key, in the order in which they were stored."""
    show_all = printer(view_of(as_json, body_only))
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
        complain(f"no message of {topic!r} has the key {key!r}")
        raise typer.Exit(NOT_FOUND)
