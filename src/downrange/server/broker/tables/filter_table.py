"""The SQL92 expressions of consumer groups, from their heartbeats, and the file that keeps them.

A push consumer sends its expression in heartbeats only, so the broker keeps it for its pulls, by
topic and group. An expression stays for a day after the group lost its last member or its
subscription to the topic (Java: ConsumerFilterManager).

The file has the place of each group in Apache's Bloom filter, which this broker does not use:
Apache drops a whole file without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import field

from downrange.errors import InvalidSql
from downrange.filters.grammar import EXPRESSION_MAX
from downrange.wire.bodies import Body, decode_body
from downrange.wire.hashes import murmur3_low

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange.filters.compiled import CompiledExpressions
    from downrange.wire.bodies import Subscription

PATH: Final = "config/consumerFilter.json"

_SQL: Final = "SQL92"
_TAG_KINDS: Final = (None, "", "TAG")
#: How long an expression is kept after its group is gone (Java: filterDataCleanTimeSpan).
_KEPT_MS: Final = 24 * 3600 * 1000
#: At the next start, all groups count as gone since so long.
_GONE_MS: Final = 30 * 1000
#: The limit of all expressions together, in characters; one more is not accepted.
_TEXT_MAX: Final = 16 * 1024 * 1024
#: Characters of new expressions that one heartbeat may bring, because reading them takes time. The
#: others are accepted with the next heartbeats.
_NEW_TEXT_MAX: Final = EXPRESSION_MAX
#: What an entry counts besides its characters.
_ENTRY: Final = 500
#: Apache's Bloom filter: bits, and bits per group.
_BITS: Final = 112
_BITS_PER_GROUP: Final = 3

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class BloomPlace(Body):
    """The bits of a group (Java: BloomFilterData)."""

    bit_num: int = _BITS
    bit_pos: list[int] | None = None


class GroupFilter(Body, kw_only=True):
    """The expression of a group for a topic (Java: ConsumerFilterData).

    Attributes:
        born_time: When it was registered.
        dead: Java writes it, too.
        dead_time: When its group was gone; 0 if it is not.
        client_version: The version of the subscription that it is from.
    """

    consumer_group: str
    topic: str
    expression: str
    expression_type: str = _SQL
    born_time: int = 0
    dead: bool = False
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomPlace | None = None

    @property
    def is_dead(self) -> bool:
        """Whether its group is gone, or reads the topic without an expression now."""
        return self.dead_time >= self.born_time


class TopicFilters(Body):
    """The expressions for a topic by group (Java: FilterDataMapByTopic)."""

    group_filter_data: dict[str, GroupFilter] = field(default_factory=dict)
    topic: str | None = None


class FilterFile(Body):
    """The contents of consumerFilter.json."""

    filter_data_by_topic: dict[str, TopicFilters] = field(default_factory=dict)


class FilterTable:
    """All expressions of groups.

    Args:
        expressions: Compiles them.

    Attributes:
        version: The number of changes since the start.
    """

    def __init__(self, expressions: CompiledExpressions) -> None:
        self.version = 0
        self._expressions = expressions
        self._by_group: dict[str, dict[str, GroupFilter]] = {}  # group -> topic
        self._text_size = 0

    def __len__(self) -> int:
        """Return the number of expressions."""
        return sum(map(len, self._by_group.values()))

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """Return the expression of a group for a topic, or None."""
        return self._by_group.get(group, {}).get(topic)

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> None:
        """Take over the expressions of a heartbeat; those that are missing there count as gone."""
        topics: set[str] = set()
        new_text = 0
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if subscription.expression_type in _TAG_KINDS or not subscription.sub_string:
                continue
            if self._is_known(group, subscription):
                self._renew(group, subscription)
            elif new_text + len(subscription.sub_string) <= _NEW_TEXT_MAX:
                new_text += len(subscription.sub_string)
                self._replace(group, subscription, now_ms)
        for topic, known in self._by_group.get(group, {}).items():
            if topic not in topics and not known.is_dead:
                known.dead_time = now_ms
                self.version += 1

    def _is_known(self, group: str, subscription: Subscription) -> bool:
        """Whether a group's expression is the same, or of a later version."""
        known = self.get(subscription.topic, group)
        if known is None:
            return False
        return subscription.sub_version <= known.client_version or (
            known.expression == subscription.sub_string
            and known.expression_type == subscription.expression_type
        )

    def _renew(self, group: str, subscription: Subscription) -> None:
        known = self._by_group[group][subscription.topic]
        version = subscription.sub_version
        if version > known.client_version or (version == known.client_version and known.is_dead):
            known.client_version, known.dead_time = version, 0
            self.version += 1

    def _replace(self, group: str, subscription: Subscription, now_ms: int) -> None:
        topic = subscription.topic
        known = self.get(topic, group)
        if known is not None:
            self._remove(known)
        if subscription.expression_type != _SQL:
            return
        try:
            self._expressions.get(subscription.sub_string)
            f"{topic}{subscription.sub_string}".encode()
        except (InvalidSql, UnicodeEncodeError):  # half a surrogate pair cannot be saved
            return  # a pull is refused: its filter does not exist
        self._put(
            GroupFilter(
                consumer_group=group,
                topic=topic,
                expression=subscription.sub_string,
                expression_type=subscription.expression_type,
                born_time=now_ms,
                client_version=subscription.sub_version,
                bloom_filter_data=BloomPlace(bit_pos=_bits_of(group, topic)),
            )
        )

    def unregister(self, group: str, now_ms: int) -> None:
        """Note that a group lost its last member."""
        for known in self._by_group.get(group, {}).values():
            if not known.is_dead:
                known.dead_time = now_ms
                self.version += 1

    def expire(self, now_ms: int) -> None:
        """Remove what was gone for a day."""
        for filters in list(self._by_group.values()):
            for known in list(filters.values()):
                if known.is_dead and now_ms - known.dead_time >= _KEPT_MS:
                    self._remove(known)

    # ---- the file ----

    def dump(self) -> bytes:
        """Encode consumerFilter.json."""
        topics: dict[str, TopicFilters] = {}
        for group, filters in self._by_group.items():
            for topic, known in filters.items():
                entry = topics.setdefault(topic, TopicFilters(topic=topic))
                known.dead = known.is_dead
                entry.group_filter_data[group] = known
        return _encode(FilterFile(filter_data_by_topic=topics))

    def load(self, data: bytes) -> None:
        """Decode consumerFilter.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        for filters in decode_body(FilterFile, data).filter_data_by_topic.values():
            for known in filters.group_filter_data.values():
                self._put(known)

    def prepare(self, now_ms: int) -> None:
        """After the file was loaded: all groups count as gone until their next heartbeat."""
        for filters in self._by_group.values():
            for known in filters.values():
                if known.dead_time == 0:
                    known.dead_time = max(now_ms - _GONE_MS, known.born_time)

    # ---- inside ----

    def _put(self, known: GroupFilter) -> None:
        size = len(known.expression) + _ENTRY
        if self._text_size + size > _TEXT_MAX:
            return
        self._text_size += size
        self._by_group.setdefault(known.consumer_group, {})[known.topic] = known
        self.version += 1

    def _remove(self, known: GroupFilter) -> None:
        filters = self._by_group[known.consumer_group]
        del filters[known.topic]
        if not filters:
            del self._by_group[known.consumer_group]
        self._text_size -= len(known.expression) + _ENTRY
        self.version += 1


def _bits_of(group: str, topic: str) -> list[int]:
    """Return the bits of a group and topic, by Java's arithmetic of 32 bits."""
    value = murmur3_low(f"{group}#{topic}".encode())
    first, second = value & 0xFFFFFFFF, value >> 32
    bits: list[int] = []
    for number in range(1, _BITS_PER_GROUP + 1):
        combined = (first + number * second) & 0xFFFFFFFF
        if combined & 0x80000000:  # negative: Java inverts it
            combined ^= 0xFFFFFFFF
        bits.append(combined % _BITS)
    return bits
