"""The consumer groups of a broker: settings, automatic creation, the file that keeps them.

One rule: every change goes through `put` or `delete`, which count it in `version`, so that the
table is saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from downrange.wire.bodies import DataVersion, GroupConfig, GroupTableBody, decode_body
from downrange.wire.system_names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, group_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.options import BrokerOptions

PATH: Final = "config/subscriptionGroup.json"

_RETRY_POLICY: Final = {"type": "CUSTOMIZED"}
_CONSUME_TIMEOUT_MINUTES: Final = 15
#: The bit of a forbidden right to read in the file (Java: PermName.INDEX_PERM_READ).
_READ_BIT: Final = 4
#: How many topics may be forbidden to groups in all.
FORBIDDEN_MAX: Final = 10_000

_encode: Final = msgspec.json.Encoder().encode


class GroupTable:
    """All consumer groups of a broker.

    Attributes:
        version: The number of changes since the start.
        data_version: Shows tools and slaves that the table changed.
        forbidden: Topics that a group must not read: group -> topic -> bits, of which 4 is read.
    """

    def __init__(self) -> None:
        self._groups: dict[str, GroupConfig] = {}
        #: Returns a group's settings, or None if it does not exist.
        self.get: Callable[[str], GroupConfig | None] = self._groups.get
        self.version = 0
        self.data_version = DataVersion(timestamp=0, counter=0, state_version=0)
        self.forbidden: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupConfig]:
        """Iterate over all groups."""
        return iter(self._groups.values())

    def get_or_create(self, group: str, options: BrokerOptions, now_ms: int) -> GroupConfig | None:
        """Return a group's settings; create the group if it is missing and that is allowed."""
        config = self._groups.get(group)
        if config is not None:
            return config
        if not (options.is_group_created or is_system_group(group)):
            return None
        if group_problem(group) is not None or len(self._groups) >= options.groups_max:
            return None
        config = GroupConfig(group_name=group)
        self.put(config, now_ms)
        return config

    def put(self, config: GroupConfig, now_ms: int) -> None:
        """Create or change a group; settings that 4.9 tools do not send get their 5.x default."""
        self._groups[config.group_name] = _complete(config)
        self._note(now_ms)

    def delete(self, group: str, now_ms: int) -> bool:
        """Remove a group and what is forbidden to it; return whether there was either."""
        forbidden = self.forbidden.pop(group, None)
        if self._groups.pop(group, None) is None and forbidden is None:
            return False
        self._note(now_ms)
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether a group must not read a topic."""
        topics = self.forbidden.get(group)
        return topics is not None and bool(topics.get(topic, 0) & _READ_BIT)

    def forbid(self, group: str, topic: str, *, is_forbidden: bool, now_ms: int) -> bool:
        """Forbid a group to read a topic, or allow it again.

        Returns:
            False if there are too many of them.
        """
        if self.is_forbidden(group, topic) == is_forbidden:
            return True
        if is_forbidden and sum(map(len, self.forbidden.values())) >= FORBIDDEN_MAX:
            return False
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = topics.get(topic, 0) ^ _READ_BIT
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self._note(now_ms)
        return True

    def create_system_groups(self, now_ms: int) -> None:
        """Create the groups that every broker has."""
        for group in SYSTEM_GROUPS:
            if group not in self._groups:
                self.put(GroupConfig(group_name=group), now_ms)

    def table(self) -> GroupTableBody:
        """Return the whole table in the form of requests by tools and slaves."""
        return GroupTableBody(
            subscription_group_table=self._groups,
            data_version=self.data_version,
            forbidden_table=self.forbidden,
        )

    def dump(self) -> bytes:
        """Encode subscriptionGroup.json."""
        body: dict[str, Any] = {
            "dataVersion": self.data_version,
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": self._groups,
        }
        return _encode(body)

    def load(self, data: bytes) -> None:
        """Decode subscriptionGroup.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        body = decode_body(GroupTableBody, data)
        for name, config in body.subscription_group_table.items():
            self._groups[name] = _complete(config)
        self.forbidden = body.forbidden_table or {}
        self.data_version = body.data_version
        if self.data_version.state_version is None:
            self.data_version.state_version = 0

    def _note(self, now_ms: int) -> None:
        self.version += 1
        self.data_version = DataVersion(
            timestamp=now_ms, counter=self.data_version.counter + 1, state_version=0
        )


def is_system_group(group: str) -> bool:
    """Whether a group is the broker's own, which exists without being created."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def _complete(config: GroupConfig) -> GroupConfig:
    if config.consume_message_orderly is None:
        config.consume_message_orderly = False
    if config.group_sys_flag is None:
        config.group_sys_flag = 0
    if config.consume_timeout_minute is None:
        config.consume_timeout_minute = _CONSUME_TIMEOUT_MINUTES
    if config.group_retry_policy is None:
        config.group_retry_policy = dict(_RETRY_POLICY)
    if config.attributes is None:
        config.attributes = {}
    return config
