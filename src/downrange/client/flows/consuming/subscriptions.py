"""What a member of a group reads: topics and filters, and how heartbeats say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from downrange.checks import check_type, iterated, wrong_type
from downrange.client.flows.consuming.pull import EVERYTHING, Filter, by_sql, by_tags
from downrange.client.flows.names import with_namespace
from downrange.client.flows.validation import check_topic
from downrange.errors import OptionError
from downrange.filters.sql import Sql
from downrange.wire.bodies import ConsumerMember, Subscription
from downrange.wire.hashes import java_hash
from downrange.wire.system_names import RETRY_PREFIX

if TYPE_CHECKING:
    from downrange.wire.bodies import Subscription as SubscriptionBody

#: What to read: a topic, several, or each with tags such as "new || paid" or an `Sql`.
Subscribe: TypeAlias = "str | Iterable[str] | Mapping[str, str | Sql]"

_EXPECTED = "a topic, a list of topics, or a dict of topics to tags or Sql"


def filters_of(subscribe: Subscribe) -> dict[str, Filter]:
    """Return topic -> filter for the argument `subscribe` of a consumer.

    Raises:
        OptionError: It is not of one of the forms, or a name or expression is wrong.
    """
    if isinstance(subscribe, str):
        pairs: dict[Any, Any] = {subscribe: "*"}
    elif isinstance(subscribe, Mapping):
        pairs = dict(subscribe)
    else:
        pairs = dict.fromkeys(iterated("subscribe", subscribe, _EXPECTED), "*")
    for topic in pairs:
        check_type("each topic of subscribe", topic, str, "a str")
        check_topic(topic)
    return {topic: filter_of(expression) for topic, expression in pairs.items()}


def filter_of(expression: Any) -> Filter:
    """Return the filter for tags such as "new || paid", "*", or an `Sql`.

    Raises:
        OptionError: It is neither, or contains no tag.
    """
    if isinstance(expression, Sql):
        return by_sql(expression)
    if not isinstance(expression, str):
        raise wrong_type("each expression of subscribe", expression, "a str of tags or an Sql")
    return by_tags(expression)


class Entry(msgspec.Struct, frozen=True):
    """One subscribed topic.

    Attributes:
        message_filter: Which of its messages.
        version: When it was subscribed, in ms since 1970; a broker refuses pulls of another one.
    """

    message_filter: Filter
    version: int


class Subscriptions:
    """The topics that a member reads, with its retry topic.

    Args:
        group: The group, without the namespace.
        namespace: The namespace of the client, if it has one.
        retry_topic: Whether the group's retry topic belongs to it.
    """

    def __init__(self, group: str, namespace: str | None, *, retry_topic: bool) -> None:
        self._namespace = namespace
        self.retry_topic = RETRY_PREFIX + group if retry_topic else None
        self._entries: dict[str, Entry] = {}

    def replace(self, filters: Mapping[str, Filter], now_ms: int) -> None:
        """Read these topics and no others; entries that stay the same keep their version.

        Another filter gets a higher version, whatever the clock says: a broker would ignore it.
        """
        wanted = dict(filters)
        if self.retry_topic is not None:
            wanted[self.retry_topic] = EVERYTHING
        self._entries = {
            topic: _renewed(self._entries.get(topic), each, now_ms)
            for topic, each in wanted.items()
        }

    @property
    def topics(self) -> list[str]:
        """All topics, without the namespace, the retry topic last."""
        return list(self._entries)

    @property
    def filters(self) -> dict[str, Filter]:
        """The filters of the topics that the program named."""
        return {
            topic: entry.message_filter
            for topic, entry in self._entries.items()
            if topic != self.retry_topic
        }

    def get(self, topic: str) -> Entry | None:
        """Return the entry of a topic, if it is subscribed."""
        return self._entries.get(topic)

    def bodies(self) -> list[SubscriptionBody]:
        """Return the subscriptions as heartbeats carry them."""
        return [
            _body(with_namespace(topic, self._namespace), entry)
            for topic, entry in self._entries.items()
        ]


def _renewed(old: Entry | None, message_filter: Filter, now_ms: int) -> Entry:
    if old is None:
        return Entry(message_filter, now_ms)
    if old.message_filter == message_filter:
        return old
    return Entry(message_filter, max(now_ms, old.version + 1))


def _body(topic: str, entry: Entry) -> Subscription:
    message_filter = entry.message_filter
    tags = sorted(message_filter.tags)
    return Subscription(
        topic=topic,
        sub_string=message_filter.text,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=entry.version,
        expression_type=message_filter.kind,
    )


def member_entry(
    group: str,
    subscriptions: Subscriptions,
    *,
    model: str,
    start: str,
    unit_mode: bool,
    is_polled: bool = False,
) -> ConsumerMember:
    """Return the heartbeat's entry of a group, whose name has the namespace."""
    return ConsumerMember(
        group_name=group,
        consume_type="CONSUME_ACTIVELY" if is_polled else "CONSUME_PASSIVELY",
        message_model="BROADCASTING" if model == "broadcast" else "CLUSTERING",
        consume_from_where=start,
        subscription_data_set=subscriptions.bodies(),
        unit_mode=unit_mode,
    )


def check_not_empty(filters: Mapping[str, Filter]) -> None:
    """Refuse a consumer that subscribes to nothing.

    Raises:
        OptionError: There is no topic.
    """
    if not filters:
        raise OptionError("subscribe names no topic; give at least one")
