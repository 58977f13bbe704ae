"""A send that joins a batch of others, without a flow of its own.

The first message of a batch is sent by a flow, which leads the batch (`accumulator`). The flows of
the others would only wait for it. So a driver runs a `GatheredSend` like this:

    begin()          joins an open batch that a flow leads; False if there is none
    future           is set by the driver; the caller awaits it
    batch.changed    fires once for all: the driver completes the futures, then `leave_together`

If the leader was cancelled, one of the sends goes on with `flow_after()`, which leads the batch. If
`begin` returned False, `flow()` is the flow of any other send. See also `plain_send`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downrange.client.flows.producing.accumulator import Place

if TYPE_CHECKING:  # the struct is never decoded, so its annotations are not evaluated
    from collections.abc import Sequence

    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.accumulator import Accumulator, Batch
    from downrange.client.flows.producing.producer_state import ProducerState
    from downrange.model import SendReceipt


class GatheredSend(Place, eq=False):  # a struct: one is made per message
    """One message for the accumulator; each method is one step, with the core's lock.

    Attributes:
        producer: The producer.
        accumulator: Its accumulator.
        is_limited: Whether the limits of back-pressure apply.
        task: The driver's task of the flow that has taken over.
    """

    producer: ProducerState
    accumulator: Accumulator
    is_limited: bool
    task: Any = None

    @property
    def limited_bytes(self) -> int | None:
        """The bytes that count against the limits of back-pressure; None if they do not apply."""
        return self.body_bytes if self.is_limited else None

    def begin(self) -> bool:
        """Take room and join an open batch; return False if this needs a flow."""
        producer, limited_bytes = self.producer, self.body_bytes if self.is_limited else None
        if not producer.try_enter(limited_bytes):
            return False
        if self.accumulator.join(self):
            return True
        producer.leave(limited_bytes)
        return False

    def leave(self) -> None:
        """End the send of a caller that was cancelled, or whose time ran out."""
        self.producer.leave(self.limited_bytes)
        self.accumulator.leave(self)

    def flow(self) -> Flow[SendReceipt]:
        """Return the flow of the whole send, after `begin` returned False."""
        flow = self.accumulator.add(self.message, None, self.deadline)
        return self.producer.run_tracked(flow, self.deadline, self.limited_bytes)

    def flow_after(self) -> Flow[SendReceipt]:
        """Return the flow of a send in a batch without a leader; it also leaves."""
        try:
            return (yield from self.accumulator.wait_for(self))
        finally:
            self.producer.leave(self.limited_bytes)


def leave_together(batch: Batch, sends: Sequence[GatheredSend]) -> None:
    """End sends of one batch whose callers have the outcome; one step, with the core's lock."""
    if sends:
        producer = sends[0].producer
        limited = [send.body_bytes for send in sends if send.is_limited]
        producer.leave_together(len(sends), len(limited), sum(limited))
        sends[0].accumulator.leave_together(batch, sends)
