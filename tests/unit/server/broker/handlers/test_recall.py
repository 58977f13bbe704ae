from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from downrange.errors import DiskFull, MissingField
from downrange.options import BrokerOptions
from downrange.server.broker.broker import HANDLERS
from downrange.server.broker.scheduled.timed_delivery import recall_handle_of
from downrange.server.outputs import STORE_PENDING, LateReply, Peer, Reply
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command
from downrange.wire.recall_handles import RecallHandle
from downrange.wire.system_names import TIMER_TOPIC
from tests.unit.server.broker.broker_stage import plain
from tests.unit.server.broker.delivery_stage import START_MS, DeliveryStage

PEER = Peer(7, "10.0.0.9:40000")


def build(options: BrokerOptions | None = None) -> DeliveryStage:
    world = DeliveryStage(options or BrokerOptions())
    for topic in ("T", "U"):
        world.state.topics.ensure(topic, 4, 6, world.now_ms)
    return world


def ask(world: DeliveryStage, handle: str, topic: str = "T", **fields: str) -> Command:
    """Recall a message and return the answer, immediate or late."""
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "pg", **fields}
    request = Command(int(RequestCode.RECALL_MESSAGE), fields)
    outputs = list(HANDLERS[request.code](world.state, request, PEER, world.now_ms))
    if outputs == list(STORE_PENDING):
        world.outputs.clear()
        world.commit()
        (late,) = world.outputs
        assert isinstance(late, LateReply)
        assert (late.connection, late.request) == (7, request)
        return plain(late.command)
    (reply,) = outputs
    assert isinstance(reply, Reply)
    return reply.command


def send(world: DeliveryStage, unique_id: str = "u1", delay_ms: int = 2_500) -> str:
    """Store a timed message and return its handle."""
    world.put("timed", "T", 1, UNIQ_KEY=unique_id, TIMER_DELAY_MS=str(delay_ms))
    return recall_handle_of(world.records(TIMER_TOPIC)[-1], world.options.name)


def raw(*words: str) -> str:
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def test_recalled_message_is_never_delivered() -> None:
    world = build()
    handle = send(world)
    send(world, "u2")
    answer = ask(world, handle)
    assert answer.code == 0
    assert answer.fields == {"msgId": "u1", "MSG_REGION": "DefaultRegion"}
    world.tick(60_000)
    (record,) = world.records(queue_id=1)
    assert record.properties()["UNIQ_KEY"] == "u2"
    assert world.bodies() == []


def test_mark_in_the_timer_queue_is_the_one_that_apache_writes() -> None:
    world = build()
    ask(world, send(world))
    mark = world.records(TIMER_TOPIC)[1]
    assert (mark.body, mark.flag, mark.sys_flag, mark.born_ms) == (b"0", 0, 0, START_MS)
    assert (mark.born_host, mark.store_host) == ("10.0.0.9:40000", "10.0.0.2:10911")
    assert mark.properties() == {
        "TIMER_DEL_UNIQKEY": "u1",
        "REAL_TOPIC": "T",
        "BORN_TIMESTAMP": str(START_MS),
        "TIMER_DELIVER_MS": str(START_MS + 2_001),
        "UNIQ_KEY": "u1",
        "PGROUP": "pg",
        "TAGS": "_RECALL_TAG_",
        "TIMER_OUT_MS": str(START_MS + 2_000),
        "REAL_QID": "0",
    }


@pytest.mark.parametrize("group", ["", "a\x02REAL_TOPIC\x01U"])
def test_mark_names_no_group_that_cannot_be_one(group: str) -> None:
    world = build()
    ask(world, send(world), producerGroup=group)
    assert "PGROUP" not in world.records(TIMER_TOPIC)[1].properties()


def test_recall_may_come_twice() -> None:
    world = build()
    handle = send(world)
    assert [ask(world, handle).code, ask(world, handle.rstrip("=")).code] == [0, 0]


def test_recall_is_forbidden_where_it_is_switched_off() -> None:
    world = build(BrokerOptions(is_recall_enabled=False))
    answer = ask(world, send(world))
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")
    assert answer.fields == {"MSG_REGION": "DefaultRegion"}


def test_recall_is_refused_for_a_topic_that_is_missing() -> None:
    world = build()
    answer = ask(world, send(world), topic="Nope")
    assert (answer.code, answer.remark) == (17, "recall failed, the topic[Nope] not exist")


LATER = str(START_MS + 9_000)


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        ("%%%", "recall handle is invalid"),
        (raw("v2", "T", "broker-a", LATER, "u1"), "recall handle is invalid"),
        (raw("v1", "T", "broker-a"), "recall handle is invalid"),
        (raw("v1", "T", "broker-a", LATER, ""), "recall handle is invalid"),
        (raw("v1", "T", "broker-a", LATER, "u\x01\x02"), "recall handle is invalid"),
        (raw("v1", "U", "broker-a", LATER, "u1"), "recall failed, topic not match"),
        (raw("v1", "T", "other", LATER, "u1"), "recall failed, broker service not available"),
        (raw("v1", "T", "broker-a", str(START_MS), "u1"), "recall failed, timestamp invalid"),
        (
            raw("v1", "T", "broker-a", str(START_MS + 259_200_001), "u1"),
            "recall failed, timestamp invalid",
        ),
    ],
)
def test_recall_is_refused_with_apaches_reason(handle: str, remark: str) -> None:
    world = build()
    answer = ask(world, handle)
    assert (answer.code, answer.remark) == (604, remark)
    assert answer.fields == {"MSG_REGION": "DefaultRegion"}
    assert world.records(TIMER_TOPIC) == []


def test_recall_fails_when_its_mark_cannot_be_stored() -> None:
    world = build()
    handle = send(world)
    world.error = DiskFull("commitlog")
    answer = ask(world, handle)
    assert (answer.code, answer.remark) == (1, "recall failed, execute error")


def test_recall_is_refused_while_nothing_can_be_stored() -> None:
    world = build()
    handle = send(world)
    world.state.unwritable = "the disk is full"
    assert ask(world, handle).code == 14


def test_recall_without_a_handle_is_a_bad_request() -> None:
    world = build()
    request = Command(int(RequestCode.RECALL_MESSAGE), {"topic": "T"})
    with pytest.raises(MissingField):
        HANDLERS[request.code](world.state, request, PEER, world.now_ms)


def test_forged_handle_takes_nothing_back_from_another_topic() -> None:
    world = build()
    world.put("stays", "U", UNIQ_KEY="u1", TIMER_DELAY_MS="2500")
    handle = RecallHandle("T", "broker-a", START_MS + 2_001, "u1")
    assert ask(world, str(handle)).code == 0
    world.tick(60_000)
    assert world.bodies("U") == ["stays"]
