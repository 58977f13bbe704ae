"""Sends on an event loop without a flow: a reply, or the end of a batch, completes futures.

What is not usual is left to the flow of the send; see `flows/producing/plain_send.py` and
`gathered_send.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from downrange.client.drivers.flow_task import AwaitedTask
from downrange.client.flows.producing.gathered_send import leave_together
from downrange.client.flows.producing.plain_send import end_together
from downrange.errors import RocketMQError

if TYPE_CHECKING:  # the struct is never decoded, so its annotations are not evaluated
    from collections.abc import Sequence
    from concurrent.futures import Future  # noqa: TC004

    from downrange.client.drivers.aio_connection import Caller, Connection  # noqa: TC004
    from downrange.client.drivers.flow_task import FlowTask, Scheduler  # noqa: TC004
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.accumulator import Batch, Place  # noqa: TC004
    from downrange.client.flows.producing.gathered_send import GatheredSend
    from downrange.client.flows.producing.plain_send import PlainSend  # noqa: TC004
    from downrange.model import SendReceipt
    from downrange.wire.send_answers import StoredAnswer

_NEVER: Final = float("inf")


class AwaitedSend(msgspec.Struct, eq=False):
    """A send that has begun and that a coroutine awaits; a `Caller` of its connection.

    Attributes:
        scheduler: What it shares with flows.
        send: The send.
        future: What the coroutine awaits.
        called_at: When the call began.
        deadline: When the call is given up.
        task: The flow that has taken over.
        connection: Where the call went.
        request_id: The id of the request there.
    """

    scheduler: Scheduler
    send: PlainSend
    future: asyncio.Future[Any] | Future[Any]
    called_at: float
    deadline: float
    task: FlowTask | None = None
    connection: Connection | None = None
    request_id: int = 0

    def start(self) -> None:
        """Make the call."""
        send = self.send
        try:
            self.scheduler.connection(send.address).request(self, send.command())
        except RocketMQError as error:
            self.resume(error=error)

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Complete the future with the receipt in the reply, or let the flow go on."""
        send, scheduler, future = self.send, self.scheduler, self.future
        self.connection = None
        if error is None and not future.done():
            with scheduler.lock:
                receipt = send.receipt_for(value)
            if receipt is not None:
                self.complete(receipt)
                return
        # A connection resumes its callers with a reply or an error of its own.
        outcome = value if error is None else cast("RocketMQError", error)
        self.go_on(send.flow_after(outcome))

    def complete(self, receipt: SendReceipt) -> None:
        """Set the future's result."""
        self.future.set_result(receipt)

    def go_on(self, flow: Flow[SendReceipt]) -> None:
        """Run the flow that takes over."""
        self.task = AwaitedTask(
            self.scheduler, flow, future=cast("asyncio.Future[SendReceipt]", self.future)
        )
        self.task.resume()

    def cancel(self) -> None:
        """End the send, whose coroutine was cancelled."""
        if self.task is not None:
            self.task.cancel()
        elif self.connection is not None:
            self.connection.abandon(self.request_id)
            with self.scheduler.lock:
                self.send.leave()


def resume_together(scheduler: Scheduler, answered: Sequence[tuple[Caller, StoredAnswer]]) -> None:
    """Resume callers with the answers of one read; awaited sends end in one step."""
    if len(answered) == 1:
        caller, answer = answered[0]
        caller.resume(answer)
        return
    ended: list[PlainSend] = []
    others: list[tuple[Caller, StoredAnswer]] = []
    with scheduler.lock:
        for caller, answer in answered:
            if type(caller) is AwaitedSend and not caller.future.done():
                send = caller.send
                receipt = send.receipt_in(answer)
                if receipt is not None:
                    caller.connection = None
                    caller.future.set_result(receipt)  # its callbacks run in the next turn
                    ended.append(send)
                    continue
            others.append((caller, answer))
        end_together(ended)
    for caller, answer in others:
        caller.resume(answer)


class AwaitedBatch(msgspec.Struct, eq=False):
    """The sends of one batch that coroutines await; a `Waiter` until the first of their deadlines.

    A flow of this loop leads the batch. The sends are the places with a future.

    Attributes:
        scheduler: What it shares with flows.
        batch: The batch.
        deadline: The first of the deadlines; never if no send waits.
    """

    scheduler: Scheduler
    batch: Batch
    deadline: float = _NEVER

    def watch(self, send: GatheredSend) -> None:
        """Wait for the leader of the batch, and for the deadline of a send that has begun."""
        batch = self.batch
        if batch.watch is None:
            batch.watch = self
            batch.changed.listen(self.on_change)
        self.deadline = send.deadline
        self.scheduler.deadlines.add(self)

    def on_change(self) -> None:
        """Called when the leader has ended or was cancelled, in a step of it, with the lock."""
        batch, outcome = self.batch, self.batch.outcome
        if outcome is None:
            batch.changed.listen(self.on_change)
            self.scheduler.loop.call_soon(self._lead)
            return
        batch.watch = None  # breaks the cycle
        self.scheduler.deadlines.discard(self)
        if isinstance(outcome, RocketMQError):
            sends = self._waiting()
            for send in sends:
                send.future.set_exception(batch.own_error())
        else:
            places: list[Place] = []
            for place, receipt in outcome.items():
                future = place.future
                if future is not None and not future.done():
                    future.set_result(receipt)
                    places.append(place)
            sends = cast("list[GatheredSend]", places)  # the places with a future
        leave_together(batch, sends)

    def on_deadline(self) -> None:
        """Called by `Deadlines`."""
        scheduler, batch = self.scheduler, self.batch
        now = scheduler.clock.now()
        with scheduler.lock:
            waiting = self._waiting()
            late = [send for send in waiting if send.deadline <= now]
            for send in late:
                send.future.set_exception(send.accumulator.late(batch))
            leave_together(batch, late)
        self.deadline = min(
            (send.deadline for send in waiting if send.deadline > now), default=_NEVER
        )
        if self.deadline < _NEVER:
            scheduler.deadlines.add(self)

    def cancel(self, send: GatheredSend) -> None:
        """End a send whose coroutine was cancelled, unless it has ended."""
        if send.task is not None:
            send.task.cancel()
        elif send.future.cancelled():
            with self.scheduler.lock:
                send.leave()
            if not self.batch.messages:
                self.scheduler.deadlines.discard(self)

    def _lead(self) -> None:
        """Let a flow of one of the sends lead the batch, unless another flow does."""
        batch = self.batch
        if batch.is_led or batch.outcome is not None:
            return
        for send in self._waiting()[:1]:
            future, send.future = send.future, None
            send.task = AwaitedTask(self.scheduler, send.flow_after(), future=future)
            send.task.resume()

    def _waiting(self) -> list[GatheredSend]:
        """Return the sends whose callers wait."""
        return [
            cast("GatheredSend", place)
            for place in self.batch.messages
            if place.future is not None and not place.future.done()
        ]
