"""Flags that all server commands have."""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

import click

from downrange.cli.exit_codes import FAILED
from downrange.cli.parameters import PATH, shared_option, with_options_of
from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    P = ParamSpec("P")

_LEVELS: Final = ("debug", "info", "warning", "error")


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
    log_level: str = field(
        default="info",
        metadata=shared_option(
            "--log-level", type=click.Choice(_LEVELS), help="Lowest level that is logged."
        ),
    )


def with_common_flags(
    command: Callable[Concatenate[CommonFlags, P], None],
) -> Callable[..., None]:
    """Add the common flags to a server command, set up logging, and turn errors into exit codes.

    Logs go to standard error; standard output gets only the `ready` line.
    """
    collected = with_options_of(CommonFlags)(command)

    @functools.wraps(collected)
    def run(**given: Any) -> None:
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(stream=sys.stderr, level=given["log_level"].upper(), format=form)
        try:
            collected(**given)
        except OptionError as error:
            raise click.BadParameter(str(error)) from error
        except RocketMQError as error:
            click.echo(f"downrange: {error}", err=True)
            raise click.exceptions.Exit(FAILED) from error

    return run
