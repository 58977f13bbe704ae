"""`broker`: run one broker, or, with a command, look after running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from downrange.cli.command_groups import Group
from downrange.cli.confirmation import YES, confirm
from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.group_options import CLUSTER, JSON
from downrange.cli.parameters import PATH, argument
from downrange.cli.serve import broker as run_broker
from downrange.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

_BROKER: Final = argument("broker", help="Name of the broker.")
_BROKERS: Final = click.option(
    "--broker", metavar="NAME", help="Only this broker; all masters otherwise."
)


class _RunOrCommand(Group):
    """Runs a broker, unless the first argument is the name of a command."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of a command, or of the server."""
        is_completion = extra.get("resilient_parsing", False)
        if (args and not args[0].startswith("-")) or (is_completion and not args):
            return super().make_context(info_name, args, parent, **extra)
        return run_broker.make_context(info_name, args, parent, **extra)


@click.group(cls=_RunOrCommand)
def broker() -> None:
    """Run one broker in the foreground; or show, set and clean up running brokers."""


@broker.command(epilog=EPILOG)
@_BROKER
@JSON
@with_connection
def show(connection: Connection, broker: str, as_json: bool) -> None:
    """Show all figures that a broker keeps about itself."""
    from downrange.cli.output import print_facts, print_json

    with connection.admin() as admin:
        figures = admin.broker_figures(broker)[broker]
    if as_json:
        print_json(figures)
    else:
        print_facts(figures)


@broker.command(epilog=EPILOG)
@_BROKERS
@click.option("--name", "-k", "word", metavar="TEXT", help="Only settings with this text.")
@CLUSTER
@JSON
@with_connection
def settings(
    connection: Connection, broker: str | None, word: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show the settings of brokers, by the names of Apache's broker.conf."""
    from downrange.cli.output import print_json, print_table

    with connection.admin() as admin:
        found = admin.broker_settings(broker, cluster=cluster)
    chosen = {
        name: {
            key: value
            for key, value in sorted(values.items())
            if word is None or word.lower() in key.lower()
        }
        for name, values in found.items()
    }
    if as_json:
        print_json(chosen)
        return
    rows = [(name, *pair) for name, values in chosen.items() for pair in values.items()]
    print_table(("broker", "setting", "value"), rows)


@broker.command("set", epilog=EPILOG)
@argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True, help="Settings to change.")
@_BROKERS
@CLUSTER
@YES
@JSON
@with_connection
def set_(
    connection: Connection,
    changes: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Change settings of running brokers; a setting that a broker does not have is an error."""
    from downrange.cli.output import print_json, print_table

    pairs = dict(parse_change(text) for text in changes)
    with connection.admin() as admin:
        before = admin.broker_settings(broker, cluster=cluster)
        if not yes:
            question = f"Set {', '.join(changes)} on {', '.join(sorted(before))}?"
            confirm(question)
        after = admin.change_broker_settings(pairs, broker, cluster=cluster)
    rows = [
        (name, key, before[name].get(key), values[key])
        for name, values in after.items()
        for key in pairs
    ]
    if as_json:
        names = ("broker", "setting", "old", "new")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(("broker", "setting", "old", "new"), rows)


def parse_change(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE.

    Raises:
        OptionError: It is something else.
    """
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise OptionError(f"{text!r} is not NAME=VALUE")
    return name, value


@broker.command(epilog=EPILOG)
@argument(
    "what",
    type=click.Choice(("queues", "topics", "log")),
    help="queues: of expired messages. topics: queues without a topic. log: expired files.",
)
@_BROKERS
@CLUSTER
@YES
@JSON
@with_connection
def clean(
    connection: Connection,
    what: Any,
    broker: str | None,
    cluster: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete what has expired now, without waiting for the broker's own time."""
    from downrange.cli.output import print_facts, print_json

    with connection.admin() as admin:
        if not yes:
            place = broker or cluster or "all brokers"
            confirm(f"Clean up {what} on {place}?")
        done = admin.clean_up(what, broker, cluster=cluster)
    if as_json:
        print_json({"cleaned": what, "brokers": done})
    else:
        print_facts({f"{what} cleaned on": ", ".join(done)})


@broker.command(epilog=EPILOG)
@_BROKERS
@click.option("--output", "-o", type=PATH, metavar="FILE", help="File; standard output otherwise.")
@click.option("--json", "as_json", is_flag=True, help="In one line; it is JSON in any case.")
@with_connection
def dump(connection: Connection, broker: str | None, output: Path | None, as_json: bool) -> None:
    """Write the state of a cluster as JSON, for a bug report: without messages and secrets.

    It has settings, figures, topics with their queues, groups with members and lags, and what
    `doctor` finds. Names of topics and groups and addresses are in it: read it before you send it.
    """
    import json

    from downrange.cli.broker_dump import dump_of

    with connection.client() as client, connection.admin() as admin:
        state = dump_of(client, admin, broker)
    text = json.dumps(state, indent=None if as_json else 2, ensure_ascii=False)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--output {output} cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {len(text)} characters; read it before you send it", err=True)


@broker.command("wipe-writes", epilog=EPILOG)
@_BROKER
@YES
@JSON
@with_connection
def wipe_writes(connection: Connection, broker: str, yes: bool, as_json: bool) -> None:
    """Have producers stop to send to a broker, before it is taken away."""
    with connection.admin() as admin:
        if not yes:
            question = f"Announce {broker!r} as read-only at all name servers?"
            confirm(question)
        count = admin.wipe_write_permission(broker)
    _show_permission(broker, "read-only", count, as_json)


@broker.command("restore-writes", epilog=EPILOG)
@_BROKER
@JSON
@with_connection
def restore_writes(connection: Connection, broker: str, as_json: bool) -> None:
    """Have producers send to a broker again, after `wipe-writes`."""
    with connection.admin() as admin:
        count = admin.restore_write_permission(broker)
    _show_permission(broker, "writable", count, as_json)


def _show_permission(broker: str, state: str, count: int, as_json: bool) -> None:
    from downrange.cli.output import print_facts, print_json

    if as_json:
        print_json({"broker": broker, "state": state, "topics": count})
    else:
        print_facts({broker: f"{state}: {count} topics changed"})
