"""Send statuses of messages that a broker stored, but not as safely as requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.hooks import Hooks
from downrange.errors import SendFailed
from downrange.model import Message, SendStatus
from downrange.options import ProducerOptions
from tests.apache.cluster import ApacheCluster
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import apache_server
from tests.contract.servers import replace_send_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server


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
    sender = producer(embedded, hooks=Hooks(after_call=(replace_send_codes(code),)))
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.status is status
    (stored,) = embedded.read_all(topic, 1)
    assert (stored.queue, stored.offset) == (receipt.queue, receipt.offset)


@pytest.fixture(scope="module")
def master_without_slave() -> Iterator[Server]:
    """Give a master of 4.9 that must copy each message to a slave, and has none.

    A 5.x master waits for a configured number of replicas and counts itself.
    """
    options = {"brokerRole": "SYNC_MASTER"}
    with apache_server(lambda: ApacheCluster("4.9.4", broker_options=options)) as apache:
        yield apache


@pytest.mark.apache
def test_an_apache_master_without_its_slave_reports_it(
    master_without_slave: Server, producer: MakeProducer
) -> None:
    sender = producer(master_without_slave)
    topic = master_without_slave.topic(queues=1)
    assert sender.send(Message(topic, b"1")).status is SendStatus.SLAVE_NOT_AVAILABLE
    submitted = sender.submit(Message(topic, b"2")).result(LONG_TIMEOUT)
    assert submitted.status is SendStatus.SLAVE_NOT_AVAILABLE
    unconfirmed = sender.send(Message(topic, b"3", wait_stored=False))
    assert unconfirmed.status is SendStatus.STORED
    assert len(master_without_slave.read_all(topic, 3)) == 3


def test_another_broker_is_tried_with_retry_when_not_stored(
    embedded: Embedded, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    sender = producer(
        embedded,
        options=ProducerOptions(retry_when_not_stored=True),
        hooks=Hooks(after_call=(replace_send_codes(12, 10),)),
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
        hooks=Hooks(after_call=(replace_send_codes(12, 10),)),
    )
    receipt = sender.send(Message(topic, b"1"))
    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT


def test_an_unknown_code_is_a_refusal(embedded: Embedded, producer: MakeProducer) -> None:
    topic = embedded.topic()
    sender = producer(embedded, hooks=Hooks(after_call=(replace_send_codes(4711),)))
    with pytest.raises(SendFailed, match="4711"):
        sender.send(Message(topic, b"1"))
