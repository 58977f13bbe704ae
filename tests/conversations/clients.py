"""Clients: heartbeats, membership, queue locks, transactions, request and reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.model import QueueId
from downrange.wire.bodies import (
    ConsumerConnectionsBody,
    ConsumerMember,
    ConsumeStatsBody,
    GroupMembersBody,
    HeartbeatBody,
    LockedQueuesBody,
    LockQueuesBody,
    ProducerConnectionsBody,
    ProducerMember,
    Subscription,
)
from downrange.wire.codes import RequestCode, ResponseCode, TransactionFlag
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.hashes import java_hash
from downrange.wire.headers import (
    CheckTransactionRequest,
    CommitOffsetRequest,
    ConsumerConnectionsRequest,
    ConsumeStatsRequest,
    EndTransactionRequest,
    GroupMembersRequest,
    HeartbeatReply,
    MembersChangedRequest,
    ProducerConnectionsRequest,
    PushReplyRequest,
    UnregisterClientRequest,
)
from downrange.wire.ids import parse_offset_id
from downrange.wire.properties import decode_properties, encode_properties
from downrange.wire.records import decode_record
from tests.conversations.scene import Scene, bare_request, read_body, read_header, succeed
from tests.conversations.sends import pull

if TYPE_CHECKING:
    from downrange.wire.headers import SendReply
    from tests.conversations.peers import Peer

CHECK_SECONDS = 60.0


def members_of_a_group_know_of_each_other(scene: Scene) -> None:
    first, second = scene.broker(), scene.broker()
    topic = scene.create_topic(first, "subscribed")
    group = scene.name("members")
    reply = first.ask(_heartbeat(scene, "1", topic=topic))
    assert read_header(HeartbeatReply, reply).supports_v2 is scene.is_5x
    succeed(second.ask(_heartbeat(scene, "2", topic=topic)))

    notice = first.wait_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert notice.is_oneway
    assert MembersChangedRequest.from_fields(notice.fields).consumer_group == group
    reply = first.ask(request_command(GroupMembersRequest(consumer_group=group)))
    members = read_body(GroupMembersBody, reply).consumer_id_list
    assert sorted(members) == ["127.0.0.1@1", "127.0.0.1@2"]

    reply = first.ask(request_command(ConsumerConnectionsRequest(consumer_group=group)))
    connections = read_body(ConsumerConnectionsBody, reply)
    assert {member.language for member in connections.connection_set} == {"PYTHON"}
    assert connections.subscription_table[topic].sub_string == "a||b"
    request = ProducerConnectionsRequest(producer_group=scene.name("makers"))
    reply = first.ask(request_command(request))
    assert len(read_body(ProducerConnectionsBody, reply).connection_set) == 2

    request_leave = UnregisterClientRequest(client_id="127.0.0.1@2", consumer_group=group)
    succeed(second.ask(request_command(request_leave)))
    reply = first.ask(request_command(GroupMembersRequest(consumer_group=group)))
    assert read_body(GroupMembersBody, reply).consumer_id_list == ["127.0.0.1@1"]


def queues_are_locked_for_one_member(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "locked")
    queues = [QueueId(topic, scene.facts.broker, number) for number in range(2)]

    def lock(code: RequestCode, client: str) -> Command:
        body = LockQueuesBody(consumer_group=scene.name("lockers"), client_id=client, mq_set=queues)
        return broker.ask(bare_request(code, body.encode()))

    def locked(client: str) -> list[QueueId]:
        return sorted(read_body(LockedQueuesBody, lock(RequestCode.LOCK_BATCH_MQ, client)).locked)

    assert locked("one") == queues
    assert locked("two") == []
    assert locked("one") == queues
    succeed(lock(RequestCode.UNLOCK_BATCH_MQ, "one"))
    assert locked("two") == queues


def consume_progress_is_reported(scene: Scene) -> None:
    broker = scene.broker()
    topic, group = scene.create_topic(broker, "progress"), scene.name("members")
    succeed(broker.ask(_heartbeat(scene, "1", topic=topic)))
    for number in range(2):
        scene.send(broker, topic, b"x", {"UNIQ_KEY": scene.unique_id(number)})
    pull(scene, broker, topic, count=2)
    commit = CommitOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)
    succeed(broker.ask(request_command(commit)))
    reply = broker.ask(request_command(ConsumeStatsRequest(consumer_group=group, topic=topic)))
    stats = read_body(ConsumeStatsBody, reply)
    progress = stats.offset_table[QueueId(topic, scene.facts.broker, 0)]
    assert (progress.consumer_offset, progress.broker_offset) == (1, 2)


def transactions_commit_roll_back_and_are_checked(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "transacted", read_queue_nums=1, write_queue_nums=1)
    succeed(broker.ask(_heartbeat(scene, "1")))

    committed = _send_half(scene, broker, topic, 1, b"committed")
    reply = broker.ask(_end(scene, committed, TransactionFlag.COMMIT))
    succeed(reply)
    rolled_back = _send_half(scene, broker, topic, 2, b"rolled back")
    succeed(broker.ask(_end(scene, rolled_back, TransactionFlag.ROLLBACK)))
    (record,) = pull(scene, broker, topic, count=1)
    assert record.body == b"committed"
    assert record.sys_flag & TransactionFlag.ROLLBACK == TransactionFlag.COMMIT
    assert record.prepared_offset == parse_offset_id(committed.msg_id).log_offset

    _send_half(scene, broker, topic, 3, b"in doubt")
    while True:
        check = broker.wait_request(RequestCode.CHECK_TRANSACTION_STATE, seconds=CHECK_SECONDS)
        assert check.is_oneway
        half = decode_record(check.body)
        if half.body == b"in doubt":  # 5.x may still check a transaction that just ended
            break
    header = CheckTransactionRequest.from_fields(check.fields)
    assert half.topic == topic
    assert header.transaction_id == scene.unique_id(3)
    decision = EndTransactionRequest(
        producer_group=scene.name("makers"),
        tran_state_table_offset=header.tran_state_table_offset,
        commit_log_offset=header.commit_log_offset,
        commit_or_rollback=int(TransactionFlag.COMMIT),
        from_transaction_check=True,
        msg_id=scene.unique_id(3),
        transaction_id=header.transaction_id,
    )
    succeed(broker.ask(request_command(decision)))
    records = pull(scene, broker, topic, count=2)
    assert [record.body for record in records] == [b"committed", b"in doubt"]


def a_reply_reaches_the_one_who_asked(scene: Scene) -> None:
    asking, answering = scene.broker(), scene.broker()
    topic = scene.create_topic(asking, "questions")
    succeed(asking.ask(_heartbeat(scene, "asker")))
    question = {
        "UNIQ_KEY": scene.unique_id(1),
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "127.0.0.1@asker",
        "TTL": "3000",
    }
    scene.send(asking, topic, b"how much?", question)
    (record,) = pull(scene, answering, topic, count=1)
    cluster = record.properties()["CLUSTER"]
    answer = {name: question[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
    header = scene.send_request(
        f"{cluster}_REPLY_TOPIC", properties=encode_properties({**answer, "MSG_TYPE": "reply"})
    )
    # The broker replies to the sender of the answer only after the asking client has confirmed it,
    # so both exchanges run at the same time.
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    call = answering.start(request_command(header, b"42", code=code))
    pushed = asking.wait_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    push = PushReplyRequest.from_fields(pushed.fields)
    assert pushed.body == b"42"
    assert decode_properties(push.properties or "")["CORRELATION_ID"] == "c-1"
    asking.answer(pushed, Command(int(ResponseCode.SUCCESS)))
    succeed(answering.finish(call))


def _heartbeat(scene: Scene, client: str, *, topic: str | None = None) -> Command:
    body = HeartbeatBody(
        client_id=f"127.0.0.1@{client}",
        producer_data_set=[ProducerMember(group_name=scene.name("makers"))],
    )
    if topic is not None:
        tags = ["a", "b"]
        subscription = Subscription(
            topic=topic,
            sub_string="a||b",
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
            sub_version=scene.facts.now_ms,
        )
        body.consumer_data_set = [
            ConsumerMember(group_name=scene.name("members"), subscription_data_set=[subscription])
        ]
    return bare_request(RequestCode.HEART_BEAT, body.encode())


def _send_half(scene: Scene, broker: Peer, topic: str, number: int, body: bytes) -> SendReply:
    properties = {
        "UNIQ_KEY": scene.unique_id(number),
        "TRAN_MSG": "true",
        "PGROUP": scene.name("makers"),
        "WAIT": "true",
    }
    return scene.send(
        broker,
        topic,
        body,
        properties,
        sys_flag=int(TransactionFlag.PREPARED),
        producer_group=scene.name("makers"),
    )


def _end(scene: Scene, half: SendReply, outcome: TransactionFlag) -> Command:
    return request_command(
        EndTransactionRequest(
            producer_group=scene.name("makers"),
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=parse_offset_id(half.msg_id).log_offset,
            commit_or_rollback=int(outcome),
            msg_id=half.transaction_id or half.msg_id,
            transaction_id=half.transaction_id,
        )
    )
