"""A send in one step, as long as all is well: the usual case of a producer without hooks and trace.

A send is a flow (docs/decisions/0011), and a flow costs as much as the rest of a send. A flow is
needed to wait, to retry and to call user code. A message whose route is known, for which there is
room, and which the first broker stores, needs none of this. So a driver runs a `PlainSend` like
this:

    begin()             the checks and the choice that the flow makes before its first call
    the call            with `command()`, to `address`, until `deadline`
    receipt_for(reply)  the receipt, if the message is stored

Sends that are answered by one read have their receipts from `receipt_in`, and `end_together` ends
them in one step.

As soon as anything else happens, the driver runs `flow()`, or `flow_after(outcome)` once the call
was made. These are the flows of any other send; the second one begins with the outcome of the first
attempt. So there is one place that decides about retries, and a plain send cannot differ from it.
docs/decisions/0027 has the reasons.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.producing.attempt import receipt_of, send_command
from downrange.client.flows.producing.prepare import Outgoing
from downrange.client.flows.producing.retry_loop import FirstAttempt, send_with_retries
from downrange.model import QueueId
from downrange.wire.send_answers import StoredAnswer

if TYPE_CHECKING:  # the struct is never decoded, so its annotations are not evaluated
    from collections.abc import Sequence

    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.producer_state import (
        ProducerState,  # noqa: TC004
        SendRules,  # noqa: TC004
    )
    from downrange.client.flows.routing.queue_picker import RoundRobin  # noqa: TC004
    from downrange.client.flows.routing.routes import Route  # noqa: TC004
    from downrange.errors import RocketMQError
    from downrange.model import Attempt, SendReceipt
    from downrange.wire.command import Command
    from downrange.wire.send_commands import SendCommand

_NO_FAILURES: Final[list[Attempt]] = []
_PRODUCER: Final = attrgetter("producer")


class PlainSend(msgspec.Struct, eq=False):  # a struct: one is made per message
    """One message of a producer that `is_direct`; each method is one step, with the core's lock.

    Attributes:
        producer: The producer.
        outgoing: The prepared message.
        round_robin: The turns of the caller.
        rules: How many attempts, and after which outcomes.
        deadline: When to give up, for all attempts together.
        size: The bytes that count against the limits of back-pressure; None if they do not apply.
        route, queue, address, started: Set by `begin`: the first attempt.
    """

    producer: ProducerState
    outgoing: Outgoing
    round_robin: RoundRobin
    rules: SendRules
    deadline: float
    size: int | None
    route: Route | None = None
    queue: QueueId | None = None
    address: str = ""
    started: float = 0.0

    def begin(self) -> bool:
        """Take room and choose a queue; return False if this needs a flow.

        After True, the send ends with `receipt_for`, `leave` or the flow of `flow_after`.
        """
        producer, outgoing = self.producer, self.outgoing
        client, topic = producer.client, outgoing.topic
        route = client.routes.get(topic)
        if (
            route is None
            or not route.writable
            or route.hosts
            or outgoing.message.sharding_key is not None
            or not producer.try_enter(self.size)
        ):
            return False
        self.started = now = client.clock.now()
        self.route = route
        self.queue = queue = producer.picker.pick(
            self.round_robin, topic, route.targets, route.write_counts, None, now
        )
        self.address = route.masters[queue.broker]
        return True

    def command(self) -> Command | SendCommand:
        """Return the request of the first attempt.

        Raises:
            Unencodable: The broker's name cannot be encoded.
        """
        assert self.queue is not None, "it has begun"
        return send_command(self.producer, self.outgoing, self.queue)

    def receipt_for(self, reply: Command | StoredAnswer) -> SendReceipt | None:
        """End the send with the receipt, if the message is stored; else, return None.

        None also if the producer notes the health of its brokers, which may have to be published.
        """
        if type(reply) is not StoredAnswer:
            return None
        receipt = self.receipt_in(reply)
        if receipt is not None:
            self.producer.counts.sent += 1
            self.producer.leave(self.size)
        return receipt

    def receipt_in(self, answer: StoredAnswer) -> SendReceipt | None:
        """Return the receipt as `receipt_for` does, but do not end the send."""
        queue = self.queue
        if self.producer.health.is_on:
            return None
        assert queue is not None, "it has begun"
        return receipt_of(answer, self.address, queue, self.outgoing, _NO_FAILURES)

    def leave(self) -> None:
        """Give back what `begin` took."""
        self.producer.leave(self.size)

    def flow(self) -> Flow[SendReceipt]:
        """Return the flow of the whole send, after `begin` returned None."""
        producer, deadline = self.producer, self.deadline
        flow = send_with_retries(producer, self.outgoing, self.round_robin, deadline, self.rules)
        return producer.run_tracked(flow, deadline, self.size)

    def flow_after(self, outcome: Command | StoredAnswer | RocketMQError) -> Flow[SendReceipt]:
        """Return the flow from the outcome of the first attempt on; it also leaves."""
        assert self.route is not None, "it has begun"
        assert self.queue is not None, "it has begun"
        first = FirstAttempt(self.route, self.queue, self.address, self.started, outcome)
        try:
            return (
                yield from send_with_retries(
                    self.producer,
                    self.outgoing,
                    self.round_robin,
                    self.deadline,
                    self.rules,
                    None,
                    first,
                )
            )
        finally:
            self.leave()


def end_together(sends: Sequence[PlainSend]) -> None:
    """End sends that have their receipts; one step, with the core's lock."""
    for producer, group in groupby(sends, _PRODUCER):
        sizes = [send.size for send in group]
        limited = [size for size in sizes if size is not None]
        producer.counts.sent += len(sizes)
        producer.leave_together(len(sizes), len(limited), sum(limited))
