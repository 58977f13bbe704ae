"""Flags that all server commands have; those of the logs are also the console's."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

import click

from downrange.cli.exit_codes import FAILED
from downrange.cli.parameters import PATH, shared_option, with_options_of
from downrange.cli.server_logs import LogFormat, set_up_logs
from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    P = ParamSpec("P")


LOG_LEVEL: Final = shared_option(
    "--log-level",
    multiple=True,
    metavar="[NAME=]LEVEL",
    show_default="info",
    help="Lowest level that is logged: debug, info, warning or error. With a name, that of "
    "one logger, such as access=debug; repeatable.",
)
LOG_FORMAT: Final = shared_option(
    "--log-format",
    type=click.Choice(("text", "json")),
    help="Lines for people, or a JSON object per line.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFlags:
    """The flags of all server commands; None means the value of the config file, or the default."""

    host: str | None = field(
        default=None,
        metadata=shared_option(
            "--host",
            show_default="127.0.0.1",
            help="Address to listen on; 0.0.0.0 means all addresses of this machine.",
        ),
    )
    config: Path | None = field(
        default=None,
        metadata=shared_option(
            "--config",
            type=PATH,
            metavar="FILE",
            help="TOML file with more settings; see docs/guides/serving.md.",
        ),
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata=shared_option(
            "--tls-certificate",
            type=PATH,
            metavar="PEM",
            help="Certificate of the server; enables TLS.",
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=shared_option(
            "--tls-key", type=PATH, metavar="PEM", help="Private key of the certificate."
        ),
    )
    tls_ca: Path | None = field(
        default=None,
        metadata=shared_option(
            "--tls-ca",
            type=PATH,
            metavar="PEM",
            help="Authorities of client certificates; every client must have one.",
        ),
    )
    tls_mode: str | None = field(
        default=None,
        metadata=shared_option(
            "--tls-mode",
            type=click.Choice(("permissive", "enforcing")),
            show_default="permissive",
            help="With a certificate: accept both TLS and plain text, or TLS only.",
        ),
    )
    acl: Path | None = field(
        default=None,
        metadata=shared_option(
            "--acl",
            type=PATH,
            metavar="FILE",
            help="Accounts: plain_acl.yml or TOML; see docs/guides/access.md.",
        ),
    )
    metrics: str | None = field(
        default=None,
        metadata=shared_option(
            "--metrics",
            metavar="HOST:PORT",
            help="Show /metrics for Prometheus, /health and /ready here; port 0 picks a free one.",
        ),
    )
    log_level: tuple[str, ...] = field(default=(), metadata=LOG_LEVEL)
    log_format: LogFormat = field(default="text", metadata=LOG_FORMAT)


def with_common_flags(
    command: Callable[Concatenate[CommonFlags, P], None],
) -> Callable[..., None]:
    """Add the common flags to a server command, set up logging, and turn errors into exit codes.

    Logs go to standard error; standard output gets only the `ready` line.
    """
    collected = with_options_of(CommonFlags)(command)

    @functools.wraps(collected)
    def run(**given: Any) -> None:
        try:
            set_up_logs(given["log_level"], given["log_format"])
            collected(**given)
        except OptionError as error:
            raise click.BadParameter(str(error)) from error
        except RocketMQError as error:
            click.echo(f"downrange: {error}", err=True)
            raise click.exceptions.Exit(FAILED) from error

    return run
