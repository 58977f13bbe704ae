"""`cluster list|show`: clusters, brokers, and what the brokers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from downrange.cli.command_groups import Group
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.group_options import JSON
from downrange.cli.watching import WATCH, show_or_watch
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from rich.table import Table

    from downrange import Admin

_COLUMNS: Final = (
    *("cluster", "broker", "address", "version", "in/s", "out/s", "stored today", "disk used"),
)
_NUMBERS: Final = ("in/s", "out/s", "stored today", "disk used")


@click.group(cls=Group)
def cluster() -> None:
    """List clusters and brokers, with their figures."""


@cluster.command("list", epilog=EPILOG)
@JSON
@with_connection
def list_(connection: Connection, as_json: bool) -> None:
    """List the clusters and their brokers with all replicas."""
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        facts = admin.cluster_facts(with_versions=True)
    if as_json:
        print_json(msgspec.to_builtins(facts, str_keys=True))
        return
    print_table(
        ("cluster", "broker", "id", "address", "version"),
        [
            (broker.cluster, broker.name, number, address, broker.version)
            for broker in facts.brokers
            for number, address in sorted(broker.addresses.items())
        ],
        numbers=("id",),
    )


@cluster.command(epilog=EPILOG)
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per broker.")
@WATCH
@with_connection
def show(connection: Connection, cluster: str | None, as_json: bool, watch: float | None) -> None:
    """Show the rates, messages and disk of every master, or why it does not tell them."""
    from downrange.cli.output import print_json, print_table, table_of

    with connection.admin() as admin:

        def read() -> list[dict[str, Any]]:
            return _read(admin, cluster)

        def print_once(found: list[dict[str, Any]]) -> None:
            if as_json:
                for each in found:
                    print_json(each)
            else:
                print_table(*_table(found), numbers=_NUMBERS)

        def draw(found: list[dict[str, Any]]) -> Table:
            return table_of(*_table(found), numbers=_NUMBERS)

        show_or_watch(watch, read, draw, print_once)


def _read(admin: Admin, cluster: str | None) -> list[dict[str, Any]]:
    facts = admin.cluster_facts(with_versions=True)
    if cluster is not None and cluster not in facts.clusters:
        raise OptionError(f"cluster={cluster!r} is not among {sorted(facts.clusters)}")
    return [
        {
            "cluster": broker.cluster,
            "broker": broker.name,
            "address": broker.addresses[MASTER],
            "version": broker.version,
            **_figures(admin, broker.name),
        }
        for broker in facts.brokers
        if cluster in (None, broker.cluster) and MASTER in broker.addresses
    ]


def _figures(admin: Admin, broker: str) -> dict[str, Any]:
    """Return the rates of a broker; or its problem, which must not hide the other brokers."""
    try:
        return _rates(admin.broker_figures(broker)[broker])
    except RocketMQError as error:
        return {"problem": error.brief}


def _rates(figures: dict[str, str]) -> dict[str, Any]:
    """Return the figures of a broker that a person looks at; 4.9 has one name misspelt."""
    out = figures.get("getTransferredTps", figures.get("getTransferedTps", "0"))
    now = int(figures.get("msgPutTotalTodayNow", "0"))
    morning = int(figures.get("msgPutTotalTodayMorning", "0"))
    return {
        "in_per_second": _first(figures.get("putTps", "0")),
        "out_per_second": _first(out),
        "stored_today": max(now - morning, 0),
        "disk_ratio": _first(figures.get("commitLogDiskRatio", "0")),
    }


def _first(text: str) -> float:
    """Return the first of several numbers: the one of the last ten seconds."""
    words = text.split()
    return float(words[0]) if words else 0.0


def _table(found: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the names of the columns, and the rows; problems have a column if there are any."""
    rows = [_row(facts) for facts in found]
    if not any("problem" in facts for facts in found):
        return _COLUMNS, rows
    problems = [facts.get("problem") for facts in found]
    return (*_COLUMNS, "problem"), [
        (*row, problem) for row, problem in zip(rows, problems, strict=True)
    ]


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    known = (facts["cluster"], facts["broker"], facts["address"], facts["version"])
    if "problem" in facts:
        return (*known, None, None, None, None)
    return (
        *known,
        f"{facts['in_per_second']:.1f}",
        f"{facts['out_per_second']:.1f}",
        facts["stored_today"],
        f"{100 * facts['disk_ratio']:.0f} %",
    )
