"""Access files: Apache's `plain_acl.yml` or our own TOML, reloaded when they change.

The suffix decides: `.yml` and `.yaml` are read as Apache 4.9 does, `.toml` has this form:

    trusted_addresses = ["10.0.0.*"]     # may do everything, unsigned
    nameserver_open = true               # routes and registrations need no account

    [accounts.order-service]             # the access key
    secret_key = "at least seven characters"
    admin = false
    default_topic = "DENY"               # DENY, PUB, SUB or PUB|SUB
    default_group = "DENY"
    topics = { orders = "PUB", bills = "PUB|SUB" }
    groups = { order-workers = "SUB" }
    trusted_addresses = []               # from here the access key is enough

Only the secret is required. The values shown are the defaults, except that lists and tables are
empty. An unknown name is an error: a typing error in this file would grant or deny too much. No
error text contains a value that may be a secret.
"""

from __future__ import annotations

import asyncio
import logging
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from downrange.errors import OptionError
from downrange.extras import require
from downrange.options.toml import missing_field, read_values
from downrange.server.access.addresses import AddressSet
from downrange.server.access.rules import AccessRules, Account, parse_permission

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from downrange.server.access.rules import Denial
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

_log: Final = logging.getLogger("downrange.server")

_StructT = TypeVar("_StructT", bound=msgspec.Struct)


def load_access(path: str | Path) -> AccessRules:
    """Read an access file.

    Raises:
        OptionError: The file cannot be read or is not valid; the text names the file, the place
            in it and the problem.
        MissingExtra: YAML needs the extra `server`.
    """
    return _read(Path(path))[0]


class AccessFile:
    """The rules of a file, reloaded when the file changes.

    Args:
        path: The file.
        interval: The shortest time between two checks for a change.
        clock: A monotonic clock in seconds.

    Raises:
        OptionError: The file cannot be read or is not valid.
        MissingExtra: YAML needs the extra `server`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path)
        self._interval = interval
        self._clock = clock
        self._checked_at = clock()
        self._rules, self._stamp = _read(self._path)

    @property
    def rules(self) -> AccessRules:
        """The rules in force."""
        return self._rules

    def check(self, request: Command, peer: Peer) -> Denial | None:
        """Return why a request is denied, or None if it is allowed."""
        return self._rules.check(request, peer)

    def poll(self) -> bool:
        """Reload the file if it changed; return whether new rules are in force.

        An invalid file is logged once, and the old rules stay. Does nothing if the last check was
        less than the interval ago.
        """
        now = self._clock()
        if now - self._checked_at < self._interval:
            return False
        self._checked_at = now
        try:
            stamp = _stamp_of(self._path.stat())
        except OSError as error:
            stamp = (error.strerror,)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        return self._reload()

    async def watch(self) -> None:
        """Poll for ever; files are read in another thread, so the event loop is not blocked."""
        while True:
            await asyncio.sleep(self._interval)
            await asyncio.to_thread(self.poll)

    def _reload(self) -> bool:
        try:
            self._rules, self._stamp = _read(self._path)
        except OptionError as error:
            _log.warning("%s; the previous rules stay in force", error)
            return False
        _log.info("%s was reloaded: %d accounts", self._path, self._rules.account_count)
        return True


def _stamp_of(status: os.stat_result) -> tuple[object, ...]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> tuple[AccessRules, tuple[object, ...]]:
    try:
        # The stamp is taken before the text, so a change in between is found by the next check.
        stamp = _stamp_of(path.stat())
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"access file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"access file {path} is not UTF-8 at byte {error.start}") from None
    try:
        match path.suffix.lower():
            case ".yml" | ".yaml":
                return _rules_of_yaml(text), stamp
            case ".toml":
                return _rules_of_toml(text), stamp
            case _:
                raise OptionError("the suffix is neither .toml nor .yml")
    except OptionError as error:
        raise OptionError(f"access file {path}: {error}") from error.__cause__


# ---- TOML ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _TomlAccount:
    secret_key: str = field(repr=False)
    admin: bool = False
    default_topic: str = "DENY"
    default_group: str = "DENY"
    topics: dict[str, str] = field(default_factory=dict[str, str])
    groups: dict[str, str] = field(default_factory=dict[str, str])
    trusted_addresses: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class _TomlFile:
    trusted_addresses: list[str] = field(default_factory=list[str])
    nameserver_open: bool = True
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


def _rules_of_toml(text: str) -> AccessRules:
    try:
        file = _TomlFile(**read_values(_TomlFile, tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(str(error)) from None
    return AccessRules(
        [_account_of_toml(key, value) for key, value in file.accounts.items()],
        trusted=_addresses(file.trusted_addresses, "trusted_addresses"),
        is_name_server_open=file.nameserver_open,
    )


def _account_of_toml(access_key: str, value: dict[str, Any]) -> Account:
    place = f"accounts.{access_key}"
    values = read_values(_TomlAccount, value, f"{place}: ")
    if (missing := missing_field(_TomlAccount, values)) is not None:
        raise OptionError(f"{place}: {missing} is missing")
    given = _TomlAccount(**values)
    return Account(
        access_key=access_key,
        secret_key=given.secret_key,
        is_admin=given.admin,
        default_topic=_permission(given.default_topic, f"{place}.default_topic"),
        default_group=_permission(given.default_group, f"{place}.default_group"),
        topics=_permissions(given.topics, f"{place}.topics"),
        groups=_permissions(given.groups, f"{place}.groups"),
        trusted=_addresses(given.trusted_addresses, f"{place}.trusted_addresses"),
    )


# ---- Apache's YAML -------------------------------------------------------------------------------

_YAML_TRUE: Final = {"true", "yes", "on"}
_YAML_FALSE: Final = {"false", "no", "off"}


class _YamlAccount(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    access_key: str
    secret_key: str
    white_remote_address: str = ""
    admin: str = "false"
    default_topic_perm: str = "DENY"
    default_group_perm: str = "DENY"
    topic_perms: list[str] = []
    group_perms: list[str] = []


class _YamlFile(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    global_white_remote_addresses: list[str] = []
    accounts: list[dict[str, Any]] = []
    data_version: Any = None  # Apache counts its own changes here


def _rules_of_yaml(text: str) -> AccessRules:
    (yaml,) = require("an access file in YAML", "server", "yaml")
    try:
        # The base loader returns only texts, lists and tables. So a secret such as 01234567 keeps
        # its leading zero.
        value = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        # Not str(error): it quotes the line, which may hold a secret.
        raise OptionError(_problem_of_yaml(error)) from None
    file = _convert(_without_blanks(value), _YamlFile, "")
    return AccessRules(
        [_account_of_yaml(number, value) for number, value in enumerate(file.accounts)],
        trusted=_addresses(file.global_white_remote_addresses, "globalWhiteRemoteAddresses"),
    )


def _problem_of_yaml(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{where}{getattr(error, 'problem', None) or 'it is not YAML'}"


def _account_of_yaml(number: int, value: dict[str, Any]) -> Account:
    place = f"accounts[{number}]"
    given = _convert(_without_blanks(value), _YamlAccount, place)
    place = f"{place} ({given.access_key})"
    return Account(
        access_key=given.access_key,
        secret_key=given.secret_key,
        is_admin=_boolean(given.admin, f"{place}.admin"),
        default_topic=_permission(given.default_topic_perm, f"{place}.defaultTopicPerm"),
        default_group=_permission(given.default_group_perm, f"{place}.defaultGroupPerm"),
        topics=_permission_list(given.topic_perms, f"{place}.topicPerms"),
        groups=_permission_list(given.group_perms, f"{place}.groupPerms"),
        trusted=_addresses([given.white_remote_address], f"{place}.whiteRemoteAddress"),
    )


def _without_blanks(value: Any) -> Any:
    """Remove keys without a value: they mean the default."""
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if item != ""}
    return value


def _permission_list(texts: list[str], place: str) -> dict[str, int]:
    """Read permissions of the form `orders=PUB|SUB`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, permission = (part.strip() for part in text.partition("="))
        if not equals:
            raise OptionError(f"{place}: {text!r} is not of the form name=permission")
        if name in found:
            raise OptionError(f"{place}: {name!r} is given twice")
        found[name] = permission
    return _permissions(found, place)


def _boolean(text: str, place: str) -> bool:
    if text.lower() in _YAML_TRUE | _YAML_FALSE:
        return text.lower() in _YAML_TRUE
    raise OptionError(f"{place}: {text!r} is neither true nor false")


# ---- common --------------------------------------------------------------------------------------


def _convert(value: Any, kind: type[_StructT], place: str) -> _StructT:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        # The text contains the type of a value, never the value.
        raise OptionError(f"{place}: {error}" if place else str(error)) from None


def _permission(text: str, place: str) -> int:
    try:
        return parse_permission(text)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None


def _permissions(texts: Mapping[str, str], place: str) -> dict[str, int]:
    return {name: _permission(text, f"{place}.{name}") for name, text in texts.items()}


def _addresses(texts: list[str], place: str) -> AddressSet:
    try:
        return AddressSet(texts)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from error.__cause__
