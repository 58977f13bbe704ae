"""Our broker takes over the name, port and store of a stopped Apache broker, and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from downrange.wire.bodies import (
    ForbiddenBody,
    GroupConfig,
    RequestModeBody,
    RequestModesBody,
    TopicTableBody,
)
from downrange.wire.codes import RequestCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    ForbidGroupRequest,
    GroupOffsetRequest,
    OffsetReply,
)
from tests.apache.cluster import ApacheCluster
from tests.apache.exchange import our_broker, scene_arguments
from tests.conversations.reads import query_by_key
from tests.conversations.scene import (
    Scene,
    bare_request,
    live_scene,
    read_body,
    read_header,
    succeed,
)
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from tests.conversations.peers import Peer

GROUP = "exchange_readers"


def _send(scene: Scene, broker: Peer, topic: str, word: str, count: int) -> list[bytes]:
    bodies = [f"{word} {number}".encode() for number in range(count)]
    for number, body in enumerate(bodies):
        properties = {"KEYS": f"{word}-{number}", "TAGS": word, "UNIQ_KEY": f"{word}{number:028}"}
        scene.send(broker, topic, body, properties)
    return bodies


def _commit(broker: Peer, topic: str, offset: int) -> None:
    group = GroupConfig(group_name=GROUP)
    succeed(
        broker.ask(bare_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group.encode()))
    )
    commit = CommitOffsetRequest(
        consumer_group=GROUP, topic=topic, queue_id=0, commit_offset=offset
    )
    succeed(broker.ask(request_command(commit)))


def _committed(broker: Peer, topic: str) -> int:
    request = GroupOffsetRequest(consumer_group=GROUP, topic=topic, queue_id=0)
    return read_header(OffsetReply, broker.ask(request_command(request))).offset


def _topics(broker: Peer) -> set[str]:
    table = read_body(TopicTableBody, broker.ask(bare_request(RequestCode.GET_ALL_TOPIC_CONFIG)))
    return set(table.topic_config_table)


def _set_mode(broker: Peer, topic: str, share: int) -> None:
    group = GroupConfig(group_name=GROUP)
    create = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    succeed(broker.ask(bare_request(create, group.encode())))
    mode = RequestModeBody(topic=topic, consumer_group=GROUP, mode="POP", pop_share_queue_num=share)
    succeed(broker.ask(bare_request(RequestCode.SET_MESSAGE_REQUEST_MODE, mode.encode())))


def _share_counts(broker: Peer) -> dict[str, int]:
    """Return the number of members that share queues, by topic."""
    request = bare_request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    modes = read_body(RequestModesBody, broker.ask(request)).message_request_mode_map
    return {topic: groups[GROUP].pop_share_queue_num for topic, groups in modes.items()}


def test_message_request_modes_move_with_the_store() -> None:
    with ApacheCluster("5.5.0") as cluster:
        facts, addresses = scene_arguments(cluster)
        with live_scene(facts, addresses) as scene:
            broker = scene.broker()
            first = scene.create_topic(broker, "set_by_apache")
            _set_mode(broker, first, 3)
        cluster.stop_broker(0)
        with our_broker(cluster), live_scene(facts, addresses) as scene:
            broker = scene.broker()
            assert _share_counts(broker) == {first: 3}
            second = scene.create_topic(broker, "set_by_ours")
            _set_mode(broker, second, 5)
        cluster.start_broker(0)
        with live_scene(facts, addresses) as scene:
            assert _share_counts(scene.broker()) == {first: 3, second: 5}


def _may_read(broker: Peer, topic: str, readable: bool | None = None) -> bool:
    """Return whether the group may read a topic, after a change if one is given."""
    header = ForbidGroupRequest(group=GROUP, topic=topic, readable=readable)
    return read_body(ForbiddenBody, broker.ask(request_command(header))).readable


def test_broker_is_replaced_by_ours_and_comes_back(apache_alone: ApacheCluster) -> None:
    facts, addresses = scene_arguments(apache_alone)

    with live_scene(facts, addresses) as scene:
        broker = scene.broker()
        topic = scene.create_topic(broker, "exchanged")
        theirs = _send(scene, broker, topic, "apache", 5)
        pull(scene, broker, topic, count=5)
        _commit(broker, topic, 3)
        if scene.is_5x:
            assert not _may_read(broker, topic, False)
        later = {"DELAY": "3", "UNIQ_KEY": scene.unique_id(1)}  # 10 s: due when ours serves
        scene.send(broker, topic, b"apache later", later)
    apache_alone.stop_broker(0)

    with our_broker(apache_alone), live_scene(facts, addresses) as scene:
        broker = scene.broker()
        assert topic in _topics(broker)
        assert _committed(broker, topic) == 3
        assert _may_read(broker, topic) is not scene.is_5x
        (found,) = query_by_key(scene, broker, topic, "apache-2")
        assert found.body == theirs[2]
        ours = _send(scene, broker, topic, "downrange", 3)
        new_topic = scene.create_topic(broker, "made_by_ours")
        _commit(broker, topic, 7)
        assert _may_read(broker, topic, True)
        assert not _may_read(broker, new_topic, False)
        later = {"DELAY": "3", "UNIQ_KEY": scene.unique_id(2)}  # 10 s: due when Apache is back
        scene.send(broker, topic, b"downrange later", later)
        records = pull(scene, broker, topic, count=9)
        # The position of the delayed message depends on how long Apache took to stop.
        bodies = [record.body for record in records]
        assert sorted(bodies) == sorted([*theirs, *ours, b"apache later"])

    apache_alone.start_broker(0)
    with live_scene(facts, addresses) as scene:
        broker = scene.broker()
        assert {topic, new_topic} <= _topics(broker)
        assert _committed(broker, topic) == 7
        if scene.is_5x:
            assert _may_read(broker, topic)
            assert not _may_read(broker, new_topic)
        (found,) = query_by_key(scene, broker, topic, "downrange-1")
        assert found.body == ours[1]
        reply = scene.send(broker, topic, b"apache again", {"UNIQ_KEY": scene.unique_id(3)})
        assert reply.queue_offset in (9, 10)
        # Apache scans a delay level every 100 ms, and only after 10 s when a delivery failed.
        deadline = time.monotonic() + 120
        while len(records := pull(scene, broker, topic, count=10)) < 11:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        late = [record.body for record in records[9:]]
        assert [record.body for record in records[:9]] == bodies
        assert sorted(late) == [b"apache again", b"downrange later"]
