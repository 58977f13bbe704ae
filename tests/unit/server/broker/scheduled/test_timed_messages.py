from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from downrange.errors import DiskFull, MalformedBody, Unencodable
from downrange.options import BrokerOptions
from downrange.server.broker.record_fields import join_properties
from downrange.server.broker.scheduled.redirect import TICK_RECORDS_MAX
from downrange.server.broker.scheduled.timed_delivery import fire_due, recall_handle_of
from downrange.server.broker.scheduled.timed_messages import TICK_READS_MAX
from downrange.server.outputs import Note
from downrange.wire.recall_handles import RecallHandle, parse_recall_handle
from downrange.wire.records import Record
from downrange.wire.system_names import TIMER_TOPIC
from tests.unit.server.broker.delivery_stage import START_MS, DeliveryStage

if TYPE_CHECKING:
    from downrange.wire.command import Command


def waits(world: DeliveryStage) -> list[str]:
    return world.bodies(TIMER_TOPIC)


def next_due_ms(world: DeliveryStage) -> int | None:
    state = world.state
    is_writable = state.unwritable is None
    return state.timers.next_due_ms(state.store, world.now_ms, is_writable=is_writable)


def illegal(refused: Command | None) -> bool:
    return refused is not None and refused.code == 13


def take_back(world: DeliveryStage, unique_id: str, out_ms: int, topic: str = "T") -> None:
    """Store the marker of a recall."""
    marker = {"TIMER_DEL_UNIQKEY": unique_id, "UNIQ_KEY": unique_id}
    assert world.put("0", topic, TIMER_DELIVER_MS=str(out_ms + 1), **marker) is None


# ---- putting ----


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 1_000),
        ({"TIMER_DELAY_SEC": "+2"}, 1_000),
        ({"TIMER_DELAY_MS": "2001"}, 2_000),
        ({"TIMER_DELAY_MS": "1"}, 0),
        ({"TIMER_DELIVER_MS": str(START_MS + 2_999)}, 2_000),
        ({"TIMER_DELIVER_MS": str(START_MS + 3_000)}, 2_000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "x", "TIMER_DELIVER_MS": "1"}, 1_000),
        ({"TIMER_DELAY_MS": "2000", "TIMER_DELIVER_MS": "x"}, 1_000),
        ({"TIMER_DELAY_SEC": "259200"}, 259_199_000),
    ],
)
def test_timed_message_waits_with_the_full_second_before_its_time(
    properties: dict[str, str], out_ms: int
) -> None:
    world = DeliveryStage()
    assert world.put("later", "T", 3, **properties) is None
    (record,) = world.records(TIMER_TOPIC)
    assert record.properties() == {
        **properties,
        "TIMER_OUT_MS": str(START_MS + out_ms),
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-5"},
        {"TIMER_DELIVER_MS": str(START_MS)},
        {"TIMER_OUT_MS": "12", "TIMER_DELAY_SEC": "9"},
    ],
)
def test_message_is_stored_at_once_when_its_time_has_passed(properties: dict[str, str]) -> None:
    world = DeliveryStage()
    assert world.put("now", **properties) is None
    assert world.bodies() == ["now"]
    assert waits(world) == []


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "x"},
        {"TIMER_DELAY_MS": " 5"},
        {"TIMER_DELIVER_MS": "1.5"},
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": str(START_MS + 259_200_001)},
        {"TIMER_DELIVER_MS": str(START_MS), "TIMER_DEL_UNIQKEY": "u"},
    ],
)
def test_message_is_refused_when_its_time_makes_no_sense(properties: dict[str, str]) -> None:
    world = DeliveryStage()
    refused = world.put("bad", **properties)
    assert refused is not None
    assert refused.code == 13
    assert (refused.remark or "").startswith(
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms"
    )
    assert world.bodies() == waits(world) == []


def test_message_is_refused_when_too_many_wait() -> None:
    world = DeliveryStage(BrokerOptions(timer_messages_max=2))
    assert world.put("1", TIMER_DELAY_SEC="1") is None
    world.tick()
    assert world.put("2", TIMER_DELAY_SEC="1") is None
    refused = world.put("3", TIMER_DELAY_SEC="1")
    assert refused is not None
    assert refused.code == 1
    assert "flow control" in (refused.remark or "")
    world.tick(1_000)
    assert world.put("4", TIMER_DELAY_SEC="1") is None


def test_handle_of_a_timed_message_names_it() -> None:
    world = DeliveryStage()
    world.put("later", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    (record,) = world.records(TIMER_TOPIC)
    handle = parse_recall_handle(recall_handle_of(record, "broker-x"))
    assert handle == RecallHandle("T", "broker-x", START_MS + 2_001, "u1")


# ---- delivering ----


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "3"},
        {"TIMER_DELAY_MS": "3000"},
        {"TIMER_DELIVER_MS": str(START_MS + 3_000)},
    ],
)
def test_timed_message_is_delivered_when_asked_for_and_once(properties: dict[str, str]) -> None:
    world = DeliveryStage()
    world.put("later", **properties)
    assert next_due_ms(world) == START_MS  # it must be read first
    world.tick()
    assert next_due_ms(world) == START_MS + 3_000
    world.tick(2_999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]
    assert next_due_ms(world) is None
    world.tick(100_000)
    assert world.bodies() == ["later"]


def test_time_within_a_second_is_kept() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_MS="1337")
    world.tick(1_336)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]


def test_delivered_message_is_the_one_that_was_sent() -> None:
    world = DeliveryStage()
    world.put("later", "T", 2, TIMER_DELAY_MS="1500", KEYS="k")
    world.tick(1_600)
    (record,) = world.records(queue_id=2)
    assert record.properties() == {
        "KEYS": "k",
        "TIMER_DELAY_MS": "1500",
        "TIMER_OUT_MS": str(START_MS + 1_000),
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 1_600),
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert (record.flag, record.reconsume_times) == (5, 3)
    assert (record.born_ms, record.store_ms) == (START_MS - 7, START_MS + 1_600)
    assert record.born_host == "::1:50000"


def test_message_with_no_room_for_more_properties_is_delivered_without_them() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1", long="x" * 32_680)
    world.tick(1_000)
    (record,) = world.records()
    assert "TIMER_DEQUEUE_MS" not in record.properties()
    assert record.properties()["long"] == "x" * 32_680


def test_messages_are_delivered_in_the_order_of_their_times() -> None:
    world = DeliveryStage()
    for seconds in ("3", "1", "2"):
        world.put(seconds, TIMER_DELAY_SEC=seconds)
    world.tick(5_000)
    assert world.bodies() == ["1", "2", "3"]


def test_one_tick_delivers_a_bounded_number_and_asks_for_the_next() -> None:
    world = DeliveryStage()
    for number in range(TICK_RECORDS_MAX + 1):
        world.put(str(number), TIMER_DELAY_SEC="1")
    world.tick(1_000)
    assert len(world.bodies()) == TICK_RECORDS_MAX
    assert next_due_ms(world) == world.now_ms
    saved = json.loads(world.state.timers.dump())
    assert saved["deliveredUntilMs"] == START_MS + 999
    world.tick()
    assert world.bodies() == [str(number) for number in range(TICK_RECORDS_MAX + 1)]


def test_one_tick_delivers_a_bounded_number_of_bytes() -> None:
    world = DeliveryStage()
    for _ in range(5):
        world.put("x" * 2_000_000, TIMER_DELAY_SEC="1")
    world.tick(1_000)
    assert len(world.bodies()) == 3
    world.tick()
    assert len(world.bodies()) == 5


def test_nothing_is_delivered_before_the_whole_queue_was_read() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u", TIMER_DELAY_MS="500")
    for number in range(TICK_READS_MAX):
        world.put(str(number), TIMER_DELAY_SEC="60")
    take_back(world, "u", START_MS)
    world.tick(1_000)
    assert next_due_ms(world) == world.now_ms
    world.tick()
    assert world.bodies() == []
    assert next_due_ms(world) == START_MS + 60_000


# ---- taking back ----


def test_message_that_was_recalled_is_not_delivered() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    world.put("stays", UNIQ_KEY="u2", TIMER_DELAY_MS="2500")
    world.tick()
    take_back(world, "u1", START_MS + 2_000)
    world.tick(5_000)
    assert world.bodies() == ["stays"]
    assert next_due_ms(world) is None


def test_message_that_was_sent_twice_is_recalled_with_one_marker() -> None:
    world = DeliveryStage()
    for _ in range(2):
        world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, "u1", START_MS + 2_000)
    world.tick(5_000)
    assert world.bodies() == []


def test_message_is_not_delivered_when_it_is_recalled_in_the_same_turn() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, "u1", START_MS + 2_000)
    take_back(world, "u1", START_MS + 2_000)
    world.tick(2_500)
    world.tick(5_000)
    assert world.bodies() == []


@pytest.mark.parametrize(
    ("unique_id", "topic", "out_ms"), [("u2", "T", 2_000), ("u1", "U", 2_000), ("u1", "T", 3_000)]
)
def test_marker_does_not_affect_other_messages(unique_id: str, topic: str, out_ms: int) -> None:
    world = DeliveryStage()
    world.put("stays", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, unique_id, START_MS + out_ms, topic)
    world.tick(5_000)
    assert world.bodies() == ["stays"]
    assert world.bodies("U") == []


def test_message_sent_after_the_marker_is_delivered() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, "u1", START_MS + 2_000)
    world.put("sent again", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    world.tick(5_000)
    assert world.bodies() == ["sent again"]


def test_marker_of_an_apache_that_writes_the_topic_into_it_works() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, "T+u1", START_MS + 2_000)
    world.tick(5_000)
    assert world.bodies() == []


def test_message_that_was_recalled_stays_so_after_a_restart() -> None:
    world = DeliveryStage()
    world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    take_back(world, "u1", START_MS + 2_000)
    world.tick(100)
    world.restart(timers=world.state.timers.dump())
    world.tick(5_000)
    assert world.bodies() == []
    world.restart(timers=world.state.timers.dump())
    world.tick(5_000)
    assert world.bodies() == []


def test_message_that_apache_rolled_is_delivered_once() -> None:
    world = DeliveryStage()
    properties = {"UNIQ_KEY": "u1", "TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": str(START_MS + 8_000)}
    properties |= {"REAL_TOPIC": "T", "REAL_QID": "0"}
    rolled = properties | {"TIMER_ROLL_TIMES": "1"}
    for number, each in enumerate((properties, rolled)):
        record = Record(
            topic_bytes=TIMER_TOPIC.encode(),
            body=str(number).encode(),
            property_bytes=join_properties(each),
        )
        world.state.store.append([record], world.now_ms)
    world.tick(9_000)
    assert world.bodies() == ["1"]


def test_producer_cannot_say_that_a_message_was_rolled() -> None:
    world = DeliveryStage()
    world.put("first", UNIQ_KEY="u1", TIMER_DELAY_SEC="9")
    world.put("second", UNIQ_KEY="u1", TIMER_DELAY_SEC="9", TIMER_ROLL_TIMES="1")
    world.tick(9_000)
    assert world.bodies() == ["first", "second"]


# ---- what can go wrong ----


def test_delivery_is_tried_again_after_a_pause_when_storing_failed() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1")
    world.error = DiskFull("commitlog")
    world.tick(1_000)
    world.error = None
    assert next_due_ms(world) == world.now_ms + 1_000
    saved = world.state.timers.dump()
    assert json.loads(saved)["deliveredUntilMs"] == START_MS + 999
    world.tick(999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]


def test_nothing_is_delivered_while_nothing_can_be_stored() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1")
    world.state.unwritable = "the disk is full"
    world.tick(1_000)
    assert next_due_ms(world) is None
    world.state.unwritable = None
    world.tick()
    assert world.bodies() == ["later"]


def test_message_that_can_never_be_stored_is_reported_and_left_behind() -> None:
    world = DeliveryStage()
    world.put("bad", TIMER_DELAY_SEC="1")
    world.error = Unencodable("record", "too long")
    world.tick(1_000)
    world.error = None
    assert world.outputs == [
        Note("timed message 0 is not delivered: record: too long", is_warning=True)
    ]
    world.tick(100_000)
    assert world.bodies() == []
    assert len(world.state.timers) == 0


def test_message_that_retention_has_removed_is_reported() -> None:
    world = DeliveryStage()
    world.put("removed", TIMER_DELAY_SEC="1")
    world.put("kept", TIMER_DELAY_SEC="1")
    world.tick()
    world.state.store.queue(TIMER_TOPIC, 0).min_offset = 1
    world.tick(1_000)
    assert world.bodies() == ["kept"]
    assert world.outputs == [
        Note("timed message 0 is not delivered: retention has removed it", is_warning=True)
    ]


@pytest.mark.parametrize("damaged_after_ms", [0, 500])
def test_damaged_message_is_reported_and_holds_up_no_other(damaged_after_ms: int) -> None:
    world = DeliveryStage()
    world.put("damaged", TIMER_DELAY_SEC="1")
    world.put("whole", TIMER_DELAY_SEC="1")
    if damaged_after_ms:
        world.tick(damaged_after_ms)
    world.damage(world.records(TIMER_TOPIC)[0])
    world.tick(1_000)
    assert world.bodies() == ["whole"]
    (note,) = world.outputs
    assert isinstance(note, Note)
    assert "timed message 0" in note.text


@pytest.mark.parametrize("properties", [{}, {"TIMER_OUT_MS": "x", "TIMER_DELAY_SEC": "x"}])
def test_record_without_a_time_is_due_at_once(properties: dict[str, str]) -> None:
    world = DeliveryStage()
    text = join_properties({"REAL_TOPIC": "T", "REAL_QID": "0", **properties})
    record = Record(
        topic_bytes=TIMER_TOPIC.encode(), body=b"b", property_bytes=text.rstrip(b"\x02")
    )
    world.state.store.append([record], world.now_ms)
    world.tick()
    assert world.bodies() == ["b"]
    assert world.records()[0].properties()["TIMER_DEQUEUE_MS"] == str(START_MS)


def test_message_under_way_is_not_delivered_again_and_not_saved_as_delivered() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1")
    world.now_ms += 1_000
    fire_due(world.state, world.now_ms)
    fire_due(world.state, world.now_ms)
    saved = json.loads(world.state.timers.dump())
    apache = {"apacheUntilMs": 0, "apacheRead": 0}
    assert saved == {"deliveredUntilMs": START_MS + 999, "read": 1, "low": 0, **apache}
    world.commit()
    assert world.bodies() == ["later"]
    saved = json.loads(world.state.timers.dump())
    assert saved == {"deliveredUntilMs": START_MS + 1_000, "read": 1, "low": 1, **apache}


# ---- restarts ----


def test_restart_delivers_what_waits_and_nothing_again() -> None:
    world = DeliveryStage()
    for seconds in ("9", "1", "3", "2"):
        world.put(seconds, TIMER_DELAY_SEC=seconds)
    world.tick(2_000)
    assert world.bodies() == ["1", "2"]
    world.restart(timers=world.state.timers.dump())
    world.tick()
    assert world.bodies() == ["1", "2"]
    world.put("4", TIMER_DELAY_SEC="2")
    world.tick(10_000)
    assert world.bodies() == ["1", "2", "3", "4", "9"]


def test_messages_that_fell_due_while_the_broker_was_down_are_delivered_at_once() -> None:
    world = DeliveryStage()
    world.put("read", TIMER_DELAY_SEC="1")
    world.tick()
    saved = world.state.timers.dump()
    world.put("not read", TIMER_DELAY_SEC="1")
    world.now_ms += 3_600_000
    world.restart(timers=saved)
    world.tick()
    assert world.bodies() == ["read", "not read"]


def test_crash_before_the_progress_is_saved_delivers_again() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1")
    world.tick()
    saved = world.state.timers.dump()
    world.tick(1_000)
    world.restart(timers=saved)
    world.tick()
    assert world.bodies() == ["later", "later"]


def test_store_without_saved_progress_loses_nothing() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="1")
    world.restart()
    world.tick(1_000)
    assert world.bodies() == ["later"]


def test_progress_saved_while_the_queue_is_read_again_repeats_nothing() -> None:
    world = DeliveryStage()
    world.put("long", TIMER_DELAY_SEC="60")
    for number in range(TICK_READS_MAX):
        world.put(str(number), TIMER_DELAY_SEC="1")
    while next_due_ms(world) != START_MS + 60_000:
        world.tick(1_000)
    assert len(world.bodies()) == TICK_READS_MAX
    world.restart(timers=world.state.timers.dump())
    world.tick()  # the last one is not read yet
    world.restart(timers=world.state.timers.dump())
    world.tick()
    world.tick()
    assert len(world.bodies()) == TICK_READS_MAX
    assert next_due_ms(world) == START_MS + 60_000


def test_progress_beyond_the_queue_hides_no_new_message() -> None:
    world = DeliveryStage()
    saved = {"deliveredUntilMs": START_MS + 9_000, "read": 7, "low": 7}
    world.restart(timers=json.dumps(saved).encode())
    world.tick()
    world.put("later", TIMER_DELAY_SEC="1")
    world.restart(timers=world.state.timers.dump())
    world.tick(1_000)
    assert world.bodies() == ["later"]


def test_damaged_progress_is_refused() -> None:
    with pytest.raises(MalformedBody):
        DeliveryStage().state.timers.load(b'{"read":"x"}')


def test_version_changes_with_what_is_saved() -> None:
    world = DeliveryStage()
    seen = {world.state.timers.version}
    world.put("later", TIMER_DELAY_SEC="1")
    world.tick()
    seen.add(world.state.timers.version)
    world.tick(1_000)
    seen.add(world.state.timers.version)
    assert len(seen) == 3
    world.tick(1_000)
    assert world.state.timers.version in seen


# ---- clocks ----


def test_message_waits_for_its_time_after_the_clock_was_set_back() -> None:
    world = DeliveryStage()
    world.put("later", TIMER_DELAY_SEC="2")
    world.tick(-3_600_000)
    world.tick(3_601_999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]


def test_message_sent_after_the_clock_was_set_back_is_not_lost_by_a_restart() -> None:
    world = DeliveryStage()
    world.put("before", TIMER_DELAY_SEC="1")
    world.tick(1_000)
    world.tick(-3_600_000)
    world.put("after", TIMER_DELAY_SEC="60")
    world.tick()
    world.restart(timers=world.state.timers.dump())
    world.tick(59_999)
    assert world.bodies() == ["before"]
    world.tick(1)
    assert world.bodies() == ["before", "after"]


def test_clock_that_is_set_back_repeats_nothing_after_a_restart() -> None:
    world = DeliveryStage()
    world.put("long", TIMER_DELAY_SEC="7200")
    world.put("short", TIMER_DELAY_SEC="1")
    world.tick(1_000)
    world.tick(-3_600_000)
    world.restart(timers=world.state.timers.dump())
    world.tick()
    world.tick(3_700_000)
    assert world.bodies() == ["short"]


# ---- counting ----


def counted(world: DeliveryStage) -> dict[str, int]:
    counts = world.state.timers.counts().timing_count
    return {topic: each.count for topic, each in counts.items()}


def test_messages_that_wait_are_counted_by_topic_until_they_are_delivered() -> None:
    world = DeliveryStage()
    for topic, delay in (("T", "1000"), ("U", "2000"), ("T", "3000")):
        world.put("x", topic, TIMER_DELAY_MS=delay)
    world.tick()
    assert counted(world) == {"T": 2, "U": 1}
    assert world.state.timers.counts().timing_count["T"].time_stamp == START_MS
    world.tick(1_000)
    assert counted(world) == {"T": 1, "U": 1}
    assert world.state.timers.counts().timing_count["T"].time_stamp == START_MS + 1_000
    world.tick(2_000)
    assert counted(world) == {}
    assert world.state.timers.counts().data_version.counter == 6


@pytest.mark.parametrize("copies", [1, 2])
def test_a_recalled_message_does_not_wait(copies: int) -> None:
    world = DeliveryStage()
    world.put("stays", UNIQ_KEY="u0", TIMER_DELAY_MS="9000")
    for _ in range(copies):
        world.put("recalled", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    world.tick()
    assert counted(world) == {"T": 1 + copies}
    take_back(world, "u1", START_MS + 2_000)
    world.tick()
    assert counted(world) == {"T": copies}
    world.tick(5_000)
    assert counted(world) == {"T": 1}


def test_a_recall_of_nothing_is_corrected_at_its_time() -> None:
    world = DeliveryStage()
    take_back(world, "none", START_MS + 2_000)
    world.tick()
    assert counted(world) == {}
    world.put("x", TIMER_DELAY_MS="60000")
    world.tick(5_000)
    assert counted(world) == {"T": 1}


def test_a_message_that_could_not_be_stored_still_waits() -> None:
    world = DeliveryStage()
    world.put("x", TIMER_DELAY_MS="1000")
    world.tick()
    world.error = DiskFull("full")
    world.tick(1_000)
    assert counted(world) == {"T": 1}
