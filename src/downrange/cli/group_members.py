"""`group members|producers|runinfo|consume-one|retry`: connected clients, and work for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, FAILED, print_error
from downrange.cli.group_options import CLUSTER, GROUP, JSON
from downrange.cli.parameters import argument, command

if TYPE_CHECKING:
    from downrange.client.flows.admin.reports import RunningState

_CLIENT: Final = argument("client_id", metavar="CLIENT", help="Client id of the member.")
_TOPIC: Final = argument("topic", help="Topic of the message.", shell_complete=complete_topics)
_ID: Final = argument("message_id", metavar="ID", help="Message id, or offset id.")


@command(epilog=EPILOG)
@GROUP
@click.option("--subscriptions", is_flag=True, help="Ask each member what it reads, and compare.")
@JSON
@CLUSTER
@with_connection
def members(
    connection: Connection, group: str, subscriptions: bool, as_json: bool, cluster: str | None
) -> None:
    """List the connected members of a group.

    With --subscriptions the exit code is 1 if members read a topic differently: messages are then
    lost for some of them.
    """
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        found = admin.group_members(group, cluster=cluster, with_filters=subscriptions)
        if not found.members:
            admin.group_settings(group, cluster=cluster)  # an unknown group is an error
    if as_json:
        print_json(tables.members_facts(found))
    else:
        title = f"{len(found.members)} members, {found.mode or 'none'}, {found.model or 'offline'}"
        print_table(
            ("client id", "address", "language", "version", "brokers", "reads"),
            [
                (
                    each.client_id,
                    each.address,
                    each.language,
                    each.version,
                    ", ".join(each.brokers),
                    tables.filters_text(each.filters if subscriptions else found.filters),
                )
                for each in found.members
            ],
            title=title,
        )
    for difference in found.differences:
        print_error(f"members differ in {difference}")
    if found.differences:
        raise click.exceptions.Exit(FAILED)


@command(epilog=EPILOG)
@argument("group", help="Name of the producer group; all unless given.", required=False)
@JSON
@CLUSTER
@with_connection
def producers(
    connection: Connection, group: str | None, as_json: bool, cluster: str | None
) -> None:
    """List the connected members of producer groups."""
    import msgspec

    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        if group is None:
            found = admin.list_producers(cluster=cluster)
        else:
            found = {group: admin.producer_members(group, cluster=cluster)}
    if as_json:
        print_json(
            [
                {"group": name, **msgspec.to_builtins(each)}
                for name, members in found.items()
                for each in members
            ]
        )
        return
    print_table(
        ("group", "client id", "address", "language", "version", "brokers"),
        [
            (
                name,
                each.client_id,
                each.address,
                each.language,
                each.version,
                ", ".join(each.brokers),
            )
            for name, members in found.items()
            for each in members
        ],
    )


@command(epilog=EPILOG)
@GROUP
@_CLIENT
@click.option("--stack", is_flag=True, help="What its threads do, if the member says it.")
@JSON
@with_connection
def runinfo(connection: Connection, group: str, client_id: str, stack: bool, as_json: bool) -> None:
    """Show what a member does now: its queues, buffers and rates."""
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json

    with connection.admin() as admin:
        state = admin.running_state(group, client_id, with_stack=stack)
    if as_json:
        print_json(tables.running_facts(state))
    else:
        _print_state(state)


def _print_state(state: RunningState) -> None:
    from downrange.cli import group_tables as tables
    from downrange.cli.output import local_time, print_facts, print_gap, print_table

    facts = {"client id": state.client_id, "reads": tables.filters_text(state.filters)}
    print_facts({**facts, **dict(sorted(state.properties.items()))})
    print_gap()
    numbers = ("queue", "committed", "buffered", "MiB")
    print_table(
        ("topic", "broker", *numbers, "last pull", "last consumed"),
        [
            (
                each.queue.topic,
                each.queue.broker,
                each.queue.number,
                each.committed,
                each.buffered,
                each.buffered_mib,
                local_time(each.pulled_at),
                local_time(each.consumed_at),
            )
            for each in state.queues
        ],
        numbers=numbers,
    )
    print_gap()
    columns = ("pulled/s", "ms per pull", "consumed/s", "ms per message", "failed/s")
    print_table(
        ("topic", *columns),
        [
            (
                each.topic,
                *(
                    f"{figure:.2f}"
                    for figure in (
                        each.pulled,
                        each.pull_ms,
                        each.consumed,
                        each.consume_ms,
                        each.failed,
                    )
                ),
            )
            for each in state.rates
        ],
        numbers=columns,
    )
    if state.stack is not None:
        print_gap()
        print_facts({"stack": state.stack})


@command("consume-one", epilog=EPILOG)
@GROUP
@_CLIENT
@_TOPIC
@_ID
@JSON
@with_connection
def consume_one(
    connection: Connection, group: str, client_id: str, topic: str, message_id: str, as_json: bool
) -> None:
    """Have one member consume one message now; offsets do not change.

    The exit code is 1 if the member's handler did not accept the message.
    """
    import msgspec

    from downrange.cli.output import print_facts, print_json

    with connection.admin() as admin:
        result = admin.consume_directly(group, client_id, topic, message_id)
    facts = {**msgspec.to_builtins(result), "is_consumed": result.is_consumed}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
    if not result.is_consumed:
        raise click.exceptions.Exit(FAILED)


@command(epilog=EPILOG)
@GROUP
@_TOPIC
@_ID
@JSON
@with_connection
def retry(connection: Connection, group: str, topic: str, message_id: str, as_json: bool) -> None:
    """Give a copy of a message to a group at once, through its retry topic.

    A retry that already waits for its delay comes, too: brokers cannot take it back.
    """
    from downrange.cli.output import print_facts, print_json

    with connection.admin() as admin:
        facts = {"group": group, "message_id": admin.retry_now(group, topic, message_id)}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
