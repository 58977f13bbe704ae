"""The table of consumed offsets, and its file."""

from __future__ import annotations

import json

from downrange.server.broker.tables.group_offsets import GroupOffsets

JAVA_FILE = b"""{
\t"dataVersion":{"counter":7,"stateVersion":0,"timestamp":9},
\t"groupTopicMap":{"g":["T"]},
\t"offsetTable":{"T@g":{0:10,1:11},"U@g":{3:0}},
\t"pullOffsetTable":{}
}"""


def test_an_offset_is_what_was_said_last_even_if_it_is_lower() -> None:
    offsets = GroupOffsets()
    assert offsets.get("g", "T", 0) is None
    offsets.commit("g", "T", 0, 9)
    assert offsets.get("g", "U", 0) is None
    assert offsets.get("g", "T", 1) is None
    offsets.commit("g", "T", 0, 3)
    assert offsets.get("g", "T", 0) == 3


def test_only_changes_are_counted() -> None:
    offsets = GroupOffsets()
    for offset in (0, 0, 5, 5):
        offsets.commit("g", "T", 0, offset)
    assert offsets.version == 2
    offsets.delete_group("other")
    offsets.delete_topic("other")
    assert offsets.version == 2


def test_groups_and_topics_find_each_other() -> None:
    offsets = GroupOffsets()
    for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
        offsets.commit(group, topic, 1, 1)
    assert offsets.topics_of("g") == ["T", "U"]
    assert offsets.topics_of("none") == []
    assert offsets.groups_of("T") == ["g", "h"]
    assert offsets.of_group("g") == {"T": {1: 1}, "U": {1: 1}}


def test_what_is_deleted_is_gone() -> None:
    offsets = GroupOffsets()
    for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
        offsets.commit(group, topic, 1, 1)
    offsets.delete_topic("T")
    assert (offsets.groups_of("T"), offsets.topics_of("g")) == ([], ["U"])
    offsets.delete_group("g")
    assert offsets.of_group("g") == {}
    assert offsets.version == 6


def test_a_file_that_java_wrote_is_read() -> None:
    offsets = GroupOffsets()
    offsets.load(JAVA_FILE)
    assert offsets.of_group("g") == {"T": {0: 10, 1: 11}, "U": {3: 0}}
    assert offsets.version == 0


def test_what_is_dumped_is_strict_json_and_is_loaded_again() -> None:
    offsets = GroupOffsets()
    offsets.load(JAVA_FILE)
    offsets.commit("g", "T", 0, 12)
    dumped = json.loads(offsets.dump())
    assert dumped["offsetTable"] == {"T@g": {"0": 12, "1": 11}, "U@g": {"3": 0}}
    assert dumped["dataVersion"]["counter"] == 8
    loaded = GroupOffsets()
    loaded.load(offsets.dump())
    assert loaded.of_group("g") == offsets.of_group("g")
    loaded.load(b'{"offsetTable":{"T@h":{0:1}}}')  # 4.9 writes no data version
    assert loaded.get("h", "T", 0) == 1


def test_a_reset_is_taken_once_and_sets_the_offset() -> None:
    offsets = GroupOffsets()
    assert offsets.take_reset("G", "T", 0) is None
    offsets.commit("G", "T", 0, 9)
    offsets.reset("G", "T", 0, 3)
    assert offsets.get("G", "T", 0) == 3
    assert offsets.is_reset("G", "T", 0)
    assert not offsets.is_reset("G", "T", 1)
    assert offsets.take_reset("H", "T", 0) is None
    assert offsets.take_reset("G", "T", 0) == 3
    assert offsets.take_reset("G", "T", 0) is None
    assert not offsets.is_reset("G", "T", 0)


def test_resets_end_with_their_topic_and_their_group() -> None:
    offsets = GroupOffsets()
    for group, topic in (("G", "T"), ("G", "U"), ("H", "U")):
        offsets.reset(group, topic, 0, 1)
    offsets.delete_topic("T")
    offsets.delete_group("H")
    assert not offsets.is_reset("G", "T", 0)
    assert not offsets.is_reset("H", "U", 0)
    assert offsets.take_reset("G", "U", 0) == 1
