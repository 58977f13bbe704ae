"""How commands reach a cluster: options that all of them have, and the client made of those.

The fields of `Connection` are the options, so a new one is written once; `with_connection` gives
them to a command.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec

import typer

from downrange.cli.outcomes import telling_errors
from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.client.admin import Admin
    from downrange.client.client import Client
    from downrange.options import Credentials

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
_PANEL: Final = "Connection"
_CONNECT_TIMEOUT_MAX: Final = 3.0
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What all commands that talk to servers take."""

    name_server: Annotated[
        str,
        typer.Option(
            "--name-server",
            "--nameserver",
            "-n",
            envvar="NAMESRV_ADDR",
            metavar="HOST:PORT",
            help="Name server; several are separated by ';'.",
            rich_help_panel=_PANEL,
        ),
    ] = DEFAULT_NAME_SERVER
    access_key: Annotated[
        str | None,
        typer.Option(
            envvar="DOWNRANGE_ACCESS_KEY",
            metavar="NAME",
            help="Account, where access is checked.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    secret_key: Annotated[
        str | None,
        typer.Option(
            envvar="DOWNRANGE_SECRET_KEY",
            metavar="SECRET",
            help="Its secret; the variable is safer, as others see options.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default=None, repr=False)
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS.", rich_help_panel=_PANEL)] = False
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Authorities to trust instead of the system's; turns TLS on.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Our own certificate, where servers want one; turns TLS on.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    certificate_key: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Its private key, unless it is in the same file.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    no_check_host: Annotated[
        bool,
        typer.Option(
            "--no-check-host",
            help="Take a certificate that names another host.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Put before topics and groups.", rich_help_panel=_PANEL),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long one request may take.", rich_help_panel=_PANEL
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            OptionError: Names the option.
        """
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("--access-key and --secret-key belong together; give both or neither")
        if self.timeout <= 0:
            raise OptionError(f"--timeout {self.timeout:g} leaves no time")

    @property
    def credentials(self) -> "Credentials | None":
        """The account, if one was given."""
        from downrange.options import Credentials

        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)

    def client(self, *, connect_on_start: bool = True) -> "Client":
        """Make a client, which is not started yet.

        Args:
            connect_on_start: Whether it fails at once when no name server can be reached.

        Raises:
            OptionError: An option makes no sense.
        """
        from downrange.client.client import Client  # slow, and not needed for help
        from downrange.options import TLS, ClientOptions

        wants_tls = self.tls or self.no_check_host or self.ca or self.certificate
        options = ClientOptions(
            connect_on_start=connect_on_start,
            connect_timeout=min(self.timeout, _CONNECT_TIMEOUT_MAX),
            call_timeout=self.timeout,
            namespace=self.namespace,
        )
        tls = TLS(
            ca=self.ca,
            certificate=self.certificate,
            key=self.certificate_key,
            check_host=not self.no_check_host,
        )
        return Client(
            self.name_server,
            options=options,
            credentials=self.credentials,
            tls=tls if wants_tls else None,
        )

    @contextmanager
    def admin(self) -> "Generator[Admin]":
        """Give what looks after topics and messages.

        Raises:
            RocketMQError: No name server can be reached.
        """
        from downrange.client.admin import Admin

        with self.client() as client, Admin(client) as admin:
            yield admin


def with_connection(command: Callable[Concatenate[Connection, P], None]) -> Callable[..., None]:
    """Give a command the options of a connection, and an end with an exit code.

    The command takes a `Connection` first; the options of its own come before the shared ones.
    """
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = inspect.signature(Connection).parameters.values()

    def run(**given: Any) -> None:
        logging.basicConfig(stream=sys.stderr, level="WARNING", format="downrange: %(message)s")
        with telling_errors():
            names = [each.name for each in fields(Connection)]
            connection = Connection(**{name: given.pop(name) for name in names})
            command(connection, **given)  # type: ignore[call-arg]

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__annotations__ = {}  # the signature has them
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return run
