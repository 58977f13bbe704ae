"""`send`: one message, or each line of a file or a pipe.

Messages are sent one after the other, so those with the same sharding key keep their order;
`--batch` puts several into a request.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import click

from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.parameters import READABLE_FILE, argument, command
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from downrange import Producer
    from downrange.cli.message_input import MessageDefaults

#: Producer group of the command.
GROUP: Final = "downrange-command"


def _parse_properties(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise OptionError(f"--property {text!r} is not NAME=VALUE")
        yield name, value


@command(epilog=EPILOG)
@argument("topic", help="Topic to send to.", shell_complete=complete_topics)
@argument("body", required=False, help="Body of the message; standard input if not given.")
@click.option(
    "--file", "-f", type=READABLE_FILE, metavar="FILE", help="Send the content of this file."
)
@click.option("--lines", "-l", is_flag=True, help="Send each line of FILE or standard input.")
@click.option(
    "--json-lines", "-j", is_flag=True, help='Send each line, as {"body": "…", "tags": "…"}.'
)
@click.option("--tags", "-t", help="Tag to filter by.")
@click.option("--key", "-k", "keys", multiple=True, help="Key to find the message by; repeatable.")
@click.option(
    "--property",
    "-p",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="User property; repeatable.",
)
@click.option("--sharding-key", help="Messages with the same key go to one queue, in order.")
@click.option(
    "--delay-level",
    type=click.IntRange(min=1),
    help="Deliver after the delay of this level of the broker.",
)
@click.option(
    "--deliver-in",
    type=float,
    metavar="SECONDS",
    help="Deliver after this many seconds (5.x brokers).",
)
@click.option("--rate", type=float, metavar="N", help="Send at most N messages per second.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Put up to N lines into one request.",
)
@click.option("--oneway", is_flag=True, help="Do not wait for receipts; messages may be lost.")
@click.option(
    "--on-error",
    type=click.Choice(("stop", "skip")),
    default="stop",
    help="Stop at a line that fails, or skip it.",
)
@click.option(
    "--progress/--no-progress",
    default=None,
    show_default="on a terminal",
    help="Show the progress on standard error.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per receipt.")
@with_connection
def send(
    connection: Connection,
    topic: str,
    body: str | None,
    file: Path | None,
    lines: bool,
    json_lines: bool,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    delay_level: int | None,
    deliver_in: float | None,
    rate: float | None,
    batch: int | None,
    oneway: bool,
    on_error: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Send a message, or each line of a file or pipe.

    downrange send orders "42 apples" --tags new --key o-1

    downrange send orders --lines --batch 100 --file orders.txt

    downrange tail old --from earliest --no-follow --json | downrange send new --json-lines
    """
    from downrange.cli.message_input import MessageDefaults, parse_lines
    from downrange.cli.send_lines import LineSender
    from downrange.cli.send_progress import RateLimit, progress_display

    defaults = MessageDefaults(
        topic=topic,
        tags=tags,
        keys=keys,
        properties=tuple(_parse_properties(properties)),
        sharding_key=sharding_key,
        delay_level=delay_level,
        deliver_in=deliver_in,
    )
    _check(body, file, lines, json_lines, rate, batch, oneway)
    if not (lines or json_lines):
        _send_one(connection, defaults, _single_body(body, file), oneway, as_json)
        return
    with ExitStack() as stack:
        source = stack.enter_context(file.open("rb")) if file else sys.stdin.buffer
        total = file.stat().st_size if file else None
        producer = stack.enter_context(_producer(connection))
        on_progress = stack.enter_context(progress_display(progress, total))
        sender = LineSender(producer, is_oneway=oneway, as_json=as_json, on_progress=on_progress)
        parsed = parse_lines(source, defaults, "json" if json_lines else "text")
        code = sender.send_all(
            parsed, batch or 1, RateLimit(rate), stops_on_error=on_error == "stop"
        )
    raise click.exceptions.Exit(code)


def _check(
    body: str | None,
    file: Path | None,
    lines: bool,
    json_lines: bool,
    rate: float | None,
    batch: int | None,
    oneway: bool,
) -> None:
    if lines and json_lines:
        raise OptionError("--lines and --json-lines exclude each other")
    if body is not None and (file is not None or lines or json_lines):
        raise OptionError("BODY and --file, --lines or --json-lines exclude each other")
    if batch is not None and oneway:
        raise OptionError("--batch and --oneway exclude each other")
    if rate is not None and rate <= 0:
        raise OptionError(f"--rate {rate:g} is not above 0")
    if not (lines or json_lines) and (batch is not None or rate is not None):
        raise OptionError("--batch and --rate need --lines or --json-lines")


def _single_body(body: str | None, file: Path | None) -> bytes:
    if body is not None:
        # Bytes of the argument that are not text in the locale are sent as they are.
        return body.encode(errors="surrogateescape")
    if file is not None:
        return file.read_bytes()
    if sys.stdin.isatty():
        raise OptionError("nothing to send: give a BODY, a --file, or standard input")
    return sys.stdin.buffer.read()


@contextmanager
def _producer(connection: Connection) -> Generator[Producer]:
    from downrange import Producer
    from downrange.options import ProducerOptions

    options = ProducerOptions(timeout=connection.timeout)
    with connection.client() as client, Producer(client, group=GROUP, options=options) as producer:
        yield producer


def _send_one(
    connection: Connection, defaults: MessageDefaults, body: bytes, is_oneway: bool, as_json: bool
) -> None:
    from downrange.cli.output import print_facts, print_json, receipt_facts

    message = defaults.message(body)
    with _producer(connection) as producer:
        if is_oneway:
            producer.send_oneway(message)
            return
        facts = receipt_facts(producer.send(message))
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
