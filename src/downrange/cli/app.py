"""The commands and their options; what they do is in the modules beside this one."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from downrange.cli import decoding
from downrange.errors import WireError

app = typer.Typer(help="RocketMQ for Python and Spark.", no_args_is_help=True, add_completion=False)


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
