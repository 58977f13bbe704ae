"""Messages that are not acknowledged in time: delivered again, dead letters, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.errors import DiskFull, RocketMQError
from downrange.server.broker.pop import revival
from downrange.server.broker.state import DISK_FULL
from downrange.store.message_store import StoreOptions
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from tests.unit.server.broker.broker_stage import damage_body, send_request
from tests.unit.server.broker.pop_stage import (
    INVISIBLE_MS,
    RETRY_TOPIC,
    RETRY_TOPIC_V2,
    TIMER_TOPIC,
    PopStage,
    ack_request,
    changed,
    pop_request,
)

DEAD = "%DLQ%G"


@pytest.fixture
def stage() -> PopStage:
    return PopStage()


def delete_topic(stage: PopStage, topic: str = "T") -> None:
    request = Command(int(RequestCode.DELETE_TOPIC_IN_BROKER), {"topic": topic})
    assert stage.ask(request).code == 0


def delete_group(stage: PopStage, *, is_cleaned: bool) -> None:
    fields = {"groupName": "G", "cleanOffset": "true" if is_cleaned else "false"}
    request = Command(int(RequestCode.DELETE_SUBSCRIPTIONGROUP), fields)
    assert stage.ask(request).code == 0


# ---- time ----


def test_message_comes_back_once_and_not_before_its_time(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    stage.drain(INVISIBLE_MS - 1)
    assert stage.again() == []
    stage.drain(1)
    assert stage.again() == ["a"]
    stage.drain(10 * INVISIBLE_MS)
    assert stage.again() == ["a"]
    assert (stage.committed(), stage.committed(topic=RETRY_TOPIC)) == (1, None)


@pytest.mark.parametrize("invisible_ms", [0, -1_000])
def test_message_that_is_never_invisible(invisible_ms: int, stage: PopStage) -> None:
    stage.send("a")
    stage.pop(invisible_ms=invisible_ms)
    stage.tick()
    assert stage.again() == ["a"]


def test_clock_that_is_set_back_delays_but_loses_nothing(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.pop(count=1)
    stage.drain(-3_600_000)
    assert stage.bodies() == ["b"]
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["b"]
    stage.drain(3_600_000)
    assert stage.again() == ["b", "a"]


def test_many_messages_are_revived_in_several_ticks(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revival, "TICK_RECORDS_MAX", 3)
    bodies = [f"m{number}" for number in range(20)]
    stage.send(*bodies)
    for _ in range(10):
        stage.pop(count=2)
    stage.tick(INVISIBLE_MS)
    assert len(stage.again()) == 2
    assert stage.broker.is_behind(stage.now_ms)
    stage.drain(0)
    assert stage.again() == bodies


def test_large_checkpoint_is_revived_in_several_ticks(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revival, "TICK_BYTES_MAX", 150)
    stage.send("a" * 100, "b" * 100, "c" * 100)
    stage.pop()
    stage.tick(INVISIBLE_MS)
    assert [body[0] for body in stage.again()] == ["a", "b"]
    stage.restart()
    stage.drain(0)
    assert [body[0] for body in stage.again()] == ["a", "b", "c"]


# ---- failures ----


@pytest.mark.parametrize(
    ("error", "pause_ms"), [(DiskFull("T"), 1_000), (RocketMQError("bad"), 60_000)]
)
def test_failed_revival_is_tried_again(
    error: Exception, pause_ms: int, stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    stage.pop()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        stage.tick(INVISIBLE_MS)
    assert any("cannot be delivered again" in note.text for note in stage.notes)
    stage.state.unwritable = None
    stage.tick(pause_ms - 1)
    assert stage.again() == []
    stage.tick(1)
    assert stage.again() == ["a"]


def test_nothing_is_revived_while_nothing_can_be_stored(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    stage.state.unwritable = DISK_FULL
    stage.tick(INVISIBLE_MS)
    assert stage.again() == []
    assert not stage.broker.is_behind(stage.now_ms)
    stage.state.unwritable = None
    stage.tick()
    assert stage.again() == ["a"]


def test_unexpected_fault_does_not_lose_the_message(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    stage.pop()

    def fail(*_: object) -> Any:
        raise OSError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(revival, "read_message", fail)
        stage.tick(INVISIBLE_MS)
    assert "revive_due failed: OSError: broken" in stage.notes[-1].text
    stage.tick(60_000)
    assert stage.again() == ["a"]


def test_damaged_message_is_reported_and_the_others_come_back(stage: PopStage) -> None:
    stage.send("aaaa", "bbbb")
    stage.pop()
    damage_body(stage.state, stage.files, stage.records()[0])
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["bbbb"]
    assert [note.is_warning for note in stage.notes] == [True]
    assert "message 0 of T cannot be delivered again" in stage.notes[0].text
    assert stage.committed() == 2


def test_retention_removed_a_message() -> None:
    sizes = StoreOptions(
        log_segment_bytes=4_096, queue_segment_units=100, key_slots=7, key_entries=2000
    )
    stage = PopStage(sizes=sizes)
    stage.send("a" * 1_500, "b" * 1_500)
    popped = stage.pop()
    stage.send("c" * 2_000, "d" * 2_000)
    stage.pop(count=1, invisible_ms=10 * INVISIBLE_MS)
    first = stage.state.store.log.first
    stage.state.store.drop_first_segment()
    assert stage.state.store.log.first > first
    stage.drain(INVISIBLE_MS)
    assert any("retention has removed it" in note.text for note in stage.notes)
    assert "a" * 1_500 not in stage.again()
    assert stage.ask(ack_request(popped[1])).code == 208
    (left,) = stage.state.checkpoints
    assert left.start == 2
    stage.restart()
    assert [checkpoint.start for checkpoint in stage.state.checkpoints] == [2]


# ---- dead letters ----


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_message_becomes_a_dead_letter_after_its_last_delivery(
    retries: int, stage: PopStage
) -> None:
    stage.group(retry_max_times=retries)
    stage.send("a", KEYS="k", own="1")
    first_ms, deliveries = stage.now_ms, 0
    (origin,) = stage.records()
    while found := stage.pop():
        deliveries += 1
        assert [one.record.reconsume_times for one in found] == [deliveries - 1]
        stage.drain(INVISIBLE_MS)
        assert deliveries < 10
    assert deliveries == retries + 1
    (record,) = stage.records(DEAD)
    assert (record.body, record.reconsume_times) == (b"a", retries + 1)
    properties = record.properties()
    assert properties["RETRY_TOPIC"] == "T"
    assert (properties["KEYS"], properties["own"]) == ("k", "1")
    if retries:
        assert properties["1ST_POP_TIME"] == str(first_ms)
        assert properties["ORIGIN_GROUP"] == "G"
    else:
        assert properties["ORIGIN_MESSAGE_ID"] == origin.offset_id
    config = stage.state.topics.get(DEAD)
    assert config is not None
    assert (config.read_queue_nums, config.perm) == (1, 6)
    assert stage.committed() == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_suspended_delivery_does_not_count(is_killed: bool, stage: PopStage) -> None:
    """As in Apache (PopReviveService): the message comes back with the number that it had."""
    stage.group(retry_max_times=1)
    stage.send("a")
    for _ in range(3):
        (one,) = stage.pop()
        assert one.record.reconsume_times == 0
        assert stage.change(one, 1_000, suspend=True).code == 0
        if is_killed:
            stage.restart()
            stage.group(retry_max_times=1)
        stage.drain(1_000)
    (one,) = stage.pop()
    again = changed(one, stage.change(one, 1_000, suspend=True))
    assert stage.change(again, 1_000).code == 0  # the last change decides
    stage.drain(1_000)
    (one,) = stage.pop()
    assert one.record.reconsume_times == 1
    assert stage.change(one, 1_000, suspend=True).code == 0  # it is the last delivery, and again
    stage.drain(1_000)
    (one,) = stage.pop()
    assert (one.record.reconsume_times, stage.state.topics.get(DEAD)) == (1, None)
    stage.drain(INVISIBLE_MS)
    assert [record.reconsume_times for record in stage.records(DEAD)] == [2]


def test_suspended_checkpoint_that_is_stored_again_stays_one(stage: PopStage) -> None:
    stage.send("a")
    (one,) = stage.pop()
    stage.change(one, 1_000, suspend=True)
    stage.act(stage.broker.close(stage.now_ms))
    stage.restart(stage.progress())
    stage.drain(1_000)
    assert [record.reconsume_times for record in stage.records(RETRY_TOPIC)] == [0]


def test_dead_letter_of_the_second_form_names_its_topic() -> None:
    stage = PopStage(is_retry_topic_v2=True)
    stage.group(retry_max_times=1)
    stage.send("a")
    for _ in range(2):
        stage.pop()
        stage.drain(INVISIBLE_MS)
    (record,) = stage.records(DEAD)
    assert record.properties()["RETRY_TOPIC"] == "T"


def test_deleted_group_delivers_nothing_again(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    delete_group(stage, is_cleaned=False)
    assert len(stage.state.checkpoints) == 0
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []


def test_group_whose_offsets_are_cleaned_begins_again(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.pop(count=1)
    stage.pop(order=True, attempt_id="1")
    delete_group(stage, is_cleaned=True)
    assert len(stage.state.checkpoints) == len(stage.state.orders) == 0
    assert stage.bodies() == ["a", "b"]


# ---- large properties ----


@pytest.mark.parametrize("length", [31_000, 32_200, 32_250, 32_300, 32_600, 32_650])
def test_message_with_large_properties_comes_back_or_becomes_a_dead_letter(length: int) -> None:
    stage = PopStage()
    request = send_request(b"a", properties={"own": "x" * length})
    assert stage.ask(request).code == 0
    for _ in range(3):
        if not stage.pop():
            break
        stage.drain(INVISIBLE_MS)
    dead = stage.records(DEAD) if stage.state.topics.get(DEAD) is not None else []
    again = stage.records(RETRY_TOPIC) if stage.state.topics.get(RETRY_TOPIC) is not None else []
    assert (len(again), len(dead)) in ((3, 0), (0, 1))
    for record in (*again, *dead):
        assert record.properties()["own"] == "x" * length


def test_dead_letter_without_room_keeps_the_properties_of_the_message() -> None:
    stage = PopStage(cluster="c", region="r")
    stage.group(retry_max_times=0)
    stage.send("a", own="x" * 32_700)
    (origin,) = stage.records()
    stage.pop()
    stage.drain(INVISIBLE_MS)
    (record,) = stage.records(DEAD)
    assert record.properties() == origin.properties()


# ---- restarts ----


def test_open_message_comes_back_after_a_restart(stage: PopStage) -> None:
    empty = stage.progress()
    stage.send("a", "b", "c")
    one, two, _ = stage.pop()
    popped = stage.progress()
    stage.ack(one)
    acked = stage.progress()
    stage.ack(two)
    for progress in (acked, popped, empty, None):
        stage.restart(progress)
        assert stage.bodies() == []
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["c"]
    for progress in (None, empty, popped, acked):
        stage.restart(progress)
        stage.drain(0)
        assert stage.again() == ["c"]
    stage.ack(*stage.pop())
    for progress in (None, empty, popped, acked):
        stage.restart(progress)
        assert stage.bodies() == []
        stage.drain(10 * INVISIBLE_MS)
    assert stage.again() == ["c"]


def test_time_passes_while_the_broker_is_down(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    stage.now_ms += 10 * INVISIBLE_MS
    stage.restart()
    assert stage.again() == ["a"]


def test_nothing_is_revived_before_the_whole_queue_is_read(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    stage.ack(*stage.pop())
    monkeypatch.setattr("downrange.server.broker.scheduled.timed_messages.TICK_READS_MAX", 1)
    stage.now_ms += INVISIBLE_MS
    stage.restart(tick=False)
    stage.tick()
    assert not stage.state.is_pop_loaded
    assert len(stage.state.checkpoints) == 1
    stage.drain(0)
    assert stage.again() == []


def test_changed_message_comes_back_once_after_a_restart(stage: PopStage) -> None:
    stage.send("a", "b")
    before = stage.progress()
    one, two = stage.pop()
    changed(one, stage.change(one, 3 * INVISIBLE_MS))
    stage.ack(two)
    for progress in (None, before, stage.progress()):
        stage.restart(progress)
        assert stage.bodies() == []
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []
    stage.drain(2 * INVISIBLE_MS)
    assert stage.again() == ["a"]


# ---- a topic that is deleted and created again ----


@pytest.mark.parametrize("is_restarted", [False, True])
def test_old_checkpoints_do_not_concern_the_new_topic(is_restarted: bool, stage: PopStage) -> None:
    stage.send("old1", "old2", "old3")
    before = stage.progress()
    stage.pop()
    delete_topic(stage)
    assert len(stage.state.checkpoints) == 0
    assert stage.committed() is None
    stage.create("T", 1)
    stage.send("new1", "new2", "new3", "new4")
    if is_restarted:
        stage.state.store.flush()
        stage.restart(before)
        assert len(stage.state.checkpoints) == 0
    assert stage.bodies() == ["new1", "new2", "new3", "new4"]
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["new1", "new2", "new3", "new4"]


@pytest.mark.parametrize("is_v2", [False, True])
def test_messages_that_come_back_are_deleted_with_their_topic(is_v2: bool) -> None:
    stage = PopStage(is_retry_topic_v2=is_v2)
    stage.send("a", "b")
    stage.ack(*stage.pop(count=1, group="H"))
    stage.pop()
    stage.drain(INVISIBLE_MS)
    stage.pop(count=1)
    delete_topic(stage)
    assert len(stage.state.checkpoints) == 0
    for topic in (RETRY_TOPIC, RETRY_TOPIC_V2):
        assert stage.state.topics.get(topic) is None
    stage.create("T", 1)
    assert stage.bodies() == []
    stage.restart()
    stage.drain(INVISIBLE_MS)
    assert stage.bodies() == []
    assert stage.state.topics.get(RETRY_TOPIC) is None


def test_deleted_topic_is_not_there_after_a_restart(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    delete_topic(stage)
    stage.restart()
    assert len(stage.state.checkpoints) == 0
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []


def test_topic_that_disappears_without_a_request(stage: PopStage) -> None:
    stage.send("a")
    stage.pop()
    stage.state.topics.delete("T", stage.now_ms)
    stage.drain(INVISIBLE_MS)
    assert stage.again() == []
    assert len(stage.state.checkpoints) == 0


# ---- offsets that others commit ----


def test_higher_offset(stage: PopStage) -> None:
    stage.send(*"abcdef")
    (one,) = stage.pop(count=1)
    stage.set_offset(4)
    assert stage.bodies() == ["e", "f"]
    stage.ack(one)
    assert stage.committed() == 4


def test_lower_offset(stage: PopStage) -> None:
    stage.send(*"abcdef")
    stage.ack(*stage.pop())
    assert stage.committed() == 6
    stage.set_offset(4)
    stage.restart(stage.progress())
    assert stage.committed() == 4
    stage.set_offset(2)
    found = stage.pop()
    assert [one.body for one in found] == ["c", "d", "e", "f"]
    stage.ack(*found)
    assert stage.committed() == 6


def test_lower_offset_while_messages_are_open(stage: PopStage) -> None:
    stage.send("a", "b", "c")
    first = stage.pop(count=2)
    (third,) = stage.pop()
    stage.set_offset(1)
    second = stage.pop()  # at the same time as the first ones
    assert [one.body for one in second] == ["b", "c"]
    stage.ack(*first, *second)
    assert stage.committed() == 3
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ["c"]  # of the third, which was not acknowledged
    assert third.body == "c"


def test_same_start_at_the_same_time(stage: PopStage) -> None:
    stage.send("a", "b")
    (first,) = stage.pop(count=1)
    stage.pop(count=1)
    stage.set_offset(1)
    stage.set_offset(0)
    (again,) = stage.pop(count=1)
    assert again.receipt.pop_ms == first.receipt.pop_ms + 1
    stage.ack(again)
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.again()) == ["a", "b"]  # the first deliveries


def test_same_offset_changes_nothing(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.pop(count=1)
    stage.set_offset(0)
    assert stage.bodies() == ["b"]


def test_reset_by_a_tool(stage: PopStage) -> None:
    stage.send("a", "b")
    stage.ack(*stage.pop())
    stage.reset(0)
    assert stage.bodies() == ["a", "b"]


def test_open_messages_that_a_reset_reads_again_do_not_hide_others_after_a_kill(
    stage: PopStage,
) -> None:
    stage.send(*"abcd")
    stage.ack(*stage.pop(count=3))
    stage.pop(count=1)  # d
    stage.reset(1)
    assert len(stage.state.checkpoints) == 0
    assert stage.bodies(count=1) == ["b"]
    stage.restart(stage.progress())
    assert stage.bodies() == ["c", "d"]


def test_a_reset_is_kept_although_the_queue_of_the_timer_is_not_read_yet(stage: PopStage) -> None:
    stage.create("later", 1)
    stage.send(*"abcde")
    stage.send("x", topic="later", TIMER_DELAY_SEC="3000")  # read by the next tick
    stage.pop(count=3)
    stage.reset(0)
    stage.reset(0)
    stage.tick()
    assert stage.bodies(count=3) == ["a", "b", "c"]
    stage.reset(2)
    stage.tick()
    assert stage.bodies() == ["c", "d", "e"]


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("is_acked", [True, False])
@pytest.mark.parametrize("is_by_tool", [True, False])
def test_a_group_that_was_set_back_stays_there_after_a_kill(
    stage: PopStage, is_by_tool: bool, is_acked: bool, is_saved: bool
) -> None:
    """A delayed message that waits makes a start read records from before the reset, too."""
    stage.create("later", 1)
    stage.send("x", topic="later", TIMER_DELAY_SEC="3000")
    stage.send(*"abcde")
    stage.ack(*stage.pop(count=1))
    popped = stage.pop(count=2)
    if is_acked:
        stage.ack(*popped)
    progress = stage.progress()
    (stage.reset if is_by_tool else stage.set_offset)(0)
    stage.restart(stage.progress() if is_saved else progress)
    assert stage.committed() == 0
    again = stage.pop(count=4)
    assert [one.body for one in again] == ["a", "b", "c", "d"]
    stage.ack(*again)
    stage.restart(stage.progress())  # what came after the reset is known, too
    assert stage.bodies() == ["e"]
    stage.restart()
    assert stage.bodies() == []


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_acked", [False, True])
@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_a_reset_while_records_are_read_is_kept_and_repeats_nothing_twice(
    ticks: int,
    is_acked: bool,
    is_restarted: bool,
    stage: PopStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill, records of pops are read in steps; a reset may come before any of them."""
    stage.send(*"abcdef")
    before = stage.progress()
    for _ in range(3):
        found = stage.pop(count=2)
        if is_acked:
            stage.ack(*found)
    monkeypatch.setattr("downrange.server.broker.scheduled.timed_messages.TICK_READS_MAX", 1)
    stage.restart(before, tick=False)
    for _ in range(ticks):
        stage.tick()
    assert not stage.state.is_pop_loaded
    stage.reset(2)
    if is_restarted:
        stage.restart(before, tick=False)
    stage.drain(0)
    assert stage.state.is_pop_loaded
    again = stage.pop(count=32)
    assert [one.body for one in again] == ["c", "d", "e", "f"]
    stage.ack(*again)
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ([] if is_acked else ["a", "b"])
    assert stage.committed() == 6
    stage.restart()  # the dropped deliveries stay dropped
    stage.drain(INVISIBLE_MS)
    assert stage.again() == ([] if is_acked else ["a", "b"])


def test_a_reset_to_the_end_while_records_are_read_is_kept(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send(*"abc")
    stage.pop(count=2)
    monkeypatch.setattr("downrange.server.broker.scheduled.timed_messages.TICK_READS_MAX", 1)
    stage.restart(tick=False)
    stage.reset(3)
    stage.drain(0)
    assert stage.bodies() == []
    stage.send("d")
    assert stage.bodies() == ["d"]
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.again()) == ["a", "b", "d"]


def test_a_changed_time_does_not_hide_messages_from_a_group_that_was_set_back(
    stage: PopStage,
) -> None:
    stage.send(*"abc")
    stage.ack(*stage.pop(count=1))
    _, last = stage.pop()
    stage.set_offset(0)
    assert stage.change(last, 60_000).code == 0
    assert stage.bodies() == ["a", "b", "c"]


def test_open_messages_before_a_reset_stay_open(stage: PopStage) -> None:
    stage.send(*"abcd")
    stage.pop(count=2)
    stage.reset(3)
    assert stage.bodies() == ["d"]
    stage.drain(INVISIBLE_MS)
    assert sorted(stage.again()) == ["a", "b", "d"]


def test_offset_beyond_the_end_begins_at_the_end(stage: PopStage) -> None:
    stage.send("a")
    stage.set_offset(500)
    assert stage.bodies() == []
    stage.send("b")
    assert stage.bodies() == []
    stage.set_offset(-7)
    assert stage.bodies() == ["a", "b"]


# ---- several queues ----


def test_committed_offsets_of_several_queues() -> None:
    stage = PopStage(queues=3)
    for queue_id in range(3):
        stage.send("a", "b", queue_id=queue_id)
    first = stage.pop(count=3)
    second = stage.pop()
    stage.ack(*second)
    starts = {one.receipt.queue_id: one.receipt.start for one in reversed(first)}
    for queue_id in range(3):
        assert stage.committed(queue_id) == starts.get(queue_id, 2)
    stage.ack(*first)
    assert [stage.committed(queue_id) for queue_id in range(3)] == [2, 2, 2]


def test_progress_of_the_timer_never_passes_an_open_checkpoint(stage: PopStage) -> None:
    stage.send(*"abcdef")
    (one,) = stage.pop(count=1, invisible_ms=10 * INVISIBLE_MS)
    for _ in range(5):
        stage.ack(*stage.pop(count=1))
        assert stage.state.timers.progress().low == 0
    stage.ack(one)
    assert stage.state.timers.progress().low == len(stage.records(TIMER_TOPIC))
    stage.restart(stage.progress())
    assert stage.bodies() == []


def test_pop_during_the_first_tick(stage: PopStage) -> None:
    """A broker without records is ready before its first tick."""
    stage.send("a")
    stage.restart(tick=False)
    assert stage.broker.is_behind(stage.now_ms)
    assert stage.ask(pop_request()).code == 0
    assert not stage.broker.is_behind(stage.now_ms)
