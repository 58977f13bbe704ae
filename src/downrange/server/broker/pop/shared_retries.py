"""Retry topics whose name belongs to several groups: which of their messages a group pops.

The name `%RETRY%<group>_<topic>` is ambiguous:

    group a on topic b_c, group a_b on topic c     both pop again from %RETRY%a_b_c
    group a_b_c                                    keeps its own retries there, and pulls them

Apache delivers all messages of such a topic to each of these groups. Here a group pops those that
a revival stored for it: they name it in ORIGIN_GROUP. The others are passed over. They stay in the
queue, where each group has its own offset, so no group waits for them, and none is lost. A pull of
group a_b_c gets all of them, as in Apache. `%RETRY%<group>+<topic>` is not ambiguous.

One rule: a message without ORIGIN_GROUP is delivered, unless group a_b_c is known and the message
was never popped: then it is a retry of that group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.message_filter import EVERYTHING, MessageFilter
from downrange.wire.pop_receipts import RETRY
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import pop_retry_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.server.broker.state import BrokerState

_ORIGIN_GROUP: Final = str(PropertyKey.ORIGIN_GROUP)
_FIRST_POP_TIME: Final = str(PropertyKey.FIRST_POP_TIME)


class OwnMessages:
    """A condition: the messages of a shared retry topic that a group pops.

    Args:
        group: The group.
        is_unpopped_foreign: Whether messages that were never popped belong to another group.

    Attributes:
        terms: As of an SQL92 expression.
    """

    __slots__ = ("_group", "_is_unpopped_foreign", "terms")

    def __init__(self, group: str, *, is_unpopped_foreign: bool) -> None:
        self._group = group
        self._is_unpopped_foreign = is_unpopped_foreign
        self.terms = 1

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is delivered."""
        origin = properties.get(_ORIGIN_GROUP)
        if origin is None:
            return not self._is_unpopped_foreign or _FIRST_POP_TIME in properties
        return origin == self._group


def retry_filter(state: BrokerState, topic: str, group: str, kind: str) -> MessageFilter:
    """Return which messages of a retry topic a group pops.

    Args:
        state: The broker.
        topic: The topic that is popped.
        group: The group.
        kind: Of the retry topic; see `Receipt.kind`.
    """
    if kind != RETRY:
        return EVERYTHING
    is_member_topic = state.groups.get(f"{group}_{topic}") is not None
    if not is_member_topic and not _is_popped_by_others(state, topic, group):
        return EVERYTHING
    return MessageFilter(None, OwnMessages(group, is_unpopped_foreign=is_member_topic))


def is_shared(state: BrokerState, topic: str, group: str) -> bool:
    """Whether a retry topic of a group may have messages of others, which a pop passes over."""
    if state.topics.get(pop_retry_topic(group, topic)) is None:
        return False
    return retry_filter(state, topic, group, RETRY) is not EVERYTHING


def _is_popped_by_others(state: BrokerState, topic: str, group: str) -> bool:
    """Whether the retry topic of another group and topic has the same name."""
    name = f"{group}_{topic}"
    at = name.find("_")
    while at >= 0:
        if (
            at != len(group)
            and state.groups.get(name[:at]) is not None
            and state.topics.get(name[at + 1 :]) is not None
        ):
            return True
        at = name.find("_", at + 1)
    return False
