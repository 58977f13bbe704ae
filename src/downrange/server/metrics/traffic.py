"""Metrics of messages that were stored and handed out, and of lags.

Only topics that got a message since the start, and have a counter still (`statistics`), are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.broker.tables.group_table import is_system_group
from downrange.server.broker.tables.measured_statistics import MeasuredStatistics
from downrange.server.metrics.exposition import Family, bucket_lines, escaped
from downrange.wire.system_names import (
    HALF_DONE_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.server.broker.tables.counters import Counter
    from downrange.server.metrics.lag import Lag
    from downrange.server.metrics.scrape import BrokerScrape

_TYPE_ATTRIBUTE: Final = "message.type"
_SYSTEM_TYPES: Final = {
    HALF_TOPIC: "transaction",
    HALF_DONE_TOPIC: "transaction",
    SCHEDULE_TOPIC: "delay",
    TIMER_TOPIC: "delay",
}


def _message_type(scrape: BrokerScrape, topic: str) -> str:
    """Return the type of the messages of a topic: that of the topic, or normal."""
    known = _SYSTEM_TYPES.get(topic)
    if known is not None:
        return known
    config = scrape.state.topics.get(topic)
    attributes = None if config is None else config.attributes
    return (attributes or {}).get(_TYPE_ATTRIBUTE, "NORMAL").lower()


def _topic_labels(scrape: BrokerScrape, topic: str, *, is_system: bool) -> str:
    kind, system = _message_type(scrape, topic), "true" if is_system else "false"
    return (
        f'{scrape.base},topic="{escaped(topic)}",message_type="{escaped(kind)}",'
        f'is_system="{system}"'
    )


def _stored(name: str, figure: Callable[[Counter], int]) -> Callable[[BrokerScrape], Iterator[str]]:
    def samples(scrape: BrokerScrape) -> Iterator[str]:
        for topic_bytes, counter in scrape.state.statistics.topics():
            topic = topic_bytes.decode(errors="replace")
            labelled = _topic_labels(scrape, topic, is_system=counter.is_system)
            yield f"{name}{{{labelled}}} {figure(counter)}\n"

    return samples


def _sizes(scrape: BrokerScrape) -> Iterator[str]:
    statistics = scrape.state.statistics
    if isinstance(statistics, MeasuredStatistics):
        for topic_bytes, counter in statistics.topics():
            histogram = statistics.sizes.get(topic_bytes)
            if histogram is not None:
                topic = topic_bytes.decode(errors="replace")
                labelled = _topic_labels(scrape, topic, is_system=counter.is_system)
                yield bucket_lines("rocketmq_message_size", labelled, histogram)


def _group_labels(scrape: BrokerScrape, topic: str, group: str, *, is_system: bool) -> str:
    retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
    system = "true" if is_system else "false"
    return (
        f'{scrape.base},topic="{escaped(topic)}",consumer_group="{escaped(group)}",'
        f'is_retry="{retry}",is_system="{system}"'
    )


def _handed_out(
    name: str, figure: Callable[[Counter], int]
) -> Callable[[BrokerScrape], Iterator[str]]:
    def samples(scrape: BrokerScrape) -> Iterator[str]:
        for (topic, group), counter in scrape.state.statistics.groups():
            is_system = counter.is_system or is_system_group(group)
            labelled = _group_labels(scrape, topic, group, is_system=is_system)
            yield f"{name}{{{labelled}}} {figure(counter)}\n"

    return samples


def _lag(name: str, figure: Callable[[Lag], int]) -> Callable[[BrokerScrape], Iterator[str]]:
    def samples(scrape: BrokerScrape) -> Iterator[str]:
        for lag in scrape.lags:
            labelled = _group_labels(scrape, lag.topic, lag.group, is_system=lag.is_system)
            yield f"{name}{{{labelled}}} {figure(lag)}\n"

    return samples


def _dead_letters(scrape: BrokerScrape) -> Iterator[str]:
    for (topic, group), count in list(scrape.state.statistics.events.dead_letters.items()):
        system = "true" if is_system_group(group) else "false"
        yield (
            f'rocketmq_send_to_dlq_messages_total{{{scrape.base},topic="{escaped(topic)}",'
            f'consumer_group="{escaped(group)}",is_system="{system}"}} {count}\n'
        )


FAMILIES: Final[list[Family[BrokerScrape]]] = [
    Family(
        "rocketmq_messages_in_total",
        "counter",
        "Messages that were stored in a topic.",
        _stored("rocketmq_messages_in_total", lambda counter: counter.messages),
    ),
    Family(
        "rocketmq_throughput_in_total",
        "counter",
        "Bytes of the messages that were stored in a topic.",
        _stored("rocketmq_throughput_in_total", lambda counter: counter.size),
    ),
    Family("rocketmq_message_size", "histogram", "Bytes of each stored message.", _sizes),
    Family(
        "rocketmq_messages_out_total",
        "counter",
        "Messages that a consumer group got.",
        _handed_out("rocketmq_messages_out_total", lambda counter: counter.messages),
    ),
    Family(
        "rocketmq_throughput_out_total",
        "counter",
        "Bytes of the messages that a consumer group got.",
        _handed_out("rocketmq_throughput_out_total", lambda counter: counter.size),
    ),
    Family(
        "rocketmq_consumer_lag_messages",
        "gauge",
        "Messages that a consumer group has yet to finish.",
        _lag("rocketmq_consumer_lag_messages", lambda lag: lag.messages),
    ),
    Family(
        "rocketmq_consumer_lag_latency_milliseconds",
        "gauge",
        "Age of the oldest message that a consumer group has not finished.",
        _lag("rocketmq_consumer_lag_latency_milliseconds", lambda lag: lag.latency_ms),
    ),
    Family(
        "rocketmq_consumer_inflight_messages",
        "gauge",
        "Messages that a consumer group got and has not finished.",
        _lag("rocketmq_consumer_inflight_messages", lambda lag: lag.in_flight),
    ),
    Family(
        "rocketmq_consumer_queueing_latency_milliseconds",
        "gauge",
        "Age of the oldest message that a consumer group did not get yet.",
        _lag("rocketmq_consumer_queueing_latency_milliseconds", lambda lag: lag.queueing_ms),
    ),
    Family(
        "rocketmq_consumer_ready_messages",
        "gauge",
        "Messages that a consumer group did not get yet.",
        _lag("rocketmq_consumer_ready_messages", lambda lag: lag.ready),
    ),
    Family(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "Messages that a consumer group could not handle, and that became dead letters.",
        _dead_letters,
    ),
]
