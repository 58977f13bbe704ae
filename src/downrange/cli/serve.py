"""`serve`, `nameserver` and `broker`: run servers in the foreground, until a signal ends them.

A server that is ready prints exactly one line, which begins with `ready`. The modules of the
servers are imported only after the options were parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from downrange.cli.parameters import PATH, command
from downrange.cli.server_flags import CommonFlags, with_common_flags

if TYPE_CHECKING:
    from pathlib import Path

    from downrange.server.run.metrics_server import MetricsServer

#: Also in `console.settings`, which needs an extra.
DEFAULT_CONSOLE_PORT: Final = 9877

_STORE: Final = click.option(
    "--store",
    type=PATH,
    metavar="DIR",
    default="downrange-store",
    help="Folder of the store; created if it does not exist.",
)
_FLUSH: Final = click.option(
    "--flush",
    type=click.Choice(("sync", "async")),
    show_default="async",
    help="Acknowledge a message after it was flushed to disk, or before.",
)
_VIP: Final = click.option(
    "--vip",
    is_flag=True,
    help="Listen on the broker's port less 2 too, for clients with vip_channel; off by default.",
)
_NO_SQL: Final = click.option(
    "--no-sql", is_flag=True, help="Refuse consumers with SQL92 filters; accepted by default."
)

_BROKER_EPILOG: Final = (
    "Running brokers, ours or Apache's: `downrange broker show`, `settings`, `set`, `clean`, "
    "`dump`, `wipe-writes` and `restore-writes`; each has a --help."
)


@command()
@_STORE
@click.option(
    "--nameserver-port", default=9876, help="Port of the name server; 0 picks a free one."
)
@click.option("--broker-port", default=10911, help="Port of the first broker; 0 picks free ones.")
@click.option("--brokers", default=1, help="Number of brokers.")
@_FLUSH
@_VIP
@_NO_SQL
@click.option(
    "--console",
    "has_console",
    is_flag=True,
    help="Run the console for browsers, too, in a process of its own, on 127.0.0.1.",
)
@click.option("--console-port", default=DEFAULT_CONSOLE_PORT, help="Its port; 0 picks a free one.")
@click.option(
    "--trace-report",
    metavar="URL",
    help="Address of a report of `downrange pipeline trace`, for a link in the console.",
)
@with_common_flags
def serve(
    flags: CommonFlags,
    store: Path,
    nameserver_port: int,
    broker_port: int,
    brokers: int,
    flush: str | None,
    vip: bool,
    no_sql: bool,
    has_console: bool,
    console_port: int,
    trace_report: str | None,
) -> None:
    """Run a whole cluster in the foreground: a name server and brokers with a durable store.

    When it is ready, it prints one line to standard output: ready nameserver=HOST:PORT
    broker=HOST:PORT store=DIR, with --metrics also metrics=HOST:PORT, with --console also
    console=http://HOST:PORT. Logs go to standard error. SIGTERM or SIGINT stops it; a second signal
    stops it at once. Exit code 1 means that it could not start, 2 a wrong option.
    """
    from downrange.cli.server_factory import make_cluster
    from downrange.server.run.runner import run_until_signal

    server = make_cluster(
        flags,
        store=store,
        nameserver_port=nameserver_port,
        broker_port=broker_port,
        brokers=brokers,
        flush=flush,
        vip=vip,
        no_sql=no_sql,
    )

    def facts() -> str:
        addresses = ",".join(broker.address for broker in server.brokers)
        return f"nameserver={server.name_server.address} broker={addresses} store={store}"

    if not has_console:
        run_until_signal(server, lambda: _print_ready(facts(), server.metrics))
        return
    from downrange.cli.console_process import ConsoleBesideServer, console_arguments

    arguments = console_arguments(flags, port=console_port, store=store, trace_report=trace_report)
    with ConsoleBesideServer(arguments) as beside:

        def start_console() -> None:
            beside.start(
                server.name_server.address,
                lambda address: _print_ready(facts(), server.metrics, f" console={address}"),
            )

        run_until_signal(server, start_console)
    beside.check()


@command()
@click.option("--port", default=9876, help="Port to listen on; 0 picks a free one.")
@click.option(
    "--store",
    type=PATH,
    metavar="DIR",
    help="Folder for key-value config; kept in memory if not given.",
)
@with_common_flags
def nameserver(flags: CommonFlags, port: int, store: Path | None) -> None:
    """Run a name server in the foreground.

    When it is ready, it prints one line to standard output: ready nameserver=HOST:PORT. Logs,
    signals and exit codes are those of `serve`.
    """
    from downrange.cli.server_factory import make_name_server
    from downrange.server.run.runner import run_until_signal

    server = make_name_server(flags, port, store)
    run_until_signal(server, lambda: _print_ready(f"nameserver={server.address}", server.metrics))


@command(epilog=_BROKER_EPILOG)
@click.option(
    "--nameserver",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="Name server to register at; repeatable.",
)
@_STORE
@click.option("--port", default=10911, help="Port to listen on; 0 picks a free one.")
@click.option("--name", show_default="broker-a", help="Name of the broker.")
@click.option("--cluster", show_default="DefaultCluster", help="Name of the cluster.")
@_FLUSH
@_VIP
@_NO_SQL
@with_common_flags
def broker(
    flags: CommonFlags,
    nameserver: tuple[str, ...],
    store: Path,
    port: int,
    name: str | None,
    cluster: str | None,
    flush: str | None,
    vip: bool,
    no_sql: bool,
) -> None:
    """Run one broker in the foreground and register it at name servers, ours or Apache's.

    When it is ready, it prints one line to standard output: ready broker=HOST:PORT store=DIR.
    Logs, signals and exit codes are those of `serve`.
    """
    from downrange.cli.server_factory import make_broker
    from downrange.server.run.runner import run_until_signal

    server = make_broker(
        flags,
        store=store,
        port=port,
        name=name,
        cluster=cluster,
        name_servers=list(nameserver),
        flush=flush,
        vip=vip,
        no_sql=no_sql,
    )
    facts = "broker={0.address} store={0.folder}"
    run_until_signal(server, lambda: _print_ready(facts.format(server), server.metrics))


def _print_ready(facts: str, metrics: MetricsServer | None, more: str = "") -> None:
    also = "" if metrics is None else f" metrics={metrics.address}"
    print(f"ready {facts}{also}{more}", flush=True)
