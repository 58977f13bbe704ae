from __future__ import annotations

import json

import pytest

from downrange.errors import DiskFull, MalformedBody, Unencodable
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.scheduled.delay_levels import DelayedMessages, unit_tag_of
from downrange.server.broker.scheduled.delayed_delivery import deliver_due
from downrange.server.broker.scheduled.redirect import TICK_RECORDS_MAX
from downrange.server.outputs import Note
from downrange.wire.codes import SysFlag
from downrange.wire.hashes import tag_hash
from downrange.wire.records import MAGIC_V1, MAGIC_V2, Record
from downrange.wire.system_names import SCHEDULE_TOPIC
from tests.unit.server.broker.delivery_stage import OPTIONS, START_MS, DeliveryStage

# ---- putting ----


def test_delayed_message_waits_in_the_queue_of_its_level() -> None:
    world = DeliveryStage()
    assert world.put("later", "T", 2, DELAY="2") is None
    (record,) = world.scheduled(2)
    assert record.properties() == {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert world.bodies(queue_id=2) == []


def test_level_beyond_the_last_is_the_last() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="99")
    (record,) = world.scheduled(3)
    assert record.properties()["DELAY"] == "3"


@pytest.mark.parametrize("level", ["0", "-3"])
def test_level_below_one_means_no_delay(level: str) -> None:
    world = DeliveryStage()
    world.put("now", DELAY=level)
    assert world.bodies() == ["now"]


def test_level_of_zero_leaves_the_time_in_force() -> None:
    world = DeliveryStage()
    world.put("timed", DELAY="0", TIMER_DELAY_SEC="9")
    assert world.bodies() == []
    assert world.bodies("rmq_sys_wheel_timer") == ["timed"]


def test_level_wins_over_a_time() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1", TIMER_DELAY_SEC="9", TIMER_DELAY_MS="9", TIMER_DELIVER_MS="9")
    (record,) = world.scheduled(1)
    assert record.properties() == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}


@pytest.mark.parametrize("level", ["abc", " 1", "1.0", "1_0", "9" * 30])
def test_message_is_refused_when_its_level_is_not_a_number(level: str) -> None:
    world = DeliveryStage()
    refused = world.put("bad", DELAY=level)
    assert refused is not None
    assert refused.code == 1
    assert level[:40] in (refused.remark or "")
    assert world.bodies() == []


def test_queue_unit_of_a_delayed_message_holds_when_it_is_due() -> None:
    unit_tag = unit_tag_of("1s 5s")
    delayed, former_level = 1, 7
    assert unit_tag(SCHEDULE_TOPIC.encode(), delayed, 100, "tag") == 5_100
    assert unit_tag(SCHEDULE_TOPIC.encode(), former_level, 100, "tag") == 5_100
    assert unit_tag(b"T", 1, 100, "tag") == tag_hash("tag")
    assert unit_tag(b"T", 1, 100, None) == 0


# ---- delivering ----


def test_delayed_message_is_delivered_on_time_and_once() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    assert world.state.delays.next_due_ms(world.state.store, START_MS) == START_MS + 1_000
    world.tick(999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]
    assert world.state.delays.next_due_ms(world.state.store, world.now_ms) is None
    world.tick(100_000)
    assert world.bodies() == ["later"]


def test_delivered_message_is_the_one_that_was_sent() -> None:
    world = DeliveryStage()
    world.put("later", "T", 2, DELAY="1", KEYS="k")
    world.tick(1_000)
    (record,) = world.records(queue_id=2)
    (waited,) = world.scheduled(1)
    assert record.property_bytes == waited.property_bytes
    assert record.properties() == {"DELAY": "1", "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert (record.flag, record.reconsume_times, record.magic) == (5, 3, MAGIC_V1)
    assert (record.born_ms, record.store_ms) == (START_MS - 7, START_MS + 1_000)
    assert record.born_host == "::1:50000"
    assert record.store_host == "10.0.0.2:10911"
    assert record.sys_flag == int(SysFlag.BORN_HOST_V6)


def test_message_of_a_long_retry_topic_is_delivered() -> None:
    world = DeliveryStage()
    topic = f"%RETRY%{'g' * 140}"
    world.put("again", topic, DELAY="1")
    world.tick(1_000)
    (record,) = world.records(topic)
    assert record.magic == MAGIC_V2


def test_delivered_message_says_where_the_broker_is_now() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.state.host = StoreHost.of("::1", 10912)
    world.tick(1_000)
    (record,) = world.records()
    assert record.store_host == "::1:10912"
    assert record.sys_flag == int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


def test_levels_do_not_wait_for_each_other() -> None:
    world = DeliveryStage()
    world.put("long", DELAY="3")
    world.put("short", DELAY="1")
    assert world.state.delays.next_due_ms(world.state.store, world.now_ms) == START_MS + 1_000
    world.tick(1_000)
    assert world.bodies() == ["short"]
    world.tick(119_000)
    assert world.bodies() == ["short", "long"]


def test_one_tick_delivers_a_bounded_number_and_asks_for_the_next() -> None:
    world = DeliveryStage()
    for number in range(TICK_RECORDS_MAX + 1):
        world.put(str(number), DELAY="1")
    world.tick(1_000)
    assert len(world.bodies()) == TICK_RECORDS_MAX
    due_ms = world.state.delays.next_due_ms(world.state.store, world.now_ms)
    assert due_ms is not None
    assert due_ms <= world.now_ms
    world.tick()
    assert world.bodies() == [str(number) for number in range(TICK_RECORDS_MAX + 1)]


def test_one_tick_delivers_a_bounded_number_of_bytes() -> None:
    world = DeliveryStage()
    for _ in range(5):
        world.put("x" * 2_000_000, DELAY="1")
    world.tick(1_000)
    assert len(world.bodies()) == 3
    world.tick()
    assert len(world.bodies()) == 5


def test_message_under_way_is_not_delivered_again() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.now_ms += 1_000
    deliver_due(world.state, world.now_ms)
    deliver_due(world.state, world.now_ms)
    world.commit()
    assert world.bodies() == ["later"]


def test_deleted_topic_gets_its_message_all_the_same() -> None:
    world = DeliveryStage()
    world.put("later", "Gone", DELAY="1")
    assert world.state.topics.get("Gone") is None
    world.tick(1_000)
    assert world.bodies("Gone") == ["later"]


# ---- what can go wrong ----


def test_delivery_is_tried_again_after_a_pause_when_storing_failed() -> None:
    world = DeliveryStage()
    world.put("first", DELAY="1")
    world.put("second", DELAY="1")
    world.error = DiskFull("commitlog")
    world.tick(1_000)
    world.error = None
    assert world.state.delays.next_due_ms(world.state.store, world.now_ms) == world.now_ms + 1_000
    assert offsets_of(world.state.delays.dump()) == {}
    world.tick(999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["first", "second"]
    assert offsets_of(world.state.delays.dump()) == {"1": 2}


def test_message_that_retention_has_removed_is_not_tried_again() -> None:
    world = DeliveryStage()
    world.put("removed", DELAY="1")
    world.put("kept", DELAY="1")
    world.error = DiskFull("commitlog")
    world.tick(1_000)
    world.error = None
    world.state.store.queue(SCHEDULE_TOPIC, 0).min_offset = 1
    world.tick(1_000)
    assert world.bodies() == ["kept"]


def test_nothing_is_delivered_while_nothing_can_be_stored() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.state.unwritable = "the disk is full"
    world.tick(1_000)
    delays, store = world.state.delays, world.state.store
    assert delays.next_due_ms(store, world.now_ms, is_writable=False) is None
    world.state.unwritable = None
    world.tick()
    assert world.bodies() == ["later"]


def test_message_that_can_never_be_stored_is_reported_and_left_behind() -> None:
    world = DeliveryStage()
    world.put("bad", DELAY="1")
    world.error = Unencodable("record", "too long")
    world.tick(1_000)
    world.error = None
    (note,) = world.outputs
    assert isinstance(note, Note)
    assert note.is_warning
    assert note.text == "message 0 of delay level 1 is not delivered: record: too long"
    world.tick(100_000)
    assert world.bodies() == []
    assert offsets_of(world.state.delays.dump()) == {"1": 1}


def test_damaged_message_is_reported_and_holds_up_no_other() -> None:
    world = DeliveryStage()
    world.put("damaged", DELAY="1")
    world.put("whole", DELAY="1")
    world.damage(world.scheduled(1)[0])
    world.tick(1_000)
    assert world.bodies() == ["whole"]
    (note,) = world.outputs
    assert isinstance(note, Note)
    assert "message 0 of delay level 1" in note.text


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "REAL_QID": "x"}]
)
def test_message_that_belongs_nowhere_is_reported(properties: dict[str, str]) -> None:
    world = DeliveryStage()
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    record = Record(topic_bytes=SCHEDULE_TOPIC.encode(), property_bytes=text.encode())
    world.state.store.append([record], world.now_ms)
    world.tick(1_000)
    (note,) = world.outputs
    assert isinstance(note, Note)
    assert "REAL_TOPIC or REAL_QID is missing or malformed" in note.text


# ---- restarts ----


def offsets_of(dumped: bytes) -> dict[str, int]:
    offsets: dict[str, int] = json.loads(dumped)["offsetTable"]
    return offsets


def test_messages_are_delivered_after_a_restart() -> None:
    world = DeliveryStage()
    world.put("before", DELAY="1")
    world.put("after", DELAY="2")
    world.tick(1_000)
    world.restart(delays=world.state.delays.dump())
    world.tick(100)
    assert world.bodies() == ["before"]
    world.tick(3_900)
    assert world.bodies() == ["before", "after"]


def test_messages_that_fell_due_while_the_broker_was_down_are_delivered_at_once() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    saved = world.state.delays.dump()
    world.now_ms += 3_600_000
    world.restart(delays=saved)
    world.tick()
    assert world.bodies() == ["later"]


def test_crash_before_the_offset_is_saved_delivers_again() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    saved = world.state.delays.dump()
    world.tick(1_000)
    world.restart(delays=saved)
    world.tick()
    assert world.bodies() == ["later", "later"]


def test_rebuilt_index_contains_the_due_times() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="2")
    world.state.store.close()
    world.files.remove("consumequeue")
    world.state = DeliveryStage._open(world)  # pyright: ignore[reportPrivateUsage]
    assert world.state.delays.next_due_ms(world.state.store, world.now_ms) == START_MS + 5_000


def test_offset_beyond_the_queue_goes_back_to_its_end() -> None:
    world = DeliveryStage()
    world.restart(delays=b'{"offsetTable":{1:7}}')
    world.tick()
    world.put("later", DELAY="1")
    world.tick(1_000)
    assert world.bodies() == ["later"]


# ---- clocks ----


def test_message_waits_no_longer_than_its_delay_after_the_clock_was_set_back() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.tick(-3_600_000)
    assert world.bodies() == []
    assert world.state.delays.next_due_ms(world.state.store, world.now_ms) == world.now_ms + 1_000
    world.tick(999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]


def test_messages_sent_after_the_clock_was_set_back_are_neither_early_nor_late() -> None:
    world = DeliveryStage()
    world.put("before", DELAY="1")
    world.tick(-3_600_000)
    world.tick(600)
    world.put("after", DELAY="1")
    world.tick()
    world.tick(400)
    assert world.bodies() == ["before"]
    world.tick(599)
    assert world.bodies() == ["before"]
    world.tick(1)
    assert world.bodies() == ["before", "after"]
    world.now_ms = START_MS + 10_000
    world.put("right again", DELAY="1")
    world.tick(1_000)
    assert world.bodies() == ["before", "after", "right again"]


def test_clock_that_is_set_back_twice_makes_no_message_wait_longer() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.tick(-3_600_000)
    world.tick(-3_600_000)
    world.tick(1_000)
    assert world.bodies() == ["later"]


def test_clock_that_is_set_back_a_little_makes_no_message_wait_longer() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    world.tick(-10)
    world.tick(999)
    assert world.bodies() == []
    world.tick(1)
    assert world.bodies() == ["later"]


# ---- the file ----


def test_offsets_are_read_as_java_writes_them() -> None:
    delays = DelayedMessages(OPTIONS.delay_levels)
    delays.load(b'{\n\t"dataVersion":{"counter":1},\n\t"offsetTable":{1:100,3:7\n\t}\n}')
    assert offsets_of(delays.dump()) == {"1": 100, "3": 7}


def test_offsets_of_levels_that_there_are_no_more_are_kept() -> None:
    delays = DelayedMessages("1s")
    delays.load(b'{"offsetTable":{1:100,18:7}}')
    assert offsets_of(delays.dump()) == {"1": 100, "18": 7}


def test_damaged_offsets_are_refused() -> None:
    with pytest.raises(MalformedBody):
        DelayedMessages("1s").load(b'{"offsetTable":[]}')


def test_version_counts_deliveries() -> None:
    world = DeliveryStage()
    world.put("later", DELAY="1")
    before = world.state.delays.version
    world.tick(1_000)
    assert world.state.delays.version > before
    data_version = json.loads(world.state.delays.dump())["dataVersion"]
    assert data_version["timestamp"] == world.now_ms
