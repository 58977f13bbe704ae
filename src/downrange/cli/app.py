"""The `downrange` command: the list of all commands and their modules."""

from __future__ import annotations

from typing import Any, Final

import click

from downrange.cli.command_groups import LazyGroup
from downrange.cli.exit_codes import INTERRUPTED

#: Heading -> name -> "module:variable" of the command, and the first line of its help. A command
#: is imported only when it is used.
COMMANDS: Final = {
    "Commands": {
        "decode": (
            "downrange.cli.decode:decode",
            "Decode captured bytes: remoting frames, or stored messages.",
        ),
    },
    "Use a cluster": {
        "send": (
            "downrange.cli.send:send",
            "Send a message, or each line of a file or pipe.",
        ),
        "tail": (
            "downrange.cli.read:tail",
            "Print the messages of a topic as they arrive, until Ctrl-C.",
        ),
        "pull": (
            "downrange.cli.read:pull",
            "Print messages of one queue, starting at an offset, with one request.",
        ),
        "consume": (
            "downrange.cli.consume:consume",
            "Handle the messages of a consumer group, with a function or a program, until a "
            "signal.",
        ),
        "doctor": (
            "downrange.cli.doctor:doctor",
            "Check the way to name servers and brokers, then the brokers and consumer groups.",
        ),
        "topic": (
            "downrange.cli.topic:topic",
            "Create, change, list, show and delete topics.",
        ),
        "group": (
            "downrange.cli.group:group",
            "Consumer groups: settings, members, lag, resets of offsets.",
        ),
        "dlq": (
            "downrange.cli.dlq:dlq",
            "Dead letters: list, show, export and send them again.",
        ),
        "cluster": (
            "downrange.cli.cluster:cluster",
            "List clusters and brokers, with their figures.",
        ),
        "message": (
            "downrange.cli.message:message",
            "Find messages by id or key; send one again.",
        ),
        "pipeline": (
            "downrange.cli.pipeline:pipeline",
            "Ready-made Spark jobs: topics to files and back, topic to topic.",
        ),
    },
    "Run servers": {
        "demo": (
            "downrange.cli.demo:demo",
            "Run a demo: two brokers, every way to send, a broker crash, Spark, and a report.",
        ),
        "serve": (
            "downrange.cli.serve:serve",
            "Run a whole cluster in the foreground: a name server and brokers with a durable "
            "store.",
        ),
        "console": (
            "downrange.cli.console:console",
            "Run the console: look at a cluster in the browser, and operate it.",
        ),
        "nameserver": (
            "downrange.cli.serve:nameserver",
            "Run a name server in the foreground.",
        ),
        "broker": (
            "downrange.cli.broker:broker",
            "Run one broker in the foreground; or show, set and clean up running brokers.",
        ),
    },
}
#: Longer lines are hard to read, also on a wide terminal.
_WIDTH_MAX: Final = 120


class _Downrange(LazyGroup):
    """The group of all commands; Ctrl-C ends it without a message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


def _print_version(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        from downrange.native import VERSION, path_in_use

        click.echo(f"downrange {VERSION} ({path_in_use()})")
        ctx.exit()


@click.group(
    cls=_Downrange,
    panels=COMMANDS,
    context_settings={
        "show_default": True,
        "max_content_width": _WIDTH_MAX,
        "help_option_names": ["--help", "-h"],
    },
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def app() -> None:
    """RocketMQ for Python and Spark."""
