"""Resets of a group's offsets: through the next pull (5.x), or by a request to members (4.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.model import QueueId
from downrange.wire.bodies import ConsumerMember, HeartbeatBody, ResetOffsetBody, Subscription
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    CommitOffsetRequest,
    GroupOffsetRequest,
    OffsetReply,
    PullReply,
    ResetOffsetRequest,
)
from tests.conversations.operators import create_group, pull_request, wait_for_end
from tests.conversations.scene import Scene, bare_request, read_body, read_header, succeed

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from tests.conversations.peers import Peer

_COMMITTING = int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET)


def a_reset_reaches_the_consumers_of_a_group(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "reset", read_queue_nums=1, write_queue_nums=1)
    group = create_group(scene, broker, "members")
    for number in range(4):
        scene.send(broker, topic, b"%d" % number, {"UNIQ_KEY": scene.unique_id(number)})
    wait_for_end(scene, broker, topic, 4)
    commit = CommitOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=3)
    succeed(broker.ask(request_command(commit)))
    if scene.is_5x:
        _reset_through_a_pull(scene, broker, topic, group)
    else:
        _reset_by_a_request(scene, broker, topic, group)


def _reset(topic: str, group: str, **changes: int) -> Command:
    fields = {"timestamp": 0, "is_force": True, **changes}
    header = ResetOffsetRequest(topic=topic, group=group, **fields)  # type: ignore[arg-type]
    return request_command(header, code=int(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET))


def _reset_through_a_pull(scene: Scene, broker: Peer, topic: str, group: str) -> None:
    ask = request_command(GroupOffsetRequest(consumer_group=group, topic=topic, queue_id=0))
    queue = QueueId(topic, scene.facts.broker, 0)

    refused = broker.ask(_reset(scene.name("no-topic"), group))
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert refused.remark == f"Topic {scene.name('no-topic')} does not exist"
    refused = broker.ask(_reset(topic, scene.name("no-group")))
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert refused.remark == f"Group {scene.name('no-group')} does not exist"
    refused = broker.ask(_reset(topic, group, queue_id=0, offset=9))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "Target offset 9 not in consume queue range [0-4]"

    for changes, offset in (
        ({}, 0),
        ({"timestamp": -1}, 4),
        ({"timestamp": -1, "is_force": False}, 4),  # force is not read
        ({"timestamp": scene.facts.now_ms + 3_600_000}, 4),
        ({"queue_id": 0, "offset": 2}, 2),
        ({"offset": 2}, 0),  # an offset is read for one queue only
        ({"queue_id": 0, "offset": 1}, 1),
    ):
        body = read_body(ResetOffsetBody, broker.ask(_reset(topic, group, **changes)))
        assert body.offset_table == {queue: offset}, changes
        assert read_header(OffsetReply, broker.ask(ask)).offset == offset

    commit = CommitOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=3)
    confirmed = succeed(broker.ask(request_command(commit)))
    assert confirmed.remark == "Offset has been previously reset"
    assert read_header(OffsetReply, broker.ask(ask)).offset == 1
    other = create_group(scene, broker, "others")
    assert broker.ask(pull_request(topic, other, offset=4)).code == ResponseCode.PULL_NOT_FOUND

    moved = broker.ask(pull_request(topic, group, offset=4))
    header = PullReply.from_fields(moved.fields)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (1, 0, 4)
    found = succeed(broker.ask(pull_request(topic, group, offset=1, flags=_COMMITTING, commit=1)))
    assert read_header(PullReply, found).next_begin_offset == 4
    succeed(broker.ask(request_command(commit)))
    assert read_header(OffsetReply, broker.ask(ask)).offset == 3


def _reset_by_a_request(scene: Scene, broker: Peer, topic: str, group: str) -> None:
    member = scene.broker()
    subscription = Subscription(topic=topic, sub_version=scene.facts.now_ms)
    consumer = ConsumerMember(group_name=group, subscription_data_set=[subscription])
    beat = HeartbeatBody(client_id="127.0.0.1@1", consumer_data_set=[consumer])
    succeed(member.ask(bare_request(RequestCode.HEART_BEAT, beat.encode())))
    queue = QueueId(topic, scene.facts.broker, 0)
    body = read_body(ResetOffsetBody, broker.ask(_reset(topic, group)))
    assert body.offset_table == {queue: 0}
    pushed = member.wait_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert pushed.is_oneway
    header = ResetOffsetRequest.from_fields(pushed.fields)
    assert (header.topic, header.group) == (topic, group)
    # A pull is answered as if nothing had happened.
    assert broker.ask(pull_request(topic, group, offset=1)).code == ResponseCode.SUCCESS
