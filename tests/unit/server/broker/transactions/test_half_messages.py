"""Half messages: waiting, ends, restarts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from downrange.errors import StoreError
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.transactions import half_table, plain_ends
from downrange.server.broker.transactions.half_messages import end_half, prepare_half
from downrange.server.broker.transactions.half_records import op_record
from downrange.server.broker.write_queue import no_outputs
from downrange.server.outputs import LateReply
from downrange.wire.codes import ResponseCode, SysFlag
from downrange.wire.fields import request_command
from downrange.wire.records import Record, encode_record
from downrange.wire.system_names import (
    HALF_DONE_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
)
from tests.unit.server.broker.transaction_stage import (
    CLIENT,
    COMMIT,
    OPTIONS,
    ROLLBACK,
    START_MS,
    Half,
    TransactionStage,
    end_header,
)

ILLEGAL = ResponseCode.ILLEGAL_OPERATION
FAILED = ResponseCode.SYSTEM_ERROR


# ---- waiting -----------------------------------------------------------------------------------


def test_a_half_waits_unseen_with_its_real_place_as_properties() -> None:
    world = TransactionStage()
    half = world.half("U1", KEYS="k", TAGS="t")
    (record,) = world.records(HALF_TOPIC)
    properties = record.properties()
    assert (half.queue_offset, half.log_offset) == (0, record.log_offset)
    assert (record.queue_id, record.sys_flag, record.flag) == (0, 0, 7)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "1")
    assert properties["__transactionId__"] == properties["UNIQ_KEY"] == "U1"
    assert world.delivered() == []


def test_what_only_the_broker_may_say_of_a_half_is_taken_out() -> None:
    world = TransactionStage()
    world.half("U", TRANSACTION_CHECK_TIMES="99", DOWNRANGE_FIRST_OFFSET="5", REAL_TOPIC="other")
    properties = world.records(HALF_TOPIC)[0].properties()
    assert "TRANSACTION_CHECK_TIMES" not in properties
    assert "DOWNRANGE_FIRST_OFFSET" not in properties
    assert properties["REAL_TOPIC"] == "T"


def test_a_half_without_a_unique_id_has_no_transaction_id() -> None:
    record, properties = Record(topic_bytes=b"T", queue_id=1), dict[str, str]()
    prepare_half(TransactionStage().state, record, properties, no_outputs)
    assert properties == record.properties() == {"REAL_TOPIC": "T", "REAL_QID": "1"}


def test_halves_of_the_last_moments_are_kept_within_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recent = half_table.RecentHalves()
    made = [Record(log_offset=number * 100, size=100) for number in range(9)]
    monkeypatch.setattr(half_table, "RECENT_MAX", 3)
    for half in made[:5]:
        recent.add(half, {"number": str(half.log_offset)})
    assert recent.take(100) is None
    assert recent.take(200) == (made[2], {"number": "200"})
    assert recent.take(200) is None
    monkeypatch.setattr(half_table, "RECENT_BYTES_MAX", 250)
    recent.add(made[6], {})
    assert [recent.take(offset) is not None for offset in (300, 400, 600)] == [False, True, True]
    plain = [(offset, (0, 0, "g", "T", 1, bytes(100))) for offset in (700, 800, 900)]
    recent.add_plain([*plain])
    assert [recent.take(offset) for offset in (700, 800, 900)] == [None, plain[1][1], plain[2][1]]
    recent.add(made[7], {})
    recent.add(made[8], {})
    assert recent.take(700) is not None


# ---- ending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_half_is_ended_in_the_same_way_if_it_is_read_again(is_kept: bool) -> None:
    world = TransactionStage()
    halves = [world.half("U1", KEYS="k", TAGS="t"), world.half("U2", REAL_QID="7", REAL_TOPIC="X")]
    if not is_kept:
        for half in halves:
            assert world.state.halves.recent.take(half.log_offset) is not None
    assert [world.end(half).code for half in halves] == [0, 0]
    found = [record.property_bytes for record in world.records("T", 1)]
    assert found[0].startswith(b"UNIQ_KEY\x01U1\x02")
    assert found[0].endswith(b"\x02__transactionId__\x01U1\x02")
    assert found[1].endswith(b"\x02__transactionId__\x01U2\x02")
    assert not any(b"REAL_" in each for each in found)


def test_commits_of_one_turn_are_stored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TransactionStage()
    halves = [world.half("U1"), world.half("U2")]
    appended: list[int] = []
    append = world.state.store.append

    def counted(records: Any, now_ms: int, properties: Any) -> None:
        appended.append(sum(1 if isinstance(each, Record) else len(each) for each in records))
        append(records, now_ms, properties)

    monkeypatch.setattr(world.state.store, "append", counted)
    for half in halves:
        request = request_command(end_header(half, COMMIT))
        assert list(world.broker.handle(request, CLIENT, world.now_ms)) == []
    assert len(world.broker.commit(world.now_ms)) == 2
    assert appended == [4]


def test_ends_of_one_turn_are_stored_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_ends, "ENDS_MAX", 2)
    world = TransactionStage()
    halves = [world.half(f"U{number}") for number in range(6)]
    world.state.halves.recent.take(halves[1].log_offset)  # is read from the log
    for half, state in zip(halves, (COMMIT, COMMIT, ROLLBACK, COMMIT, COMMIT, COMMIT), strict=True):
        request = request_command(end_header(half, state))
        assert list(world.broker.handle(request, CLIENT, world.now_ms)) == []
    assert len(world.broker.commit(world.now_ms)) == 6
    assert world.delivered() == [b"body of U%d" % number for number in (0, 1, 3, 4, 5)]
    assert world.op_bodies() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    places = [record.log_offset for record in world.records("T", 1)]
    ops = [record.log_offset for record in world.records(HALF_DONE_TOPIC)]
    assert sorted(places + ops) == [
        *(places[0], ops[0], places[1], ops[1], ops[2]),
        *(places[2], ops[3], places[3], ops[4], places[4], ops[5]),
    ]


def test_a_commit_delivers_the_message_as_it_was_sent() -> None:
    world = TransactionStage()
    half = world.half("U", KEYS="k", TAGS="t")
    world.now_ms += 1234
    assert world.end(half).code == 0
    (record,) = world.records("T", 1)
    assert record.body == b"body of U"
    assert (record.sys_flag, record.prepared_offset) == (COMMIT, half.log_offset)
    assert (record.born_ms, record.born_host) == (START_MS, "127.0.0.1:40001")
    assert (record.store_ms, record.flag) == (START_MS + 1234, 7)
    properties = record.properties()
    assert not {"REAL_TOPIC", "REAL_QID", "DOWNRANGE_FIRST_OFFSET"} & properties.keys()
    assert properties["TRAN_MSG"] == "true"
    assert properties["PGROUP"] == "makers"
    assert (properties["KEYS"], properties["TAGS"]) == ("k", "t")


def test_an_op_record_behind_the_message_names_the_half() -> None:
    world = TransactionStage()
    world.half("U0")
    world.end(world.half("U1"))
    (op,) = world.records(HALF_DONE_TOPIC)
    assert op.body == b"1"
    assert op.properties() == {"TAGS": "d"}
    assert op.born_host == op.store_host == "10.0.0.2:10911"
    assert op.log_offset > world.records("T", 1)[0].log_offset


def test_a_rollback_stores_an_op_record_alone() -> None:
    world = TransactionStage()
    assert world.end(world.half(), ROLLBACK).code == 0
    assert world.delivered() == []
    assert world.op_bodies() == [b"0"]


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_a_second_end_is_refused_and_stores_nothing(first: int, second: int) -> None:
    world = TransactionStage()
    half = world.half()
    world.end(half, first)
    end = world.state.store.log.end
    assert world.end(half, second).code == ILLEGAL
    assert world.state.store.log.end == end


def test_two_ends_in_one_turn_store_one_message() -> None:
    world = TransactionStage()
    half = world.half()
    ends = [end_half(world.state, end_header(half), world.now_ms, no_outputs) for _ in range(2)]
    world.settle()
    assert ends[0] is None
    assert ends[1] is not None
    assert world.delivered() == [b"body of U"]


def test_an_end_that_names_the_wrong_half_is_refused_in_the_words_of_apache() -> None:
    world = TransactionStage()
    half = world.half()
    wrong = {
        "The producer group wrong": world.end(half, group="others"),
        "The transaction state table offset wrong": world.end(half._replace(queue_offset=9)),
        "Find prepared transaction message failed": world.end(half._replace(log_offset=10**12)),
    }
    for text, reply in wrong.items():
        assert (reply.code, reply.remark) == (FAILED, text)
    assert world.delivered() == []
    assert world.end(half).code == 0


def test_an_end_that_names_a_plain_message_is_refused() -> None:
    world = TransactionStage()
    fields = world.send(b"plain", {"PGROUP": "makers"}).fields
    reply = world.end(Half(0, int(fields["msgId"][-16:], 16)))
    assert (reply.code, reply.remark) == (FAILED, "Find prepared transaction message failed")


def test_an_end_into_the_middle_of_a_record_is_refused() -> None:
    world = TransactionStage()
    half = world.half()
    for inside in range(1, 200):
        assert world.end(half._replace(log_offset=half.log_offset + inside)).code == FAILED


@pytest.mark.parametrize("queue_offset", [0, -5, 10**15])
def test_a_forged_half_within_a_body_cannot_be_committed(queue_offset: int) -> None:
    world = TransactionStage()
    world.half()
    forged = Record(
        topic_bytes=HALF_TOPIC.encode(),
        queue_offset=queue_offset,
        body=b"evil",
        property_bytes=b"PGROUP\x01makers\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
    )
    world.send(encode_record(forged), {"UNIQ_KEY": "carrier"})
    (carrier,) = world.records("T", 1)
    whole = bytes(world.state.store.log.read(carrier.log_offset, carrier.size))
    at = carrier.log_offset + whole.index(carrier.body)
    assert world.end(Half(queue_offset, at)).code == FAILED
    assert world.records(SCHEDULE_TOPIC) == []


def test_a_half_whose_real_place_is_missing_cannot_be_committed_but_rolled_back() -> None:
    world = TransactionStage()
    record = Record(
        topic_bytes=HALF_TOPIC.encode(), body=b"x", property_bytes=b"PGROUP\x01makers\x02"
    )
    world.store_raw(record)
    half = Half(0, record.log_offset)
    assert world.end(half).code == FAILED
    assert world.end(half, ROLLBACK).code == 0


def test_a_committed_half_with_a_delay_level_is_delivered_after_its_delay() -> None:
    world = TransactionStage()
    world.end(world.half("U", DELAY="2"))
    assert world.delivered() == []
    assert [record.body for record in world.records(SCHEDULE_TOPIC, 1)] == [b"body of U"]
    world.tick(5_000)
    world.tick(1_000)
    assert world.delivered() == [b"body of U"]


def test_a_producer_that_chose_when_to_be_asked_is_too_late_after_that() -> None:
    world = TransactionStage()
    half = world.half("U", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.now_ms += 10_001
    assert world.end(half).code == ILLEGAL
    assert world.end(half, is_checked=True).code == 0


def test_a_choice_below_the_usual_time_does_not_count() -> None:
    world = TransactionStage()
    half = world.half("U", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    world.now_ms += 6_000
    assert world.end(half).code == 0


def test_the_op_record_of_a_broker_with_an_ipv6_address_can_be_read_back() -> None:
    world = TransactionStage()
    world.state.host = StoreHost.of("::1", 10911)
    assert world.end(world.half()).code == 0
    (op,) = world.records(HALF_DONE_TOPIC)
    assert op.sys_flag == SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    assert op.born_host == "::1:10911"


# ---- failing -----------------------------------------------------------------------------------


def test_nothing_is_ended_while_nothing_is_stored() -> None:
    world = TransactionStage()
    half = world.half()
    world.state.unwritable = "the disk is full"
    reply = world.end(half, ROLLBACK)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.state.unwritable = None
    assert world.end(half).code == 0


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_half_stays_open_when_its_end_cannot_be_stored(outcome: int) -> None:
    world = TransactionStage()
    half = world.half()
    with world.full_disk():
        assert world.end(half, outcome).code == FAILED
    assert world.delivered() == []
    assert world.end(half).code == 0
    assert world.delivered() == [b"body of U"]


def test_ends_that_cannot_be_stored_together_are_stored_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TransactionStage()
    halves = [world.half(f"U{number}") for number in range(3)]
    append, failures = world.state.store.append, [True, True, False, False]

    def fail(*arguments: Any) -> None:
        if failures.pop(0):
            raise StoreError("broken")
        append(*arguments)

    monkeypatch.setattr(world.state.store, "append", fail)
    for half in halves:
        world.broker.handle(request_command(end_header(half, COMMIT)), CLIENT, world.now_ms)
    replies = [each for each in world.broker.commit(world.now_ms) if isinstance(each, LateReply)]
    assert [reply.command.code for reply in replies] == [FAILED, 0, 0]
    assert world.delivered() == [b"body of U1", b"body of U2"]
    failures.append(False)
    assert world.end(halves[0]).code == 0
    assert world.state.statistics.events.committed == {"T": 3}


def test_a_half_that_has_become_too_large_stays_open() -> None:
    world = TransactionStage()
    half = world.half()
    world.state.change_options(dataclasses.replace(OPTIONS, message_bytes_max=3))
    assert world.end(half).code == ResponseCode.MESSAGE_ILLEGAL
    world.state.change_options(OPTIONS)
    assert world.end(half).code == 0


def test_a_damaged_half_cannot_be_committed() -> None:
    world = TransactionStage()
    half = world.half()
    world.restart()  # or the half would still be in memory
    world.damage(world.records(HALF_TOPIC)[0])
    assert world.end(half).code == FAILED


# ---- starting again ----------------------------------------------------------------------------


def test_a_half_can_be_ended_once_across_a_restart() -> None:
    world = TransactionStage()
    ended, waiting = world.half("U0"), world.half("U1")
    world.end(ended)
    world.restart()
    assert world.end(ended).code == ILLEGAL
    assert world.end(waiting).code == 0
    assert world.delivered() == [b"body of U0", b"body of U1"]


def test_progress_is_kept_as_offsets_of_the_group_of_apache() -> None:
    world = TransactionStage()
    world.tick()
    for key in ("U0", "U1"):
        world.end(world.half(key))
    world.half("U2")
    world.tick(30_000)
    world.tick()
    offsets = world.state.offsets
    assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 2
    assert offsets.get(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0) == 2
    world.tick(30_000)  # in between, the half was copied, and the old one ended
    world.tick()
    assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 3


def test_progress_is_kept_only_when_the_log_is_durable() -> None:
    world = TransactionStage()
    world.tick()
    world.end(world.half())
    world.state.store.append([op_record(world.state.host, 9, world.now_ms)], world.now_ms, [{}])
    world.now_ms += 30_000
    list(world.broker.tick(world.now_ms))
    list(world.broker.tick(world.now_ms + 30_000))
    assert world.state.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) is None
    world.state.store.flush()
    list(world.broker.tick(world.now_ms))
    assert world.state.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1


def test_offsets_behind_the_end_of_a_cut_queue_do_not_hide_new_halves() -> None:
    world = TransactionStage()
    world.half("U0")
    world.state.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 50)
    world.state.offsets.commit(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0, 70)
    world.restart()
    world.tick()
    assert world.end(world.half("U1")).code == 0
    assert world.delivered() == [b"body of U1"]


@pytest.mark.parametrize("body", [b"0,1,", b"0,1", b"1,0,"])
def test_op_records_of_apache_that_name_several_halves_are_understood(body: bytes) -> None:
    world = TransactionStage()
    halves = [world.half(key) for key in ("U0", "U1", "U2")]
    op = op_record(world.state.host, 0, world.now_ms)
    op.body = body
    world.store_raw(op)
    world.restart()
    assert [world.end(half).code for half in halves] == [ILLEGAL, ILLEGAL, 0]


@pytest.mark.parametrize("body", [b"x", b"", b"9" * 18, b"-1", "٣".encode()])
def test_an_op_record_that_makes_no_sense_ends_nothing(body: bytes) -> None:
    world = TransactionStage()
    half = world.half()
    op = op_record(world.state.host, 0, world.now_ms)
    op.body = body
    world.store_raw(op)
    world.restart()
    assert world.end(half).code == 0


def test_a_damaged_op_record_ends_nothing() -> None:
    world = TransactionStage()
    half = world.half()
    world.end(half, ROLLBACK)
    world.damage(world.records(HALF_DONE_TOPIC)[0])
    world.restart()
    assert world.end(half).code == 0


def test_halves_that_apache_copied_are_left_behind_its_offset() -> None:
    world = TransactionStage()
    half = world.half()
    world.copy_as_apache(0, TRANSACTION_CHECK_TIMES="1")
    world.state.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1)
    world.restart()
    assert world.end(half).code == ILLEGAL
    copy = world.records(HALF_TOPIC)[1]
    assert world.end(Half(1, copy.log_offset), is_checked=True).code == 0


def test_only_so_many_copies_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_table, "COPIES_MAX", 1)
    world = TransactionStage()
    world.tick()
    halves = [world.half("U0"), world.half("U1")]
    world.tick(30_000)
    assert [world.end(half).code for half in halves] == [0, ILLEGAL]
