"""`tail` and `pull`: print the messages of a topic."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import click

from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.parameters import argument, command
from downrange.cli.queue_warnings import QueueWarnings
from downrange.cli.standard_streams import check_reader
from downrange.cli.tail_end import TailEnd
from downrange.errors import OptionError, RocketMQError
from downrange.options.times import parse_time
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.cli.tail_end import End
    from downrange.client.flows.consuming.offsets import Start
    from downrange.client.flows.consuming.pull import PullBatch
    from downrange.model import QueueId, ReceivedMessage

_START_WORDS: Final[dict[str, Literal["earliest", "latest", "committed"]]] = {
    "earliest": "earliest",
    "latest": "latest",
    "committed": "committed",
}
#: Seconds that `tail` waits for messages before it checks whether it has reached the end.
_POLL: Final = 0.2
_POLL_COUNT: Final = 500


class View(StrEnum):
    """How messages are printed."""

    LINE = "line"
    JSON = "json"
    BODY = "body"


JSON_LINES: Final = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per message."
)
BODY_ONLY: Final = click.option(
    "--body-only", "-b", is_flag=True, help="Bodies only, each followed by a line feed."
)
_TOPIC: Final = argument("topic", help="Topic to read.", shell_complete=complete_topics)
_TAGS: Final = click.option(
    "--tags", "-t", default="*", help="Only messages with these tags, such as 'new || paid'."
)
_GROUP: Final = click.option(
    "--group", "-g", default=TOOLS_GROUP, help="Consumer group; the default exists on every broker."
)


@command(epilog=EPILOG)
@_TOPIC
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    default="latest",
    help="earliest, latest, committed, an offset, a time such as 2026-01-31T12:00, or an age such "
    "as 15m.",
)
@click.option(
    "--to",
    "to",
    metavar="WHERE",
    help="End there, without the message: latest, an offset, a time or an age.",
)
@_TAGS
@click.option("--sql", metavar="EXPRESSION", help="Only messages whose properties match.")
@_GROUP
@click.option(
    "--max", "-m", "max_count", type=click.IntRange(min=1), help="End after this many messages."
)
@click.option(
    "--no-follow", is_flag=True, help="End when all messages that are stored now were printed."
)
@click.option("--commit", is_flag=True, help="Commit the group's offsets; needs a --group.")
@JSON_LINES
@BODY_ONLY
@with_connection
def tail(
    connection: Connection,
    topic: str,
    start: str,
    to: str | None,
    tags: str,
    sql: str | None,
    group: str,
    max_count: int | None,
    no_follow: bool,
    commit: bool,
    as_json: bool,
    body_only: bool,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Messages of one queue are printed in order, different queues in order of arrival.
    """
    from downrange import PullConsumer

    begin, end = parse_range(start, to, datetime.now(UTC))
    if commit and group == TOOLS_GROUP:
        raise OptionError(f"--commit needs a --group of its own; {TOOLS_GROUP} is shared")
    if commit and to is not None:
        raise OptionError("--commit and --to exclude each other: a queue is read beyond the end")
    show = message_printer(choose_view(as_json, body_only))
    with (
        connection.client() as client,
        PullConsumer(client, group=group) as consumer,
        QueueWarnings() as warnings,
    ):
        consumer.assign(topic, start=begin, tags=tags, sql=sql)
        place = TailEnd(consumer, "latest" if no_follow and end is None else end, no_follow)
        left = sys.maxsize if max_count is None else max_count
        while left > 0 and not place.is_reached():
            try:
                messages = place.before(consumer.poll(_POLL, max_count=min(left, _POLL_COUNT)))
            except RocketMQError as error:
                if no_follow or not error.retryable:
                    raise
                continue  # the consumer has logged the error and retries
            warnings.print_old()
            check_reader()
            show(messages)
            left -= len(messages)
            if commit and messages:
                consumer.commit()


@command(epilog=EPILOG)
@_TOPIC
@argument("queue", help="BROKER:NUMBER, or the number if only one broker has it.")
@argument("offset", type=click.IntRange(min=0), help="Offset of the first message.")
@click.option(
    "--count",
    "-c",
    type=click.IntRange(min=1),
    default=32,
    help="Number of messages; brokers return at most 32.",
)
@_TAGS
@_GROUP
@JSON_LINES
@BODY_ONLY
@with_connection
def pull(
    connection: Connection,
    topic: str,
    queue: str,
    offset: int,
    count: int,
    tags: str,
    group: str,
    as_json: bool,
    body_only: bool,
) -> None:
    """Print messages of one queue, starting at an offset, with one request.

    Standard error gets the next offset, and the range of offsets that the queue holds.
    """
    from downrange.client.flows.consuming.pull import by_tags
    from downrange.client.flows.consuming.pull import pull as pull_once
    from downrange.client.flows.routing.lookup import read_queues

    show = message_printer(choose_view(as_json, body_only))
    tag_filter = by_tags(tags)
    with connection.client() as client:
        deadline = client.core.clock.now() + connection.timeout
        queues = client.run(read_queues(client.core, topic, deadline=deadline))
        chosen = find_queue(queue, queues)
        batch = client.run(
            pull_once(
                client.core,
                chosen,
                offset,
                group=group,
                max_count=count,
                message_filter=tag_filter,
                deadline=deadline,
            )
        )
    show(batch.messages)
    click.echo(_status_line(batch), err=True)


def _status_line(batch: PullBatch) -> str:
    status = batch.status.name.lower().replace("_", " ")
    return (
        f"{status}: {len(batch.messages)} messages; next offset {batch.next_offset}; the queue "
        f"holds {batch.min_offset} to {batch.max_offset}"
    )


# ---- arguments -----------------------------------------------------------------------------------


def parse_start(text: str, now: datetime) -> Start:
    """Parse the value of --from.

    Raises:
        OptionError: It is invalid.
    """
    word = text.strip().lower()
    if word in _START_WORDS:
        return _START_WORDS[word]
    if word.isdecimal():
        return int(word)
    return parse_time("--from", text, now, "earliest, latest, committed, an offset, ")


def parse_range(start: str, end: str | None, now: datetime) -> tuple[Start, End | None]:
    """Parse the values of --from and --to.

    Raises:
        OptionError: One is invalid, or the end is not after the start.
    """
    begin = parse_start(start, now)
    if end is None:
        return begin, None
    word = end.strip().lower()
    if word == "latest":
        return begin, "latest"
    stop = int(word) if word.isdecimal() else parse_time("--to", end, now, "latest, an offset, ")
    if (isinstance(begin, int) and isinstance(stop, int) and begin >= stop) or (
        isinstance(begin, datetime) and isinstance(stop, datetime) and begin >= stop
    ):
        raise OptionError(f"--to {end} is not after --from {start}")
    return begin, stop


def find_queue(text: str, queues: list[QueueId]) -> QueueId:
    """Find a queue by BROKER:NUMBER, or by its number only.

    Raises:
        OptionError: No queue matches, or several do.
    """
    broker, _, number = text.rpartition(":")
    if not number.isdecimal():
        raise OptionError(f"QUEUE {text!r} is neither BROKER:NUMBER nor a number")
    found = [
        queue for queue in queues if queue.number == int(number) and broker in ("", queue.broker)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{queue.broker}:{queue.number}" for queue in found or queues)
    problem = "is on several brokers; name one of" if found else "does not exist; existing queues"
    raise OptionError(f"QUEUE {text!r} {problem}: {known}")


# ---- printing ------------------------------------------------------------------------------------


def choose_view(as_json: bool, body_only: bool) -> View:
    """Return the form of the output.

    Raises:
        OptionError: The flags exclude each other.
    """
    if as_json and body_only:
        raise OptionError("--json and --body-only exclude each other")
    return View.JSON if as_json else View.BODY if body_only else View.LINE


def message_printer(view: View) -> Callable[[Iterable[ReceivedMessage]], None]:
    """Return a function that prints messages."""
    from downrange.cli.output import message_line, print_json
    from downrange.client.exports import message_facts

    def show(messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            if view is View.JSON:
                print_json(message_facts(message))
            elif view is View.BODY:
                sys.stdout.buffer.write(message.body + b"\n")
            else:
                print(message_line(message))
        sys.stdout.flush()

    return show
