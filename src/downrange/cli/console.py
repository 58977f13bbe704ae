"""`console`: the console for browsers, in a process of its own."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from downrange.cli.connection import Connection, with_connection
from downrange.cli.exit_codes import EPILOG
from downrange.cli.parameters import PATH, READABLE_FILE, argument, command
from downrange.cli.serve import DEFAULT_CONSOLE_PORT
from downrange.cli.server_flags import LOG_FORMAT, LOG_LEVEL
from downrange.cli.server_logs import set_up_logs
from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.cli.server_logs import LogFormat

_log: Final = logging.getLogger("downrange.console")
_PASSWORD_VARIABLE: Final = "DOWNRANGE_CONSOLE_PASSWORD"
_AUDIT_NAME: Final = "console-audit.jsonl"


@command(epilog=EPILOG)
@argument(
    "name_servers",
    metavar="NAME_SERVER",
    required=False,
    help="HOST:PORT of the name server; several are separated by ';'. As --name-server.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=DEFAULT_CONSOLE_PORT, help="Port; 0 picks a free one.")
@click.option(
    "--password-file",
    type=READABLE_FILE,
    metavar="FILE",
    help=f"Ask for the password in this file; or, without --acl, in {_PASSWORD_VARIABLE}.",
)
@click.option(
    "--acl",
    type=READABLE_FILE,
    metavar="FILE",
    help="Ask for an access key and secret of this access file, with its permissions.",
)
@click.option("--no-login", is_flag=True, help="Do not ask for a login off loopback either.")
@click.option("--read-only", is_flag=True, help="Refuse all actions; the default off loopback.")
@click.option("--allow-actions", is_flag=True, help="Allow actions off loopback, too.")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="A host name by which browsers reach the console, such as that of a proxy; repeatable.",
)
@click.option(
    "--https-certificate", type=READABLE_FILE, metavar="PEM", help="Serve HTTPS with this."
)
@click.option(
    "--https-key", type=READABLE_FILE, metavar="PEM", help="Its key, if it is in another file."
)
@click.option(
    "--audit",
    type=PATH,
    metavar="FILE",
    show_default=f"~/.local/state/downrange/{_AUDIT_NAME}",
    help="File for the record of all actions, as JSON lines.",
)
@click.option("--refresh", default=2.0, metavar="SECONDS", help="Time between two polls.")
@click.option(
    "--trace-report",
    metavar="URL",
    help="Address of a report of `downrange pipeline trace`, for a link.",
)
@click.option(*LOG_LEVEL["names"], **LOG_LEVEL["attributes"])
@click.option(*LOG_FORMAT["names"], default="text", **LOG_FORMAT["attributes"])
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when standard input ends.")
@with_connection
def console(
    connection: Connection,
    name_servers: str | None,
    host: str,
    port: int,
    password_file: Path | None,
    acl: Path | None,
    no_login: bool,
    read_only: bool,
    allow_actions: bool,
    allow_host: tuple[str, ...],
    https_certificate: Path | None,
    https_key: Path | None,
    audit: Path | None,
    refresh: float,
    trace_report: str | None,
    log_level: tuple[str, ...],
    log_format: LogFormat,
    until_eof: bool,
) -> None:
    """Run the console: look at a cluster in the browser, and operate it.

    When it is ready, it prints one line to standard output: ready console=http://HOST:PORT. It
    speaks only the admin protocol, so it works with Apache's clusters, too, and starts also while
    the cluster does not answer. Off loopback it asks for a login and is read-only, unless told
    otherwise. Logs go to standard error. See docs/guides/console.md.
    """
    from dataclasses import replace

    from downrange.extras import check

    set_up_logs(log_level, log_format)
    check("the console", "console")
    from downrange.console.server import run_console
    from downrange.console.settings import ConsoleOptions
    from downrange.tls import server_context

    if read_only and allow_actions:
        raise OptionError("give --read-only or --allow-actions, not both")
    reached = connection.options
    if name_servers is not None:
        reached = replace(reached, name_server=name_servers)
    options = ConsoleOptions(
        connection=reached,
        host=host,
        port=port,
        password=_password(password_file, has_accounts=acl is not None),
        access_file=acl,
        has_login=False if no_login else None,
        is_read_only=True if read_only else False if allow_actions else None,
        allowed_hosts=allow_host,
        https_certificate=https_certificate,
        https_key=https_key,
        audit_file=audit or _state_folder() / _AUDIT_NAME,
        refresh=refresh,
        trace_report=trace_report,
    )
    if not options.is_loopback and options.needs_login and https_certificate is None:
        _log.warning(
            "logins are not encrypted; give --https-certificate, or put a proxy with HTTPS in front"
        )
    if https_certificate is not None:
        # Wrong files end it here, before it listens.
        server_context(https_certificate, https_key or https_certificate)
    if until_eof:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    run_console(options, lambda address: print(f"ready console={address}", flush=True))


def _password(file: Path | None, *, has_accounts: bool) -> str | None:
    """Return the password of a file or the variable; spaces and line ends around it do not count.

    Args:
        file: The file.
        has_accounts: Whether visitors log in by an access file. Then the variable does not count:
            it may be set for another console.

    Raises:
        OptionError: The file cannot be read, or is empty.
    """
    if file is None:
        return None if has_accounts else os.environ.get(_PASSWORD_VARIABLE) or None
    try:
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--password-file {file} cannot be read: {error}") from error
    if not password:
        raise OptionError(f"--password-file {file} is empty")
    return password


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "downrange"


def _stop_at_end_of_input() -> None:
    """End this process when its parent has gone, however it went."""
    import signal

    # Not through sys.stdin: its lock, held by a thread that reads, aborts the exit of the process.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
