"""Delayed messages: their delivery and their recall."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from downrange.errors import OptionError, ServerError
from downrange.model import Message
from downrange.wire.recall_handles import RecallHandle
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage, SendReceipt
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server


def delay_of(message: ReceivedMessage) -> float:
    """Return the seconds between the creation of a message and its delivery to the topic."""
    return (message.stored_at_ms - message.born_at_ms) / 1000


def test_a_delay_level_holds_a_message_back(server: Server, producer: MakeProducer) -> None:
    topic, other = server.topic(), server.topic()
    sender = producer(server)
    receipt = sender.send(Message(topic, b"later", delay_level=1))

    def is_stored_at_once() -> bool:
        at_once = sender.send(Message(other, b"at once"))
        stored = {message.message_id: message for message in server.read_all(other, 1)}
        return at_once.message_id in stored and delay_of(stored[at_once.message_id]) < 1.0

    wait_until(is_stored_at_once)  # a busy machine may delay some of them
    (later,) = server.read_all(topic, 1)
    assert 1.0 <= delay_of(later) < 10.0
    assert later.message_id == receipt.message_id
    assert receipt.recall_handle is None


@pytest.mark.parametrize("way", ["in", "at"])
def test_a_timed_message_is_delivered_at_its_time(
    server: Server, producer: MakeProducer, way: str
) -> None:
    sender = producer(server)
    delay = 60.0 if server.is_old else 2.0  # 4.9 supports levels only, and delivers at once

    def sent_in_time() -> tuple[str, SendReceipt] | None:
        topic, started = server.topic(), time.monotonic()
        sender.publish_queues(topic)  # finds the route
        if way == "in":
            message = Message(topic, b"1", deliver_in=delay)
        else:
            message = Message(topic, b"1", deliver_at=datetime.now(UTC) + timedelta(seconds=delay))
        receipt = sender.send(message)
        # A message that a busy machine sends after its time is delivered at once.
        return (topic, receipt) if time.monotonic() - started < delay - 0.2 else None

    topic, receipt = wait_until(sent_in_time)
    (stored,) = server.read_all(topic, 1)
    assert stored.message_id == receipt.message_id
    if server.is_old:
        assert delay_of(stored) < delay - 0.1
    else:
        assert delay - 0.1 <= delay_of(stored) < 10.0
    assert (receipt.recall_handle is None) == server.is_old


def test_a_timed_message_can_be_recalled(server: Server, producer: MakeProducer) -> None:
    sender = producer(server)

    def recalled_in_time() -> str | None:
        topic, started = server.topic(), time.monotonic()
        sent = sender.send(Message(topic, b"taken back", deliver_in=3.0))
        if server.is_old:
            with pytest.raises(OptionError, match="there is no recall handle"):
                sender.recall(sent.recall_handle)
            return topic
        if time.monotonic() - started > 1.0:
            return None  # a busy machine may recall it when it is due
        try:
            recalled = sender.recall(sent.recall_handle)
        except ServerError:
            # It was due when the broker got the request; Apache's timers count in whole seconds.
            assert time.monotonic() - started > 1.9
            return None
        assert recalled == sent.message_id
        # A broker notes the recall in the background, and a busy one needs some time for it.
        return topic if time.monotonic() - started < 1.5 else None

    topic = wait_until(recalled_in_time)
    if not server.is_old:
        sender.send(Message(topic, b"due after it", deliver_in=4.0))
        assert [message.body for message in server.read_all(topic, 1)] == [b"due after it"]


def test_a_message_that_is_due_is_not_recalled(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server)
    receipt = sender.send(Message(topic, b"1"))
    a_second_ago = int(time.time() * 1000) - 1000
    handle = str(RecallHandle(topic, receipt.queue.broker, a_second_ago, receipt.message_id))
    with pytest.raises(ServerError) as caught:
        sender.recall(handle)
    error_text = "brokers from 5.3.2 on do" if server.is_old else "recall failed"
    assert error_text in str(caught.value)


def test_an_invalid_recall_handle_is_refused(embedded: Embedded, producer: MakeProducer) -> None:
    sender = producer(embedded)
    with pytest.raises(OptionError):
        sender.recall("no handle")
    with pytest.raises(OptionError, match="cannot be recalled"):
        sender.recall(str(RecallHandle("%RETRY%group", "broker-a", 0, "ID")))
