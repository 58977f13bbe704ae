"""Access control: checks the signature of a request and the permissions of its account.

The rules are an immutable snapshot of accounts, permissions and trusted addresses; a changed file
makes new rules. `check` has Apache's order: trusted address, access key, trusted address of that
account, signature, permissions. An administrator has all permissions. The reply to a denied request
has the code NO_PERMISSION as in 5.x (4.9: SYSTEM_ERROR) and names the account, the missing
permission and the resource, never a secret or a signature.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from downrange.errors import MalformedBody, OptionError, Unencodable
from downrange.server.access.addresses import AddressSet, host_of
from downrange.server.access.needs import (
    ADMIN,
    DENY,
    NEEDS,
    PUB,
    SUB,
    Need,
    ResourceKind,
    Role,
    popped_topic,
)
from downrange.server.outputs import refusal
from downrange.wire import system_names
from downrange.wire.codes import ResponseCode
from downrange.wire.signatures import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command

_PERMISSIONS: Final = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}
_KEY_CHARACTERS_MIN: Final = 7
#: An unknown access key is cut to this length in texts.
_UNKNOWN_KEY_CHARACTERS_MAX: Final = 64
#: Connections whose trust is cached; more than a listener has at once.
_CACHED_MAX: Final = 16_384

#: Topics that hold messages of all topics: default permissions do not apply to them.
_SHARED_TOPICS: Final = system_names.HOLDING_TOPICS | {system_names.CHECKED_OUT_TOPIC}


def parse_permission(text: str) -> int:
    """Read `DENY`, `PUB`, `SUB` or `PUB|SUB`.

    Raises:
        OptionError: It is something else.
    """
    try:
        return _PERMISSIONS[text.strip()]
    except KeyError:
        raise OptionError(f"{text!r} is not a permission: give DENY, PUB, SUB or PUB|SUB") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account.

    Attributes:
        access_key: Its name, at least 7 characters, as in Apache.
        secret_key: Signs its requests, at least 7 characters.
        is_admin: Whether it may do everything.
        default_topic: Permission for topics that are not in `topics`.
        default_group: Permission for groups that are not in `groups`.
        topics: Permission by topic.
        groups: Permission by consumer group.
        trusted: Requests with this access key from these addresses may do everything, unsigned.
    """

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    topics: Mapping[str, int] = field(default_factory=dict[str, int])
    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    trusted: AddressSet = field(default_factory=AddressSet)

    def __post_init__(self) -> None:
        """Check the length of the keys.

        Raises:
            OptionError: Names the account.
        """
        for what, key in (("access key", self.access_key), ("secret key", self.secret_key)):
            if len(key) < _KEY_CHARACTERS_MIN:
                raise OptionError(
                    f"account {self.access_key!r}: the {what} has {len(key)} characters, "
                    f"less than {_KEY_CHARACTERS_MIN}"
                )

    def topic_permission(self, topic: str) -> int:
        """Return the account's permission for a topic.

        Retry and dead-letter topics need the permission for their group. Every account may write
        traces, as in Apache.
        """
        granted = self.topics.get(topic)
        if topic == system_names.TRACE_TOPIC:
            return PUB | (self.default_topic if granted is None else granted)
        if granted is not None:
            return granted
        if topic.startswith(system_names.GROUP_TOPIC_PREFIXES):
            return PUB | SUB if self.group_permission(_group_of(topic)) & SUB else DENY
        if topic in _SHARED_TOPICS or topic.startswith(system_names.SYSTEM_TOPIC_PREFIX):
            return DENY
        return self.default_topic

    def group_permission(self, group: str) -> int:
        """Return the account's permission for a consumer group."""
        return self.groups.get(group, self.default_group)


def _group_of(topic: str) -> str:
    """Return the group of `%RETRY%group`, `%DLQ%group`, or pop's `%RETRY%group+topic`."""
    return topic.split("%", 2)[2].partition("+")[0]


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason why a request is denied.

    Attributes:
        text: For the peer and the log: account, resource and the missing permission.
        access_key: The access key in the request.
    """

    text: str
    access_key: str | None = None

    def reply(self) -> Command:
        """Return the reply to the peer."""
        return refusal(ResponseCode.NO_PERMISSION, self.text)


class AccessRules:
    """All accounts with their permissions.

    Args:
        accounts: One per access key.
        trusted: Requests from these addresses may do everything, unsigned.
        is_name_server_open: Whether name servers allow routes and registrations without an
            account, as Apache's do. Otherwise routes need an account, and registrations an
            administrator's.

    Raises:
        OptionError: Two accounts have the same access key.
    """

    def __init__(
        self,
        accounts: Iterable[Account] = (),
        *,
        trusted: AddressSet | None = None,
        is_name_server_open: bool = True,
    ) -> None:
        self._accounts: dict[str, Account] = {}
        for account in accounts:
            if account.access_key in self._accounts:
                raise OptionError(f"account {account.access_key!r} is given twice")
            self._accounts[account.access_key] = account
        self._trusted = trusted or AddressSet()
        self._is_name_server_open = is_name_server_open
        # An address is parsed once per connection, not once per message.
        self._trusts = lru_cache(_CACHED_MAX)(self._find_trust)

    @property
    def account_count(self) -> int:
        """The number of accounts."""
        return len(self._accounts)

    def account(self, access_key: str) -> Account | None:
        """Return an account; None if there is none of this name."""
        return self._accounts.get(access_key)

    def first_admin(self) -> Account | None:
        """Return the first administrator; None if there is none."""
        return next((each for each in self._accounts.values() if each.is_admin), None)

    def check(self, request: Command, peer: Peer) -> Denial | None:
        """Return why a request is denied, or None if it is allowed."""
        need = NEEDS.get(request.code, ADMIN)
        if need.is_of_names and self._is_name_server_open:
            return None
        access_key = request.fields.get(ACCESS_KEY)
        account = self._accounts.get(access_key) if access_key else None
        if self._trusts(peer.address, account and account.access_key):
            return None
        if not access_key:
            return Denial(f"request {request.code} from {peer.address} is not signed")
        if account is None:
            unknown = access_key[:_UNKNOWN_KEY_CHARACTERS_MAX]
            return Denial(f"there is no account {unknown!r}", unknown)
        if not _is_signed(request, account.secret_key):
            return Denial(f"the signature for account {access_key!r} is wrong", access_key)
        if account.is_admin:
            return None
        return _find_missing(account, need, request)

    def _find_trust(self, address: str, access_key: str | None) -> bool:
        host = host_of(address)
        if host in self._trusted:
            return True
        return access_key is not None and host in self._accounts[access_key].trusted


def _is_signed(request: Command, secret_key: str) -> bool:
    given = request.fields.get(SIGNATURE, "").encode(errors="replace")
    try:
        if _is_same(given, signature(request.fields, request.body, secret_key)):
            return True
        # Clients of 5.x sign this field, clients of 4.9 do not.
        return UNIQUE_KEY_QUERY in request.fields and _is_same(
            given, signature(request.fields, request.body, secret_key, with_unique_key_query=True)
        )
    except Unencodable:
        return False


def _is_same(given: bytes, expected: str) -> bool:
    return hmac.compare_digest(given, expected.encode())  # takes the same time for every input


def _find_missing(account: Account, need: Need, request: Command) -> Denial | None:
    """Return the first permission that an account lacks for a request."""
    key = account.access_key
    if need.role is Role.ADMIN:
        return Denial(f"account {key!r} has no admin permission for request {request.code}", key)
    for kind, name_field, permission, is_optional, group_field in need.fields:
        name = request.fields.get(name_field)
        if name:
            if group_field is not None:
                name = popped_topic(name, request.fields.get(group_field, ""))
            if not _is_granted(account, kind, name, permission):
                return _missing(key, kind, name, permission)
        elif not is_optional:
            text = f"request {request.code} of account {key!r} names no {kind} ('{name_field}')"
            return Denial(text, key)
    if need.read_body is not None:
        try:
            for kind, name, permission in need.read_body(request.body):
                if not _is_granted(account, kind, name, permission):
                    return _missing(key, kind, name, permission)
        except MalformedBody as error:
            return Denial(f"request {request.code} of account {key!r}: {error}", key)
    return None


def _is_granted(account: Account, kind: ResourceKind, name: str, permission: int) -> bool:
    if kind == "topic":
        return account.topic_permission(name) & permission != 0
    return account.group_permission(name) & permission != 0


def _missing(access_key: str, kind: ResourceKind, name: str, permission: int) -> Denial:
    needed = "PUB" if permission == PUB else "SUB"
    return Denial(
        f"account {access_key!r} has no {needed} permission for {kind} {name!r}", access_key
    )
