"""Popped messages in a store folder that the Apache broker and ours use in turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.records import decode_records
from tests.apache import probe
from tests.apache.cluster import ApacheCluster
from tests.apache.exchange import our_broker
from tests.apache.fixtures import cluster_or_skip
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

TIMEOUT = 90.0
LONG_MS = 25_000


class Popped(NamedTuple):
    """A message and the request that acknowledges it."""

    body: str
    times: int
    ack: dict[str, str]


@pytest.fixture
def cluster() -> Generator[ApacheCluster]:
    options = {"timerFlushIntervalMs": "100", "flushConsumerOffsetInterval": "200"}
    with cluster_or_skip(lambda: ApacheCluster("5.5.0", broker_options=options)) as running:
        yield running


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _call(
    cluster: ApacheCluster, code: int, fields: dict[str, str], body: str = ""
) -> probe.Answer:
    return probe.call(cluster.brokers[0].address, code, fields, body=body.encode())


def _send(cluster: ApacheCluster, bodies: Iterable[str]) -> None:
    for body in bodies:
        fields = {"producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "queueId": "0"}
        fields |= {"defaultTopicQueueNums": "1", "sysFlag": "0", "flag": "0"}
        fields |= {"bornTimestamp": str(_now_ms()), "properties": ""}
        answer = _call(cluster, RequestCode.SEND_MESSAGE, fields, body)
        assert answer.code == 0, answer.remark


def _end(cluster: ApacheCluster) -> int:
    answer = _call(cluster, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    return int(answer.fields["offset"])


def _pop(cluster: ApacheCluster, count: int, invisible_ms: int = LONG_MS) -> list[Popped]:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "maxMsgNums": str(count)}
    fields |= {"invisibleTime": str(invisible_ms), "pollTime": "0", "initMode": "0"}
    answer = _call(cluster, RequestCode.POP_MESSAGE, {**fields, "bornTime": str(_now_ms())})
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == 0, answer.remark
    entries = [entry.split(" ") for entry in answer.fields["startOffsetInfo"].split(";")]
    starts = {kind: start for kind, _, start in entries}
    found: list[Popped] = []
    for record in decode_records(answer.body):
        receipt = record.properties().get("POP_CK")
        if receipt is None:
            receipt = (
                f"{starts['0']} {answer.fields['popTime']} {invisible_ms} "
                f"{answer.fields['reviveQid']} 0 broker-a 0 {record.queue_offset}"
            )
        # The Java client names the topic that has the message.
        topic = "T" if receipt.split(" ")[4] == "0" else "%RETRY%G_T"
        ack = {"consumerGroup": "G", "topic": topic, "queueId": "0", "extraInfo": receipt}
        ack["offset"] = str(record.queue_offset)
        found.append(Popped(record.body.decode(), record.reconsume_times, ack))
    return found


def _ack(cluster: ApacheCluster, popped: Popped) -> None:
    answer = _call(cluster, RequestCode.ACK_MESSAGE, popped.ack)
    assert answer.code == 0, answer.remark


def _change(
    cluster: ApacheCluster, popped: Popped, invisible_ms: int, *, suspend: bool = False
) -> None:
    fields = {**popped.ack, "invisibleTime": str(invisible_ms), "suspend": str(suspend).lower()}
    answer = _call(cluster, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
    assert answer.code == 0, answer.remark


def _pop_until(cluster: ApacheCluster, bodies: set[str]) -> dict[str, int]:
    """Pop and acknowledge until all bodies came; return each body with its number of retries."""
    seen: dict[str, int] = {}

    def has_all() -> bool:
        for popped in _pop(cluster, 32):
            assert popped.body not in seen, "delivered twice"
            seen[popped.body] = popped.times
            _ack(cluster, popped)
        return bodies <= seen.keys()

    wait_until(has_all, TIMEOUT)
    return seen


def test_open_pops_go_from_apache_to_ours_and_back(cluster: ApacheCluster) -> None:
    """Acknowledged messages never come again; open ones come again when their time is over."""
    _send(cluster, [f"{number}" for number in range(12)])
    # Apache's broker answers a send before a pop can find the message.
    wait_until(lambda: _end(cluster) == 12)
    first = _pop(cluster, 3)  # 0 1 2
    short = _pop(cluster, 3, invisible_ms=8_000)  # 3 4 5
    assert [popped.body for popped in (*first, *short)] == list("012345")
    _ack(cluster, first[0])
    _ack(cluster, short[0])
    cluster.kill_broker(0)

    with our_broker(cluster):
        wait_until(lambda: _pop(cluster, 1, 1_000) != [], TIMEOUT)  # 6
        _ack(cluster, first[1])  # with Apache's receipt
        assert _pop_until(cluster, {"4", "5", "6", "7"}) == {
            **dict.fromkeys(("4", "5", "6"), 1),
            **dict.fromkeys(("7", "8", "9", "10", "11"), 0),
        }
        _send(cluster, ["12", "13", "14"])
        ours = _pop(cluster, 2, invisible_ms=12_000)  # 12 13
        assert [popped.body for popped in ours] == ["12", "13"]
        _ack(cluster, ours[0])

    cluster.start_broker(0)
    assert _pop_until(cluster, {"2", "13", "14"}) == {"2": 1, "13": 1, "14": 0}
    time.sleep(5.0)  # the reviver of Apache is done with what is acknowledged
    assert _pop(cluster, 32) == []


def test_suspended_delivery_does_not_count_on_either_broker(cluster: ApacheCluster) -> None:
    """The checkpoint says so (`sp`), and ours reads what Apache's broker wrote.

    The way back is not a part of it: Apache's broker may leave a lone checkpoint in its revive
    topic until another record follows.
    """
    _send(cluster, "abcd")
    wait_until(lambda: _end(cluster) == 4)
    suspended, plain, kept, _ = _pop(cluster, 4)
    _change(cluster, suspended, 1_000, suspend=True)
    _change(cluster, plain, 1_000)
    _change(cluster, kept, LONG_MS, suspend=True)
    assert _pop_until(cluster, {"a", "b"}) == {"a": 0, "b": 1}
    # Apache saves offsets from ten seconds after its start on; those of its reviver come late.
    saved = cluster.brokers[0].store / "config" / "consumerOffset.json"
    wait_until(lambda: saved.exists() and "T@G" in saved.read_text(), TIMEOUT)
    cluster.kill_broker(0)

    with our_broker(cluster):
        seen = _pop_until(cluster, {"c", "d"})
        assert (seen["c"], seen["d"]) == (0, 1)
        _send(cluster, "ef")
        suspended, kept = _pop(cluster, 2)
        _change(cluster, suspended, 1_000, suspend=True)
        assert _pop_until(cluster, {"e"}) == {"e": 0}
        _change(cluster, kept, 1_000)
        assert _pop_until(cluster, {"f"}) == {"f": 1}
