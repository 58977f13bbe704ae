"""Who uses the console, and what this visitor may do.

With an access file, a visitor logs in with an access key and its secret. The console asks the
cluster with an account of its own, so it checks the permissions of the visitor's account itself, as
a broker would: an administrator may do everything; any other account may send where it has PUB, and
see messages where it has SUB. Names of an access file have the namespace, as brokers know them.
Those of pages have none, so it is added before a permission is looked up. With a password there is
one visitor, `operator`, who may do everything.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from downrange.client.flows.names import with_namespace
from downrange.server.access.file import AccessFile
from downrange.server.access.needs import PUB, SUB

if TYPE_CHECKING:
    from downrange.console.audit import AuditRecord
    from downrange.console.cluster.actions.action import Action
    from downrange.console.settings import ConsoleOptions
    from downrange.options.cluster import ConnectionOptions
    from downrange.server.access.rules import Account

OPERATOR: Final = "operator"
LOCAL: Final = "local"
#: Compared with what was given when the account does not exist, so that this takes the same time.
_NO_SECRET: Final = "\0" * 32


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who uses the console.

    Attributes:
        name: For the audit file: the access key, `operator`, or `local` without a login.
        may_act: Whether the console allows actions at all.
        account: The account of the access file; None without one: then there are no more limits.
        namespace: The namespace of the topics and groups that are shown.
    """

    name: str
    may_act: bool
    account: Account | None = None
    namespace: str | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the permissions of an account limit what is possible."""
        return self.account is not None and not self.account.is_admin

    @property
    def may_administer(self) -> bool:
        """Whether actions are possible that change topics, groups and offsets."""
        return self.may_act and not self.is_limited

    def named(self, name: str) -> str:
        """Return the name of a topic or group as servers and access files have it."""
        return with_namespace(name, self.namespace)

    def may_send(self, topic: str) -> bool:
        """Return whether messages can be sent to a topic."""
        return self.may_act and self._has(self.named(topic), PUB)

    def may_do(self, action: Action) -> bool:
        """Return whether an action is allowed."""
        if action.right == "publish":
            return self.may_send(action.target)
        return self.may_administer

    def may_read(self, topic: str) -> bool:
        """Return whether messages of a topic are shown."""
        return self._has(self.named(topic), SUB)

    def may_read_named(self, topic: str) -> bool:
        """Return whether messages of a topic are shown; its name is the one that servers have."""
        return self._has(topic, SUB)

    def may_read_group(self, group: str) -> bool:
        """Return whether dead letters of a group are shown."""
        if self.account is None or self.account.is_admin:
            return True
        return self.account.group_permission(self.named(group)) & SUB != 0

    def may_see(self, record: AuditRecord) -> bool:
        """Return whether an action is shown: its command may contain the body of a message."""
        return not self.is_limited or record.visitor == self.name

    def _has(self, topic: str, permission: int) -> bool:
        if self.account is None or self.account.is_admin:
            return True
        return self.account.topic_permission(topic) & permission != 0


class Accounts:
    """Checks logins.

    Args:
        options: Password or access file.

    Raises:
        OptionError: The access file cannot be read.
    """

    def __init__(self, options: ConsoleOptions) -> None:
        self._options = options
        self._file = None if options.access_file is None else AccessFile(options.access_file)

    @property
    def has_names(self) -> bool:
        """Whether the login form asks for a name."""
        return self._file is not None

    def anonymous(self) -> Visitor | None:
        """Return the visitor without a login; None if a login is needed."""
        if self._options.needs_login:
            return None
        return self._visitor(LOCAL)

    def log_in(self, name: str, secret: str) -> Visitor | None:
        """Return the visitor if name and secret are right."""
        if self._file is None:
            right = self._options.password
            is_right = right is not None and _is_same(secret, right)
            return self._visitor(OPERATOR) if is_right else None
        self._file.poll()
        account = self._file.rules.account(name)
        expected = _NO_SECRET if account is None else account.secret_key
        if not _is_same(secret, expected) or account is None:
            return None
        return self._visitor(name, account)

    def current(self, visitor: Visitor) -> Visitor | None:
        """Return a visitor with the rights of this moment; None if the account is gone.

        A changed secret ends the session, too.
        """
        if self._file is None or visitor.account is None:
            return visitor
        self._file.poll()
        account = self._file.rules.account(visitor.account.access_key)
        if account is None or account.secret_key != visitor.account.secret_key:
            return None
        return replace(visitor, account=account)

    def connection(self) -> ConnectionOptions:
        """Return how to ask the cluster: with the given account, or an administrator's."""
        connection = self._options.connection
        admin = None if self._file is None else self._file.rules.first_admin()
        if connection.access_key is not None or admin is None:
            return connection
        return replace(connection, access_key=admin.access_key, secret_key=admin.secret_key)

    def _visitor(self, name: str, account: Account | None = None) -> Visitor:
        may_act = not self._options.refuses_actions
        return Visitor(name, may_act, account, self._options.namespace)


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
