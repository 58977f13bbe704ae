"""The topics of a broker: settings, automatic creation, the file that keeps them.

One rule: every change goes through `put` or `delete`, which count it in `version`, so that the
table is saved and announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from downrange.wire.bodies import DataVersion, TopicConfig, TopicTableBody, decode_body
from downrange.wire.system_names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    HALF_DONE_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    revive_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.options import BrokerOptions

PATH: Final = "config/topics.json"

INHERIT: Final = 1
WRITE: Final = 2
READ: Final = 4
READ_WRITE: Final = READ | WRITE

_REVIVE_QUEUES: Final = 8

_encode: Final = msgspec.json.Encoder().encode


class TopicTable:
    """All topics of a broker.

    Attributes:
        version: The number of changes since the start.
        data_version: Shows name servers that the table changed.
    """

    def __init__(self) -> None:
        self._topics: dict[str, TopicConfig] = {}
        #: Returns a topic's settings, or None if it does not exist.
        self.get: Callable[[str], TopicConfig | None] = self._topics.get
        self._changed: dict[str, None] = {}
        self._minute = 0
        self._created_in_minute = 0
        self.version = 0
        self.data_version = DataVersion(timestamp=0, counter=0, state_version=0)

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._topics)

    def __iter__(self) -> Iterator[TopicConfig]:
        """Iterate over all topics."""
        return iter(self._topics.values())

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Create or change a topic."""
        self._topics[config.topic_name] = config
        self._note(now_ms, config.topic_name)

    def delete(self, topic: str, now_ms: int) -> bool:
        """Remove a topic; return whether it existed."""
        if self._topics.pop(topic, None) is None:
            return False
        self._note(now_ms, topic)
        return True

    def ensure(self, topic: str, queues: int, perm: int, now_ms: int) -> TopicConfig:
        """Return a topic's settings; create the topic if it is missing."""
        config = self._topics.get(topic)
        if config is None:
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                attributes={},
            )
            self.put(config, now_ms)
        return config

    def create_like(
        self, topic: str, default_topic: str, queues: int, options: BrokerOptions, now_ms: int
    ) -> TopicConfig | None:
        """Create a topic for a send, with the settings of the default topic in the request.

        Returns:
            The new topic. None if the default topic cannot be inherited from, if there are too many
            topics, or if too many were created in this minute.
        """
        model = self._topics.get(default_topic)
        if model is None or not model.perm & INHERIT:
            return None
        if model.topic_name == DEFAULT_TOPIC and not options.is_topic_created:
            return None
        if not self.has_room(options, now_ms):
            return None
        queues = max(min(queues, model.write_queue_nums), 0)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=model.perm & ~INHERIT,
            topic_filter_type=model.topic_filter_type,
            attributes={},
        )
        self.put(config, now_ms)
        return config

    def has_room(self, options: BrokerOptions, now_ms: int) -> bool:
        """Whether one more topic may be created for a client; each call counts as a creation."""
        if len(self._topics) >= options.topics_max:
            return False
        minute = now_ms // 60_000
        if minute != self._minute:
            self._minute, self._created_in_minute = minute, 0
        self._created_in_minute += 1
        return self._created_in_minute <= options.topics_created_per_minute_max

    def changed(self) -> list[TopicConfig]:
        """Return the topics that were created or changed since the last call."""
        names, self._changed = self._changed, {}
        return [config for name in names if (config := self._topics.get(name)) is not None]

    def change_again(self, topics: list[TopicConfig]) -> None:
        """Mark topics that `changed` returned as changed again: they could not be announced."""
        self._changed = {**dict.fromkeys([topic.topic_name for topic in topics]), **self._changed}

    def change_all(self, now_ms: int) -> None:
        """Mark all topics as changed: the broker's permission, which they are announced with."""
        self._note(now_ms, *self._topics)

    def table(self, permission: int = READ_WRITE) -> TopicTableBody:
        """Return the whole table in the form of a registration.

        Args:
            permission: The broker's; see `with_permission`.
        """
        topics = self._topics
        if permission != READ_WRITE:
            limited = with_permission(list(topics.values()), permission)
            topics = {topic.topic_name: topic for topic in limited}
        return TopicTableBody(
            topic_config_table=topics,
            data_version=self.data_version,
            mapping_data_version=DataVersion(state_version=0),
            topic_queue_mapping_detail_map={},
            topic_queue_mapping_info_map={},
        )

    def dump(self) -> bytes:
        """Encode topics.json."""
        body = {"dataVersion": self.data_version, "topicConfigTable": self._topics}
        return _encode(body)

    def load(self, data: bytes) -> None:
        """Decode topics.json, written by this broker or by Java.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        body = decode_body(TopicTableBody, data)
        for config in body.topic_config_table.values():
            if config.attributes is None:  # written by 4.9; 5.x fails on a null
                config.attributes = {}
        self._topics.update(body.topic_config_table)
        self.data_version = body.data_version
        if self.data_version.state_version is None:
            self.data_version.state_version = 0

    def _note(self, now_ms: int, *topics: str) -> None:
        self.version += 1
        self._changed.update(dict.fromkeys(topics))
        self.data_version = DataVersion(
            timestamp=now_ms, counter=self.data_version.counter + 1, state_version=0
        )


def with_permission(topics: list[TopicConfig], permission: int) -> list[TopicConfig]:
    """Return topics with at most the permission of a broker (Java: registerBrokerAll).

    A broker that allows sends and pulls announces topics as they are, including the right to
    inherit from them.
    """
    if permission == READ_WRITE:
        return topics
    return [msgspec.structs.replace(topic, perm=topic.perm & permission) for topic in topics]


def create_system_topics(topics: TopicTable, options: BrokerOptions, now_ms: int) -> bool:
    """Create the topics that every broker has (Java: the constructor of TopicConfigManager).

    Returns:
        Whether one was missing.
    """
    count = len(topics)
    required = [
        (SELF_TEST_TOPIC, 1, READ_WRITE),
        (BENCHMARK_TOPIC, 1024, READ_WRITE),
        (options.cluster, 16, READ_WRITE | INHERIT),
        (options.name, 1, READ_WRITE | INHERIT),
        (OFFSET_MOVED_TOPIC, 1, READ_WRITE),
        (SCHEDULE_TOPIC, len(options.delay_levels.split()), READ_WRITE),
        (f"{options.cluster}{REPLY_SUFFIX}", 1, READ_WRITE),
        (HALF_TOPIC, 1, READ_WRITE),
        (HALF_DONE_TOPIC, 1, READ_WRITE),
        (TIMER_TOPIC, 1, READ_WRITE),
        (revive_topic(options.cluster), _REVIVE_QUEUES, READ_WRITE),
    ]
    if options.is_topic_created:
        required.append((DEFAULT_TOPIC, options.default_topic_queues, READ_WRITE | INHERIT))
    if options.is_trace_topic_created:
        required.append((TRACE_TOPIC, 1, READ_WRITE))
    for topic, queues, perm in required:
        topics.ensure(topic, queues, perm, now_ms)
    return len(topics) > count
