"""The commands and their options; what they do is in the modules beside this one."""

import sys
from enum import StrEnum
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from downrange.cli import decoding, serving
from downrange.errors import OptionError, RocketMQError, WireError
from downrange.options import ListenerOptions, NameServerOptions

app = typer.Typer(help="RocketMQ for Python and Spark.", no_args_is_help=True, add_completion=False)


class LogLevel(StrEnum):
    """What is worth a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"downrange {installed_version('downrange')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """RocketMQ for Python and Spark."""


@app.command()
def decode(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[HEX]", help="Frames in hexadecimal; standard input if not given."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Read raw bytes from this file instead."),
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="The bytes are stored messages or a log segment.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what captured bytes say: remoting frames, or stored messages.

    Exit code 1 means that the bytes break the protocol; what came before the damage is shown.
    """
    if text is not None and file is not None:
        raise typer.BadParameter("give either HEX or --file, not both")
    try:
        data = file.read_bytes() if file else decoding.bytes_of_hex(text or sys.stdin.read())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    show = decoding.show_records if records else decoding.show_frames
    try:
        show(data, as_json=as_json)
    except WireError as error:
        typer.echo(f"downrange: {error}", err=True)
        raise typer.Exit(1) from error


@app.command()
def nameserver(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every address of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 9876,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for key-value config; memory only if not given."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.INFO,
) -> None:
    """Run a name server in the foreground.

    When it serves, one line on standard output says so: ready nameserver=HOST:PORT. Logs go to
    standard error. SIGTERM or SIGINT stops it, a second one at once. Exit code 1 means that it
    cannot serve, 2 a wrong option.
    """
    try:
        options = NameServerOptions(store=None if store is None else str(store))
        listening = ListenerOptions(host=host, port=port)
    except OptionError as error:
        raise typer.BadParameter(str(error)) from error
    serving.log_to_stderr(log_level)
    try:
        serving.serve_names(options, listening)
    except RocketMQError as error:
        typer.echo(f"downrange: {error}", err=True)
        raise typer.Exit(1) from error
