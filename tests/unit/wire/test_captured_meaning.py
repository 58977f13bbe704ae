"""Captured frames of real servers and clients have the expected fields."""

from __future__ import annotations

import pytest

from downrange.model import QueueId, ReceivedMessage
from downrange.wire import headers
from downrange.wire.bodies import (
    BrokerQueues,
    BrokerReplicas,
    ConsumerMember,
    DataVersion,
    HeartbeatBody,
    KeyValueBody,
    ProducerMember,
    RegisterBrokerBody,
    RouteBody,
    Subscription,
    TopicConfig,
    TopicOffset,
    TopicStatsBody,
    decode_body,
)
from downrange.wire.codes import CommandFlag, HeaderCodec, Language, RequestCode, ResponseCode
from downrange.wire.command import encode
from downrange.wire.properties import decode_properties
from downrange.wire.records import decode_record, decode_records, encode_record
from downrange.wire.registration import registration_crc
from downrange.wire.reply_messages import messages_in
from tests.unit.wire.command_reader import captured
from tests.unit.wire.vectors import FRAMES


@pytest.mark.parametrize(
    ("name", "code", "flags", "request_id", "version"),
    [
        ("register-4.9.4", RequestCode.REGISTER_BROKER, 0, 0, 401),
        ("register-5.5.0", RequestCode.REGISTER_BROKER, 0, 3269, 513),
        ("register-answer", ResponseCode.SUCCESS, CommandFlag.REPLY, 0, 513),
        ("route-standard", ResponseCode.SUCCESS, CommandFlag.REPLY, 1007, 513),
        ("route-unquoted", ResponseCode.SUCCESS, CommandFlag.REPLY, 1008, 513),
        ("heartbeat", RequestCode.HEART_BEAT, 0, 15, 513),
        ("members-changed", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 2, 3297, 513),
        ("send", RequestCode.SEND_MESSAGE_V2, 0, 7, 513),
        ("send-answer", ResponseCode.SUCCESS, CommandFlag.REPLY, 1003, 513),
        ("send-answer-binary", ResponseCode.SUCCESS, CommandFlag.REPLY, 1019, 401),
        ("pull", RequestCode.PULL_MESSAGE, 0, 36, 513),
        ("pull-answer-5.5.0", ResponseCode.SUCCESS, CommandFlag.REPLY, 1005, 513),
        ("pull-answer-4.9.4", ResponseCode.SUCCESS, CommandFlag.REPLY, 1020, 401),
        ("check-transaction", RequestCode.CHECK_TRANSACTION_STATE, 2, 3289, 513),
        ("push-reply", RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, 0, 3302, 513),
        ("topic-stats", ResponseCode.SUCCESS, CommandFlag.REPLY, 1024, 401),
    ],
)
def test_a_captured_header_has_its_sender_and_code(
    name: str, code: int, flags: int, request_id: int, version: int
) -> None:
    command = captured(name)
    assert (command.code, command.flags) == (code, flags)
    assert (command.request_id, command.version) == (request_id, version)
    assert command.language is Language.JAVA
    assert command.codec is (HeaderCodec.BINARY if "binary" in name else HeaderCodec.JSON)
    assert command.is_reply == bool(flags & 1)
    assert command.is_oneway == bool(flags & 2)


def test_a_4_9_broker_registers_its_system_topics() -> None:
    command = captured("register-4.9.4")
    assert headers.RegisterBrokerRequest.from_fields(command.fields) == (
        headers.RegisterBrokerRequest(
            broker_name="broker-a",
            broker_addr="127.0.0.1:22976",
            cluster_name="DefaultCluster",
            ha_server_addr="127.0.0.1:22977",
            broker_id=0,
            compressed=False,
            body_crc32=826936453,
        )
    )
    assert registration_crc(command.body) == 826936453
    body = decode_body(RegisterBrokerBody, command.body)
    table = body.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(timestamp=1794774974250, counter=0)
    assert {
        t.topic_name: (t.read_queue_nums, t.perm) for t in table.topic_config_table.values()
    } == {
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "SELF_TEST_TOPIC": (1, 6),
        "DefaultCluster": (16, 7),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "broker-a": (1, 7),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "OFFSET_MOVED_EVENT": (1, 6),
    }
    assert body.filter_server_list == []


def test_a_5_5_broker_registers_one_new_topic() -> None:
    command = captured("register-5.5.0")
    header = headers.RegisterBrokerRequest.from_fields(command.fields)
    assert header.enable_acting_master is False
    assert header.body_crc32 == registration_crc(command.body)
    table = decode_body(RegisterBrokerBody, command.body).topic_config_serialize_wrapper
    assert table.data_version == DataVersion(timestamp=1794775642278, counter=58, state_version=0)
    assert table.topic_config_table == {
        "CapT": TopicConfig(topic_name="CapT", read_queue_nums=1, write_queue_nums=1, attributes={})
    }
    assert table.topic_queue_mapping_info_map == {}


def test_a_name_server_answers_a_registration_with_an_empty_table() -> None:
    command = captured("register-answer")
    assert command.fields == {}
    assert headers.RegisterBrokerReply.from_fields(command.fields) == headers.RegisterBrokerReply()
    assert decode_body(KeyValueBody, command.body) == KeyValueBody()


@pytest.mark.parametrize("name", ["route-standard", "route-unquoted"])
def test_a_route_reads_the_same_in_both_forms_of_json(name: str) -> None:
    assert decode_body(RouteBody, captured(name).body) == RouteBody(
        queue_datas=[
            BrokerQueues(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        ],
        broker_datas=[
            BrokerReplicas(
                broker_name="broker-a",
                broker_addrs={0: "127.0.0.1:21976"},
                cluster="DefaultCluster",
                enable_acting_master=False,
            )
        ],
    )


def test_a_java_heartbeat_names_groups_and_subscriptions() -> None:
    assert decode_body(HeartbeatBody, captured("heartbeat").body) == HeartbeatBody(
        client_id="127.0.0.1@I1",
        producer_data_set=[
            ProducerMember(group_name="pgA"),
            ProducerMember(group_name="CLIENT_INNER_PRODUCER"),
        ],
        consumer_data_set=[
            ConsumerMember(
                group_name="cgA",
                subscription_data_set=[
                    Subscription(topic="%RETRY%cgA", sub_version=1794775023892),
                    Subscription(
                        topic="T1",
                        sub_string="TagA || TagB",
                        tags_set=["TagA", "TagB"],
                        code_set=[2598919, 2598920],
                        sub_version=1794775023772,
                    ),
                ],
            )
        ],
        heartbeat_fingerprint=0,
        without_sub=False,
    )


def test_a_broker_tells_a_consumer_that_its_group_changed() -> None:
    command = captured("members-changed")
    assert headers.MembersChangedRequest.from_fields(command.fields).consumer_group == "cgN"
    assert command.body == b""


def test_a_java_client_sends_a_message() -> None:
    command = captured("send")
    header = headers.SendRequestV2.from_fields(command.fields)
    assert decode_properties(header.properties or "") == {
        "KEYS": "k1",
        "UNIQ_KEY": "FD000000000000000000000000000002248930946E094C85971F0000",
        "WAIT": "true",
        "TAGS": "TagA",
    }
    header.properties = None
    assert header == headers.SendRequestV2(
        producer_group="pgA",
        topic="T1",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1794775023391,
        flag=0,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    assert command.body == b"hello"


def test_a_broker_answers_a_send_with_a_json_header() -> None:
    assert headers.SendReply.from_fields(captured("send-answer").fields) == headers.SendReply(
        msg_id="7F000001000055D80000000001403B62",
        queue_id=0,
        queue_offset=0,
        transaction_id="7F000001000100000000000000000001",
        region="DefaultRegion",
        trace_on=True,
    )


def test_a_broker_answers_a_send_with_a_binary_header() -> None:
    command = captured("send-answer-binary")
    assert headers.SendReply.from_fields(command.fields) == headers.SendReply(
        msg_id="7F000001000059C00000000000402370",
        queue_id=0,
        queue_offset=1,
        region="DefaultRegion",
        trace_on=True,
    )


def test_a_captured_binary_answer_is_written_byte_for_byte() -> None:
    assert encode(captured("send-answer-binary")) == FRAMES["send-answer-binary"]


def test_a_java_consumer_pulls() -> None:
    assert headers.PullRequest.from_fields(captured("pull").fields) == headers.PullRequest(
        consumer_group="cgA",
        topic="T1",
        queue_id=1,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=-1,
        suspend_timeout_millis=15000,
        sub_version=1794775025347,
        expression_type="TAG",
        max_msg_bytes=262144,
        broker_name="broker-a",
    )


@pytest.mark.parametrize(
    ("name", "log_offsets", "extra"),
    [
        (
            "pull-answer-5.5.0",
            (0x1403B62, 0x1403C4A),
            {"MSG_REGION": "DefaultRegion", "WAIT": "true", "TRACE_ON": "true"},
        ),
        ("pull-answer-4.9.4", (0x4022BA, 0x402370), {}),
    ],
)
def test_a_broker_answers_a_pull_with_two_messages(
    name: str, log_offsets: tuple[int, int], extra: dict[str, str]
) -> None:
    command = captured(name)
    header = headers.PullReply.from_fields(command.fields)
    assert (header.min_offset, header.max_offset, header.next_begin_offset) == (0, 2, 2)
    assert command.remark == "FOUND"
    first, second = messages_in(command.body, "broker-a", ReceivedMessage, body_bytes_max=100)
    assert (first.body, second.body) == (b"hello", b"world")
    assert (first.offset, second.offset) == (0, 1)
    assert (first.log_offset, second.log_offset) == log_offsets
    assert first.queue == second.queue == QueueId("CapT", "broker-a", 0)
    assert first.properties == {
        "UNIQ_KEY": "7F000001000100000000000000000001",
        "CLUSTER": "DefaultCluster",
        "TAGS": "TagA",
        "KEYS": "k1",
        **extra,
    }
    assert first.message_id == "7F000001000100000000000000000001"
    assert (second.tags, second.keys) == ("TagB", [])
    assert first.born_host.startswith("127.0.0.1:")


def test_the_answer_ids_of_sends_name_the_records_that_pulls_return() -> None:
    """The send reply of 5.5.0 names the first pulled record, that of 4.9.4 the second."""
    for pulled, index, sent in (
        ("pull-answer-5.5.0", 0, "send-answer"),
        ("pull-answer-4.9.4", 1, "send-answer-binary"),
    ):
        record = decode_records(captured(pulled).body)[index]
        assert record.offset_id == captured(sent).fields["msgId"]


@pytest.mark.parametrize("name", ["pull-answer-5.5.0", "pull-answer-4.9.4", "check-transaction"])
def test_captured_records_are_intact_and_written_byte_for_byte(name: str) -> None:
    body = captured(name).body
    records = decode_records(body)
    assert all(record.is_intact for record in records)
    assert b"".join(map(encode_record, records)) == body


def test_a_broker_asks_what_became_of_a_half_message() -> None:
    command = captured("check-transaction")
    header = headers.CheckTransactionRequest.from_fields(command.fields)
    assert header == headers.CheckTransactionRequest(
        tran_state_table_offset=25,
        commit_log_offset=20987502,
        msg_id="7F0000010001000000000000000000AA",
        transaction_id="7F0000010001000000000000000000AA",
        offset_msg_id="7F000001000055D80000000001403E6E",
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        broker_name="broker-a",
    )
    record = decode_record(command.body)
    assert (record.topic, record.queue_id, record.body) == ("CapT", 0, b"tx")
    assert (record.queue_offset, record.log_offset) == (25, 20987502)
    assert record.offset_id == header.offset_msg_id
    assert record.properties()["REAL_TOPIC"] == "CapT"
    assert record.properties()["WAIT"] == "false"


def test_a_broker_pushes_a_reply_to_its_requester() -> None:
    command = captured("push-reply")
    header = headers.PushReplyRequest.from_fields(command.fields)
    assert decode_properties(header.properties or "")["CORRELATION_ID"] == "c-1"
    header.properties = None
    assert header == headers.PushReplyRequest(
        producer_group="pgS",
        topic="DefaultCluster_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1794775649166,
        flag=0,
        born_host="127.0.0.1:48794",
        store_host="127.0.0.1:21976",
        store_timestamp=1794775649213,
        reconsume_times=0,
        unit_mode=False,
    )
    assert command.body == b"pong"


def test_topic_statistics_have_queues_as_keys() -> None:
    assert decode_body(TopicStatsBody, captured("topic-stats").body) == TopicStatsBody(
        offset_table={
            QueueId("CapT", "broker-a", 0): TopicOffset(
                min_offset=0, max_offset=2, last_update_timestamp=1794775651236
            )
        }
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("register-4.9.4", RegisterBrokerBody),
        ("register-5.5.0", RegisterBrokerBody),
        ("register-answer", KeyValueBody),
        ("route-standard", RouteBody),
        ("heartbeat", HeartbeatBody),
    ],
)
def test_a_body_that_java_wrote_alphabetically_is_written_alike(
    name: str,
    kind: type[RegisterBrokerBody | KeyValueBody | RouteBody | HeartbeatBody],
) -> None:
    """Java sorts the members of a bean, but not those of a map; we sort both."""
    body = captured(name).body
    written = decode_body(kind, body).encode()
    assert decode_body(kind, written) == decode_body(kind, body)
    assert sorted(written) == sorted(body)
