"""Our metrics beside those of Apache's exporter, after the same traffic.

`SKIPPED` lists the metrics of Apache that we do not have, with the reason; docs/guides/metrics.md
has the same list. `OTHER_VALUES` lists the samples whose values differ on purpose.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import downrange as mq
from tests.apache import metric_traffic as traffic
from tests.apache.artifacts import ApacheUnavailable
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import skip_or_fail
from tests.apache.ports import draw_name_server_port
from tests.embedded.pages import Metrics, metrics_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.pages import Labels

pytestmark = pytest.mark.apache

#: Metrics of Apache's exporter that we leave out.
SKIPPED = {
    "rocketmq_processor_watermark": "there is one thread, and no queue of requests before it",
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "there is no buffer that is scanned",
    "rocketmq_pop_offset_buffer_size": "offsets of pops are not buffered",
    "rocketmq_pop_revive_in_message_total": "rpc_latency counts pops and acknowledgements",
}
#: Topics of the broker itself, whose messages both brokers count in different ways.
SYSTEM_TOPICS = ("rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC_XXXX")
#: Labels that we have and Apache does not.
MORE_LABELS = {
    "rocketmq_messages_out_total": {"is_retry"},
    "rocketmq_throughput_out_total": {"is_retry"},
}
#: Samples that differ: name, the labels that matter, Apache's value, ours.
OTHER_VALUES: list[tuple[str, dict[str, str], float | None, float]] = [
    # Apache counts deliveries by level and not by time; we count all.
    ("rocketmq_messages_in_total", {"topic": traffic.LATE}, 2, 4),
    ("rocketmq_message_size_count", {"topic": traffic.LATE}, 2, 4),
    # Apache does not count committed messages as stored.
    ("rocketmq_messages_in_total", {"topic": traffic.DEALS}, None, 3),
    # Apache counts no popped message as in flight.
    ("rocketmq_consumer_inflight_messages", {"consumer_group": traffic.POP_GROUP}, 0, 2),
    ("rocketmq_consumer_lag_messages", {"consumer_group": traffic.POP_GROUP}, 4, 6),
    ("rocketmq_pop_checkpoint_buffer_size", {}, 0, 1),
]
#: Gauges of times, and figures of the machine, that only have to be close.
CLOSE = {
    "rocketmq_consumer_lag_latency_milliseconds": 60_000,
    "rocketmq_consumer_queueing_latency_milliseconds": 60_000,
    "rocketmq_storage_message_reserve_time_milliseconds": 120_000,
    "rocketmq_storage_size_bytes": 8_000_000_000,
    "rocketmq_storage_flush_behind_bytes": 1_000_000,
    "rocketmq_timer_dequeue_latency_milliseconds": 60_000,
    "rocketmq_timer_dequeue_lag": 100,
    "rocketmq_topic_number": 10,
    "rocketmq_consumer_group_number": 3,
    "rocketmq_topic_create_execution_time_milliseconds_sum": 60_000,
    "rocketmq_finish_message_latency_milliseconds_sum": 60_000,
    "rocketmq_delay_message_latency_seconds_sum": 10,
}
#: What depends on the time, or on queues and records of the broker itself.
UNCOMPARED = {
    "rocketmq_timer_message_snapshot",
    "rocketmq_pop_revive_lag_milliseconds",
    "rocketmq_pop_revive_latency_milliseconds",
}
#: Requests of a client whose number depends on timers.
REPEATED = {
    *("heart_beat", "get_max_offset", "notification", "pull_message", "query_consumer_offset"),
    *("get_consumer_list_by_group", "update_consumer_offset", "lock_batch_mq", "pop_message"),
    *("end_transaction", "get_consumer_connection_list"),
}


@pytest.fixture(name="pages", scope="module")
def _pages() -> Iterator[tuple[Metrics, Metrics]]:
    """Return the metrics of Apache and ours."""
    port = draw_name_server_port()
    options = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)}
    options["metricsPromExporterHost"] = "127.0.0.1"
    try:
        apache = ApacheCluster("5.5.0", broker_options=options)
    except ApacheUnavailable as error:
        skip_or_fail(error)
    with apache, mq.Cluster(metrics="127.0.0.1:0") as ours:
        made = [traffic.make_traffic(each.name_server) for each in (apache, ours)]
        try:
            address = f"127.0.0.1:{port}"
            # Half messages are counted by a thread of their own, some time later.
            wait_until(lambda: metrics_of(address).value("rocketmq_half_messages") == traffic.OPEN)
            assert ours.metrics_address is not None
            yield metrics_of(address), metrics_of(ours.metrics_address)
        finally:
            for each in made:
                each.close()


def test_every_metric_is_shown_with_its_type_or_skipped_for_a_reason(
    pages: tuple[Metrics, Metrics],
) -> None:
    apache, ours = pages
    missing = {name for name, kind in apache.kinds.items() if ours.kinds.get(name) != kind}
    assert missing == SKIPPED.keys()


def test_every_sample_has_the_same_labels(pages: tuple[Metrics, Metrics]) -> None:
    apache, ours = pages
    for name in {name for name, _ in apache.samples}:
        if _family(name) in SKIPPED:
            continue
        more = MORE_LABELS.get(name, set())
        wanted = {labels | more for labels in apache.label_names(name)}
        assert ours.label_names(name) == wanted, name


def test_every_value_is_the_same_or_differs_for_a_reason(pages: tuple[Metrics, Metrics]) -> None:
    apache, ours = pages
    for name, given, value, own in OTHER_VALUES:
        assert apache.value(name, **given) == value, (name, given)
        assert ours.value(name, **given) == own, (name, given)
    compared = 0
    for (name, labels), value in apache.samples.items():
        if not _is_compared(name, labels):
            continue
        found = ours.value(name, **dict(labels))
        assert found is not None, (name, dict(labels))
        assert abs(found - value) <= CLOSE.get(name, 0), (name, dict(labels), value, found)
        compared += 1
    assert compared > 70


def test_the_skipped_metrics_are_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/metrics.md").read_text(encoding="utf-8")
    for name in SKIPPED:
        assert f"`{name}`" in guide, name


def _is_compared(name: str, labels: Labels) -> bool:
    """Whether a sample must have the same value on both sides, or a close one."""
    texts = dict(labels)
    topic = texts.get("topic", "")
    if _family(name) in SKIPPED or topic.startswith(SYSTEM_TOPICS) or name in UNCOMPARED:
        return False
    if any(name == other and set(given.items()) <= labels for other, given, *_ in OTHER_VALUES):
        return False
    if "rpc_latency" in name:
        is_counted = name.endswith("_count") and texts["is_long_polling"] == "false"
        return is_counted and texts["request_code"] not in REPEATED
    if name.endswith("_bucket") and ("latency" in name or "execution_time" in name):
        return texts["le"] == "+Inf"
    return topic != traffic.LATE or not name.startswith(
        ("rocketmq_message_", "rocketmq_throughput")
    )


def _family(name: str) -> str:
    for suffix in ("_bucket", "_count", "_sum"):
        name = name.removesuffix(suffix)
    return name
