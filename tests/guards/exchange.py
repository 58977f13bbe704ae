"""Parts of a send whose cost is counted separately: the flow, encoding and decoding."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from downrange.client.flows.producing.attempt import receipt_of, send_command
from downrange.client.flows.producing.prepare import prepare
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.model import Message, QueueId
from downrange.wire.link import Link, ReplyArrived
from tests.guards.server_loop import answers_to
from tests.unit.client.flows.flow_steps import (
    TOPIC,
    expect_call,
    finish,
    producer_with,
    route,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.guards.count import Operation

_MESSAGE = Message(TOPIC, bytes(1024))
_QUEUE = QueueId(TOPIC, "a", 0)


@contextmanager
def flow() -> Generator[Operation]:
    """The flow of a send: from the message to the effect, and from the reply to the receipt."""
    producer, round_robin = producer_with(route("a")), RoundRobin()
    first = producer.send(_MESSAGE, round_robin, producer.async_rules, is_limited=True)
    answer = stored(expect_call(next(first)))
    finish(first, answer)

    def send() -> None:
        sending = producer.send(_MESSAGE, round_robin, producer.async_rules, is_limited=True)
        next(sending)
        finish(sending, answer)

    yield send


@contextmanager
def request() -> Generator[Operation]:
    """The encoding of a request, as a connection does it."""
    producer = producer_with()
    outgoing = prepare(producer, _MESSAGE)
    link: Link[None] = Link()

    def write() -> None:
        command = send_command(producer, outgoing, _QUEUE)
        link.request(command, None)
        link.abandon(command.request_id)

    yield write


@contextmanager
def exchange() -> Generator[Operation]:
    """The encoding of a request, and the decoding of its reply up to the receipt."""
    producer = producer_with()
    outgoing = prepare(producer, _MESSAGE)
    link: Link[None] = Link()

    def write_and_read() -> None:
        request = link.request(send_command(producer, outgoing, _QUEUE), None)
        (arrived,) = link.receive(answers_to(request))
        assert isinstance(arrived, ReplyArrived)
        receipt_of(arrived.command, "a:10911", _QUEUE, outgoing, [])

    yield write_and_read
