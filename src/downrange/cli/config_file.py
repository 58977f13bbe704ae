"""The config file of `downrange serve`: TOML, one table per part of the server.

    [listener]                 # ListenerOptions: limits, TLS mode
    connections_max = 500

    [nameserver]               # NameServerOptions
    [broker]                   # BrokerOptions
    [store]                    # how the log is kept
    [retention]                # when it is deleted

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
TABLES: Final = ("listener", "nameserver", "broker", "store", "retention", "tls", "access")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files for TLS, all PEM.

    Attributes:
        certificate: The server's certificate, with those that lead to its authority behind it.
        key: The certificate's private key.
        ca: Authorities of clients; with them, every client must show a certificate.
        key_password: Opens the key.
        nameserver_ca: Authorities of name servers; with them, a broker registers over TLS, and
            shows its certificate when it is asked for one.
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
        file: The accounts: Apache's `plain_acl.yml`, or TOML. Without one everyone may do
            everything.
        access_key: The account that brokers register with at name servers that want one.
        secret_key: Its secret.
    """

    file: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse one half of an account.

        Raises:
            OptionError: Names the half that is there.
        """
        if (self.access_key is None) != (self.secret_key is None):
            raise OptionError("[access] access_key needs a secret_key, and the other way round")


def load_settings(path: str | Path) -> TomlTables:
    """Read a config file.

    Raises:
        OptionError: It cannot be read, is not TOML, or holds a table that is not known.
    """
    return load_tables(path, TABLES)


def no_settings() -> TomlTables:
    """Return the settings of a server that has no config file."""
    return TomlTables({}, "the command line", TABLES)
