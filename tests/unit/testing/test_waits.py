"""Waiting with a deadline."""

from __future__ import annotations

import asyncio
import threading

import pytest

from downrange.errors import CallTimeout, ClientStateError
from downrange.model import QueueId
from downrange.testing.group_progress import GroupProgress
from downrange.testing.topic_reader import TopicReader
from downrange.testing.waits import (
    not_consumed,
    refuse_in_event_loop,
    repeat,
    too_few_messages,
)

QUEUE = QueueId("orders", "broker-a", 0)
ERROR = CallTimeout("127.0.0.1:10911", 3.0)


def test_wait_without_time_looks_once() -> None:
    looks: list[float] = []

    def look(left: float) -> None:
        looks.append(left)

    repeat(look, 0.0, threading.Event())
    assert len(looks) == 1


def test_wait_ends_with_the_first_result() -> None:
    results = iter([None, None, "there"])
    assert repeat(lambda left: next(results), 60.0, threading.Event()) == "there"


def test_wait_ends_when_it_is_stopped() -> None:
    stop = threading.Event()

    def look(left: float) -> None:
        stop.set()

    repeat(look, 60.0, stop)
    assert stop.is_set()


def test_wait_in_an_event_loop_is_refused_with_the_way_out() -> None:
    refuse_in_event_loop("wait_for")

    async def wait() -> None:
        refuse_in_event_loop("wait_for")

    with pytest.raises(ClientStateError, match=r"use `await rocketmq\.aio\.wait_for\(\.\.\.\)`"):
        asyncio.run(wait())


def test_error_names_servers_that_do_not_answer() -> None:
    reader = TopicReader("orders", {})
    reader.exists = True
    reader.failures["broker-b"] = ERROR
    error = too_few_messages(
        reader, [], count=1, timeout=5.0, is_filtered=False, others=[], error=ERROR
    )
    assert str(error) == (
        "waited 5 s for 1 message in 'orders', found none\n"
        f"  broker-b cannot be read: {ERROR}\n"
        f"  the topic cannot be read: {ERROR}"
    )


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, f", but its progress cannot be read: {ERROR}"),
        (
            GroupProgress(),
            ", but no member has subscribed, and no offset is committed\n  connected members: none",
        ),
        (
            GroupProgress(behind={QUEUE: 0}, members={"b@1", "a@1"}, is_broadcast=True),
            "; its members read in broadcast mode and keep their offsets themselves, so that no "
            "broker knows them\n  connected members: a@1, b@1",
        ),
        (
            GroupProgress(behind={QUEUE: 2, QueueId("x", "broker-a", 0): 0}, retries=1),
            ", but it has 2 messages left\n  1 message waiting for a retry\n"
            "  orders broker-a queue 0: 2\n  connected members: none",
        ),
    ],
)
def test_error_says_what_a_group_has_left(progress: GroupProgress | None, text: str) -> None:
    error = not_consumed("billing", progress, 15.0, ERROR)
    assert str(error) == f"waited 15 s until group 'billing' has consumed everything{text}"
