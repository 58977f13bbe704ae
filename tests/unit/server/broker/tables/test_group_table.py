"""The table of consumer groups, and its file."""

from __future__ import annotations

import json

import pytest

from downrange.errors import MalformedBody
from downrange.options import BrokerOptions
from downrange.server.broker.tables.group_table import FORBIDDEN_MAX, GroupTable
from downrange.wire.bodies import GroupConfig
from downrange.wire.system_names import SYSTEM_GROUPS

OPTIONS = BrokerOptions()
NOW_MS = 1_800_000_000_000


def test_a_group_is_created_once_and_counted() -> None:
    table = GroupTable()
    first = table.get_or_create("g", OPTIONS, 5)
    assert first is not None
    assert first is table.get_or_create("g", OPTIONS, 6)
    assert (first.retry_queue_nums, first.consume_timeout_minute, first.attributes) == (1, 15, {})
    assert (table.version, table.data_version.counter, table.data_version.timestamp) == (1, 1, 5)
    assert [config.group_name for config in table] == ["g"]


@pytest.mark.parametrize("group", ["", "no blanks", "x" * 121])
def test_a_group_with_an_illegal_name_is_not_created(group: str) -> None:
    table = GroupTable()
    assert table.get_or_create(group, OPTIONS, 0) is None
    assert len(table) == 0


def test_only_system_groups_come_by_themselves_when_creation_is_off() -> None:
    table, options = GroupTable(), BrokerOptions(is_group_created=False)
    assert table.get_or_create("g", options, 0) is None
    assert table.get_or_create("CID_RMQ_SYS_any", options, 0) is not None
    assert table.get_or_create("TOOLS_CONSUMER", options, 0) is not None


def test_no_group_is_created_beyond_the_limit() -> None:
    table, options = GroupTable(), BrokerOptions(groups_max=1)
    assert table.get_or_create("a", options, 0) is not None
    assert table.get_or_create("b", options, 0) is None


def test_system_groups_are_created_where_they_are_missing() -> None:
    table = GroupTable()
    table.put(GroupConfig(group_name="TOOLS_CONSUMER", retry_max_times=3), 0)
    table.create_system_groups(0)
    assert {config.group_name for config in table} == set(SYSTEM_GROUPS)
    tools = table.get("TOOLS_CONSUMER")
    assert tools is not None
    assert tools.retry_max_times == 3


def test_a_deleted_group_is_gone_and_a_missing_one_changes_nothing() -> None:
    table = GroupTable()
    table.put(GroupConfig(group_name="g"), 0)
    assert table.delete("g", 1)
    assert not table.delete("g", 2)
    assert table.get("g") is None
    assert table.version == 2


def test_what_is_dumped_is_loaded_again_and_is_strict_json() -> None:
    table = GroupTable()
    table.put(GroupConfig(group_name="g", retry_max_times=7), 9)
    table.forbidden = {"g": {"T": 1}}
    loaded = GroupTable()
    loaded.load(table.dump())
    assert loaded.get("g") == table.get("g")
    assert (loaded.data_version, loaded.forbidden) == (table.data_version, table.forbidden)
    assert loaded.version == 0
    assert set(json.loads(table.dump())) == {
        *("dataVersion", "forbiddenTable", "subscriptionGroupTable"),
    }


def test_a_file_of_4_9_is_read_and_completed() -> None:
    data = (
        b'{"dataVersion":{"counter":3,"timestamp":4},'
        b'"subscriptionGroupTable":{"g":{"groupName":"g"}}}'
    )
    table = GroupTable()
    table.load(data)
    config = table.get("g")
    assert config is not None
    assert config.group_retry_policy == {"type": "CUSTOMIZED"}
    assert (table.data_version.counter, table.data_version.state_version) == (3, 0)
    with pytest.raises(MalformedBody):
        table.load(b"[1")


def test_a_topic_is_forbidden_to_one_group_until_it_is_allowed_again() -> None:
    table = GroupTable()
    for topic in ("T", "U", "T"):
        assert table.forbid("G", topic, is_forbidden=True, now_ms=NOW_MS)
    assert table.version == 2
    assert table.is_forbidden("G", "T")
    assert not table.is_forbidden("H", "T")
    assert table.forbid("G", "T", is_forbidden=False, now_ms=NOW_MS)
    assert not table.is_forbidden("G", "T")
    assert table.is_forbidden("G", "U")
    loaded = GroupTable()
    loaded.load(table.dump())
    assert loaded.forbidden == {"G": {"U": 4}}
    assert loaded.is_forbidden("G", "U")
    table.forbid("G", "U", is_forbidden=False, now_ms=NOW_MS)
    assert table.forbidden == {}


def test_other_bits_of_what_java_forbids_are_kept() -> None:
    table = GroupTable()
    table.forbidden = {"G": {"T": 2}}
    assert not table.is_forbidden("G", "T")
    table.forbid("G", "T", is_forbidden=True, now_ms=NOW_MS)
    assert table.forbidden == {"G": {"T": 6}}
    table.forbid("G", "T", is_forbidden=False, now_ms=NOW_MS)
    assert table.forbidden == {"G": {"T": 2}}


def test_the_number_of_forbidden_topics_is_limited() -> None:
    table = GroupTable()
    for number in range(FORBIDDEN_MAX):
        assert table.forbid(f"G{number % 100}", f"T{number}", is_forbidden=True, now_ms=NOW_MS)
    assert not table.forbid("G", "T", is_forbidden=True, now_ms=NOW_MS)
    assert table.forbid("G1", "T1", is_forbidden=False, now_ms=NOW_MS)
    assert table.forbid("G", "T", is_forbidden=True, now_ms=NOW_MS)


def test_what_is_forbidden_to_a_group_ends_with_it() -> None:
    table = GroupTable()
    table.forbid("missing", "T", is_forbidden=True, now_ms=NOW_MS)
    assert table.delete("missing", NOW_MS)
    assert table.forbidden == {}
    assert not table.delete("missing", NOW_MS)
