"""Trace records of consumption, from messages to the body of a trace message."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from downrange.client.flows.consuming.consume_traces import TracedBatch, trace_after, trace_before
from downrange.client.flows.producing.trace_buffer import TraceBuffer
from downrange.client.flows.producing.trace_records import SubResult
from downrange.model import LogOffset, QueueId, QueueOffset, ReceivedMessage
from downrange.options.clients import Trace
from tests.support.clock import FakeClock


def message(number: int, topic: str = "orders", **properties: str) -> ReceivedMessage:
    """Return a message as brokers give them out."""
    return bare_message(number, topic, **{"MSG_REGION": "r", "TRACE_ON": "true", **properties})


def bare_message(number: int, topic: str = "orders", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        message_id=f"M{number}",
        queue=QueueId(topic, "broker-a", 0),
        offset=QueueOffset(number),
        body=b"",
        properties=properties,
        offset_id=f"O{number}",
        log_offset=LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="127.0.0.1:1",
        stored_at_ms=0,
        delivery_attempts=number,
    )


class World:
    def __init__(self, channel: Literal["local", "cloud"] = "local") -> None:
        self.clock = FakeClock()
        self.buffer = TraceBuffer(Trace(batch_count=20), self.clock, channel)

    def before(self, *messages: ReceivedMessage) -> TracedBatch:
        return trace_before(self.buffer, messages, group="billing", request_id="R1")

    def after(self, batch: TracedBatch, result: SubResult, **arguments: Any) -> None:
        trace_after(self.buffer, batch, result, **arguments)

    def sent(self) -> list[str]:
        [taken] = self.buffer.take_all()
        self.topic, self.keys = taken.topic, list(taken.keys)
        return [line.replace("\x01", " ") for line in taken.body.decode().split("\x02")[:-1]]


def test_a_batch_has_two_records_per_message_with_one_request_id() -> None:
    world = World()
    begin = world.clock.wall_ms()
    batch = world.before(message(1, KEYS="k1 k2"), message(2))
    world.clock.seconds += 0.5
    end = world.clock.wall_ms()
    world.after(batch, SubResult.SUCCESS)
    assert world.sent() == [
        f"SubBefore {begin} r billing R1 M1 1 k1 k2",
        f"SubBefore {begin} r billing R1 M2 2 null",
        f"SubAfter R1 M1 250 true k1 k2 0 {end} billing",
        f"SubAfter R1 M2 250 true null 0 {end} billing",
    ]
    assert world.keys == ["M1", "k1", "k2", "M2"]


@pytest.mark.parametrize(
    ("arguments", "outcomes"),
    [
        ({"result": SubResult.EXCEPTION}, ["false k 2", "false k 2"]),
        ({"result": SubResult.FAILED}, ["false k 4", "false k 4"]),
        ({"result": SubResult.TIMED_OUT, "is_success": True}, ["true k 1", "true k 1"]),
        ({"result": SubResult.SUCCESS, "failed_ids": {"M2"}}, ["true k 0", "false k 4"]),
    ],
)
def test_results_are_those_of_java(arguments: dict[str, Any], outcomes: list[str]) -> None:
    world = World()
    world.after(world.before(message(1, KEYS="k"), message(2, KEYS="k")), **arguments)
    now = world.clock.wall_ms()
    assert world.sent()[2:] == [
        f"SubAfter R1 M{number} 0 {outcome} {now} billing"
        for number, outcome in enumerate(outcomes, 1)
    ]


def test_messages_that_are_not_traced_count_for_the_time_only() -> None:
    world = World()
    batch = world.before(
        message(1),
        message(2, TRACE_ON="false"),
        message(3, topic="RMQ_SYS_TRACE_TOPIC"),
        message(4),
    )
    assert [record.message_id for record in batch.records] == ["M1", "M4"]
    assert batch.message_count == 4
    world.clock.seconds += 1.0
    world.after(batch, SubResult.SUCCESS)
    assert [line.split()[2:4] for line in world.sent()[2:]] == [["M1", "250"], ["M4", "250"]]


def test_nothing_is_added_for_messages_that_are_not_traced() -> None:
    world = World()
    world.after(world.before(message(2, TRACE_ON="false")), SubResult.SUCCESS)
    assert len(world.buffer) == 0


def test_a_clock_that_was_set_back_gives_no_time_below_0() -> None:
    world = World()
    batch = world.before(message(1))
    batch.records[0].time_ms += 1_000
    world.after(batch, SubResult.SUCCESS)
    assert world.sent()[1].startswith("SubAfter R1 M1 0 true")


def test_a_cloud_gets_both_records_in_the_topic_of_the_region() -> None:
    world = World("cloud")
    world.after(world.before(message(1)), SubResult.SUCCESS)
    assert world.sent()[1] == "SubAfter R1 M1 0 true null 0 "
    assert world.topic == "rmq_sys_TRACE_DATA_r"


def test_a_message_without_a_region_is_traced() -> None:
    world = World()
    world.after(world.before(bare_message(1)), SubResult.SUCCESS)
    messages = world.buffer.take_all()
    assert [taken.body.split(b"\x01")[0] for taken in messages] == [b"SubBefore", b"SubAfter"]
