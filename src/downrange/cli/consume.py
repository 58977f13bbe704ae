"""`consume`: a worker that handles the messages of a group, with a function or a program."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from downrange.cli.connection import Connection, with_connection
from downrange.cli.parameters import PATH, argument, command
from downrange.errors import OptionError
from downrange.options.consumers import ConsumeMode, MessageModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.cli.worker import Work
    from downrange.filters.sql import Sql
    from downrange.options.clients import GroupStart
    from downrange.options.consumers import ConsumerOptions

_EPILOG = (
    "Exit codes: 0 ended by a signal or a limit, all handlers ended and offsets are committed; 1 "
    "handlers did not end within --drain-timeout, or a server refused a request; 2 wrong use, also "
    "a handler that cannot be imported; 3 no server reached; 4 not permitted; 5 not found; 130 or "
    "143 ended at once by a second SIGINT or SIGTERM."
)
_MODES = click.Choice(get_args(ConsumeMode))
_MODELS = click.Choice(get_args(MessageModel))
_SECONDS = click.FloatRange(min=0, min_open=True)
_COUNT = click.IntRange(min=1)


@command(epilog=_EPILOG)
@argument("handler", required=False, help="MODULE:FUNCTION, found in the working folder first.")
@click.option(
    "--exec",
    "program",
    metavar="COMMAND",
    help="Run this program for each message instead: body on standard input, other fields in "
    "DOWNRANGE_… variables. It ends with 0: done, 65: dead letter, others such as 75: deliver "
    "again.",
)
@click.option("--group", "-g", required=True, help="Consumer group.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:TAGS]",
    help="Topic to read, and its tags: orders, or 'orders:new || paid'; repeatable.",
)
@click.option(
    "--sql",
    "filters",
    multiple=True,
    metavar="TOPIC:EXPRESSION",
    help="Topic to read, and the properties of its messages: 'orders:amount > 100'; repeatable.",
)
@click.option("--concurrency", "-c", default=20, help="Calls of the handler at a time.")
@click.option("--mode", type=_MODES, default="concurrent", help="orderly: each queue in its order.")
@click.option("--model", type=_MODELS, default="clustering", help="broadcast: all messages.")
@click.option("--offsets", type=PATH, metavar="DIR", help="Keeps the offsets of broadcast.")
@click.option(
    "--start",
    default="latest",
    metavar="WHERE",
    help="Where a group without offsets begins: earliest, latest, a time or an age such as 15m.",
)
@click.option("--batch", default=1, help="Most messages per call; above 1 they come as a list.")
@click.option(
    "--retries", type=click.IntRange(min=0), show_default="16; orderly: no limit",
    help="Deliveries after the first before a message becomes a dead letter.",
)  # fmt: skip
@click.option(
    "--handle-timeout",
    type=_SECONDS,
    default=900.0,
    help="A handler that takes longer is reported; a program is killed, with its children.",
)
@click.option("--trace", is_flag=True, help="Record each delivery in the trace topic.")
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), default=30.0,
    help="Seconds that handlers may take at the end.",
)  # fmt: skip
@click.option(
    "--health", type=_SECONDS, metavar="SECONDS", help="Print counters and problems this often."
)
@click.option("--json", "as_json", is_flag=True, help="Print lines as JSON.")
@click.option(
    "--max-messages",
    type=_COUNT,
    help="Handle so many messages, then end; a failed one counts, too. The others stay.",
)
@click.option("--idle-timeout", type=_SECONDS, help="End after so many seconds without a message.")
@with_connection
def consume(
    connection: Connection,
    /,
    handler: str | None,
    program: str | None,
    group: str,
    topics: tuple[str, ...],
    filters: tuple[str, ...],
    as_json: bool,
    drain_timeout: float,
    health: float | None,
    max_messages: int | None,
    idle_timeout: float | None,
    **settings: Any,
) -> None:
    """Handle the messages of a consumer group, with a function or a program, until a signal.

    A plain function runs in threads, a coroutine function on an event loop. A handler that returns
    has handled its message; after an exception the message is delivered again.

    Prints `ready`, then `health` lines if asked for, then `draining` and `stopped`. SIGTERM and
    Ctrl-C let running handlers end, commit and leave the group; a second one ends the worker at
    once.
    """
    from downrange.cli.worker import Work

    options = _options(messages_max=max_messages, **settings)
    subscriptions = parse_subscriptions(topics, filters)
    work = Work(
        drain_timeout=drain_timeout,
        health_interval=health,
        as_json=as_json,
        messages_max=max_messages,
        idle_timeout=idle_timeout,
        facts={"group": group, "topics": ",".join(subscriptions), "pid": os.getpid()},
    )
    function = _handler(handler, program, options, work)
    _run(function, work, connection, group=group, subscribe=subscriptions, options=options)


def _run(
    handler: Callable[[Any], Any], work: Work, connection: Connection, **settings: Any
) -> None:
    from downrange import AsyncPushConsumer, PushConsumer
    from downrange.cli.worker import run_in_threads, run_on_loop
    from downrange.client.push_base import is_coroutine_handler

    settings |= connection.client_settings()
    if not is_coroutine_handler(handler):
        run_in_threads(PushConsumer(handler=work.counted(handler), **settings), work)
        return

    async def run() -> None:
        await run_on_loop(AsyncPushConsumer(handler=work.counted_async(handler), **settings), work)

    asyncio.run(run())


def _handler(
    handler: str | None, program: str | None, options: ConsumerOptions, work: Work
) -> Callable[[Any], Any]:
    from downrange.cli.handler_loader import load_handler
    from downrange.cli.program_handler import ProgramHandler

    if (handler is None) == (program is None):
        raise OptionError("give either HANDLER, such as orders:handle, or --exec with a program")
    if handler is not None:
        return load_handler(handler, Path.cwd())
    assert program is not None
    if options.batch > 1:
        raise OptionError("--exec gets one message at a time; leave --batch out")
    runner = ProgramHandler(program, options.handle_timeout)
    work.kill = runner.kill_all
    return runner


def _options(
    *, start: str, trace: bool, offsets: Path | None, model: MessageModel, **settings: Any
) -> ConsumerOptions:
    from downrange import FolderOffsets
    from downrange.options.consumers import ConsumerOptions

    if offsets is not None and model != "broadcast":
        raise OptionError("--offsets is for --model broadcast; brokers keep the offsets of others")
    return ConsumerOptions(
        start=parse_group_start(start, datetime.now(UTC)),
        trace=trace,
        model=model,
        offset_store=None if offsets is None else FolderOffsets(offsets),
        **settings,
    )


def parse_group_start(text: str, now: datetime) -> GroupStart:
    """Parse the value of --start.

    Raises:
        OptionError: It is invalid.
    """
    from downrange.options.times import parse_time

    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return "earliest" if word == "earliest" else "latest"
    return parse_time("--start", text, now, "earliest, latest, ")


def parse_subscriptions(topics: Iterable[str], filters: Iterable[str]) -> dict[str, str | Sql]:
    """Return the filter of each topic.

    Args:
        topics: "topic", or "topic:tags".
        filters: "topic:expression" in SQL92.

    Raises:
        OptionError: A topic is named twice, or none is; or an expression is missing or wrong.
    """
    from downrange import Sql

    found: dict[str, str | Sql] = {}
    for option, texts in (("--topic", topics), ("--sql", filters)):
        for text in texts:
            topic, _, expression = text.partition(":")
            if not topic or (not expression and (":" in text or option == "--sql")):
                form = "TOPIC:EXPRESSION" if option == "--sql" else "TOPIC or TOPIC:TAGS"
                raise OptionError(f"{option} {text!r} is not {form}")
            if topic in found:
                raise OptionError(f"topic {topic!r} is named twice; a topic has one filter")
            found[topic] = Sql(expression) if option == "--sql" else expression or "*"
    if not found:
        raise OptionError("give at least one --topic, or --sql")
    return found
