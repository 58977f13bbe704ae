"""`topic route|ranges|groups|traffic`: where a topic is, what it holds, and who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.parameters import argument, command
from downrange.cli.watching import WATCH, show_or_watch

if TYPE_CHECKING:
    from rich.table import Table

    from downrange.client.flows.admin.reports import Traffic

TOPIC: Final = argument("topic", help="Name of the topic.", shell_complete=complete_topics)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@command(epilog=EPILOG)
@TOPIC
@JSON
@with_connection
def route(connection: Connection, topic: str, as_json: bool) -> None:
    """Show the route of a topic as clients get it from the name server."""
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        found = admin.topic_route(topic)
        homes = {broker.name: broker.cluster for broker in admin.cluster_facts().brokers}
    parts = [
        {
            "cluster": homes.get(part.broker_name),
            "broker": part.broker_name,
            "addresses": dict(sorted(found.brokers.get(part.broker_name, {}).items())),
            "read_queues": part.read_queue_nums,
            "write_queues": part.write_queue_nums,
            "permission": part.perm,
        }
        for part in sorted(found.body.queue_datas, key=lambda each: each.broker_name)
    ]
    if as_json:
        print_json({"topic": topic, "brokers": parts})
        return
    numbers = ("read queues", "write queues", "permission")
    print_table(
        ("cluster", "broker", "addresses", *numbers),
        [
            (
                part["cluster"],
                part["broker"],
                ", ".join(
                    f"{number}={address}"
                    for number, address in found.brokers.get(str(part["broker"]), {}).items()
                ),
                part["read_queues"],
                part["write_queues"],
                part["permission"],
            )
            for part in parts
        ],
        numbers=numbers,
    )


@command(epilog=EPILOG)
@TOPIC
@JSON
@with_connection
def ranges(connection: Connection, topic: str, as_json: bool) -> None:
    """Show what each queue of a topic holds, and from when to when."""
    from downrange.cli.output import local_time, print_json, print_table, utc_time

    with connection.admin() as admin:
        found = admin.queue_ranges(topic)
    if as_json:
        print_json(
            [
                {
                    "broker": each.queue.broker,
                    "queue": each.queue.number,
                    "first": each.first,
                    "end": each.end,
                    "first_stored_at": utc_time(each.first_stored_at),
                    "last_stored_at": utc_time(each.last_stored_at),
                }
                for each in found
            ]
        )
        return
    numbers = ("queue", "first", "end")
    print_table(
        ("broker", *numbers, "first stored", "last stored"),
        [
            (
                each.queue.broker,
                each.queue.number,
                each.first,
                each.end,
                local_time(each.first_stored_at),
                local_time(each.last_stored_at),
            )
            for each in found
        ],
        numbers=numbers,
    )


@command(epilog=EPILOG)
@TOPIC
@click.option("--json", "as_json", is_flag=True, help="One JSON object per group.")
@with_connection
def groups(connection: Connection, topic: str, as_json: bool) -> None:
    """List the groups that read a topic, with their lag in it."""
    from downrange.cli import group_tables as tables
    from downrange.cli.output import print_json, print_table, span_text

    with connection.admin() as admin:
        lags = [admin.group_lag(name, topic=topic) for name in admin.topic_groups(topic)]
    if as_json:
        for lag in lags:
            print_json(tables.lag_facts(lag))
        return
    rows = [(lag.group, lag.messages, span_text(lag.age), f"{lag.rate:.1f}") for lag in lags]
    print_table(("group", "lag", "age", "per second"), rows, numbers=("lag", "per second"))


@command(epilog=EPILOG)
@TOPIC
@JSON
@WATCH
@with_connection
def traffic(connection: Connection, topic: str, as_json: bool, watch: float | None) -> None:
    """Show how many messages go into a topic, and from it to each group."""
    from downrange.cli.output import print_json, print_table, table_of

    columns = ("group", "per second", "last minute", "last 24 h")
    with connection.admin() as admin:

        def rows(found: list[Traffic]) -> list[tuple[object, ...]]:
            return [
                (each.group or "(sent)", f"{each.rate:.1f}", each.minute, each.day)
                for each in found
            ]

        def draw(found: list[Traffic]) -> Table:
            return table_of(columns, rows(found), numbers=columns[1:])

        def print_once(found: list[Traffic]) -> None:
            if as_json:
                print_json([msgspec.to_builtins(each) for each in found])
            else:
                print_table(columns, rows(found), numbers=columns[1:])

        show_or_watch(watch, lambda: admin.topic_traffic(topic), draw, print_once)
