"""Request 36: messages that a consumer sends back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.record_fields import StoreHost
from downrange.wire.bodies import GroupConfig, TopicConfig
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendBackRequest
from downrange.wire.system_names import SCHEDULE_TOPIC
from tests.unit.server.broker.transaction_stage import START_MS, TransactionStage

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from downrange.wire.records import Record

FAILED = ResponseCode.SYSTEM_ERROR


@pytest.fixture
def world() -> TransactionStage:
    return TransactionStage()


@pytest.fixture
def message(world: TransactionStage) -> Record:
    world.send(b"hello", {"UNIQ_KEY": "U", "TAGS": "t", "KEYS": "k"})
    return world.records("T", 1)[0]


def send_back(
    world: TransactionStage,
    offset: int,
    *,
    level: int = 0,
    group: str = "readers",
    times_max: int | None = None,
    origin_topic: str | None = None,
) -> Command:
    header = SendBackRequest(
        offset=offset,
        group=group,
        delay_level=level,
        max_reconsume_times=times_max,
        origin_topic=origin_topic,
    )
    reply = world.call(request_command(header))
    assert reply is not None
    return reply


def scheduled(world: TransactionStage, level: int) -> list[Record]:
    return world.records(SCHEDULE_TOPIC, level - 1)


def test_a_broker_without_write_permission_refuses_messages_that_are_sent_back(
    world: TransactionStage, message: Record
) -> None:
    world.state.change_settings({"brokerPermission": "4"}, START_MS)
    reply = send_back(world, message.log_offset)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "sending message is forbidden" in (reply.remark or "")
    world.state.change_settings({"brokerPermission": "6"}, START_MS)
    assert send_back(world, message.log_offset).code == ResponseCode.SUCCESS


def test_only_a_message_of_the_named_topic_is_accepted(
    world: TransactionStage, message: Record
) -> None:
    assert send_back(world, message.log_offset, origin_topic="U").code == FAILED
    assert send_back(world, message.log_offset, origin_topic="T", level=1).code == 0
    world.tick(1000)
    world.tick(1000)
    (retry,) = world.records("%RETRY%readers")  # the client shows the message under its first topic
    assert send_back(world, retry.log_offset, origin_topic="T").code == 0


def test_a_message_comes_again_in_the_retry_topic_after_its_delay(
    world: TransactionStage, message: Record
) -> None:
    world.now_ms += 1000
    assert send_back(world, message.log_offset, level=1).code == 0
    assert world.records("%RETRY%readers") == []
    world.tick(1000)
    world.tick(1000)
    (retry,) = world.records("%RETRY%readers")
    assert retry.body == b"hello"
    assert (retry.reconsume_times, retry.flag, retry.sys_flag) == (1, 7, 0)
    assert (retry.born_ms, retry.born_host) == (START_MS, message.born_host)
    properties = retry.properties()
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == message.offset_id
    assert (properties["WAIT"], properties["TAGS"], properties["KEYS"]) == ("false", "t", "k")


def test_the_first_retry_has_the_third_level_unless_the_consumer_names_one(
    world: TransactionStage, message: Record
) -> None:
    send_back(world, message.log_offset)
    send_back(world, message.log_offset, level=2)
    assert [len(scheduled(world, level)) for level in (1, 2, 3)] == [0, 1, 1]
    assert scheduled(world, 3)[0].properties()["DELAY"] == "3"


def test_later_retries_have_higher_levels_and_remember_where_they_began(
    world: TransactionStage, message: Record
) -> None:
    send_back(world, message.log_offset)
    world.tick(10_000)
    world.tick(1_000)
    (retry,) = world.records("%RETRY%readers")
    send_back(world, retry.log_offset)
    (second,) = scheduled(world, 4)
    assert second.reconsume_times == 2
    properties = second.properties()
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == message.offset_id


def test_a_level_beyond_the_last_is_the_last(world: TransactionStage, message: Record) -> None:
    assert send_back(world, message.log_offset, level=30).code == 0
    assert len(scheduled(world, 4)) == 1


@pytest.mark.parametrize(("level", "times_max"), [(-1, None), (0, 0), (1, -1)])
def test_a_dead_letter_is_stored_at_once(
    world: TransactionStage, message: Record, level: int, times_max: int | None
) -> None:
    reply = send_back(world, message.log_offset, level=level, times_max=times_max)
    assert reply.code == 0
    (dead,) = world.records("%DLQ%readers")
    assert (dead.body, dead.reconsume_times) == (b"hello", 1)
    assert dead.properties()["DELAY"] == "0"
    assert dead.properties()["RETRY_TOPIC"] == "T"
    config = world.state.topics.get("%DLQ%readers")
    assert config is not None
    assert (config.write_queue_nums, config.perm) == (1, 6)


def test_a_group_decides_how_often_its_messages_are_tried(
    world: TransactionStage, message: Record
) -> None:
    config = GroupConfig(group_name="readers", retry_max_times=0)
    world.state.groups.put(config, START_MS)
    send_back(world, message.log_offset)
    assert len(world.records("%DLQ%readers")) == 1


def test_retries_of_a_group_with_several_queues_go_to_all_of_them(
    world: TransactionStage, message: Record
) -> None:
    config = GroupConfig(group_name="readers", retry_queue_nums=2)
    world.state.groups.put(config, START_MS)
    for _ in range(4):
        send_back(world, message.log_offset)
    queues = {record.properties()["REAL_QID"] for record in scheduled(world, 3)}
    assert queues == {"0", "1"}
    retry = world.state.topics.get("%RETRY%readers")
    assert retry is not None
    assert retry.write_queue_nums == 2


def test_a_group_without_retry_queues_gets_nothing_again(
    world: TransactionStage, message: Record
) -> None:
    config = GroupConfig(group_name="readers", retry_queue_nums=0)
    world.state.groups.put(config, START_MS)
    end = world.state.store.log.end
    assert send_back(world, message.log_offset).code == 0
    assert world.state.store.log.end == end


def test_a_group_that_is_missing_and_illegal_is_refused(
    world: TransactionStage, message: Record
) -> None:
    reply = send_back(world, message.log_offset, group="a b")
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert reply.remark is not None
    assert reply.remark.startswith("subscription group not exist, a b ")


def test_a_retry_topic_that_must_not_be_written_to_gets_nothing(
    world: TransactionStage, message: Record
) -> None:
    closed = TopicConfig(
        topic_name="%RETRY%readers", read_queue_nums=1, write_queue_nums=1, perm=4, attributes={}
    )
    world.state.topics.put(closed, START_MS)
    reply = send_back(world, message.log_offset)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "the topic[%RETRY%readers] sending message is forbidden"


@pytest.mark.parametrize("offset", [-5, 10**15, 2**63 - 1, -(2**63)])
def test_an_offset_behind_which_nothing_lies_is_refused(
    world: TransactionStage, message: Record, offset: int
) -> None:
    reply = send_back(world, offset)
    assert (reply.code, reply.remark) == (FAILED, f"look message by offset failed, {offset}")


def test_no_offset_within_a_record_is_taken_for_a_message(
    world: TransactionStage, message: Record
) -> None:
    for offset in range(message.log_offset + 1, message.log_offset + message.size):
        assert send_back(world, offset).code == FAILED


def test_a_damaged_message_is_not_passed_on(world: TransactionStage, message: Record) -> None:
    world.damage(message)
    assert send_back(world, message.log_offset).code == FAILED


def test_a_message_of_a_transaction_comes_again_as_a_plain_one(world: TransactionStage) -> None:
    world.end(world.half())
    (message,) = world.records("T", 1)
    send_back(world, message.log_offset, level=-1)
    (dead,) = world.records("%DLQ%readers")
    assert (dead.sys_flag, dead.prepared_offset) == (0, 0)


def test_a_retry_of_a_moved_store_names_its_new_host(
    world: TransactionStage, message: Record
) -> None:
    world.state.host = StoreHost.of("::1", 10911)
    send_back(world, message.log_offset, level=-1)
    (dead,) = world.records("%DLQ%readers")
    assert dead.store_host == "::1:10911"
    assert dead.properties()["ORIGIN_MESSAGE_ID"] == message.offset_id


def test_a_message_that_cannot_be_stored_again_is_answered_with_the_reason(
    world: TransactionStage, message: Record
) -> None:
    with world.full_disk():
        assert send_back(world, message.log_offset).code == FAILED
    world.state.unwritable = "stopping"
    reply = send_back(world, message.log_offset)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_messages_that_are_sent_back_are_counted_by_their_first_topic(
    world: TransactionStage, message: Record
) -> None:
    send_back(world, message.log_offset)
    send_back(world, message.log_offset, level=-1)
    world.state.statistics.sample(START_MS + 60_000)
    counts = world.state.statistics.counts("SNDBCK_PUT_NUMS", "T@readers", "")
    assert counts is not None
    assert counts.stats_minute.sum == 2
