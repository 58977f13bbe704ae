from __future__ import annotations

import pytest

from downrange.errors import MalformedBody
from downrange.options import BrokerOptions
from downrange.server.broker.tables.topic_table import (
    INHERIT,
    READ_WRITE,
    TopicTable,
    create_system_topics,
)
from downrange.wire.bodies import TopicConfig
from downrange.wire.system_names import HALF_TOPIC, TRACE_TOPIC
from tests.unit.server.broker.broker_stage import NOW_MS, Stage, send_request

JAVA_FILE = b"""{
  "dataVersion":{"counter":7,"timestamp":1700000000000},
  "topicConfigTable":{
    "Orders":{"order":true,"perm":6,"readQueueNums":3,"topicFilterType":"SINGLE_TAG",
      "topicName":"Orders","topicSysFlag":0,"writeQueueNums":2}
  }
}"""


def a_table(**options: object) -> tuple[TopicTable, BrokerOptions]:
    settings = BrokerOptions(**options)  # type: ignore[arg-type]
    topics = TopicTable()
    create_system_topics(topics, settings, NOW_MS)
    return topics, settings


def test_every_change_is_counted_and_named_once() -> None:
    topics = TopicTable()
    topics.ensure("A", 1, READ_WRITE, 5)
    topics.ensure("A", 9, READ_WRITE, 6)
    topics.ensure("B", 1, READ_WRITE, 7)
    assert topics.delete("B", 8)
    assert not topics.delete("B", 9)
    assert (topics.version, len(topics)) == (3, 1)
    assert (topics.data_version.counter, topics.data_version.timestamp) == (3, 8)
    assert [config.topic_name for config in topics.changed()] == ["A"]
    assert topics.changed() == []


def test_changes_that_were_not_announced_come_again_before_newer_ones() -> None:
    topics = TopicTable()
    topics.ensure("A", 1, READ_WRITE, 5)
    untold = topics.changed()
    topics.ensure("B", 1, READ_WRITE, 5)
    topics.change_again(untold)
    assert [config.topic_name for config in topics.changed()] == ["A", "B"]


def test_a_topic_is_modelled_on_its_default_topic_and_clamped() -> None:
    topics, options = a_table(default_topic_queues=5)
    config = topics.create_like("New", "TBW102", 100, options, NOW_MS)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (5, 5, READ_WRITE)
    assert topics.get("New") is config
    smaller = topics.create_like("Less", "TBW102", 2, options, NOW_MS)
    none = topics.create_like("None", "TBW102", -3, options, NOW_MS)
    assert smaller is not None
    assert none is not None
    assert (smaller.write_queue_nums, none.write_queue_nums) == (2, 0)


@pytest.mark.parametrize("default", ["missing", "BenchmarkTest"])
def test_no_topic_is_made_after_one_that_passes_nothing_on(default: str) -> None:
    topics, options = a_table()
    assert topics.create_like("New", default, 4, options, NOW_MS) is None
    assert topics.get("New") is None


def test_no_topic_is_made_after_the_default_topic_when_that_is_switched_off() -> None:
    topics, options = a_table(is_topic_created=False)
    assert topics.get("TBW102") is None
    topics.put(TopicConfig(topic_name="TBW102", perm=READ_WRITE | INHERIT), NOW_MS)
    assert topics.create_like("New", "TBW102", 4, options, NOW_MS) is None
    assert topics.create_like("New", "DefaultCluster", 4, options, NOW_MS) is not None


def test_only_so_many_topics_are_made_in_a_minute() -> None:
    topics, options = a_table(topics_created_per_minute_max=2)
    made = [topics.create_like(f"T{n}", "TBW102", 1, options, NOW_MS + n) for n in range(4)]
    assert [config is not None for config in made] == [True, True, False, False]
    assert topics.create_like("T3", "TBW102", 1, options, NOW_MS + 60_000) is not None


def test_only_so_many_topics_are_made_in_all() -> None:
    topics, _ = a_table()
    options = BrokerOptions(topics_max=len(topics) + 1)
    assert topics.create_like("A", "TBW102", 1, options, NOW_MS) is not None
    assert topics.create_like("B", "TBW102", 1, options, NOW_MS) is None


def test_topics_survive_being_saved() -> None:
    topics, _ = a_table()
    loaded = TopicTable()
    loaded.load(topics.dump())
    assert list(loaded) == list(topics)
    assert loaded.data_version == topics.data_version
    assert loaded.version == 0


def test_a_file_of_java_is_read() -> None:
    topics = TopicTable()
    topics.load(JAVA_FILE)
    config = topics.get("Orders")
    assert config is not None
    assert (config.order, config.read_queue_nums, config.write_queue_nums) == (True, 3, 2)
    assert (topics.data_version.counter, topics.data_version.state_version) == (7, 0)


def test_no_member_of_a_topic_that_4_9_wrote_is_null_for_5_x() -> None:
    topics = TopicTable()
    topics.load(b'{"topicConfigTable":{"Old":{"topicName":"Old"}},"dataVersion":{"counter":1}}')
    assert b"null" not in topics.dump()


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(MalformedBody):
        TopicTable().load(b'{"topicConfigTable":')


def test_the_table_that_is_registered_holds_everything() -> None:
    topics, _ = a_table()
    table = topics.table()
    assert len(table.topic_config_table) == len(topics)
    assert table.data_version == topics.data_version


@pytest.mark.parametrize(
    ("permission", "default", "benchmark"), [(6, 7, 6), (4, 4, 4), (2, 2, 2), (0, 0, 0)]
)
def test_topics_are_registered_with_the_brokers_permission_at_most(
    permission: int, default: int, benchmark: int
) -> None:
    topics, _ = a_table()
    table = topics.table(permission).topic_config_table
    assert (table["TBW102"].perm, table["BenchmarkTest"].perm) == (default, benchmark)
    kept = topics.get("TBW102")
    assert kept is not None
    assert kept.perm == 7


def test_a_broker_has_its_own_topics_and_those_of_its_options() -> None:
    topics, _ = a_table(is_trace_topic_created=True, name="b", cluster="c", delay_levels="1s 2s")
    perms = {config.topic_name: (config.write_queue_nums, config.perm) for config in topics}
    assert perms["b"] == (1, 7)
    assert perms["c"] == (16, 7)
    assert perms["TBW102"] == (8, 7)
    assert perms["SCHEDULE_TOPIC_XXXX"] == (2, 6)
    assert perms["c_REPLY_TOPIC"] == (1, 6)
    assert TRACE_TOPIC in perms
    assert HALF_TOPIC in perms


# ---- topics that were lost ----


def test_a_topic_that_was_not_saved_comes_back_with_its_messages() -> None:
    stage = Stage()
    stage.ask(send_request(b"1", "Lost", queue_id=2))
    stage.ask(send_request(b"2", "%RETRY%G", queue_id=0))
    after = Stage(stage.files)  # no table was loaded, and the store was not closed
    config = after.state.topics.get("Lost")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
    assert after.state.topics.get("%RETRY%G") is not None
    assert [record.body for record in after.records("Lost", 2)] == [b"1"]


def test_topics_that_come_back_are_noted() -> None:
    stage = Stage()
    stage.ask(send_request(b"1", "Lost"))
    state = Stage(stage.files).state
    state.topics.delete("Lost", NOW_MS)
    (note,) = state.prepare(NOW_MS)
    assert "topic Lost" in note.text
    assert note.is_warning
    assert state.prepare(NOW_MS) == []


def test_system_topics_do_not_come_back_as_others_do() -> None:
    stage = Stage()
    stage.ask(send_request(b"1", properties={"DELAY": "9"}))
    state = Stage(stage.files).state
    config = state.topics.get("SCHEDULE_TOPIC_XXXX")
    assert config is not None
    assert config.write_queue_nums == 18


def test_after_a_clean_stop_no_topic_is_looked_for() -> None:
    stage = Stage()
    stage.ask(send_request(b"1", "Kept"))
    stage.state.store.close()
    stage = Stage(stage.files)
    assert (
        stage.state.topics.get("Kept") is not None
    )  # searched even after a clean stop, as there is no table
    stage.state.topics.delete("Kept", NOW_MS)
    assert stage.state.store.recovery.was_clean
    stage.state.prepare(NOW_MS)
    assert stage.state.topics.get("Kept") is None
