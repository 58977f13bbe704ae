"""Delayed messages: their delivery and their recall."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from downrange.errors import OptionError, ServerError
from downrange.model import Message
from downrange.wire.recall_handles import RecallHandle

if TYPE_CHECKING:
    from downrange.model import ReceivedMessage
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server


def delay_of(message: ReceivedMessage) -> float:
    """Return the seconds between the creation of a message and its delivery to the topic."""
    return (message.stored_at_ms - message.born_at_ms) / 1000


def test_a_delay_level_holds_a_message_back(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server)
    receipt = sender.send(Message(topic, b"later", delay_level=1))
    sender.send(Message(topic, b"at once"))
    messages = {message.body: message for message in server.read_all(topic, 2)}
    assert delay_of(messages[b"at once"]) < delay_of(messages[b"later"])
    assert 1.0 <= delay_of(messages[b"later"]) < 10.0
    assert messages[b"later"].message_id == receipt.message_id
    assert receipt.recall_handle is None


@pytest.mark.parametrize("way", ["in", "at"])
def test_a_timed_message_is_delivered_at_its_time(
    server: Server, producer: MakeProducer, way: str
) -> None:
    topic = server.topic()
    if way == "in":
        message = Message(topic, b"1", deliver_in=2.0)
    else:
        message = Message(topic, b"1", deliver_at=datetime.now(UTC) + timedelta(seconds=2))
    receipt = producer(server).send(message)
    (stored,) = server.read_all(topic, 1)
    assert stored.message_id == receipt.message_id
    if server.is_old:  # 4.9 supports levels only, and delivers at once
        assert delay_of(stored) < 1.9
    else:
        assert 1.9 <= delay_of(stored) < 10.0
    assert (receipt.recall_handle is None) == server.is_old


def test_a_timed_message_can_be_recalled(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    sender = producer(server)
    sent = sender.send(Message(topic, b"taken back", deliver_in=3.0))
    if server.is_old:
        with pytest.raises(OptionError, match="there is no recall handle"):
            sender.recall(sent.recall_handle)
        return
    assert sender.recall(sent.recall_handle) == sent.message_id
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
