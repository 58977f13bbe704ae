"""Metrics of the store, of delayed and timed messages, of transactions and of pops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.server.metrics.exposition import Family, bucket_lines, escaped
from downrange.server.metrics.scrape import TIMER_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from downrange.server.broker.tables.event_counts import EventCounts, TopicAndGroup
    from downrange.server.broker.tables.histogram import Histogram
    from downrange.server.metrics.scrape import BrokerScrape


def _of_store(name: str, figure: Callable[[BrokerScrape], float]) -> Family[BrokerScrape]:
    """Return a gauge of the whole store."""

    def samples(scrape: BrokerScrape) -> Iterator[str]:
        yield f"{name}{{{scrape.store_base}}} {figure(scrape)}\n"

    return Family(name, "gauge", _TEXTS[name], samples)


def _by_topic(
    name: str,
    kind: Callable[[BrokerScrape], Mapping[str, int]],
    *,
    is_of_store: bool,
    is_gauge: bool = False,
) -> Family[BrokerScrape]:
    """Return a metric with a figure for each topic."""

    def samples(scrape: BrokerScrape) -> Iterator[str]:
        base = scrape.store_base if is_of_store else scrape.base
        for topic, count in list(kind(scrape).items()):
            yield f'{name}{{{base},topic="{escaped(topic)}"}} {count}\n'

    return Family(name, "gauge" if is_gauge else "counter", _TEXTS[name], samples)


def _histograms(
    name: str, kind: Callable[[EventCounts], Mapping[str, Histogram]], *, is_of_store: bool
) -> Family[BrokerScrape]:
    """Return a histogram for each topic."""

    def samples(scrape: BrokerScrape) -> Iterator[str]:
        base = scrape.store_base if is_of_store else scrape.base
        for topic, histogram in list(kind(scrape.state.statistics.events).items()):
            yield bucket_lines(name, f'{base},topic="{escaped(topic)}"', histogram)

    return Family(name, "histogram", _TEXTS[name], samples)


def _of_broker(
    name: str, more: str, figure: Callable[[BrokerScrape], float]
) -> Family[BrokerScrape]:
    """Return a gauge of the whole broker."""

    def samples(scrape: BrokerScrape) -> Iterator[str]:
        yield f"{name}{{{scrape.base}{more}}} {figure(scrape)}\n"

    return Family(name, "gauge", _TEXTS[name], samples)


def _revived(scrape: BrokerScrape) -> Iterator[str]:
    counts: dict[TopicAndGroup, int] = scrape.state.statistics.events.revived
    for (topic, group), count in list(counts.items()):
        yield (
            f'rocketmq_pop_revive_retry_messages_total{{{scrape.base},topic="{escaped(topic)}",'
            f'consumer_group="{escaped(group)}",put_status="PUT_OK"}} {count}\n'
        )


def _snapshot(scrape: BrokerScrape) -> Iterator[str]:
    for bound, count in zip(TIMER_BOUNDS, scrape.timers, strict=True):
        yield (
            f'rocketmq_timer_message_snapshot{{{scrape.store_base},timer_bound_s="{bound}"}} '
            f"{count}\n"
        )


# ---- figures -----------------------------------------------------------------------------------


def _reserve_ms(scrape: BrokerScrape) -> int:
    log = scrape.state.store.log
    first = log.first_record_of(log.first) if log.end > log.first else None
    return 0 if first is None else max(scrape.now_ms - first.store_ms, 0)


def _flush_behind(scrape: BrokerScrape) -> int:
    log = scrape.state.store.log
    return log.end - log.flushed


def _overdue_timers(scrape: BrokerScrape) -> int:
    first_ms = scrape.state.timers.first_due_ms()
    if first_ms is None or first_ms > scrape.now_ms:
        return 0
    # A heap begins with the messages that are due first, so the first page is a fair estimate.
    some = scrape.state.timers.waiting_from(0, 1_000)
    return sum(due_ms <= scrape.now_ms for due_ms, *_ in some)


def _timer_delay_ms(scrape: BrokerScrape) -> int:
    first_ms = scrape.state.timers.first_due_ms()
    return 0 if first_ms is None else max(scrape.now_ms - first_ms, 0)


def _revive_delay_ms(scrape: BrokerScrape) -> int:
    due_ms = scrape.state.checkpoints.next_due_ms()
    return 0 if due_ms is None else max(scrape.now_ms - due_ms, 0)


def _timing(scrape: BrokerScrape) -> dict[str, int]:
    waiting = {
        topic: count.count for topic, count in scrape.state.timers.counts().timing_count.items()
    }
    return dict.fromkeys(scrape.state.statistics.events.timers_begun, 0) | waiting


_TEXTS: Final = {
    "rocketmq_storage_size_bytes": "Used bytes of the disk that has the store.",
    "rocketmq_storage_flush_behind_bytes": "Bytes of the log that are not flushed.",
    "rocketmq_storage_dispatch_behind_bytes": "Bytes of the log that are not indexed.",
    "rocketmq_storage_message_reserve_time_milliseconds": "Age of the oldest stored message.",
    "rocketmq_timer_enqueue_lag": "Timed messages that were stored and not read yet.",
    "rocketmq_timer_enqueue_latency_milliseconds": "How late timed messages are read.",
    "rocketmq_timer_dequeue_lag": "Timed messages that are due and not delivered, up to 1,000.",
    "rocketmq_timer_dequeue_latency_milliseconds": "How late the next timed message is.",
    "rocketmq_timing_messages": "Messages that wait for their time.",
    "rocketmq_timer_enqueue_total": "Messages that began to wait for their time.",
    "rocketmq_timer_dequeue_total": "Messages that were delivered at their time.",
    "rocketmq_delay_message_latency_seconds": "The delays that timed messages asked for.",
    "rocketmq_commit_messages_total": "Transactions that were committed.",
    "rocketmq_rollback_messages_total": "Transactions that were rolled back.",
    "rocketmq_finish_message_latency_milliseconds": (
        "Time from a half message to its commit; in seconds, as Apache has it."
    ),
    "rocketmq_half_messages": "Open transactions, of the first 10,000.",
    "rocketmq_pop_checkpoint_buffer_size": "Pops with messages that are not acknowledged.",
    "rocketmq_pop_revive_lag_milliseconds": "How late the next pop is that must be revived.",
    "rocketmq_pop_revive_latency_milliseconds": "How late the next pop is that must be revived.",
}

FAMILIES: Final[list[Family[BrokerScrape]]] = [
    _of_store("rocketmq_storage_size_bytes", lambda scrape: scrape.disk_bytes),
    _of_store("rocketmq_storage_flush_behind_bytes", _flush_behind),
    # A record is indexed together with its append.
    _of_store("rocketmq_storage_dispatch_behind_bytes", lambda scrape: 0),
    _of_store("rocketmq_storage_message_reserve_time_milliseconds", _reserve_ms),
    _of_store(
        "rocketmq_timer_enqueue_lag",
        lambda scrape: scrape.state.timers.unread(scrape.state.store),
    ),
    # The queue is read up to its end on every tick, so what was not read is younger than one.
    _of_store("rocketmq_timer_enqueue_latency_milliseconds", lambda scrape: 0),
    _of_store("rocketmq_timer_dequeue_lag", _overdue_timers),
    _of_store("rocketmq_timer_dequeue_latency_milliseconds", _timer_delay_ms),
    _by_topic("rocketmq_timing_messages", _timing, is_of_store=True, is_gauge=True),
    _by_topic(
        "rocketmq_timer_enqueue_total",
        lambda scrape: scrape.state.statistics.events.timers_begun,
        is_of_store=True,
    ),
    _by_topic(
        "rocketmq_timer_dequeue_total",
        lambda scrape: scrape.state.statistics.events.timers_ended,
        is_of_store=True,
    ),
    Family(
        "rocketmq_timer_message_snapshot",
        "gauge",
        "Messages that wait for their time, by the bound of the time left.",
        _snapshot,
    ),
    _histograms(
        "rocketmq_delay_message_latency_seconds",
        lambda events: events.delay_seconds,
        is_of_store=True,
    ),
    _by_topic(
        "rocketmq_commit_messages_total",
        lambda scrape: scrape.state.statistics.events.committed,
        is_of_store=False,
    ),
    _by_topic(
        "rocketmq_rollback_messages_total",
        lambda scrape: scrape.state.statistics.events.rolled_back,
        is_of_store=False,
    ),
    _histograms(
        "rocketmq_finish_message_latency_milliseconds",
        lambda events: events.finish_seconds,
        is_of_store=False,
    ),
    _by_topic(
        "rocketmq_half_messages", lambda scrape: scrape.halves, is_of_store=False, is_gauge=True
    ),
    _of_broker(
        "rocketmq_pop_checkpoint_buffer_size", "", lambda scrape: len(scrape.state.checkpoints)
    ),
    _of_broker("rocketmq_pop_revive_lag_milliseconds", ',queue_id="0"', _revive_delay_ms),
    _of_broker("rocketmq_pop_revive_latency_milliseconds", ',queue_id="0"', _revive_delay_ms),
    Family(
        "rocketmq_pop_revive_retry_messages_total",
        "counter",
        "Popped messages that were not acknowledged, and that were stored for the next delivery.",
        _revived,
    ),
]
