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

A table's keys are the fields of its dataclass, so a new option needs no word here. Paths are taken
from the working directory, as on the command line. A name that is not known is refused, with the
one that was probably meant.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import msgspec

from downrange.errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)

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


class Settings:
    """What a config file says.

    Args:
        tables: Keys and values by table.
        source: What the errors name: the file.

    Raises:
        OptionError: A table is not known, or is none.
    """

    def __init__(self, tables: dict[str, Any], source: str) -> None:
        for name, table in tables.items():
            if name not in TABLES:
                raise OptionError(f"{source}: [{name}] is not known{_hint(name, TABLES)}")
            if not isinstance(table, dict):
                raise OptionError(f"{source}: {name} is no table; write [{name}] above its keys")
        self._tables = tables
        self._source = source

    def has(self, name: str) -> bool:
        """Whether the file has this table."""
        return name in self._tables

    def says(self, name: str, key: str) -> bool:
        """Whether the file has this key in this table."""
        return key in self._tables.get(name, {})

    def section(self, cls: type[DataclassInstance], name: str) -> dict[str, Any]:
        """Return the checked values of a table, as keyword arguments of a dataclass.

        A table that is not there gives none.

        Raises:
            OptionError: A key is no field of the class, or a value not of the field's type.
        """
        kinds = get_type_hints(cls)
        names = [option.name for option in fields(cls) if option.init]
        return {
            key: self._converted(name, key, value, kinds.get(key), names)
            for key, value in self._tables.get(name, {}).items()
        }

    def make(self, cls: type[OptionsT], name: str, /, **given: Any) -> OptionsT:
        """Build the options of a table; what is `given` and not None is stronger than the file.

        Raises:
            OptionError: See `section`; or a field that has no default is missing, or the class
                itself refuses a value.
        """
        values = self.section(cls, name)
        values.update({key: value for key, value in given.items() if value is not None})
        for option in fields(cls):
            is_required = option.default is MISSING and option.default_factory is MISSING
            if option.init and is_required and option.name not in values:
                raise OptionError(f"{self._source}: [{name}] lacks {option.name!r}")
        return cls(**values)

    def _converted(self, table: str, key: str, value: Any, kind: Any, names: list[str]) -> Any:
        place = f"{self._source}: [{table}] {key}"
        if key not in names:
            raise OptionError(f"{place} is not known{_hint(key, names)}")
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise OptionError(f"{place}: {error}") from None


def load_settings(path: str | Path) -> Settings:
    """Read a config file.

    Raises:
        OptionError: It cannot be read, is no TOML, or holds a table that is not known.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"config file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or not even UTF-8
        raise OptionError(f"config file {path}: {error}") from error
    return Settings(tables, f"config file {path}")


def _hint(word: str, known: list[str] | tuple[str, ...]) -> str:
    likely = get_close_matches(word, known, 1)
    return f"; did you mean {likely[0]!r}?" if likely else f"; known are {', '.join(known)}"
