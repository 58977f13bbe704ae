"""The config file of `downrange serve`: TOML, one table per part of the server.

    [listener]                 # ListenerOptions: limits, TLS mode
    connections_max = 500

    [nameserver]               # NameServerOptions
    [broker]                   # BrokerOptions
    [store]                    # how the log is kept
    [retention]                # when it is deleted

    [metrics]                  # MetricsOptions
    address = "127.0.0.1:5557"

    [tls]                      # TlsSettings
    certificate = "server.pem"
    key = "server.key"

    [access]                   # AccessSettings
    file = "access.toml"

A table's keys are the fields of its dataclass, so a new option needs no change here. Paths are
relative to the working directory, as on the command line. An unknown name is refused, with the one
that was probably meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError
from downrange.options.toml import TomlTables, load_tables

if TYPE_CHECKING:
    from pathlib import Path

#: The tables that a file may hold.
TABLES: Final = (
    *("listener", "nameserver", "broker", "store", "retention", "metrics", "tls", "access"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files for TLS, all PEM.

    Attributes:
        certificate: The server's certificate, followed by its intermediate certificates.
        key: The certificate's private key.
        ca: Authorities of client certificates; if set, every client must have one.
        key_password: Password of the private key.
        nameserver_ca: Authorities of name servers; if set, a broker registers over TLS, and
            presents its certificate if the name server asks for one.
    """

    certificate: str
    key: str
    ca: str | None = None
    key_password: str | None = field(default=None, repr=False)
    nameserver_ca: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access control.

    Attributes:
        file: The accounts: Apache's `plain_acl.yml`, or TOML. Without a file there are no access
            checks.
        access_key: The account that brokers use for name servers with access control.
        secret_key: The secret of the account.
    """

    file: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that the account is complete.

        Raises:
            OptionError: Only one of the two keys is set.
        """
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("[access] access_key and secret_key need each other; set both")


def load_settings(path: str | Path) -> TomlTables:
    """Read a config file.

    Raises:
        OptionError: It cannot be read, is not TOML, or holds a table that is not known.
    """
    return load_tables(path, TABLES)


def no_settings() -> TomlTables:
    """Return the settings of a server that has no config file."""
    return TomlTables({}, "the command line", TABLES)
