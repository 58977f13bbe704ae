"""A store that an Apache broker had: checkpoints in the revive topic and in the timer's queue."""

from __future__ import annotations

import json
from struct import pack
from typing import Any

import pytest

from downrange.server.broker.record_fields import join_properties
from downrange.wire.records import Record
from downrange.wire.system_names import REVIVE_GROUP
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.pop_stage import (
    REVIVE_TOPIC,
    TIMER_TOPIC,
    PopStage,
    pop_request,
)

POP_MS = NOW_MS - 20_000
INVISIBLE_MS = 60_000
CHECK_PATH = "config/timercheck"


def checkpoint_body(start: int, differences: list[int], **changes: Any) -> bytes:
    body: dict[str, Any] = {
        "bm": 0,
        "bn": "broker-a",
        "c": "G",
        "d": differences,
        "it": INVISIBLE_MS,
        "n": len(differences),
        "pt": POP_MS,
        "q": 0,
        "ro": 0,
        "so": start,
        "sp": False,
        "t": "T",
    }
    return json.dumps(body | changes).encode()


def ack_body(offset: int, start: int, **changes: Any) -> bytes:
    body: dict[str, Any] = {
        "ao": offset,
        "bn": "broker-a",
        "c": "G",
        "pt": POP_MS,
        "q": 0,
        "so": start,
        "t": "T",
    }
    return json.dumps(body | changes).encode()


def put(stage: PopStage, tag: str, body: bytes, topic: str, **properties: str) -> None:
    """Store a record as Apache does."""
    found = {"TAGS": tag, "UNIQ_KEY": "u", **properties}
    record = Record(
        topic_bytes=topic.encode(),
        body=body,
        queue_id=3 if topic == REVIVE_TOPIC else 0,
        store_ip=stage.state.host.ip,
        born_ip=stage.state.host.ip,
        property_bytes=join_properties(found),
    )
    stage.state.store.append([record], stage.now_ms, [found])


def left(stage: PopStage, tag: str, body: bytes) -> None:
    """Store a record in the revive topic."""
    put(stage, tag, body, REVIVE_TOPIC)


def waits(stage: PopStage, tag: str, body: bytes, due_ms: int) -> None:
    """Store a record in the timer's queue."""
    properties = {
        "REAL_TOPIC": REVIVE_TOPIC,
        "REAL_QID": "3",
        "TIMER_DELIVER_MS": str(due_ms),
        "TIMER_OUT_MS": str((due_ms - 1) // 1_000 * 1_000),
    }
    put(stage, tag, body, TIMER_TOPIC, **properties)


def check_of(until_ms: int, read: int) -> bytes:
    return pack(">qqqq", until_ms, 0, read, read).ljust(4096, b"\x00")


def open_offsets(stage: PopStage) -> list[list[int]]:
    return [list(checkpoint.open_offsets()) for checkpoint in stage.state.checkpoints]


@pytest.fixture
def stage() -> PopStage:
    """A broker whose group has committed all its messages, as Apache does at the pop."""
    made = PopStage()
    made.send(*"abcdef")
    made.state.offsets.commit("G", "T", 0, 6)
    return made


def test_checkpoints_in_the_revive_topic_are_taken_over(stage: PopStage) -> None:
    left(stage, "ck", checkpoint_body(0, [0, 1, 2]))
    left(stage, "ack", ack_body(1, 0))
    left(stage, "bAck", ack_body(-1, 3, aol=[3, 4]))  # before its checkpoint
    left(stage, "ck", checkpoint_body(3, [0, 1, 2]))
    left(stage, "ck", checkpoint_body(0, [0], pt=POP_MS + 1, n=1))
    left(stage, "ack", ack_body(0, 0, pt=POP_MS + 1))
    stage.restart(stage.progress(), tick=False)
    assert stage.ask(pop_request(now_ms=stage.now_ms)).code == 210
    stage.tick()
    assert open_offsets(stage) == [[0, 2], [5]]
    assert {checkpoint.revive_queue for checkpoint in stage.state.checkpoints} == {3}
    copies = stage.records(TIMER_TOPIC)
    assert [json.loads(copy.body)["d"] for copy in copies] == [[0, 2], [2]]
    assert stage.committed(3, REVIVE_TOPIC, REVIVE_GROUP) == 6
    assert stage.bodies() == []
    stage.restart(stage.progress())
    assert open_offsets(stage) == [[0, 2], [5]]
    assert len(stage.records(TIMER_TOPIC)) == 2
    stage.drain(POP_MS + INVISIBLE_MS - stage.now_ms)
    assert stage.again() == ["a", "c", "f"]


def test_differences_may_be_missing(stage: PopStage) -> None:
    """Brokers before 5.0 wrote only the number of messages."""
    body = json.loads(checkpoint_body(1, [0, 1]))
    del body["d"]
    left(stage, "ck", json.dumps(body).encode())
    stage.restart(stage.progress())
    assert open_offsets(stage) == [[1, 2]]


def test_malformed_records_are_ignored(stage: PopStage) -> None:
    left(stage, "ck", b"junk")
    left(stage, "ck", checkpoint_body(0, []))
    left(stage, "ck", checkpoint_body(0, [0], t="None"))
    left(stage, "ck", checkpoint_body(0, [77]))
    left(stage, "ack", b"junk")
    left(stage, "other", b"{}")
    left(stage, "ck", checkpoint_body(2, [0]))
    stage.restart(stage.progress())
    assert open_offsets(stage) == [[2]]
    waits(stage, "ck", b"junk", NOW_MS)
    waits(stage, "other", b"{}", NOW_MS)
    stage.restart()
    assert [note.text for note in stage.notes if "is not delivered" in note.text] != []


def test_records_that_apache_has_finished_are_not_read(stage: PopStage) -> None:
    left(stage, "ck", checkpoint_body(0, [0]))
    left(stage, "ck", checkpoint_body(1, [0]))
    stage.state.offsets.commit(REVIVE_GROUP, REVIVE_TOPIC, 3, 1)
    stage.restart(stage.progress())
    assert open_offsets(stage) == [[1]]


def test_adoption_that_cannot_be_stored_is_repeated_at_the_next_start(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(stage, "ck", checkpoint_body(0, [0, 1]))
    stage.restart(stage.progress(), tick=False)

    def fail(*_: object) -> None:
        raise OSError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(stage.state.store, "append", fail)
        patch.setattr(stage.state.store, "append_run", fail)
        stage.tick()
    assert "checkpoints are not stored again: the log cannot be written: broken" in (
        stage.notes[-1].text
    )
    assert open_offsets(stage) == [[0, 1]]
    assert stage.committed(3, REVIVE_TOPIC, REVIVE_GROUP) is None
    assert stage.state.timers.progress().low == 0
    stage.restart(stage.progress())
    assert open_offsets(stage) == [[0, 1]]
    assert stage.committed(3, REVIVE_TOPIC, REVIVE_GROUP) == 1


# ---- both places ----


@pytest.mark.parametrize("is_ack_left", [False, True])
def test_checkpoint_and_acknowledgement_in_different_places(
    is_ack_left: bool, stage: PopStage
) -> None:
    """Apache stopped between the time of the checkpoint and that of the acknowledgement."""
    end_ms = POP_MS + INVISIBLE_MS
    checkpoint, ack = checkpoint_body(0, [0, 1]), ack_body(0, 0)
    waits(stage, "ck", checkpoint, end_ms - 1_000)
    waits(stage, "ack", ack, end_ms)
    until_ms = end_ms - 1_000
    if is_ack_left:
        left(stage, "ack", ack)
        until_ms = end_ms - 5_000
    else:
        left(stage, "ck", checkpoint)
    progress = stage.progress()
    progress[CHECK_PATH] = check_of(until_ms, 2)
    stage.now_ms = end_ms - 500
    stage.restart(progress)
    assert open_offsets(stage) == [[1]]
    stage.drain(10_000)
    assert stage.again() == ["b"]
    stage.restart(stage.progress())
    stage.drain(10_000)
    assert stage.again() == ["b"]


def test_records_that_apache_delivered_are_not_read_from_the_timers_queue(
    stage: PopStage,
) -> None:
    waits(stage, "ck", checkpoint_body(0, [0]), NOW_MS + 5_000)
    waits(stage, "ck", checkpoint_body(1, [0]), NOW_MS + 9_000)
    waits(stage, "ck", checkpoint_body(2, [0]), NOW_MS + 4_000)
    progress = stage.progress()
    progress[CHECK_PATH] = check_of(NOW_MS + 5_000, 2)
    stage.now_ms += 6_000
    stage.restart(progress)
    # The first was delivered: it is in the revive topic, or done. The third was not read by Apache.
    assert open_offsets(stage) == [[1], [2]]
    for _ in range(2):
        progress = stage.progress()
        saved = json.loads(progress["config/timerProgress.json"])
        assert (saved["apacheUntilMs"], saved["apacheRead"]) == (NOW_MS + 5_000, 2)
        stage.restart(progress)
        assert open_offsets(stage) == [[1], [2]]


def test_a_reset_drops_nothing_that_an_apache_broker_delivered_since(
    stage: PopStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our broker is killed while it reads its records, and the other one goes on."""
    stage.reset(0)
    stage.pop()
    monkeypatch.setattr("downrange.server.broker.scheduled.timed_messages.TICK_READS_MAX", 0)
    stage.restart(stage.progress())
    stage.reset(0)
    left(stage, "ck", checkpoint_body(0, [0, 1]))
    stage.restart(stage.progress(), tick=False)
    monkeypatch.undo()
    stage.drain(0)
    assert sorted(open_offsets(stage)) == [[0, 1], [0, 1, 2, 3, 4, 5]]
    assert not stage.state.rewinds.is_dropped(("T", "G", 0), 0, 0)
