"""The commands and their options; what they do is in the modules beside this one."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from downrange.cli import demo, doctor, messages, reading, sending, topics
from downrange.cli.lazy_pipelines import PANEL as _USE
from downrange.cli.lazy_pipelines import LazyPipelines
from downrange.cli.outcomes import EPILOG
from downrange.errors import OptionError, RocketMQError, WireError

app = typer.Typer(
    cls=LazyPipelines,
    help="RocketMQ for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
)
_RUN = "Run servers"
for command in (sending.send, reading.tail, reading.pull, doctor.doctor):
    app.command(epilog=EPILOG, rich_help_panel=_USE)(command)
app.add_typer(topics.app, name="topic", rich_help_panel=_USE)
app.add_typer(messages.app, name="message", rich_help_panel=_USE)
app.command(rich_help_panel=_RUN)(demo.demo)


class LogLevel(StrEnum):
    """What is worth a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class FlushChoice(StrEnum):
    """When a message is acknowledged."""

    SYNC = "sync"
    ASYNC = "async"


class TlsChoice(StrEnum):
    """What a server with a certificate speaks."""

    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed_version  # slow, and seldom needed

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
    from downrange.cli import decoding  # brings rich along, which no server needs

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


Host = Annotated[
    str | None,
    typer.Option(
        help="Address to listen on; 0.0.0.0 is every address of this machine.",
        show_default="127.0.0.1",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file with more settings; see docs/guides/serving.md."),
]
Flush = Annotated[
    FlushChoice | None,
    typer.Option(help="Acknowledge a message when it is durable, or before.", show_default="async"),
]
TlsCertificate = Annotated[
    Path | None, typer.Option(metavar="PEM", help="Certificate of the server; turns TLS on.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="PEM", help="Private key of the certificate.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="Authorities of clients; each must show a certificate then."),
]
TlsModeOption = Annotated[
    TlsChoice | None,
    typer.Option(
        help="With a certificate: both TLS and plain text, or TLS alone.", show_default="permissive"
    ),
]
Acl = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Accounts: plain_acl.yml or TOML; see docs/guides/access.md."
    ),
]
LogLevelOption = Annotated[LogLevel, typer.Option(help="What to log.")]


@app.command(rich_help_panel=_RUN)
def serve(
    store: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the store; created where it is missing.")
    ] = Path("downrange-store"),
    host: Host = None,
    nameserver_port: Annotated[
        int, typer.Option(help="Port of the name server; 0 picks a free one.")
    ] = 9876,
    broker_port: Annotated[
        int, typer.Option(help="Port of the first broker; 0 picks free ones.")
    ] = 10911,
    brokers: Annotated[int, typer.Option(help="How many brokers.")] = 1,
    flush: Flush = None,
    config: Config = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_mode: TlsModeOption = None,
    acl: Acl = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a whole cluster in the foreground: a name server and brokers with a durable store.

    When it serves, one line on standard output says so: ready nameserver=HOST:PORT
    broker=HOST:PORT store=DIR. Logs go to standard error. SIGTERM or SIGINT stops it, a second one
    at once. Exit code 1 means that it cannot serve, 2 a wrong option.
    """
    from downrange.cli import serving  # brings the servers along, which no client needs
    from downrange.cli.assembling import CommonFlags, make_cluster

    serving.log_to_stderr(log_level)
    flags = CommonFlags(
        host=host,
        config=config,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_mode=tls_mode,
        acl=acl,
    )
    with _telling_errors():
        server = make_cluster(
            flags,
            store=store,
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            brokers=brokers,
            flush=flush,
        )
        serving.run_cluster(server)


@app.command(rich_help_panel=_RUN)
def nameserver(
    host: Host = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 9876,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for key-value config; memory only if not given."),
    ] = None,
    config: Config = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_mode: TlsModeOption = None,
    acl: Acl = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a name server in the foreground.

    When it serves, one line on standard output says so: ready nameserver=HOST:PORT. Logs, signals
    and exit codes are those of `serve`.
    """
    from downrange.cli import serving  # brings the servers along, which no client needs
    from downrange.cli.assembling import CommonFlags, make_name_server

    serving.log_to_stderr(log_level)
    flags = CommonFlags(
        host=host,
        config=config,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_mode=tls_mode,
        acl=acl,
    )
    with _telling_errors():
        serving.run_name_server(make_name_server(flags, port, store))


@app.command(rich_help_panel=_RUN)
def broker(
    nameserver: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="Name server to register at; may be repeated."),
    ],
    store: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the store; created where it is missing.")
    ] = Path("downrange-store"),
    host: Host = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 10911,
    name: Annotated[
        str | None, typer.Option(help="The broker's name.", show_default="broker-a")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster's name.", show_default="DefaultCluster")
    ] = None,
    flush: Flush = None,
    config: Config = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_mode: TlsModeOption = None,
    acl: Acl = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run one broker in the foreground and register it at name servers, ours or Apache's.

    When it serves, one line on standard output says so: ready broker=HOST:PORT store=DIR. Logs,
    signals and exit codes are those of `serve`.
    """
    from downrange.cli import serving  # brings the servers along, which no client needs
    from downrange.cli.assembling import CommonFlags, make_broker

    serving.log_to_stderr(log_level)
    flags = CommonFlags(
        host=host,
        config=config,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_mode=tls_mode,
        acl=acl,
    )
    with _telling_errors():
        server = make_broker(
            flags,
            store=store,
            port=port,
            name=name,
            cluster=cluster,
            name_servers=nameserver,
            flush=flush,
        )
        serving.run_broker(server)


@contextmanager
def _telling_errors() -> Generator[None]:
    """Say on standard error what is wrong, and exit: 2 for a wrong option, 1 for the rest."""
    try:
        yield
    except OptionError as error:
        raise typer.BadParameter(str(error)) from error
    except RocketMQError as error:
        typer.echo(f"downrange: {error}", err=True)
        raise typer.Exit(1) from error
