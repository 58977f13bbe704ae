"""Sending one message: what arrives, and what the receipt says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.model import Message, SendStatus

if TYPE_CHECKING:
    from tests.contract.conftest import MakeProducer
    from tests.contract.servers import Server


def test_a_message_arrives_as_it_was_sent(server: Server, producer: MakeProducer) -> None:
    topic = server.topic()
    message = Message(
        topic, b"1", tags="new", keys=["k-1", "k-2"], properties={"colour": "red"}, flag=7
    )
    receipt = producer(server).send(message)
    (stored,) = server.read_all(topic, 1)
    assert (stored.body, stored.tags, stored.keys) == (b"1", "new", ["k-1", "k-2"])
    assert stored.properties["colour"] == "red"
    assert stored.flag == 7
    assert (receipt.message_id, receipt.queue, receipt.offset, receipt.offset_id) == (
        stored.message_id,
        stored.queue,
        stored.offset,
        stored.offset_id,
    )
    assert receipt.status is SendStatus.STORED
    assert receipt.failures == ()
