"""The connection options of all client commands, and the client that they configure.

Each field of `Connection` defines an option; `with_connection` adds them to a command.
"""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

from downrange.cli.exit_codes import exit_on_error
from downrange.cli.parameters import PATH, shared_option, with_options_of
from downrange.errors import OptionError
from downrange.options.cluster import (
    DEFAULT_NAME_SERVER,
    VARIABLES,
    ConnectionOptions,
    check_account,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from downrange import Admin, Client

    P = ParamSpec("P")

_CONNECT_TIMEOUT_MAX: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options of all commands that connect to servers."""

    name_server: str = field(
        default=DEFAULT_NAME_SERVER,
        metadata=shared_option(
            "--name-server",
            "--nameserver",
            "-n",
            envvar=VARIABLES["name_server"],
            show_envvar=True,
            metavar="HOST:PORT",
            help="Name server; several are separated by ';'.",
        ),
    )
    access_key: str | None = field(
        default=None,
        metadata=shared_option(
            "--access-key",
            envvar=VARIABLES["access_key"],
            show_envvar=True,
            metavar="NAME",
            help="Access key of the account, if servers check access.",
        ),
    )
    secret_key: str | None = field(
        default=None,
        repr=False,
        metadata=shared_option(
            "--secret-key",
            envvar=VARIABLES["secret_key"],
            show_envvar=True,
            metavar="SECRET",
            help="Secret of the account; the variable is safer, as others can see options.",
        ),
    )
    tls: bool = field(default=False, metadata=shared_option("--tls", is_flag=True, help="Use TLS."))
    ca: Path | None = field(
        default=None,
        metadata=shared_option(
            "--ca",
            type=PATH,
            metavar="PEM",
            help="Certificate authorities to trust instead of the system's; enables TLS.",
        ),
    )
    certificate: Path | None = field(
        default=None,
        metadata=shared_option(
            "--certificate",
            type=PATH,
            metavar="PEM",
            help="Client certificate, if servers require one; enables TLS.",
        ),
    )
    certificate_key: Path | None = field(
        default=None,
        metadata=shared_option(
            "--certificate-key",
            type=PATH,
            metavar="PEM",
            help="Private key of the client certificate, if it is in another file.",
        ),
    )
    no_check_host: bool = field(
        default=False,
        metadata=shared_option(
            "--no-check-host", is_flag=True, help="Accept a certificate for another host name."
        ),
    )
    namespace: str | None = field(
        default=None,
        metadata=shared_option(
            "--namespace", metavar="NAME", help="Namespace of topics and groups."
        ),
    )
    timeout: float = field(
        default=5.0,
        metadata=shared_option("--timeout", metavar="SECONDS", help="Timeout of one request."),
    )

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: An option is invalid; names it.
        """
        check_account(
            has_access_key=self.access_key is not None,
            has_secret=self.secret_key is not None,
            names=("--access-key", "--secret-key"),
        )
        if self.timeout <= 0:
            raise OptionError(f"--timeout {self.timeout:g} is not above 0")

    @property
    def options(self) -> ConnectionOptions:
        """These options in the form that every part of the library takes."""
        return ConnectionOptions(
            name_server=self.name_server,
            access_key=self.access_key,
            secret_key=self.secret_key,
            tls=self.tls or self.no_check_host,
            ca=None if self.ca is None else str(self.ca),
            certificate=None if self.certificate is None else str(self.certificate),
            certificate_key=None if self.certificate_key is None else str(self.certificate_key),
            check_host=not self.no_check_host,
            namespace=self.namespace,
            call_timeout=self.timeout,
        )

    def client(self, *, connect_on_start: bool = True) -> Client:
        """Return a client that is not started yet.

        Args:
            connect_on_start: Whether its start fails when no name server can be reached.

        Raises:
            OptionError: An option is invalid.
        """
        from downrange import Client  # slow, and not needed for help

        settings = self.client_settings(connect_on_start=connect_on_start)
        return Client(settings.pop("servers"), options=settings.pop("client_options"), **settings)

    def client_settings(self, *, connect_on_start: bool = True) -> dict[str, Any]:
        """Return the arguments of a producer or consumer that has a client of its own.

        Args:
            connect_on_start: Whether its start fails when no name server can be reached.

        Raises:
            OptionError: An option is invalid.
        """
        from downrange.options import ClientOptions

        options = self.options
        base = ClientOptions(
            connect_on_start=connect_on_start,
            connect_timeout=min(self.timeout, _CONNECT_TIMEOUT_MAX),
        )
        return {
            "servers": options.name_server,
            "client_options": options.client_options(base),
            "credentials": options.credentials,
            "tls": options.tls_options,
        }

    @contextmanager
    def admin(self) -> Generator[Admin]:
        """Yield an `Admin` on a started client.

        Raises:
            RocketMQError: No name server can be reached.
        """
        from downrange import Admin

        with self.client() as client, Admin(client) as admin:
            yield admin


def with_connection(command: Callable[Concatenate[Connection, P], None]) -> Callable[..., None]:
    """Add the connection options to a command, and turn its errors into exit codes.

    The command takes a `Connection` as its first argument; its own options come first in the help.
    Warnings go to standard error, unless the command has options for its logs.
    """
    collected = with_options_of(Connection, "Connection")(command)

    @functools.wraps(collected)
    def run(**given: Any) -> None:
        if "log_format" not in given:
            logging.basicConfig(stream=sys.stderr, level="WARNING", format="downrange: %(message)s")
        with exit_on_error():
            collected(**given)

    return run
