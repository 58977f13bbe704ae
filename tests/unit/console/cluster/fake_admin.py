"""An admin that answers from memory: a small cluster of one or more brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from downrange import (
    AllProgress,
    ClientOptions,
    ClusterFacts,
    GroupSummary,
    NameServerFacts,
    QueueId,
    QueueMessages,
    QueueState,
    ReceivedMessage,
    RouteNotFound,
    TopicName,
    TopicProgress,
    Traffic,
)
from downrange.client.flows.admin.clusters import BrokerFacts
from downrange.errors import ConnectFailed, NotFound
from downrange.wire.ids import OffsetId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    """Return a time by its Unix second."""
    return EPOCH + timedelta(seconds=second)


def message(
    offset: int,
    body: bytes = b"body",
    *,
    topic: str = "orders",
    queue: int = 0,
    broker: str = "a",
    second: float = 100.0,
    **properties: str,
) -> ReceivedMessage:
    """Return a stored message; `TAGS`, `KEYS` and others are properties."""
    return ReceivedMessage(
        message_id=properties.get("UNIQ_KEY", f"ID{queue}-{offset}"),
        queue=QueueId(topic, broker, queue),
        offset=offset,  # type: ignore[arg-type]
        body=body,
        properties=properties,
        offset_id=str(OffsetId("10.0.0.1", 10911, queue * 1000 + offset)),  # type: ignore[arg-type]
        log_offset=offset * 100,  # type: ignore[arg-type]
        flag=0,
        born_at_ms=int(second * 1000) - 5,
        born_host="10.0.0.9:1234",
        stored_at_ms=int(second * 1000),
    )


def compressed(body: bytes, offset: int = 0, **place: Any) -> ReceivedMessage:
    """Return a stored message whose body is, or claims to be, compressed by zlib."""
    return replace(message(offset, body, **place), compression="zlib")


class FakeAdmin:
    """Answers as `AsyncAdmin` does.

    Attributes:
        figures: Broker -> its figures, or the error that asking it raises.
        queues: Queue -> its messages by offset.
        topics: All topics.
        progress: How far groups are behind.
        calls: The names of methods that were called, with their first argument.
        is_gone: Whether no server answers.
        sent: What was sent again: (topic, message id).
        reading: Queues that are read at this moment.
        reading_max: The most queues that were read at a moment.
        client: Its client, which has options only.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, str] | Exception] = {"a": figures()}
        self.queues: dict[QueueId, list[ReceivedMessage]] = {}
        self.topics: list[TopicName] = []
        self.progress: list[TopicProgress] = []
        self.groups: list[GroupSummary] = []
        self.traffic: dict[str, Traffic] = {}
        self.calls: list[tuple[str, Any]] = []
        self.broken: dict[str, Exception] = {}
        self.is_gone = False
        self.reading = 0
        self.reading_max = 0
        self.client = SimpleNamespace(options=ClientOptions())

    def add(self, *messages: ReceivedMessage) -> None:
        """Store messages."""
        for each in messages:
            self.queues.setdefault(each.queue, []).append(each)
            if not any(topic.name == each.topic for topic in self.topics):
                self.topics.append(TopicName(each.topic))

    def _called(self, name: str, subject: Any = None) -> None:
        self.calls.append((name, subject))
        if self.is_gone:
            raise ConnectFailed("ns:9876", "connection refused")
        for key in (name, f"{name} {subject}"):
            if key in self.broken:
                raise self.broken[key]

    def count(self, name: str) -> int:
        """Return how often a method was called."""
        return sum(called == name for called, _ in self.calls)

    # ---- the calls of AsyncAdmin -------------------------------------------------------------

    async def cluster_facts(self, **_: Any) -> ClusterFacts:
        self._called("cluster_facts")
        brokers = tuple(BrokerFacts(name, "main", {0: f"{name}:1"}) for name in self.figures)
        return ClusterFacts({"main": tuple(self.figures)}, brokers)

    async def broker_figures(self, broker: str, **_: Any) -> dict[str, dict[str, str]]:
        self._called("broker_figures", broker)
        found = self.figures[broker]
        if isinstance(found, Exception):
            raise found
        return {broker: found}

    async def broker_settings(self, broker: str, **_: Any) -> dict[str, dict[str, str]]:
        self._called("broker_settings", broker)
        settings = {"messageDelayLevel": "1s 5s 1m", "aclSecretKey": "s", "brokerName": broker}
        return {broker: settings}

    async def list_topics(self, **_: Any) -> list[TopicName]:
        self._called("list_topics")
        return self.topics

    async def list_groups(self, **_: Any) -> list[GroupSummary]:
        self._called("list_groups")
        return self.groups

    async def list_progress(self, **_: Any) -> AllProgress:
        self._called("list_progress")
        return AllProgress(topics=tuple(self.progress))

    async def name_servers(self, **_: Any) -> list[NameServerFacts]:
        self._called("name_servers")
        return [NameServerFacts(address="ns:9876", settings={"password": "x", "port": "1"})]

    async def topic_route(self, topic: str, **_: Any) -> SimpleNamespace:
        self._called("topic_route", topic)
        if not any(each.name == topic for each in self.topics):
            raise RouteNotFound(topic, ["ns:9876"], "")
        masters = {name: f"{name}:1" for name in self.figures}
        # Offset ids of `message` name this address.
        brokers = {name: {0: "10.0.0.1:10911"} for name in self.figures}
        return SimpleNamespace(masters=masters, brokers=brokers)

    async def topic_stats(
        self, topic: str, *, brokers: list[str] | None = None, **_: Any
    ) -> list[QueueState]:
        self._called("topic_stats", topic)
        await self.topic_route(topic)
        for name in brokers or self.figures:
            if isinstance(failure := self.figures[name], Exception):
                raise failure
        return [
            QueueState(
                queue,
                messages[0].offset if messages else 0,
                messages[-1].offset + 1 if messages else 0,
                messages[-1].stored_at if messages else None,
            )
            for queue, messages in sorted(self.queues.items())
            if queue.topic == topic and (brokers is None or queue.broker in brokers)
        ]

    async def earliest_store_time(self, queue: QueueId, **_: Any) -> datetime | None:
        self._called("earliest_store_time", queue)
        return self.queues[queue][0].stored_at if self.queues[queue] else None

    async def topic_traffic(self, topic: str, **_: Any) -> list[Traffic]:
        self._called("topic_traffic", topic)
        return [self.traffic.get(topic, Traffic(topic=topic))]

    async def search_offset(self, queue: QueueId, at: datetime, **_: Any) -> int:
        self._called("search_offset", queue)
        later = [each.offset for each in self.queues[queue] if each.stored_at >= at]
        return later[0] if later else self.queues[queue][-1].offset + 1

    async def read_queue(
        self,
        queue: QueueId,
        offset: int,
        *,
        max_count: int = 32,
        decode_body: bool = True,
        **_: Any,
    ) -> QueueMessages:
        self._called("read_queue", queue)
        assert not decode_body, "a body that cannot be decompressed would hide all others"
        self.reading += 1
        self.reading_max = max(self.reading, self.reading_max)
        await asyncio.sleep(0)
        self.reading -= 1
        stored = self.queues[queue]
        found = [each for each in stored if each.offset >= offset][:max_count]
        end = stored[-1].offset + 1 if stored else 0
        following = found[-1].offset + 1 if found else end
        return QueueMessages(queue=queue, messages=tuple(found), next=following, end=end)

    async def view_message(self, topic: str, message_id: str, **_: Any) -> ReceivedMessage:
        self._called("view_message", message_id)
        for found in self._of(topic):
            if message_id in (found.message_id, found.offset_id):
                return found
        raise NotFound(22, "no message", "a:1", topic)

    async def send_again(self, topic: str, message_id: str, **_: Any) -> str:
        self._called("send_again", message_id)
        return "NEW"

    async def query_messages(
        self, topic: str, key: str, *, max_count: int = 32, decode_body: bool = True, **_: Any
    ) -> list[ReceivedMessage]:
        self._called("query_messages", key)
        assert not decode_body, "a body that cannot be decompressed would hide all others"
        await self.topic_route(topic)
        return [each for each in self._of(topic) if key in each.keys][:max_count]

    def _of(self, topic: str) -> Sequence[ReceivedMessage]:
        return [
            each
            for queue, messages in self.queues.items()
            for each in messages
            if queue.topic == topic
        ]


def figures(**more: str) -> dict[str, str]:
    """Return the figures of a broker."""
    return {
        "bootTimestamp": "1000",
        "brokerVersionDesc": "V5_5_0",
        "msgPutTotalTodayNow": "0",
        "msgGetTotalTodayNow": "0",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "100",
        "commitLogDiskRatio": "0.25",
        **more,
    }


def changed(table: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return figures with other values."""
    return {**table, **more}
