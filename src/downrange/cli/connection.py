"""How commands reach a cluster: options that all of them have, and the client made of those.

The fields of `Connection` are the options, so a new one is written once; `with_connection` gives
them to a command.
"""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

from downrange.cli.exit_codes import telling_errors
from downrange.cli.parameters import PATH, collecting, shared
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from downrange.client.admin import Admin
    from downrange.client.client import Client
    from downrange.options import Credentials

    P = ParamSpec("P")

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
_CONNECT_TIMEOUT_MAX: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What all commands that talk to servers take."""

    name_server: str = field(
        default=DEFAULT_NAME_SERVER,
        metadata=shared(
            "--name-server",
            "--nameserver",
            "-n",
            envvar="NAMESRV_ADDR",
            show_envvar=True,
            metavar="HOST:PORT",
            help="Name server; several are separated by ';'.",
        ),
    )
    access_key: str | None = field(
        default=None,
        metadata=shared(
            "--access-key",
            envvar="DOWNRANGE_ACCESS_KEY",
            show_envvar=True,
            metavar="NAME",
            help="Account, where access is checked.",
        ),
    )
    secret_key: str | None = field(
        default=None,
        repr=False,
        metadata=shared(
            "--secret-key",
            envvar="DOWNRANGE_SECRET_KEY",
            show_envvar=True,
            metavar="SECRET",
            help="Its secret; the variable is safer, as others see options.",
        ),
    )
    tls: bool = field(default=False, metadata=shared("--tls", is_flag=True, help="Speak TLS."))
    ca: Path | None = field(
        default=None,
        metadata=shared(
            "--ca",
            type=PATH,
            metavar="PEM",
            help="Authorities to trust instead of the system's; turns TLS on.",
        ),
    )
    certificate: Path | None = field(
        default=None,
        metadata=shared(
            "--certificate",
            type=PATH,
            metavar="PEM",
            help="Our own certificate, where servers want one; turns TLS on.",
        ),
    )
    certificate_key: Path | None = field(
        default=None,
        metadata=shared(
            "--certificate-key",
            type=PATH,
            metavar="PEM",
            help="Its private key, unless it is in the same file.",
        ),
    )
    no_check_host: bool = field(
        default=False,
        metadata=shared(
            "--no-check-host", is_flag=True, help="Take a certificate that names another host."
        ),
    )
    namespace: str | None = field(
        default=None,
        metadata=shared("--namespace", metavar="NAME", help="Put before topics and groups."),
    )
    timeout: float = field(
        default=5.0,
        metadata=shared("--timeout", metavar="SECONDS", help="How long one request may take."),
    )

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
    def credentials(self) -> Credentials | None:
        """The account, if one was given."""
        from downrange.options import Credentials

        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key)

    def client(self, *, connect_on_start: bool = True) -> Client:
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
    def admin(self) -> Generator[Admin]:
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
    collected = collecting(Connection, "Connection")(command)

    @functools.wraps(collected)
    def run(**given: Any) -> None:
        logging.basicConfig(stream=sys.stderr, level="WARNING", format="downrange: %(message)s")
        with telling_errors():
            collected(**given)

    return run
