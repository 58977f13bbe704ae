"""`group list|show|create|update|delete|lag`: settings and progress of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from downrange.cli.completion import complete_topics
from downrange.cli.confirmation import YES, confirm
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG, FAILED, print_error
from downrange.cli.group_options import CLUSTER, GROUP, JSON
from downrange.cli.parameters import argument, command
from downrange.cli.watching import WATCH, show_or_watch
from downrange.errors import GroupNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.admin.reports import GroupLag, GroupSettings

# ---- settings ------------------------------------------------------------------------------------


@command("list", epilog=EPILOG)
@click.option("--all", "-a", "everything", is_flag=True, help="Include system groups.")
@click.option("--names", is_flag=True, help="Only names; much faster with many groups.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per group.")
@WATCH
@CLUSTER
@with_connection
def list_(
    connection: Connection,
    everything: bool,
    names: bool,
    as_json: bool,
    watch: float | None,
    cluster: str | None,
) -> None:
    """List the consumer groups with members, lag and rate."""
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table
    from downrange.client.flows.admin.reports import GroupList

    with connection.admin() as admin:

        def read() -> GroupList:
            found = admin.list_groups(cluster=cluster, with_progress=not names)
            shown = (each for each in found if everything or each.kind == "normal")
            return GroupList(shown, found.unanswered)

        def print_line(found: GroupList) -> None:
            for line in tables.missing_lines(found):
                print_error(line)
            if as_json:
                for each in found:
                    print_json(tables.summary_facts(each))
            else:
                columns, rows = tables.SUMMARY_COLUMNS, [tables.summary_row(each) for each in found]
                print_table(columns, rows, numbers=tables.LIST_NUMBERS)

        show_or_watch(watch, read, tables.draw_summaries, print_line)


@command(epilog=EPILOG)
@GROUP
@JSON
@CLUSTER
@with_connection
def show(connection: Connection, group: str, as_json: bool, cluster: str | None) -> None:
    """Show a group: settings per broker, members, and lag per topic."""
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_gap, print_json, print_table, span_text

    with connection.admin() as admin:
        settings = admin.group_settings(group, cluster=cluster)
        members = admin.group_members(group, cluster=cluster)
        lag = admin.group_lag(group, cluster=cluster)
    topics = sorted({queue.queue.topic for queue in lag.queues})
    if as_json:
        print_json(
            {
                "group": group,
                "brokers": [tables.settings_facts(each) for each in settings.values()],
                "members": tables.members_facts(members)["members"],
                **{name: tables.lag_facts(lag)[name] for name in ("lag", "age_seconds", "rate")},
                "topics": topics,
            }
        )
        return
    _show_settings(settings.values(), as_json=False)
    print_gap()
    rows = [
        (
            topic,
            len(queues := [queue for queue in lag.queues if queue.queue.topic == topic]),
            sum(queue.messages for queue in queues),
            span_text(max((queue.age for queue in queues if queue.age is not None), default=None)),
        )
        for topic in topics
    ]
    title = f"{len(members.members)} members; {tables.lag_title(lag)}"
    print_table(("topic", "queues", "lag", "age"), rows, title=title, numbers=("queues", "lag"))


_RETRIES: Final = "How often a message that a consumer sent back is delivered again."


@command(epilog=EPILOG)
@GROUP
@click.option("--retries", default=16, help=_RETRIES)
@click.option("--retry-queues", default=1, help="Queues of the retry topic.")
@click.option("--disabled", is_flag=True, help="Members may not read until `update --enabled`.")
@click.option("--no-broadcast", is_flag=True, help="Refuse members that broadcast.")
@click.option("--ordered", is_flag=True, help="A 5.x proxy delivers in order.")
@click.option("--if-missing", is_flag=True, help="Do nothing if the group exists.")
@CLUSTER
@JSON
@with_connection
def create(
    connection: Connection,
    group: str,
    retries: int,
    retry_queues: int,
    disabled: bool,
    no_broadcast: bool,
    ordered: bool,
    if_missing: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Create a consumer group on every master."""
    with connection.admin() as admin:
        try:
            admin.group_settings(group, cluster=cluster)
        except GroupNotFound:
            admin.create_group(
                group,
                is_enabled=not disabled,
                can_broadcast=not no_broadcast,
                retries=retries,
                retry_queues=retry_queues,
                is_ordered=ordered,
                cluster=cluster,
            )
            created = admin.group_settings(group, cluster=cluster)
            _show_settings(created.values(), as_json=as_json)
            return
    if not if_missing:
        print_error(f"group {group!r} exists; change it with `downrange group update {group}`")
        raise click.exceptions.Exit(FAILED)


@command(epilog=EPILOG)
@GROUP
@click.option("--retries", type=int, help=_RETRIES)
@click.option("--retry-queues", type=int, help="Queues of the retry topic.")
@click.option("--enabled/--disabled", default=None, help="Whether members may read.")
@click.option("--broadcast/--no-broadcast", default=None, help="Whether members may broadcast.")
@click.option("--ordered/--not-ordered", default=None, help="A 5.x proxy delivers in order.")
@CLUSTER
@JSON
@with_connection
def update(
    connection: Connection,
    group: str,
    retries: int | None,
    retry_queues: int | None,
    enabled: bool | None,
    broadcast: bool | None,
    ordered: bool | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Change a consumer group on every master; settings that are not given stay the same."""
    with connection.admin() as admin:
        changed = admin.update_group(
            group,
            is_enabled=enabled,
            can_broadcast=broadcast,
            retries=retries,
            retry_queues=retry_queues,
            is_ordered=ordered,
            cluster=cluster,
        )
    _show_settings(changed.values(), as_json=as_json)


@command(epilog=EPILOG)
@GROUP
@click.option("--keep-offsets", is_flag=True, help="Leave its offsets on the brokers.")
@click.option("--with-topics", is_flag=True, help="Delete its retries and dead letters, too.")
@CLUSTER
@YES
@JSON
@with_connection
def delete(
    connection: Connection,
    group: str,
    keep_offsets: bool,
    with_topics: bool,
    cluster: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a consumer group and its offsets on every master."""
    from downrange.cli.output import print_json

    with connection.admin() as admin:
        brokers = sorted(admin.group_settings(group, cluster=cluster))
        members = admin.group_members(group, cluster=cluster).members
        if not yes:
            online = f" It has {len(members)} connected members." if members else ""
            parts = [f"group {group!r}"]
            parts += [] if keep_offsets else ["its offsets"]
            parts += ["its retries", "its dead letters"] if with_topics else []
            question = f"Delete {_listed(parts)} on {', '.join(brokers)}?{online}"
            confirm(question)
        admin.delete_group(
            group, keep_offsets=keep_offsets, with_topics=with_topics, cluster=cluster
        )
    if as_json:
        print_json({"deleted": group, "brokers": brokers})


def _listed(parts: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _show_settings(groups: Iterable[GroupSettings], *, as_json: bool) -> None:
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table

    if as_json:
        print_json([tables.settings_facts(each) for each in groups])
    else:
        rows = [tables.settings_row(each) for each in groups]
        print_table(tables.SETTINGS_COLUMNS, rows, numbers=("retries", "retry queues"))


# ---- lag -----------------------------------------------------------------------------------------


@command(epilog=EPILOG)
@GROUP
@argument("topic", help="Only this topic.", required=False, shell_complete=complete_topics)
@click.option("--owners", is_flag=True, help="Ask members which queues they read.")
@JSON
@WATCH
@CLUSTER
@with_connection
def lag(
    connection: Connection,
    group: str,
    topic: str | None,
    owners: bool,
    as_json: bool,
    watch: float | None,
    cluster: str | None,
) -> None:
    """Show how far a group is behind in each queue, in messages and in time.

    With --watch, a terminal shows the table in place; otherwise each reading is one line.
    """
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:

        def read() -> GroupLag:
            return admin.group_lag(group, topic=topic, cluster=cluster, with_owners=owners)

        def print_once(found: GroupLag) -> None:
            if as_json:
                print_json(tables.lag_facts(found))
            elif watch is not None:
                print(tables.lag_title(found), flush=True)
            else:
                title, rows = tables.lag_title(found), tables.lag_rows(found)
                print_table(tables.LAG_COLUMNS, rows, title=title, numbers=tables.LAG_NUMBERS)

        show_or_watch(watch, read, tables.draw_lag, print_once)
