"""The SQL92 filters of consumer groups move with the store, from Apache to our broker and back."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.apache.exchange import our_broker
from tests.apache.java_client import body_of, message
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import ApacheVersions, UniqueName
    from tests.apache.java_client import JavaClient, Json

EXPRESSION = "amount > 100 AND color = 'red'"


def _saved(cluster: ApacheCluster) -> dict[str, Any]:
    """Return the filters in the file by group."""
    path = cluster.brokers[0].store / "config" / "consumerFilter.json"
    if not path.exists():
        return {}
    topics = json.loads(path.read_bytes())["filterDataByTopic"]
    return {
        group: entry
        for topic in topics.values()
        for group, entry in topic["groupFilterData"].items()
    }


def _send(java: JavaClient, producer: str, topic: str, *amounts: int) -> None:
    for amount in amounts:
        properties = {"amount": str(amount), "color": "red"}
        sent = message(topic, str(amount).encode(), properties=properties)
        # Until the client has found the new broker, a send fails.
        wait_until(partial(_is_sent, java, producer, sent))


def _is_sent(java: JavaClient, producer: str, sent: dict[str, Json]) -> bool:
    (result,) = java.send(producer, [sent], collect_errors=True)
    return "error" not in result


def _received(java: JavaClient, consumer: str, count: int) -> set[bytes]:
    """Wait for so many different messages; one may come again when the broker changes."""

    def bodies() -> set[bytes]:
        return {body_of(one) for one in java.received(consumer, 0)}

    # A consumer of 4.9 needs 30 s to notice that the connection of a waiting pull is closed.
    return wait_until(lambda: len(found := bodies()) >= count and found, 120.0)


def test_filters_move_to_our_broker_and_back(
    apache_alone: ApacheCluster, apache_versions: ApacheVersions, unique_name: UniqueName
) -> None:
    java = apache_versions.java_client(apache_alone.version)
    servers, topic = apache_alone.name_server, unique_name("topic")
    producer = java.start_producer(servers, unique_name("group"))
    _send(java, producer, topic, 1)
    early, late = unique_name("early"), unique_name("late")
    options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "heartbeatBrokerInterval": 1000}
    consumer = java.start_consumer(servers, early, {topic: EXPRESSION}, sql=True, options=options)
    _send(java, producer, topic, 2, 102)
    assert _received(java, consumer, 1) == {b"102"}
    apache_alone.stop_broker(0)
    theirs = _saved(apache_alone)[early]

    with our_broker(apache_alone):
        _send(java, producer, topic, 3, 103)
        assert _received(java, consumer, 2) == {b"102", b"103"}
        other = java.start_consumer(servers, late, {topic: "amount < 3"}, sql=True, options=options)
        assert _received(java, other, 2) == {b"1", b"2"}
        java.stop(other)
    ours = _saved(apache_alone)
    assert ours[early].keys() == theirs.keys()
    assert {name: ours[early][name] for name in ("expression", "bornTime", "bloomFilterData")} == {
        name: theirs[name] for name in ("expression", "bornTime", "bloomFilterData")
    }
    assert (ours[late]["expression"], ours[late]["dead"]) == ("amount < 3", True)

    apache_alone.start_broker(0)
    _send(java, producer, topic, 4, 104)
    assert _received(java, consumer, 3) == {b"102", b"103", b"104"}
    java.stop(consumer)
    apache_alone.stop_broker(0)
    again = _saved(apache_alone)
    assert again.keys() == {early, late}  # Apache drops a whole file that it does not understand
    assert again[late] == ours[late]
    java.stop(producer)
