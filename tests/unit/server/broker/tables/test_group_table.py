"""The table of consumer groups, and its file."""

from __future__ import annotations

import json

import pytest

from downrange.errors import MalformedBody
from downrange.options import BrokerOptions
from downrange.server.broker.tables.group_table import GroupTable
from downrange.wire.bodies import GroupConfig
from downrange.wire.system_names import SYSTEM_GROUPS

OPTIONS = BrokerOptions()


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
