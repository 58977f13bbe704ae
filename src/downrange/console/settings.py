"""The options of the console, and the rules for what is allowed off loopback."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from downrange.client.client_base import addresses_of
from downrange.client.flows.names import namespace_in_use
from downrange.errors import OptionError
from downrange.options.cluster import ConnectionOptions

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT: Final = 9877
PASSWORD_CHARACTERS_MIN: Final = 8
_REFRESH_MIN: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Where the console listens, who may use it, and for what.

    Attributes:
        connection: How to reach the cluster. The console's own polls use its account.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        password: Whoever has it may log in.
        access_file: Its accounts may log in; then the cluster is asked as that account.
        has_login: Whether to ask for a login. None: if there is a password or an access file, and
            always off loopback.
        is_read_only: Whether all actions are refused. None: off loopback only.
        allowed_hosts: More names that the Host header may have, such as the one of a proxy.
        https_certificate: Certificate of the console, PEM; the pages are served over HTTPS.
        https_key: Its private key, if it is in another file.
        audit_file: Where actions are recorded, as JSON lines.
        refresh: Seconds between two polls of the cluster.
        trace_report: Address of the page that `downrange pipeline trace` writes, for a link.
    """

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    password: str | None = field(default=None, repr=False)
    access_file: Path | None = None
    has_login: bool | None = None
    is_read_only: bool | None = None
    allowed_hosts: tuple[str, ...] = ()
    https_certificate: Path | None = None
    https_key: Path | None = None
    audit_file: Path | None = None
    refresh: float = 2.0
    trace_report: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: Names the option and the next step.
        """
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port={self.port} is not in 0 to 65535")
        if not self.refresh >= _REFRESH_MIN:
            raise OptionError(f"refresh={self.refresh:g} is below {_REFRESH_MIN:g} seconds")
        if self.password is not None and len(self.password) < PASSWORD_CHARACTERS_MIN:
            raise OptionError(
                f"the password has {len(self.password)} characters, less than "
                f"{PASSWORD_CHARACTERS_MIN}"
            )
        if self.password is not None and self.access_file is not None:
            raise OptionError("give a password or an access file, not both")
        if self.https_key is not None and self.https_certificate is None:
            raise OptionError("https_key without https_certificate")
        if self.needs_login and self.password is None and self.access_file is None:
            raise OptionError(
                f"{self.host} is not a loopback address, so the console asks for a login: give "
                "--password-file or --acl, or --no-login if the network protects it"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def needs_login(self) -> bool:
        """Whether a visitor must log in."""
        if self.has_login is not None:
            return self.has_login
        return not self.is_loopback or self.password is not None or self.access_file is not None

    @property
    def refuses_actions(self) -> bool:
        """Whether nothing can be changed."""
        return not self.is_loopback if self.is_read_only is None else self.is_read_only

    @property
    def namespace(self) -> str | None:
        """The namespace of the topics and groups that are shown, as the client has it."""
        connection = self.connection
        return namespace_in_use(connection.namespace, addresses_of(connection.name_server))

    @property
    def scheme(self) -> str:
        """The start of the address."""
        return "http" if self.https_certificate is None else "https"


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
