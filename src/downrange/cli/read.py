"""`tail` and `pull`: what lies in a topic, and what comes."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import click

from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.parameters import argument, command
from downrange.errors import OptionError, RocketMQError
from downrange.wire.system_names import TOOLS_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from downrange.client.consumer import PullConsumer
    from downrange.client.flows.consuming.offsets import Start
    from downrange.client.flows.consuming.pull import PullBatch
    from downrange.model import QueueId, QueueOffset, ReceivedMessage

#: Apache's group for tools, which every broker has: nobody needs to create one to look at a topic.
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_WORDS: Final[dict[str, Literal["earliest", "latest", "committed"]]] = {
    "earliest": "earliest",
    "latest": "latest",
    "committed": "committed",
}
#: How long a tail waits at a time, before it looks whether it is at the end.
_POLL: Final = 0.2
_POLL_COUNT: Final = 500


class View(StrEnum):
    """How messages are printed."""

    LINE = "line"
    JSON = "json"
    BODY = "body"


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per message.")
body_only = click.option(
    "--body-only", "-b", is_flag=True, help="Bodies as they are, each with a line feed."
)
_TOPIC: Final = argument("topic", help="What to read.")
_TAGS: Final = click.option(
    "--tags", "-t", default="*", help="Only messages with these, such as 'new || paid'."
)
_GROUP: Final = click.option("--group", "-g", default=TOOLS_GROUP, help="In whose name to read.")


@command(epilog=EPILOG)
@_TOPIC
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    default="latest",
    help="earliest, latest, committed, an offset, a time such as 2026-01-31T12:00, or how long "
    "ago, such as 15m.",
)
@_TAGS
@click.option("--sql", metavar="EXPRESSION", help="Only messages whose properties are like this.")
@_GROUP
@click.option(
    "--max", "-m", "max_count", type=click.IntRange(min=1), help="End after so many messages."
)
@click.option("--no-follow", is_flag=True, help="End when everything that is there now was read.")
@click.option("--commit", is_flag=True, help="Record the group's progress; needs a --group.")
@as_json
@body_only
@with_connection
def tail(
    connection: Connection,
    topic: str,
    start: str,
    tags: str,
    sql: str | None,
    group: str,
    max_count: int | None,
    no_follow: bool,
    commit: bool,
    as_json: bool,
    body_only: bool,
) -> None:
    """Print messages of a topic as they come, until Ctrl-C.

    Messages of one queue are in order; those of different queues are as they arrive.
    """
    from downrange.client.consumer import PullConsumer

    where = parse_start(start, datetime.now(UTC))
    if commit and group == TOOLS_GROUP:
        raise OptionError(f"--commit needs a --group of its own; everyone uses {TOOLS_GROUP}")
    show = printer(view_of(as_json, body_only))
    with connection.client() as client, PullConsumer(client, group=group) as consumer:
        consumer.assign(topic, start=where, tags=tags, sql=sql)
        ends = _ends_of(consumer) if no_follow else None
        left = sys.maxsize if max_count is None else max_count
        while left > 0 and not (ends is not None and is_past(consumer, ends)):
            try:
                messages = consumer.poll(_POLL, max_count=min(left, _POLL_COUNT))
            except RocketMQError as error:
                if no_follow or not error.retryable:
                    raise
                continue  # the consumer has logged it, and goes on trying
            show(messages)
            left -= len(messages)
            if commit and messages:
                consumer.commit()


def _ends_of(consumer: PullConsumer) -> dict[QueueId, QueueOffset]:
    """Return where each queue ends now."""
    from downrange.client.admin import Admin

    with Admin(consumer.client) as admin:
        return {queue: admin.max_offset(queue) for queue in consumer.queues()}


def is_past(consumer: PullConsumer, ends: Mapping[QueueId, int]) -> bool:
    """Whether everything before these ends was handed out."""
    positions = {queue: consumer.position(queue) for queue in ends}
    return all(
        position is not None and position >= ends[queue] for queue, position in positions.items()
    )


@command(epilog=EPILOG)
@_TOPIC
@argument("queue", help="BROKER:NUMBER, or the number when there is one broker.")
@argument("offset", type=click.IntRange(min=0), help="The first message.")
@click.option(
    "--count",
    "-c",
    type=click.IntRange(min=1),
    default=32,
    help="How many; brokers give 32 at most.",
)
@_TAGS
@_GROUP
@as_json
@body_only
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
    """Print messages of one queue from an offset on, in one request.

    On standard error it says where to go on, and what the queue holds.
    """
    from downrange.client.flows.consuming.pull import by_tags
    from downrange.client.flows.consuming.pull import pull as pull_once
    from downrange.client.flows.routing.lookup import read_queues

    show = printer(view_of(as_json, body_only))
    wanted = by_tags(tags)
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
                message_filter=wanted,
                deadline=deadline,
            )
        )
    show(batch.messages)
    click.echo(_where_it_ended(batch), err=True)


def _where_it_ended(batch: PullBatch) -> str:
    status = batch.status.name.lower().replace("_", " ")
    return (
        f"{status}: {len(batch.messages)} messages; go on at {batch.next_offset}; the queue holds "
        f"{batch.min_offset} to {batch.max_offset}"
    )


# ---- arguments -----------------------------------------------------------------------------------


def parse_start(text: str, now: datetime) -> Start:
    """Read where to begin.

    Raises:
        OptionError: It cannot be read.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if word.isdecimal():
        return int(word)
    return parse_time("--from", text, now, "earliest, latest, committed, an offset, ")


def parse_time(option: str, text: str, now: datetime, others: str = "") -> datetime:
    """Read a time, or how long ago it is; one without a zone is local.

    Raises:
        OptionError: It is none of them; names the option, and what else it could have been.
    """
    word = text.strip()
    if (ago := _AGO.fullmatch(word.lower())) is not None:
        return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    try:
        return datetime.fromisoformat(word).astimezone(UTC)
    except ValueError:
        raise OptionError(
            f"{option} {text!r} is none of {others}a time such as 2026-01-31T12:00, or how long "
            "ago, such as 15m"
        ) from None


def find_queue(text: str, queues: list[QueueId]) -> QueueId:
    """Find the queue that is meant by BROKER:NUMBER, or by a number alone.

    Raises:
        OptionError: There is none, or more than one.
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
    problem = "is on several brokers, name one" if found else "does not exist; there are"
    raise OptionError(f"QUEUE {text!r} {problem}: {known}")


# ---- printing ------------------------------------------------------------------------------------


def view_of(as_json: bool, body_only: bool) -> View:
    """Return how to print, as the flags say.

    Raises:
        OptionError: They contradict each other.
    """
    if as_json and body_only:
        raise OptionError("--json and --body-only exclude each other")
    return View.JSON if as_json else View.BODY if body_only else View.LINE


def printer(view: View) -> Callable[[Iterable[ReceivedMessage]], None]:
    """Return what prints messages."""
    from downrange.cli.output import message_facts, message_line, print_json

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
