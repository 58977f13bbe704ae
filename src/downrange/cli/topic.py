"""`topic create|update|list|show|delete` and others: manage topics on all brokers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from downrange.cli.command_groups import Group
from downrange.cli.completion import complete_topics
from downrange.cli.confirmation import YES, confirm
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, FAILED, NOT_FOUND, print_error
from downrange.cli.parameters import argument
from downrange.cli.topic_use import groups, ranges, route, traffic
from downrange.errors import OptionError, RouteNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from downrange.client.flows.admin.topics import QueueState, TopicSettings

_READ, _WRITE, _INHERIT = 4, 2, 1
_LETTERS: Final = {"r": _READ, "w": _WRITE, "i": _INHERIT}

_TOPIC: Final = argument("topic", help="Name of the topic.", shell_complete=complete_topics)
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_BROKERS: Final = click.option(
    "--broker", "brokers", multiple=True, metavar="NAME", help="Only on this broker; repeatable."
)
_CLUSTER: Final = click.option(
    "--cluster", metavar="NAME", help="Name of the cluster, if there are several."
)


@click.group(cls=Group)
def topic() -> None:
    """Create, change, list, show and delete topics."""


@topic.command(epilog=EPILOG)
@_TOPIC
@click.option("--queues", "-q", default=8, help="Queues per broker.")
@click.option("--read-queues", type=int, help="Number of queues to read, if different.")
@click.option("--write-queues", type=int, help="Number of queues to send to, if different.")
@click.option("--permission", metavar="rw|r|w", default="rw", help="Permission of clients.")
@click.option("--ordered", is_flag=True, help="Mark the topic as ordered.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Attribute (5.x) such as message.type=FIFO; repeatable.",
)
@_CLUSTER
@_BROKERS
@click.option("--if-missing", is_flag=True, help="Do nothing if the topic exists.")
@_JSON
@with_connection
def create(
    connection: Connection,
    topic: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    permission: str,
    ordered: bool,
    attributes: tuple[str, ...],
    cluster: str | None,
    brokers: tuple[str, ...],
    if_missing: bool,
    as_json: bool,
) -> None:
    """Create a topic on every broker, and wait until clients find its route."""
    settings = parse_attributes(attributes)
    permissions = parse_permission(permission)
    with connection.admin() as admin:
        try:
            admin.topic_route(topic)
        except RouteNotFound:
            created = admin.create_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permissions,
                is_ordered=ordered,
                attributes={name: value for name, value in settings.items() if value is not None},
                cluster=cluster,
                brokers=brokers or None,
            )
            _show_settings([created], as_json=as_json)
            return
    if not if_missing:
        print_error(f"topic {topic!r} exists; change it with `downrange topic update {topic}`")
        raise click.exceptions.Exit(FAILED)


@topic.command(epilog=EPILOG)
@_TOPIC
@click.option("--queues", "-q", type=int, help="Queues per broker, to read and send to.")
@click.option("--read-queues", type=int, help="Queues to read.")
@click.option("--write-queues", type=int, help="Queues to send to.")
@click.option("--permission", metavar="rw|r|w", help="Permission of clients.")
@click.option("--ordered/--not-ordered", default=None, help="Whether the topic is ordered.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Attribute (5.x); NAME= removes it; repeatable.",
)
@_BROKERS
@_JSON
@with_connection
def update(
    connection: Connection,
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    ordered: bool | None,
    attributes: tuple[str, ...],
    brokers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change a topic; settings that are not given stay the same."""
    with connection.admin() as admin:
        changed = admin.update_topic(
            topic,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=None if permission is None else parse_permission(permission),
            is_ordered=ordered,
            attributes=parse_attributes(attributes) or None,
            brokers=brokers or None,
        )
    _show_settings(changed.values(), as_json=as_json)


@topic.command("list", epilog=EPILOG)
@click.option("--all", "-a", "everything", is_flag=True, help="Include system and retry topics.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per topic.")
@with_connection
def list_(connection: Connection, everything: bool, as_json: bool) -> None:
    """List the topics of the name server."""
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        topics = [each for each in admin.list_topics() if everything or each.kind == "normal"]
    if as_json:
        for each in topics:
            print_json({"topic": each.name, "kind": each.kind})
    else:
        print_table(("topic", "kind"), [(each.name, each.kind) for each in topics])


@topic.command(epilog=EPILOG)
@_TOPIC
@_JSON
@with_connection
def show(connection: Connection, topic: str, as_json: bool) -> None:
    """Show the settings of a topic on each broker, and the offsets of its queues."""
    from downrange.cli.output import print_gap, print_json

    with connection.admin() as admin:
        settings = dict(sorted(admin.topic_settings(topic).items()))
        queues = admin.topic_stats(topic)
    if as_json:
        print_json(
            {
                "topic": topic,
                "brokers": [_facts(each) for each in settings.values()],
                "queues": [_queue_facts(each) for each in queues],
                "messages": sum(each.count for each in queues),
            }
        )
        return
    _show_settings(settings.values(), as_json=False)
    print_gap()
    _show_queues(queues)


@topic.command(epilog=EPILOG)
@_TOPIC
@_CLUSTER
@YES
@_JSON
@with_connection
def delete(
    connection: Connection, topic: str, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete a topic and all of its messages on every broker."""
    from downrange.cli.output import print_json

    with connection.admin() as admin:
        try:
            brokers = sorted(admin.topic_route(topic).brokers)
        except RouteNotFound as error:
            # The text of the error advises to create the topic.
            print_error(f"topic {topic!r} does not exist at {', '.join(error.addresses)}")
            raise click.exceptions.Exit(NOT_FOUND) from error
        if not yes:
            question = f"Delete {topic!r} and its messages on {', '.join(brokers)}?"
            confirm(question)
        admin.delete_topic(topic, cluster=cluster)
    if as_json:
        print_json({"deleted": topic, "brokers": brokers})


for _command in (route, ranges, groups, traffic):
    topic.add_command(_command)


# ---- arguments -----------------------------------------------------------------------------------


def parse_permission(text: str) -> int:
    """Parse "rw", "r", "w", or the number of the protocol.

    Raises:
        OptionError: It is invalid.
    """
    if text.isdecimal() and int(text) < 8:
        return int(text)
    if not text or set(text) - set(_LETTERS):
        raise OptionError(f"--permission {text!r} is not one of: rw, r, w, or a number up to 7")
    return sum(_LETTERS[letter] for letter in set(text))


def permission_text(permission: int) -> str:
    """Return a permission as letters."""
    return "".join(letter for letter, bit in _LETTERS.items() if permission & bit) or "none"


def parse_attributes(texts: Iterable[str]) -> dict[str, str | None]:
    """Parse NAME=VALUE texts; NAME= gives None, which removes the attribute.

    Raises:
        OptionError: A text is not NAME=VALUE.
    """
    attributes: dict[str, str | None] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise OptionError(f"--attribute {text!r} is not NAME=VALUE")
        attributes[name] = value or None
    return attributes


# ---- printing ------------------------------------------------------------------------------------


def _facts(settings: TopicSettings) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(settings)
    return {**facts, "permission": permission_text(settings.permission)}


def _ms_of(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _queue_facts(state: QueueState) -> dict[str, Any]:
    from downrange.client.exports import utc_text

    return {
        "broker": state.queue.broker,
        "queue": state.queue.number,
        "min_offset": state.min_offset,
        "max_offset": state.max_offset,
        "messages": state.count,
        "last_stored_at": None if state.stored_at is None else utc_text(_ms_of(state.stored_at)),
    }


def _show_settings(topics: Iterable[TopicSettings], *, as_json: bool) -> None:
    from downrange.cli.output import print_json, print_table

    if as_json:
        print_json([_facts(each) for each in topics])
        return
    numbers = ("read queues", "write queues")
    print_table(
        ("topic", "broker", *numbers, "permission", "ordered", "attributes"),
        [
            (
                each.topic,
                ", ".join(each.brokers),
                each.read_queues,
                each.write_queues,
                permission_text(each.permission),
                "yes" if each.is_ordered else "no",
                ", ".join(f"{name}={value}" for name, value in each.attributes.items()),
            )
            for each in topics
        ],
        numbers=numbers,
    )


def _show_queues(queues: list[QueueState]) -> None:
    from downrange.cli.output import local_text, print_table

    numbers = ("queue", "first", "next", "messages")
    print_table(
        ("broker", *numbers, "last stored"),
        [
            (
                each.queue.broker,
                each.queue.number,
                each.min_offset,
                each.max_offset,
                each.count,
                None if each.stored_at is None else local_text(_ms_of(each.stored_at)),
            )
            for each in queues
        ],
        numbers=numbers,
    )
