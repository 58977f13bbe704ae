"""Queues shared out by the broker, message request modes, membership, short heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.model import QueueId
from downrange.wire.bodies import (
    AssignmentQueryBody,
    AssignmentsBody,
    ConsumerConnectionsBody,
    ConsumerMember,
    GroupMembersBody,
    HeartbeatBody,
    RequestModeBody,
    RequestModesBody,
    Subscription,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumerConnectionsRequest,
    GroupMembersRequest,
    HeartbeatReply,
    MembersChangedRequest,
    UnregisterClientRequest,
)
from downrange.wire.system_names import retry_topic
from tests.conversations.scene import Scene, bare_request, read_body, read_header, succeed

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from tests.conversations.peers import Peer

_QUERY = RequestCode.QUERY_ASSIGNMENT
_SET_MODE = RequestCode.SET_MESSAGE_REQUEST_MODE
_LIST_MODES = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
_CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def a_broker_shares_the_queues_of_a_topic_among_members(scene: Scene) -> None:
    one, two = scene.broker(), scene.broker()
    topic = scene.create_topic(one, "shared", read_queue_nums=5)
    if not scene.is_5x:
        _is_unknown(scene, one, topic)
        return
    assert _ask(scene, one, topic).message_queue_assignments is None  # without members
    for number, member in enumerate((one, two), 1):
        succeed(member.ask(_heartbeat(scene, number, topic)))

    assert _shared(scene, one, topic, client=1) == [0, 1, 2]
    assert _shared(scene, one, topic, client=2) == [3, 4]
    assert _shared(scene, one, topic, client=1, strategy="AVG_BY_CIRCLE") == [0, 2, 4]
    assert _shared(scene, one, topic, client=2, strategy="AVG_BY_CIRCLE") == [1, 3]
    assert _shared(scene, one, topic, client=3) == []
    everything = [0, 1, 2, 3, 4]
    assert _shared(scene, one, topic, client=3, model="BROADCASTING") == everything
    assert _ask(scene, one, topic, strategy="UNKNOWN").message_queue_assignments is None
    assert _ask(scene, one, scene.name("none")).message_queue_assignments is None
    reply = one.ask(_query(scene, topic, model="NONSENSE"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    for body in (b"", b"{}"):
        assert one.ask(bare_request(_QUERY, body)).code == ResponseCode.SYSTEM_ERROR


def a_group_pulls_or_pops_as_its_mode_says(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "popped", read_queue_nums=4)
    group = scene.name("sharing")
    if not scene.is_5x:
        for code in (_SET_MODE, _LIST_MODES):
            reply = broker.ask(_mode(scene, topic) if code == _SET_MODE else bare_request(code))
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return
    members = [broker, *(scene.broker() for _ in range(3))]
    for number, member in enumerate(members, 1):
        succeed(member.ask(_heartbeat(scene, number, topic)))

    succeed(broker.ask(_mode(scene, topic, share=1)))
    assert _shared(scene, broker, topic, client=1, mode="POP") == [0, 1]
    assert _shared(scene, broker, topic, client=4, mode="POP") == [0, 3]
    assert _shared(scene, broker, topic, client=9, mode="POP") == []
    for share in (-1, 0, 3):
        succeed(broker.ask(_mode(scene, topic, share=share)))
        assert _shared(scene, broker, topic, client=1, mode="POP") == [-1]
    few = scene.create_topic(broker, "few", read_queue_nums=2)
    succeed(broker.ask(_mode(scene, few, share=1)))
    got = [_shared(scene, broker, few, client=number, mode="POP") for number in range(1, 5)]
    assert got == [[0], [1], [0], [1]]
    assert _shared(scene, broker, retry_topic(group), client=1) == [0]

    modes = read_body(RequestModesBody, broker.ask(bare_request(_LIST_MODES)))
    assert modes.message_request_mode_map[topic][group] == RequestModeBody(
        topic=topic, consumer_group=group, mode="POP", pop_share_queue_num=3
    )
    succeed(broker.ask(_mode(scene, topic, mode="PULL")))
    assert _shared(scene, broker, topic, client=1) == [0]

    reply = broker.ask(_mode(scene, retry_topic(group)))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "retry topic is not allowed to set mode"
    reply = broker.ask(_mode(scene, scene.name("none")))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark == f"topic[{scene.name('none')}] not exist"
    reply = broker.ask(_mode(scene, topic, group="not legal!"))
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert reply.remark == "subscription group does not exist"
    for body in (b"", b"{}"):
        assert broker.ask(bare_request(_SET_MODE, body)).code == ResponseCode.SYSTEM_ERROR


def members_are_told_at_once_who_joins_and_leaves(scene: Scene) -> None:
    stays, leaves, ends = scene.broker(), scene.broker(), scene.broker()
    topic = scene.create_topic(stays, "told")
    group = scene.name("sharing")
    for number, member in enumerate((stays, leaves, ends), 1):
        succeed(member.ask(_heartbeat(scene, number, topic)))
        _expect_change(stays, group)
    request = UnregisterClientRequest(client_id=_client(2), consumer_group=group)
    succeed(leaves.ask(request_command(request)))
    _expect_change(stays, group)
    ends.close()
    _expect_change(stays, group)
    reply = stays.ask(request_command(GroupMembersRequest(consumer_group=group)))
    assert read_body(GroupMembersBody, reply).consumer_id_list == [_client(1)]
    # A topic more or less is a change, too.
    more = scene.create_topic(stays, "more")
    succeed(stays.ask(_heartbeat(scene, 1, topic, more)))
    _expect_change(stays, group)
    succeed(stays.ask(_heartbeat(scene, 1, more)))
    _expect_change(stays, group)
    assert _subscribed(scene, stays) == {more}


def heartbeats_with_a_known_fingerprint_leave_out_the_subscriptions(scene: Scene) -> None:
    one, two = scene.broker(), scene.broker()
    topic = scene.create_topic(one, "short")
    if not scene.is_5x:
        reply = succeed(one.ask(_heartbeat(scene, 1, topic, fingerprint=7)))
        assert not read_header(HeartbeatReply, reply).supports_v2
        return

    def is_full_needed(member: Peer, number: int, fingerprint: int, *topics: str) -> bool:
        request = _heartbeat(scene, number, *topics, fingerprint=fingerprint)
        header = read_header(HeartbeatReply, member.ask(request))
        assert header.supports_v2
        return header.subscription_changed

    assert not is_full_needed(one, 1, 7, topic)
    assert not is_full_needed(one, 1, 7)
    assert not is_full_needed(two, 2, 7)  # a new member of the same subscriptions
    assert _subscribed(scene, one) == {topic}
    more = scene.create_topic(one, "more")
    assert is_full_needed(one, 1, 8, topic, more)
    assert _subscribed(scene, one) == {topic, more}
    assert not is_full_needed(one, 1, 8, topic, more)
    assert not is_full_needed(one, 1, 8)
    assert is_full_needed(two, 2, 7)
    assert _subscribed(scene, one) == {topic, more}
    assert not is_full_needed(two, 2, 7, topic)
    assert _subscribed(scene, one) == {topic}
    # Without a fingerprint, a heartbeat is always full.
    assert is_full_needed(two, 2, 0)
    assert _subscribed(scene, one) == set()


def _is_unknown(scene: Scene, broker: Peer, topic: str) -> None:
    reply = broker.ask(_query(scene, topic))
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _client(number: int) -> str:
    return f"127.0.0.1@{number}"


def _query(
    scene: Scene, topic: str, *, client: int = 1, strategy: str = "AVG", model: str = "CLUSTERING"
) -> Command:
    body = AssignmentQueryBody(
        topic=topic,
        consumer_group=scene.name("sharing"),
        client_id=_client(client),
        strategy_name=strategy,
        message_model=model,
    )
    return bare_request(_QUERY, body.encode())


def _ask(scene: Scene, broker: Peer, topic: str, *, strategy: str = "AVG") -> AssignmentsBody:
    return read_body(AssignmentsBody, broker.ask(_query(scene, topic, strategy=strategy)))


def _shared(
    scene: Scene,
    broker: Peer,
    topic: str,
    *,
    client: int,
    strategy: str = "AVG",
    model: str = "CLUSTERING",
    mode: str = "PULL",
) -> list[int]:
    """Return the numbers of a member's queues; all have this mode."""
    request = _query(scene, topic, client=client, strategy=strategy, model=model)
    found = read_body(AssignmentsBody, broker.ask(request)).message_queue_assignments
    assert found is not None
    for one in found:
        queue = QueueId(topic, scene.facts.broker, one.message_queue.number)
        assert (one.message_queue, one.mode, one.attachments) == (queue, mode, None)
    return sorted(one.message_queue.number for one in found)


def _mode(
    scene: Scene, topic: str, *, group: str | None = None, mode: str = "POP", share: int = 0
) -> Command:
    body = RequestModeBody(
        topic=topic,
        consumer_group=group or scene.name("sharing"),
        mode=mode,
        pop_share_queue_num=share,
    )
    return bare_request(_SET_MODE, body.encode())


def _heartbeat(scene: Scene, number: int, *topics: str, fingerprint: int = 0) -> Command:
    subscriptions = [Subscription(topic=topic, sub_version=scene.facts.now_ms) for topic in topics]
    member = ConsumerMember(group_name=scene.name("sharing"), subscription_data_set=subscriptions)
    body = HeartbeatBody(
        client_id=_client(number),
        consumer_data_set=[member],
        heartbeat_fingerprint=fingerprint,
        without_sub=not topics,
    )
    return bare_request(RequestCode.HEART_BEAT, body.encode())


def _expect_change(member: Peer, group: str) -> None:
    notice = member.wait_request(_CHANGED)
    assert notice.is_oneway
    assert MembersChangedRequest.from_fields(notice.fields).consumer_group == group


def _subscribed(scene: Scene, broker: Peer) -> set[str]:
    request = ConsumerConnectionsRequest(consumer_group=scene.name("sharing"))
    body = read_body(ConsumerConnectionsBody, broker.ask(request_command(request)))
    return set(body.subscription_table)
