"""Requests 37 and 323. The effects of an end are tested in `test_half_messages`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.wire.codes import CommandFlag, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import ResumeCheckRequest
from downrange.wire.ids import offset_id
from downrange.wire.system_names import CHECKED_OUT_TOPIC, HALF_TOPIC
from tests.unit.server.broker.transaction_stage import COMMIT, TransactionStage, end_header

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from downrange.wire.records import Record

ILLEGAL = ResponseCode.ILLEGAL_OPERATION
ROUND_MS = 30_000


@pytest.fixture
def world() -> TransactionStage:
    world = TransactionStage()
    world.tick()
    world.join("makers", 7)
    return world


def resume(world: TransactionStage, log_offset: int) -> Command:
    message_id = offset_id(world.state.host.ip, 10911, log_offset)
    reply = world.call(request_command(ResumeCheckRequest(msg_id=message_id)))
    assert reply is not None
    return reply


# ---- 37 ----------------------------------------------------------------------------------------


def test_a_producer_that_does_not_know_yet_is_answered_and_changes_nothing(
    world: TransactionStage,
) -> None:
    half = world.half()
    assert world.end(half, 0).code == 0
    assert world.op_bodies() == []
    assert world.end(half).code == 0


@pytest.mark.parametrize("state", [4, 1, -8, 9])
def test_a_decision_that_is_none_is_refused(world: TransactionStage, state: int) -> None:
    reply = world.end(world.half(), state)
    assert (reply.code, reply.remark) == (1, "commitOrRollback field wrong")


@pytest.mark.parametrize(
    ("topic", "code"), [("T", 0), (HALF_TOPIC, 0), ("U", ResponseCode.SYSTEM_ERROR)]
)
def test_a_producer_ends_only_messages_of_the_topic_that_it_names(
    world: TransactionStage, topic: str, code: int
) -> None:
    header = end_header(world.half())
    header.topic = topic
    reply = world.call(request_command(header))
    assert reply is not None
    assert reply.code == code


def test_an_end_with_a_missing_field_is_refused(world: TransactionStage) -> None:
    command = request_command(end_header(world.half()))
    del command.fields["commitLogOffset"]
    reply = world.call(command)
    assert reply is not None
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_an_end_sent_one_way_is_carried_out(world: TransactionStage) -> None:
    command = request_command(end_header(world.half(), COMMIT))
    command.flags = int(CommandFlag.ONEWAY)
    world.call(command)
    assert world.delivered() == [b"body of U"]


def test_an_end_that_cannot_be_stored_is_answered_with_the_reason(world: TransactionStage) -> None:
    half = world.half()
    with world.full_disk():
        reply = world.end(half)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "no space left" in reply.remark


# ---- 323 ---------------------------------------------------------------------------------------


def test_checks_of_an_open_half_are_counted_from_the_beginning_again(
    world: TransactionStage,
) -> None:
    half = world.half()
    world.tick(ROUND_MS)
    world.tick(ROUND_MS)
    assert resume(world, half.log_offset).code == 0
    assert world.records(HALF_TOPIC)[3].properties()["TRANSACTION_CHECK_TIMES"] == "0"
    assert world.op_bodies() == [b"0", b"1", b"2"]
    world.tick(ROUND_MS)
    assert len(world.checks) == 3
    assert world.end(half).code == 0
    assert world.end(world.last_check(), is_checked=True).code == ILLEGAL


def test_a_half_that_was_moved_out_of_its_queue_comes_back(world: TransactionStage) -> None:
    world.half()
    for _ in range(3):
        world.tick(ROUND_MS)
    (given_up,) = world.records(CHECKED_OUT_TOPIC)
    assert resume(world, given_up.log_offset).code == 0
    world.tick(ROUND_MS)
    assert len(world.checks) == 3
    assert world.end(world.last_check(), is_checked=True).code == 0
    assert world.delivered() == [b"body of U"]


def test_an_ended_half_is_asked_about_again_when_a_tool_demands_it(world: TransactionStage) -> None:
    half = world.half()
    world.end(half)
    assert resume(world, half.log_offset).code == 0
    world.tick(ROUND_MS)
    assert len(world.checks) == 1
    assert world.end(half).code == ILLEGAL


def test_a_plain_message_cannot_be_made_a_half(world: TransactionStage) -> None:
    world.send(b"plain", {"UNIQ_KEY": "U"})
    (plain,) = world.records("T", 1)
    assert resume(world, plain.log_offset).code == ResponseCode.SYSTEM_ERROR
    assert world.records(HALF_TOPIC) == []


def test_an_id_that_is_none_is_refused(world: TransactionStage) -> None:
    reply = world.call(request_command(ResumeCheckRequest(msg_id="7F")))
    assert reply is not None
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_nothing_comes_back_while_nothing_is_stored(world: TransactionStage) -> None:
    half = world.half()
    world.state.unwritable = "the disk is full"
    assert resume(world, half.log_offset).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_half_stays_as_it_is_when_it_cannot_be_brought_back(world: TransactionStage) -> None:
    half = world.half()
    with world.full_disk():
        assert resume(world, half.log_offset).code == ResponseCode.SYSTEM_ERROR
    assert world.end(half).code == 0


def test_a_half_whose_newest_copy_is_damaged_is_brought_back_from_an_older_one(
    world: TransactionStage,
) -> None:
    half = world.half()
    world.tick(ROUND_MS)
    copy: Record = world.records(HALF_TOPIC)[1]
    world.damage(copy)
    assert resume(world, half.log_offset).code == 0
    assert world.records(HALF_TOPIC)[2].body == b"body of U"
