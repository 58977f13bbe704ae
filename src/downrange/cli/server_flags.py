"""Flags that all server commands have."""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

import click

from downrange.cli.exit_codes import FAILED
from downrange.cli.parameters import PATH, collecting, shared
from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    P = ParamSpec("P")

_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFlags:
    """What all server commands take; what is None comes from the config file, or has a default."""

    host: str | None = field(
        default=None,
        metadata=shared(
            "--host",
            show_default="127.0.0.1",
            help="Address to listen on; 0.0.0.0 is every address of this machine.",
        ),
    )
    config: Path | None = field(
        default=None,
        metadata=shared(
            "--config",
            type=PATH,
            metavar="FILE",
            help="TOML file with more settings; see docs/guides/serving.md.",
        ),
    )
    tls_certificate: Path | None = field(
        default=None,
        metadata=shared(
            "--tls-certificate",
            type=PATH,
            metavar="PEM",
            help="Certificate of the server; turns TLS on.",
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=shared(
            "--tls-key", type=PATH, metavar="PEM", help="Private key of the certificate."
        ),
    )
    tls_ca: Path | None = field(
        default=None,
        metadata=shared(
            "--tls-ca",
            type=PATH,
            metavar="PEM",
            help="Authorities of clients; each must show a certificate then.",
        ),
    )
    tls_mode: str | None = field(
        default=None,
        metadata=shared(
            "--tls-mode",
            type=click.Choice(("permissive", "enforcing")),
            show_default="permissive",
            help="With a certificate: both TLS and plain text, or TLS alone.",
        ),
    )
    acl: Path | None = field(
        default=None,
        metadata=shared(
            "--acl",
            type=PATH,
            metavar="FILE",
            help="Accounts: plain_acl.yml or TOML; see docs/guides/access.md.",
        ),
    )
    log_level: str = field(
        default="info",
        metadata=shared("--log-level", type=click.Choice(_LEVELS), help="What to log."),
    )


def with_common_flags(
    command: Callable[Concatenate[CommonFlags, P], None],
) -> Callable[..., None]:
    """Give a server command the common flags, logs, and an end with an exit code.

    All logs go to standard error; standard output is for the one line that says ready.
    """
    collected = collecting(CommonFlags)(command)

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
