"""Checks of half messages that are not ended in time."""

from __future__ import annotations

import dataclasses

import pytest

from downrange.server.broker.transactions import half_checks
from downrange.server.broker.transactions.half_checks import RETENTION_MS, check_half_messages
from downrange.wire.codes import ResponseCode
from downrange.wire.headers import CheckTransactionRequest
from downrange.wire.records import Record, decode_record
from downrange.wire.system_names import CHECKED_OUT_TOPIC, HALF_TOPIC
from tests.unit.server.broker.transaction_stage import (
    OPTIONS,
    ROLLBACK,
    START_MS,
    Half,
    TransactionStage,
)

ILLEGAL = ResponseCode.ILLEGAL_OPERATION
ROUND_MS = 30_000


@pytest.fixture
def world() -> TransactionStage:
    world = TransactionStage()
    world.tick()
    world.join("makers", 7)
    return world


def checks_counted(world: TransactionStage) -> list[str | None]:
    return [
        record.properties().get("TRANSACTION_CHECK_TIMES") for record in world.records(HALF_TOPIC)
    ]


# ---- asking ------------------------------------------------------------------------------------


def test_the_producer_of_an_old_half_is_asked_about_a_copy(world: TransactionStage) -> None:
    old = world.half("U1")
    world.tick(ROUND_MS)
    ((connection, command),) = world.checks
    copy = world.records(HALF_TOPIC)[1]
    assert connection == 7
    assert command.code == 39
    assert CheckTransactionRequest.from_fields(command.fields) == CheckTransactionRequest(
        tran_state_table_offset=1,
        commit_log_offset=copy.log_offset,
        msg_id="U1",
        transaction_id="U1",
        offset_msg_id=copy.offset_id,
        topic="T",
        broker_name="broker-a",
    )
    shown = decode_record(command.body)
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 1, b"body of U1")
    assert (shown.queue_offset, shown.log_offset) == (1, copy.log_offset)
    assert (shown.born_ms, shown.store_ms, shown.flag) == (START_MS, START_MS, 7)
    properties = shown.properties()
    assert (properties["WAIT"], properties["TRANSACTION_CHECK_TIMES"]) == ("false", "1")
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "1")
    assert "DOWNRANGE_FIRST_OFFSET" not in properties
    assert old.queue_offset == 0


def test_a_copy_is_the_half_with_one_more_check_and_ends_the_old_one(
    world: TransactionStage,
) -> None:
    world.half("U", KEYS="k")
    world.tick(ROUND_MS)
    half, copy = world.records(HALF_TOPIC)
    assert (copy.body, copy.flag, copy.born_ms) == (half.body, half.flag, half.born_ms)
    added = {"TRANSACTION_CHECK_TIMES": "1", "DOWNRANGE_FIRST_OFFSET": "0"}
    assert copy.properties() == half.properties() | added
    assert copy.store_ms == START_MS + ROUND_MS
    assert world.op_bodies() == [b"0"]


def test_what_the_producer_answers_ends_the_copy(world: TransactionStage) -> None:
    world.half()
    world.tick(ROUND_MS)
    assert world.end(world.last_check(), is_checked=True).code == 0
    assert world.delivered() == [b"body of U"]
    world.tick(ROUND_MS)
    assert len(world.checks) == 1


def test_an_ended_half_is_not_checked(world: TransactionStage) -> None:
    world.end(world.half("U0"))
    world.end(world.half("U1"), ROLLBACK)
    world.tick(ROUND_MS)
    assert world.checks == []
    assert len(world.records(HALF_TOPIC)) == 2


def test_a_young_half_is_not_checked(world: TransactionStage) -> None:
    world.now_ms += ROUND_MS - 5_999
    world.half()
    world.tick(5_999)
    assert world.checks == []
    world.tick(ROUND_MS)
    assert len(world.checks) == 1


def test_a_half_behind_an_ended_one_is_asked_about(world: TransactionStage) -> None:
    world.half("U0")
    world.end(world.half("U1"))
    world.half("U2")
    world.tick(ROUND_MS)
    asked = [decode_record(command.body).body for _, command in world.checks]
    assert asked == [b"body of U0", b"body of U2"]


def test_the_producers_of_a_group_are_asked_in_turn(world: TransactionStage) -> None:
    world.join("makers", 8, "second client")
    for key in ("U0", "U1", "U2", "U3"):
        world.half(key)
    world.tick(ROUND_MS)
    connections = [connection for connection, _ in world.checks]
    assert connections in ([7, 8, 7, 8], [8, 7, 8, 7])


def test_a_check_counts_even_without_a_connected_producer() -> None:
    world = TransactionStage()
    world.tick()
    world.half()
    world.tick(ROUND_MS)
    assert world.checks == []
    assert checks_counted(world) == [None, "1"]


def test_a_copy_is_not_checked_again_in_the_same_round(world: TransactionStage) -> None:
    world.half()
    world.tick(ROUND_MS, times=5)
    assert len(world.checks) == 1


def test_a_clock_that_is_set_back_does_not_stop_the_rounds(world: TransactionStage) -> None:
    world.half()
    world.tick(-3_600_000, times=3)
    assert len(world.checks) == 1
    world.tick(ROUND_MS, times=3)
    assert len(world.checks) == 2


def test_a_half_of_a_producer_whose_clock_is_ahead_is_checked_all_the_same(
    world: TransactionStage,
) -> None:
    record = Record(
        topic_bytes=HALF_TOPIC.encode(),
        body=b"x",
        born_ms=world.now_ms + 10**9,
        property_bytes=b"PGROUP\x01makers\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02",
    )
    world.store_raw(record)
    world.tick(ROUND_MS)
    assert len(world.checks) == 1


def test_a_half_without_its_own_topic_is_not_checked(world: TransactionStage) -> None:
    record = Record(
        topic_bytes=HALF_TOPIC.encode(),
        body=b"x",
        born_ms=START_MS,
        property_bytes=b"PGROUP\x01makers\x02",
    )
    world.store_raw(record)
    world.tick(ROUND_MS)
    assert world.checks == []
    assert checks_counted(world) == [None, "1"]


# ---- deciding while being asked ----------------------------------------------------------------


def test_a_producer_that_decides_on_the_old_half_ends_its_newest_copy(
    world: TransactionStage,
) -> None:
    half = world.half()
    world.tick(ROUND_MS)
    world.tick(ROUND_MS)
    assert world.end(half).code == 0
    assert world.delivered() == [b"body of U"]
    assert world.op_bodies() == [b"0", b"1", b"2"]
    assert world.end(world.last_check(), is_checked=True).code == ILLEGAL
    world.tick(ROUND_MS)
    assert len(world.checks) == 2


def test_copies_are_known_after_a_restart(world: TransactionStage) -> None:
    half = world.half()
    world.tick(ROUND_MS)
    world.restart()
    assert world.end(half).code == 0
    assert world.end(world.last_check(), is_checked=True).code == ILLEGAL
    assert world.delivered() == [b"body of U"]


def test_checks_go_on_after_a_restart_an_interval_later(world: TransactionStage) -> None:
    world.half()
    world.tick(ROUND_MS)
    world.restart()
    world.join("makers", 9)
    world.tick(ROUND_MS - 1)
    assert len(world.checks) == 1
    world.tick(1)
    world.tick(ROUND_MS)
    assert [connection for connection, _ in world.checks] == [7, 9]
    assert checks_counted(world) == [None, "1", "2"]


# ---- being asked later -------------------------------------------------------------------------


def test_a_producer_that_requests_a_later_check_is_checked_later(world: TransactionStage) -> None:
    half = world.half("U", CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    world.tick(ROUND_MS)
    world.tick(ROUND_MS)
    assert world.checks == []
    assert checks_counted(world) == [None, None, None]
    world.tick(ROUND_MS)
    assert len(world.checks) == 1
    assert world.end(half, is_checked=True).code == 0


@pytest.mark.parametrize("seconds", ["1", "x", "9" * 30])
def test_a_wish_that_makes_no_sense_is_passed_over(world: TransactionStage, seconds: str) -> None:
    world.half("U", CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
    world.tick(ROUND_MS)
    assert len(world.checks) == 1


# ---- giving up ---------------------------------------------------------------------------------


def test_a_half_is_moved_out_after_so_many_checks(world: TransactionStage) -> None:
    half = world.half()
    for _ in range(3):
        world.tick(ROUND_MS)
    assert len(world.checks) == 2
    (given_up,) = world.records(CHECKED_OUT_TOPIC)
    assert given_up.body == b"body of U"
    assert given_up.properties()["TRANSACTION_CHECK_TIMES"] == "2"
    assert given_up.properties()["REAL_TOPIC"] == "T"
    assert world.state.topics.get(CHECKED_OUT_TOPIC) is not None
    assert CHECKED_OUT_TOPIC in world.notes[-1].text
    assert world.end(half).code == ILLEGAL
    world.tick(ROUND_MS)
    assert len(world.records(CHECKED_OUT_TOPIC)) == 1


def test_a_half_that_is_older_than_the_retention_is_moved_out(world: TransactionStage) -> None:
    world.half()
    world.tick(RETENTION_MS + 1)
    assert world.checks == []
    assert len(world.records(CHECKED_OUT_TOPIC)) == 1


def test_a_half_whose_properties_leave_no_room_to_count_is_moved_out(
    world: TransactionStage,
) -> None:
    record = Record(
        topic_bytes=HALF_TOPIC.encode(),
        body=b"x",
        born_ms=START_MS,
        property_bytes=b"PGROUP\x01makers\x02K\x01" + b"v" * 32_740 + b"\x02",
    )
    world.store_raw(record)
    world.tick(ROUND_MS)
    assert len(world.records(CHECKED_OUT_TOPIC)) == 1


def test_a_damaged_half_is_reported_and_passed(world: TransactionStage) -> None:
    world.half("U0")
    world.half("U1")
    world.damage(world.records(HALF_TOPIC)[0])
    world.tick(ROUND_MS)
    assert [note.text for note in world.notes if note.is_warning] == [
        "half message 0 cannot be read and is not checked any more"
    ]
    assert [decode_record(command.body).body for _, command in world.checks] == [b"body of U1"]
    world.tick(ROUND_MS)
    assert world.state.halves.ended.first == 2


# ---- failing, and much to do -------------------------------------------------------------------


@pytest.mark.parametrize("checks", [0, 2])
def test_a_half_stays_open_when_its_copy_cannot_be_stored(
    world: TransactionStage, checks: int
) -> None:
    half = world.half()
    for _ in range(checks):
        world.tick(ROUND_MS)
    stored = len(world.records(HALF_TOPIC))
    with world.full_disk():
        world.tick(ROUND_MS)
    assert len(world.records(HALF_TOPIC)) == stored
    assert world.records(CHECKED_OUT_TOPIC) == []
    assert world.end(half).code == 0


def test_a_round_waits_while_nothing_can_be_stored(world: TransactionStage) -> None:
    world.half()
    world.state.unwritable = "the disk is full"
    world.tick(ROUND_MS)
    assert len(world.records(HALF_TOPIC)) == 1
    world.state.unwritable = None
    world.tick()
    assert len(world.checks) == 1


@pytest.mark.parametrize("limit", ["HALVES_PER_TICK_MAX", "TICK_BYTES_MAX"])
def test_a_round_goes_on_at_the_next_tick_when_there_is_much_to_do(
    world: TransactionStage, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(half_checks, limit, 1)
    for number in range(3):
        world.half(f"U{number}")
    world.tick(ROUND_MS)
    assert len(world.checks) == 1
    world.tick(times=5)
    assert len(world.checks) == 3


def test_halves_that_are_gone_from_the_log_are_passed(world: TransactionStage) -> None:
    world.half("U0")
    world.half("U1")
    world.state.store.queue(HALF_TOPIC, 0).min_offset = 1
    world.tick(ROUND_MS)
    assert [decode_record(command.body).body for _, command in world.checks] == [b"body of U1"]


def test_a_tick_with_nothing_due_reads_nothing(
    world: TransactionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.half()
    monkeypatch.setattr(half_checks, "read_half", None)
    assert list(check_half_messages(world.state, world.now_ms + ROUND_MS - 1)) == []


def test_more_checks_are_allowed_when_the_option_says_so(world: TransactionStage) -> None:
    world.state.change_options(dataclasses.replace(OPTIONS, transaction_checks_max=5))
    world.half()
    for _ in range(5):
        world.tick(ROUND_MS)
    assert len(world.checks) == 5
    assert world.last_check() == Half(5, world.records(HALF_TOPIC)[5].log_offset)
