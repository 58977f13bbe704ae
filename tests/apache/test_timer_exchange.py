"""Timed messages in a store folder that the Apache broker and ours use in turn."""

from __future__ import annotations

import time
from collections import Counter
from struct import unpack_from
from typing import TYPE_CHECKING

import pytest

from downrange.options import BrokerOptions
from downrange.server.broker.scheduled.timer_handover import PATH, STALE_PATHS, TimerHandover
from downrange.store.files import OsFiles
from downrange.wire.properties import encode_properties
from downrange.wire.records import decode_records
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import cluster_or_skip
from tests.apache.settings import STORE_SIZES
from tests.support.waiting import wait_until
from tests.unit.server.broker.delivery_stage import DeliveryStage

if TYPE_CHECKING:
    from collections.abc import Generator

SEND, PULL = 10, 11
TIMEOUT = 60.0


@pytest.fixture
def cluster() -> Generator[ApacheCluster]:
    options = {"timerFlushIntervalMs": "100"}
    with cluster_or_skip(lambda: ApacheCluster("5.5.0", broker_options=options)) as running:
        yield running


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _send(cluster: ApacheCluster, body: str, **properties: str) -> None:
    fields = {"producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "queueId": "0"}
    fields |= {"defaultTopicQueueNums": "1", "sysFlag": "0", "flag": "0"}
    fields |= {"bornTimestamp": str(_now_ms()), "properties": encode_properties(properties)}
    answer = probe.call(cluster.brokers[0].address, SEND, fields, body=body.encode())
    assert answer.code == 0, answer.remark


def _bodies(cluster: ApacheCluster) -> list[str]:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0"}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0"}
    fields |= {"suspendTimeoutMillis": "0", "subscription": "*"}
    answer = probe.call(cluster.brokers[0].address, PULL, fields)
    return [record.body.decode() for record in decode_records(answer.body)]


def _is_delivery_saved(cluster: ApacheCluster, sent_ms: int) -> bool:
    """Return whether Apache has saved its progress up to two seconds after `sent_ms`."""
    check = cluster.brokers[0].store / PATH
    return check.exists() and unpack_from(">q", check.read_bytes())[0] > sent_ms + 2_000


def test_timed_messages_go_from_apache_to_ours_and_back(cluster: ApacheCluster) -> None:
    # Apache does not look at marks for messages that are overdue when it reads them, so ours must
    # be ahead still when the broker is up again. A slow first start foretells a slow second one.
    ahead_ms = max(6_000, int(4_000 * cluster.started_in))
    sent_ms = _now_ms()
    _send(cluster, "theirs, delivered by them", TIMER_DELAY_MS="200", UNIQ_KEY="u0")
    at_last = {"TIMER_DELAY_MS": str(ahead_ms + 4_000), "UNIQ_KEY": "last"}
    _send(cluster, "theirs, delivered by them at last", **at_last)
    wait_until(lambda: _is_delivery_saved(cluster, sent_ms), TIMEOUT)
    assert _bodies(cluster) == ["theirs, delivered by them"]
    cluster.kill_broker(0)

    _deliver_and_add(cluster, ahead_ms)

    cluster.start_broker(0)
    expected = {"theirs, delivered by them at last", "ours, delivered by them"}
    wait_until(lambda: expected <= set(_bodies(cluster)), TIMEOUT + ahead_ms / 1_000)
    counts = Counter(_bodies(cluster))
    # This one lies behind a message that is not due yet, so Apache reads it a second time and
    # cannot tell that it was delivered already.
    assert counts.pop("ours, delivered by us") in (1, 2)
    assert counts == {
        "ours, delivered by them": 1,
        "theirs, delivered by them": 1,
        "theirs, delivered by them at last": 1,
    }


def _deliver_and_add(cluster: ApacheCluster, ahead_ms: int) -> None:
    """Open the stopped broker's store with our code, deliver its due messages, and add others.

    Args:
        cluster: With a stopped broker.
        ahead_ms: Milliseconds until Apache reads what is added, at most.
    """
    files = OsFiles(cluster.brokers[0].store)
    world = DeliveryStage(BrokerOptions(), files, STORE_SIZES)
    world.now_ms = _now_ms()
    handover = TimerHandover(world.state.timers)
    handover.load(files.read_all(PATH) or b"")
    world.tick()
    assert world.bodies() == ["theirs, delivered by them"]
    assert len(world.state.timers) == 1
    world.put("ours, delivered by us", UNIQ_KEY="u1", TIMER_DELAY_MS="1")
    # The mark is in the same slot of a second, and the other message two slots behind.
    taken_back_ms = (_now_ms() + ahead_ms) // 1_000 * 1_000 + 1_000
    world.put("taken back", UNIQ_KEY="u", TIMER_DELIVER_MS=str(taken_back_ms))
    mark = {"UNIQ_KEY": "u", "TIMER_DEL_UNIQKEY": "u"}
    world.put("mark", TIMER_DELIVER_MS=str(taken_back_ms - 999), **mark)
    behind = {"TIMER_DELIVER_MS": str(taken_back_ms + 2_000), "UNIQ_KEY": "u2"}
    world.put("ours, delivered by them", **behind)
    world.tick(1)
    files.replace(PATH, handover.dump())
    for path in STALE_PATHS:
        files.remove(path)
    world.state.store.close()
    files.close()
