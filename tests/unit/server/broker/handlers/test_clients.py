"""Heartbeats, membership, locks and connection lists."""

from __future__ import annotations

import pytest

from downrange.model import QueueId
from downrange.server.broker.handlers.clients import expire, on_disconnect
from downrange.server.outputs import Disconnect, Note, Peer
from downrange.wire.bodies import (
    AllProducersBody,
    CheckClientBody,
    ConsumerConnectionsBody,
    GroupConfig,
    GroupMembersBody,
    LockedQueuesBody,
    LockQueuesBody,
    ProducerConnectionsBody,
    Subscription,
    decode_body,
)
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    ConsumerConnectionsRequest,
    GroupMembersRequest,
    HeartbeatReply,
    ProducerConnectionsRequest,
    UnregisterClientRequest,
)
from tests.unit.server.broker.handlers.handler_stage import HandlerStage, pushes_of, reply_of

ONE, TWO = Peer(11, "10.0.0.3:1"), Peer(12, "10.0.0.4:1")
CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def members(broker: HandlerStage, group: str = "G") -> list[str]:
    reply = broker.request(GroupMembersRequest(consumer_group=group))
    if reply.code != ResponseCode.SUCCESS:
        return []
    return decode_body(GroupMembersBody, reply.body).consumer_id_list


# ---- heartbeats --------------------------------------------------------------------------------


def test_a_new_member_is_listed_and_all_members_are_notified() -> None:
    broker = HandlerStage()
    assert pushes_of(broker.beat(ONE, "a"), CHANGED) == [11]
    assert pushes_of(broker.beat(TWO, "b"), CHANGED) == [11, 12]
    assert pushes_of(broker.beat(TWO, "b"), CHANGED) == []
    assert members(broker) == ["a", "b"]


def test_a_group_that_gains_or_loses_a_topic_is_notified() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    assert pushes_of(broker.beat(ONE, "a", topics=("T", "U")), CHANGED) == [11]
    assert pushes_of(broker.beat(ONE, "a", topics=("U",)), CHANGED) == [11]
    group = broker.state.clients.consumer_group("G")
    assert group is not None
    assert group.subscription("T") is None


def test_only_a_newer_subscription_replaces_the_one_before() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a", version=5)
    group = broker.state.clients.consumer_group("G")
    assert group is not None
    for version, kept in ((4, 5), (5, 5), (6, 6)):
        broker.beat(ONE, "a", version=version)
        subscription = group.subscription("T")
        assert subscription is not None
        assert subscription.sub_version == kept


def test_a_heartbeat_creates_the_group_and_its_retry_topic() -> None:
    broker = HandlerStage()
    broker.state.groups.put(GroupConfig(group_name="three", retry_queue_nums=3), 0)
    broker.beat(ONE, "a", group="new")
    broker.beat(ONE, "a", group="three")
    assert broker.state.groups.get("new") is not None
    for topic, queues in (("%RETRY%new", 1), ("%RETRY%three", 3)):
        config = broker.state.topics.get(topic)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, 6)


def test_a_group_that_may_not_exist_has_no_members() -> None:
    broker = HandlerStage(is_group_created=False)
    assert reply_of(broker.beat(ONE, "a", group="new")).code == ResponseCode.SUCCESS
    assert broker.state.clients.consumer_group("new") is None
    assert broker.state.topics.get("%RETRY%new") is None


@pytest.mark.parametrize("is_broadcasting", [True, False])
def test_a_broadcasting_group_or_one_with_notifications_off_is_not_notified(
    is_broadcasting: bool,
) -> None:
    broker = HandlerStage()
    quiet = GroupConfig(group_name="G", notify_consumer_ids_changed_enable=is_broadcasting)
    broker.state.groups.put(quiet, 0)
    model = "BROADCASTING" if is_broadcasting else "CLUSTERING"
    assert pushes_of(broker.beat(ONE, "a", model=model), CHANGED) == []


def is_full_needed(
    broker: HandlerStage,
    fingerprint: int,
    *topics: str,
    peer: Peer = ONE,
    group: str = "G",
) -> bool:
    """Send a heartbeat, a short one without topics; return whether the next one must be full."""
    is_short = fingerprint != 0 and not topics
    outputs = broker.beat(
        peer,
        f"client {peer.number}",
        group=group,
        topics=topics,
        fingerprint=fingerprint,
        is_short=is_short,
    )
    reply = HeartbeatReply.from_fields(reply_of(outputs).fields)
    assert reply.supports_v2
    return reply.subscription_changed


def subscribed(broker: HandlerStage) -> set[str]:
    group = broker.state.clients.consumer_group("G")
    assert group is not None
    return set(group.subscriptions())


def test_a_heartbeat_without_fingerprint_is_always_full() -> None:
    broker = HandlerStage()
    assert is_full_needed(broker, 0, "T")
    assert is_full_needed(broker, 0, "T")
    assert is_full_needed(broker, 7, "T")
    assert is_full_needed(broker, 0)
    assert subscribed(broker) == set()


def test_short_heartbeats_keep_the_subscriptions_of_the_full_one() -> None:
    broker = HandlerStage()
    assert not is_full_needed(broker, 7, "T", "U")
    assert not is_full_needed(broker, 7)
    assert not is_full_needed(broker, 7)
    assert subscribed(broker) == {"T", "U"}


def test_subscriptions_change_with_the_fingerprint_of_a_full_heartbeat() -> None:
    broker = HandlerStage()
    is_full_needed(broker, 7, "T")
    assert is_full_needed(broker, 8, "U")
    assert subscribed(broker) == {"U"}
    assert not is_full_needed(broker, 8, "U")
    assert not is_full_needed(broker, 8)


def test_a_short_heartbeat_of_another_fingerprint_requests_a_full_one() -> None:
    broker = HandlerStage()
    is_full_needed(broker, 7, "T")
    for _ in range(2):  # the second time, Apache takes the fingerprint for known
        assert is_full_needed(broker, 8)
    assert subscribed(broker) == {"T"}
    assert not is_full_needed(broker, 8, "U")
    assert subscribed(broker) == {"U"}


def test_a_short_heartbeat_to_a_broker_that_knows_no_subscriptions_requests_a_full_one() -> None:
    broker = HandlerStage()
    assert is_full_needed(broker, 7)
    assert is_full_needed(broker, 7)
    assert not is_full_needed(broker, 7, "T")
    assert not is_full_needed(broker, 7)
    on_disconnect(broker.state, ONE, broker.now_ms)
    assert is_full_needed(broker, 7, peer=TWO)


def test_members_of_one_fingerprint_share_the_subscriptions() -> None:
    broker = HandlerStage()
    is_full_needed(broker, 7, "T")
    assert not is_full_needed(broker, 7, peer=TWO)
    assert members(broker) == ["client 11", "client 12"]


def test_a_short_heartbeat_of_a_producer_needs_no_full_one() -> None:
    broker = HandlerStage()
    outputs = broker.beat(ONE, "a", group="", producing="P", fingerprint=7, is_short=True)
    assert not HeartbeatReply.from_fields(reply_of(outputs).fields).subscription_changed


def test_a_client_is_found_by_its_name_and_by_a_new_one_on_the_same_connection() -> None:
    broker = HandlerStage()
    clients = broker.state.clients
    broker.beat(ONE, "a", producing="P")
    assert clients.connection_of_client("a") == 11
    assert clients.find_consumer_connection("G", "a") == 11
    assert clients.find_consumer_connection("G", "b") is None
    assert clients.find_consumer_connection("none", "a") is None
    broker.beat(ONE, "b", producing="P")
    assert (clients.connection_of_client("a"), clients.connection_of_client("b")) == (None, 11)
    assert clients.producer_connections("P") == [11]


def test_a_client_that_connects_anew_is_listed_once() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    broker.beat(TWO, "a")
    assert members(broker) == ["a"]
    on_disconnect(broker.state, ONE, broker.now_ms)
    assert members(broker) == ["a"]
    assert broker.state.clients.connection_of_client("a") == 12


def test_a_heartbeat_of_an_unknown_language_is_accepted() -> None:
    broker = HandlerStage()
    body = b'{"clientID":"a","producerDataSet":[{"groupName":"P"}]}'
    request = request_command(GroupMembersRequest(consumer_group=""), body)
    request.code, request.language = int(RequestCode.HEART_BEAT), None
    assert reply_of(broker.outputs(request, ONE)).code == ResponseCode.SUCCESS
    (client,) = broker.state.clients.producers("P")
    assert client.language is None


# ---- leaving -----------------------------------------------------------------------------------


def test_a_client_that_unregisters_leaves_its_groups_and_the_others_are_notified() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a", producing="P")
    broker.beat(TWO, "b")
    leave = UnregisterClientRequest(client_id="a", producer_group="P", consumer_group="G")
    outputs = broker.outputs(request_command(leave), ONE)
    assert pushes_of(outputs, CHANGED) == [12]
    assert reply_of(outputs).code == ResponseCode.SUCCESS
    assert members(broker) == ["b"]
    assert broker.state.clients.producers("P") == []
    assert broker.state.clients.connection_of_client("a") is None


def test_an_unknown_client_may_unregister_and_creates_the_group() -> None:
    broker = HandlerStage()
    leave = UnregisterClientRequest(client_id="a", producer_group="P", consumer_group="odd")
    assert reply_of(broker.outputs(request_command(leave), ONE)).code == ResponseCode.SUCCESS
    assert broker.state.groups.get("odd") is not None
    broker.beat(ONE, "a")
    outputs = broker.outputs(request_command(leave), ONE)
    assert pushes_of(outputs, CHANGED) == []
    leave_consumers = UnregisterClientRequest(client_id="a", consumer_group="odd")
    assert reply_of(broker.outputs(request_command(leave_consumers), ONE)).code == 0
    leave_producers = UnregisterClientRequest(client_id="a", producer_group="P")
    assert reply_of(broker.outputs(request_command(leave_producers), ONE)).code == 0
    assert members(broker) == ["a"]


def test_a_lost_connection_leaves_all_groups() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a", producing="P")
    broker.beat(ONE, "a", group="H", producing="P")
    broker.beat(TWO, "b", producing="P")
    assert pushes_of(on_disconnect(broker.state, ONE, broker.now_ms), CHANGED) == [12]
    assert members(broker, "H") == []
    assert broker.state.clients.producer_connections("P") == [12]
    assert on_disconnect(broker.state, ONE, broker.now_ms) == []


def test_a_client_without_heartbeats_is_disconnected_and_the_others_are_notified() -> None:
    broker = HandlerStage(client_timeout=120.0)
    expire(broker.state, broker.now_ms)
    broker.beat(ONE, "a", producing="P")
    broker.now_ms += 60_000
    broker.beat(TWO, "b")
    assert expire(broker.state, broker.now_ms) == []
    broker.now_ms += 60_001
    outputs = expire(broker.state, broker.now_ms)
    assert Disconnect(11) in outputs
    assert any(isinstance(output, Note) and "client a" in output.text for output in outputs)
    rest = [output for output in outputs if not isinstance(output, Note | Disconnect)]
    assert pushes_of(rest, CHANGED) == [12]
    assert members(broker) == ["b"]


def test_silent_clients_are_looked_for_every_ten_seconds_only() -> None:
    broker = HandlerStage(client_timeout=1.0)
    expire(broker.state, broker.now_ms)
    broker.beat(ONE, "a")
    assert expire(broker.state, broker.now_ms + 9_999) == []
    assert expire(broker.state, broker.now_ms + 10_000) != []


def test_a_group_that_is_left_out_of_heartbeats_expires_its_client() -> None:
    broker = HandlerStage(client_timeout=5.0)
    broker.beat(ONE, "a", group="", producing="P")
    broker.now_ms += 6_000
    broker.beat(ONE, "a")
    assert Disconnect(11) in expire(broker.state, broker.now_ms)


# ---- locks and checks --------------------------------------------------------------------------


def test_locked_queues_are_those_that_the_client_holds() -> None:
    broker = HandlerStage()
    queues = [QueueId("T", "broker-a", number) for number in range(2)]

    def lock(client: str) -> list[QueueId]:
        body = LockQueuesBody(consumer_group="G", client_id=client, mq_set=queues).encode()
        reply = broker.ask(RequestCode.LOCK_BATCH_MQ, body)
        return decode_body(LockedQueuesBody, reply.body).locked

    assert lock("one") == queues
    assert lock("two") == []
    body = LockQueuesBody(consumer_group="G", client_id="one", mq_set=queues).encode()
    assert broker.ask(RequestCode.UNLOCK_BATCH_MQ, body).code == ResponseCode.SUCCESS
    assert lock("two") == queues


def test_only_queues_that_the_broker_has_are_locked() -> None:
    broker = HandlerStage()
    queues = [
        QueueId("T", "broker-a", 0),
        QueueId("T", "broker-a", 2),
        QueueId("T", "broker-a", -1),
        QueueId("T", "broker-b", 0),
        QueueId("none", "broker-a", 0),
        QueueId("T", "broker-a", 1),
    ]
    body = LockQueuesBody(consumer_group="unknown", client_id="one", mq_set=queues).encode()
    reply = broker.ask(RequestCode.LOCK_BATCH_MQ, body)
    assert decode_body(LockedQueuesBody, reply.body).locked == [queues[0], queues[-1]]
    assert len(broker.state.locks) == 2
    assert broker.state.groups.get("unknown") is None


QUEUES = [QueueId("T", "broker-a", number) for number in range(2)]


def lock(broker: HandlerStage, client: str, group: str = "G") -> list[QueueId]:
    body = LockQueuesBody(consumer_group=group, client_id=client, mq_set=QUEUES).encode()
    reply = broker.ask(RequestCode.LOCK_BATCH_MQ, body)
    return decode_body(LockedQueuesBody, reply.body).locked


def test_locks_of_a_client_end_with_its_connection() -> None:
    broker = HandlerStage()
    for group in ("G", "H"):
        broker.beat(ONE, "a", group=group)
        broker.beat(TWO, "b", group=group)
        assert lock(broker, "a", group) == QUEUES
        assert lock(broker, "b", group) == []
    on_disconnect(broker.state, ONE, broker.now_ms)
    assert lock(broker, "b", "G") == lock(broker, "b", "H") == QUEUES
    on_disconnect(broker.state, ONE, broker.now_ms)
    assert lock(broker, "a") == []


def test_locks_of_a_client_with_another_connection_are_kept_until_that_ends_too() -> None:
    broker = HandlerStage()
    three = Peer(13, "10.0.0.5:1")
    broker.beat(ONE, "a")
    broker.beat(TWO, "a")
    broker.beat(three, "b")
    assert lock(broker, "a") == QUEUES
    on_disconnect(broker.state, ONE, broker.now_ms)
    assert lock(broker, "b") == []
    on_disconnect(broker.state, TWO, broker.now_ms)
    assert lock(broker, "b") == QUEUES


def test_locks_of_a_client_end_when_it_leaves_the_group() -> None:
    broker = HandlerStage()
    for group in ("G", "H"):
        broker.beat(ONE, "a", group=group)
        lock(broker, "a", group)
    leave = UnregisterClientRequest(client_id="a", consumer_group="G")
    broker.outputs(request_command(leave), ONE)
    assert lock(broker, "b", "G") == QUEUES
    assert lock(broker, "b", "H") == []


def test_locks_of_a_client_without_heartbeats_end_with_its_membership() -> None:
    broker = HandlerStage(client_timeout=5.0)
    expire(broker.state, broker.now_ms)
    broker.beat(ONE, "a")
    lock(broker, "a")
    broker.now_ms += 10_000
    expire(broker.state, broker.now_ms)
    assert lock(broker, "b") == QUEUES


def check(expression: str, kind: str, *, is_sql_enabled: bool = True) -> tuple[int, str | None]:
    subscription = Subscription(topic="T", sub_string=expression, expression_type=kind)
    body = CheckClientBody(client_id="a", group="G", subscription_data=subscription)
    stage = HandlerStage(is_sql_enabled=is_sql_enabled)
    reply = stage.ask(RequestCode.CHECK_CLIENT_CONFIG, body.encode())
    return reply.code, reply.remark


@pytest.mark.parametrize(
    ("expression", "kind"), [("*", "TAG"), ("||", "TAG"), ("a >", ""), ("a > 1", "SQL92")]
)
def test_a_subscription_is_found_right(expression: str, kind: str) -> None:
    assert check(expression, kind) == (ResponseCode.SUCCESS, None)


@pytest.mark.parametrize("expression", ["a >", "", "a = 1" + " OR a = 1" * 2_000, "(" * 999])
def test_an_expression_that_cannot_be_read_is_refused_with_its_mistake(expression: str) -> None:
    code, remark = check(expression, "SQL92")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (remark or "").endswith("^")


@pytest.mark.parametrize("kind", ["SQL92", "CLASS"])
def test_expressions_can_be_switched_off(kind: str) -> None:
    assert check("a > 1", kind, is_sql_enabled=False) == (
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind}",
    )


def test_a_kind_of_expressions_that_does_not_exist_is_refused() -> None:
    code, remark = check("a > 1", "CLASS")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "does not support" in (remark or "")


def test_a_check_without_subscription_succeeds() -> None:
    assert HandlerStage().ask(RequestCode.CHECK_CLIENT_CONFIG).code == ResponseCode.SUCCESS


# ---- lists -------------------------------------------------------------------------------------


def test_connected_consumers_are_shown_with_what_they_read() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a")
    reply = broker.request(ConsumerConnectionsRequest(consumer_group="G"))
    body = decode_body(ConsumerConnectionsBody, reply.body)
    (connection,) = body.connection_set
    assert (connection.client_id, connection.client_addr) == ("a", ONE.address)
    assert (connection.language, connection.version) == ("PYTHON", 479)
    assert body.subscription_table.keys() == {"T"}
    assert (body.message_model, body.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert body.consume_from_where == "CONSUME_FROM_LAST_OFFSET"


def test_connected_producers_are_shown_by_group_and_in_all() -> None:
    broker = HandlerStage()
    broker.beat(ONE, "a", producing="P")
    reply = broker.request(ProducerConnectionsRequest(producer_group="P"))
    (connection,) = decode_body(ProducerConnectionsBody, reply.body).connection_set
    assert connection.client_id == "a"
    reply = broker.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    ((entry,),) = decode_body(AllProducersBody, reply.body).data.values()
    assert (entry.remote_ip, entry.last_update_timestamp) == (ONE.address, broker.now_ms)


def test_groups_without_members_are_refused() -> None:
    broker = HandlerStage()
    reply = broker.request(ConsumerConnectionsRequest(consumer_group="G"))
    assert reply.code == ResponseCode.CONSUMER_NOT_ONLINE
    for header in (
        ProducerConnectionsRequest(producer_group="P"),
        GroupMembersRequest(consumer_group="G"),
    ):
        assert broker.request(header).code == ResponseCode.SYSTEM_ERROR
