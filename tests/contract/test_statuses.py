"""What a broker says about a message that it stored, but not as safely as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.core.hooks import Hooks
from downrange.errors import SendFailed
from downrange.model import Message, SendStatus
from downrange.options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.wire.command import Command
    from tests.contract.conftest import Embedded, MakeProducer


def answering(*codes: int) -> Callable[[str, Command, Command | None], None]:
    """Return a hook that makes a broker's answers to sends be of these codes, one after another."""
    left = list(codes)

    def change(address: str, request: Command, reply: Command | None) -> None:
        if left and reply is not None and "queueOffset" in reply.fields:
            reply.code = left.pop(0)

    return change


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_status_other_than_stored_is_visible_in_the_receipt(
    embedded: Embedded, producer: MakeProducer, code: int, status: SendStatus
) -> None:
    topic = embedded.topic()
    sender = producer(embedded, hooks=Hooks(after_call=(answering(code),)))
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.status is status
    (stored,) = embedded.read_all(topic, 1)
    assert (stored.queue, stored.offset) == (receipt.queue, receipt.offset)


def test_another_broker_is_tried_when_asked_for(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(
        embedded,
        options=ProducerOptions(retry_when_not_stored=True),
        hooks=Hooks(after_call=(answering(12, 10),)),
    )
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.status is SendStatus.STORED
    assert [failure.error.code for failure in receipt.failures] == [12, 10]
    assert len(embedded.read_all(topic, 3)) == 3


def test_the_last_status_is_returned_when_no_other_broker_does_better(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(
        embedded,
        options=ProducerOptions(retry_when_not_stored=True, retries=1),
        hooks=Hooks(after_call=(answering(12, 10),)),
    )
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT


def test_an_unknown_code_is_a_refusal(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded, hooks=Hooks(after_call=(answering(4711),)))
    with pytest.raises(SendFailed, match="4711"):
        sender.send(Message(topic, b"1"))
