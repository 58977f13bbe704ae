"""One store folder, written by the Apache broker and by ours in turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore
from downrange.wire.hashes import tag_hash
from downrange.wire.records import Record, decode_record
from tests.apache.exchange import scene_arguments
from tests.apache.settings import STORE_SIZES
from tests.conversations.reads import query_by_key
from tests.conversations.scene import Scene, live_scene
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster

HOUR_MS = 3_600_000


def _bodies(scene: Scene, topic: str, count: int) -> list[bytes]:
    return [record.body for record in pull(scene, scene.broker(), topic, count=count)]


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_store_goes_from_apache_to_ours_and_back(apache_alone: ApacheCluster, stop: str) -> None:
    facts, addresses = scene_arguments(apache_alone)
    theirs = [f"apache {number}".encode() for number in range(5)]
    with live_scene(facts, addresses) as scene:
        topic = scene.create_topic(scene.broker(), "exchanged")
        connection = scene.broker()
        for number, body in enumerate(theirs):
            properties = {"KEYS": f"key-{number}", "TAGS": "ü", "UNIQ_KEY": scene.unique_id(number)}
            scene.send(connection, topic, body, properties)
        assert _bodies(scene, topic, 5) == theirs
        unique_id = scene.unique_id(3)
    if stop == "clean":
        apache_alone.stop_broker(0)
    else:
        apache_alone.kill_broker(0)

    ours = [f"downrange {number}".encode() for number in range(3)]
    _read_and_append(apache_alone, topic, theirs, ours, unique_id)

    apache_alone.start_broker(0)
    with live_scene(facts, addresses) as scene:
        assert _bodies(scene, topic, 8) == theirs + ours
        (found,) = query_by_key(scene, scene.broker(), topic, "ours-1")
        assert found.body == b"downrange 1"
        reply = scene.send(scene.broker(), topic, b"apache again", {"TAGS": "ü"})
        assert reply.queue_offset == 8


def _read_and_append(
    cluster: ApacheCluster, topic: str, theirs: list[bytes], ours: list[bytes], unique_id: str
) -> None:
    """Open the stopped broker's store with our code, check its content, append messages, close."""
    (broker,) = cluster.brokers
    files = OsFiles(broker.store)
    store = MessageStore(files, STORE_SIZES)
    queue = store.queue(topic, 0)
    units = queue.units(0, 100)
    records = [decode_record(store.read(unit)) for unit in units]
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    assert [record.body for record in records] == theirs
    assert {unit.tag_hash for unit in units} == {tag_hash("ü")}
    everything = {"begin_ms": 0, "end_ms": 2**62, "found_max": 10}
    assert store.find(topic, "key-2", **everything).log_offsets == [records[2].log_offset]
    assert store.find(topic, unique_id, **everything).log_offsets == [records[3].log_offset]
    assert store.offset_at(topic, 0, records[4].store_ms + HOUR_MS) == 5
    host, _, port = broker.address.rpartition(":")
    store.append(
        [
            Record(
                topic_bytes=topic.encode(),
                body=body,
                property_bytes=f"KEYS\x01ours-{number}\x02TAGS\x01ü\x02".encode(),
                born_ms=records[4].store_ms,
                born_ip=bytes(map(int, host.split("."))),
                store_ip=bytes(map(int, host.split("."))),
                store_port=int(port),
            )
            for number, body in enumerate(ours)
        ],
        int(time.time() * 1000),
    )
    assert queue.max_offset == 8
    store.close()
    files.close()
