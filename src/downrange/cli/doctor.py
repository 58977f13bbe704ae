"""`doctor`: checks the way to servers, then brokers and groups, and suggests a next step."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import click

from downrange.cli.completion import complete_topics
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import (
    EPILOG,
    FAILED,
    NOT_FOUND,
    NOT_PERMITTED,
    UNREACHABLE,
    use_option_names,
)
from downrange.cli.parameters import argument, command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.client.flows.admin.doctor import Finding


@command(epilog=EPILOG)
@argument(
    "address",
    metavar="[HOST:PORT]",
    required=False,
    help="Name server; that of -n if not given.",
)
@click.option("--topic", help="Topic whose route is checked, too.", shell_complete=complete_topics)
@click.option("--network", is_flag=True, help="Check the way to servers only.")
@click.option(
    "--interval",
    type=click.FloatRange(0, 600),
    default=2.0,
    help="Seconds between two looks at groups that are behind.",
)
@click.option(
    "--recheck",
    type=click.FloatRange(0, 600),
    default=12.0,
    metavar="SECONDS",
    help="Seconds before queues that did not move are looked at again, with their members: longer "
    "than two commits of the consumers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding.")
@with_connection
def doctor(
    connection: Connection,
    address: str | None,
    topic: str | None,
    network: bool,
    interval: float,
    recheck: float,
    as_json: bool,
) -> None:
    """Check the way to name servers and brokers, then the brokers and consumer groups.

    The way: DNS, ports, TLS, access, brokers, routes; every server is contacted once. Brokers: disk
    and clock. Groups: different subscriptions, queues that stand still, a lag that grows, dead
    letters of the last hour. The exit code is that of the first finding that failed.
    """
    from downrange.cli.output import print_json
    from downrange.client.flows.admin.doctor import Finding, check_network
    from downrange.client.flows.admin.health_checks import check_cluster
    from downrange.native import VERSION, path_in_use

    ours = Finding(
        name="install",
        target="this program",
        is_ok=True,  # both paths do the same
        text=f"downrange {VERSION}, {path_in_use()}",
    )
    if address is not None:
        connection = dataclasses.replace(connection, name_server=address)
    with connection.client(connect_on_start=False) as client:
        findings = (ours, *client.run(check_network(client.core, topic=topic)))
        if not network and exit_code(findings) in (0, NOT_FOUND):
            notify = partial(click.echo, err=True)
            flow = check_cluster(client.core, pause=interval, recheck=recheck, notify=notify)
            findings += client.run(flow)
    if as_json:
        for finding in findings:
            print_json({name: getattr(finding, name) for name in finding.__struct_fields__})
    else:
        _show(findings)
    raise click.exceptions.Exit(exit_code(findings))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code for the first finding that failed; 0 if none failed."""
    codes = dict.fromkeys(
        ("brokers", "master", "disk", "clock", "subscriptions", "stuck", "lag", "dead letters"),
        FAILED,
    )
    codes |= {"access": NOT_PERMITTED, "route": NOT_FOUND}
    for finding in findings:
        if not finding.is_ok:
            return codes.get(finding.name, UNREACHABLE)
    return 0


def _show(findings: tuple[Finding, ...]) -> None:
    """Print the findings by target, with the next step below each that failed."""
    from rich.text import Text

    from downrange.cli.output import console, has_unicode, readable

    out = console()
    arrow = "→" if has_unicode() else "->"
    target = None
    for finding in findings:
        if finding.target != target:
            target = finding.target
            out.print(Text(readable(target), "bold"))
        mark = Text("  ok    ", "green") if finding.is_ok else Text("  FAIL  ", "bold red")
        out.print(mark.append(f"{finding.name:14}", "default").append(readable(finding.text)))
        if finding.next_step:
            out.print(
                Text(f"        {arrow} {readable(use_option_names(finding.next_step))}", "yellow"),
                soft_wrap=True,
            )
    failed = sum(not finding.is_ok for finding in findings)
    out.print(f"\n{failed} of {len(findings)} findings failed" if failed else "\nno problems found")
