"""The requests of one task: several in flight, and all answered before the task ends.

A failed request is repeated until its time is up; then the others are cancelled, and the error
names the rows. With order kept, a queue has one request in flight, and the next one waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from downrange import Producer
from downrange.client.flows.producing.bulk import send_until
from downrange.client.flows.routing.queue_picker import RoundRobin
from downrange.errors import CallTimeout, ClientClosed
from downrange.model import QueueId, SendReceipt, SendStatus
from downrange.options import FaultTolerance, ProducerOptions
from downrange.spark.connection import client_for

if TYPE_CHECKING:
    from concurrent.futures import Future

    from downrange import Client
    from downrange.client.flows.effects import Flow
    from downrange.client.flows.producing.producer_core import ProducerCore
    from downrange.spark.write.requests import WriteRequest
    from downrange.spark.write.write_options import WriteOptions

#: Failed brokers are avoided for some seconds. Slow answers do not count as failures: with many
#: large requests in flight, an answer waits for those before it.
_TOLERANCE: Final = FaultTolerance(style="5.x", latency_ms=(8_000, 9_000), avoid_ms=(1_000, 5_000))
#: The timeout is divided by this for one attempt, so that an unanswered request is repeated.
_ATTEMPT_SHARE: Final = 3
#: Seconds to wait for the end of a request beyond its deadline.
_MARGIN: Final = 10.0

_lock: Final = threading.Lock()
_producers: Final[WeakKeyDictionary[Client, dict[str, Producer]]] = WeakKeyDictionary()


def producer_for(options: WriteOptions) -> tuple[Client, ProducerCore]:
    """Return this process's client and producer for these options, both running.

    Raises:
        RocketMQError: No name server can be reached.
    """
    client = client_for(options.connection)
    settings = ProducerOptions(auto_create=options.auto_create, fault_tolerance=_TOLERANCE)
    with _lock:
        mine = _producers.setdefault(client, {})
        producer = mine.get(options.group)
        if producer is None or producer.options != settings:
            if producer is not None:
                producer.close()
            producer = mine[options.group] = Producer(
                client, group=options.group, options=settings
            ).start()
    return client, producer.core


@dataclass(slots=True)
class QueueTotals:
    """What a task stored in one queue.

    Attributes:
        count: Messages.
        first: Their lowest offset.
        last: Their highest offset; messages of other writers may lie in between.
    """

    count: int
    first: int
    last: int

    def add(self, count: int, first: int, last: int) -> None:
        """Count more messages."""
        self.count += count
        self.first = min(self.first, first)
        self.last = max(self.last, last)


@dataclass(slots=True)
class Totals:
    """What a task has stored so far.

    Attributes:
        rows: Stored rows.
        requests: Requests that carried them.
        wire_bytes: Bytes of the request bodies.
        retried: Attempts beyond the first.
        unsure: Rows that may be stored twice, because an attempt got no answer.
        delayed: Rows with a delay, which are in no queue yet.
        late: Rows that were stored, but not flushed or replicated in time.
        queues: Counts and offsets by queue.
    """

    rows: int = 0
    requests: int = 0
    wire_bytes: int = 0
    retried: int = 0
    unsure: int = 0
    delayed: int = 0
    late: int = 0
    queues: dict[QueueId, QueueTotals] = field(default_factory=dict[QueueId, QueueTotals])

    def stored(self, request: WriteRequest, receipt: SendReceipt) -> None:
        """Count a request that a broker acknowledged."""
        count = request.count
        self.rows += count
        self.requests += 1
        self.wire_bytes += len(request.outgoing.body)
        self.retried += len(receipt.failures)
        self.unsure += count * receipt.may_be_stored_twice
        self.late += count * (receipt.status is not SendStatus.STORED)
        if request.is_delayed:
            self.delayed += count
            return
        first, last = int(receipt.offset), int(receipt.offset) + count - 1
        known = self.queues.get(receipt.queue)
        if known is None:
            self.queues[receipt.queue] = QueueTotals(count, first, last)
        else:
            known.add(count, first, last)


class SendWindow:
    """The requests of one task that are in flight.

    Args:
        client: Runs the sends.
        producer: The producer that sends.
        options: How many requests at a time, and their timeout.

    Attributes:
        totals: What is stored so far.
    """

    def __init__(self, client: Client, producer: ProducerCore, options: WriteOptions) -> None:
        self.totals = Totals()
        self._client = client
        self._producer = producer
        self._options = options
        self._round_robin = RoundRobin()
        self._done: SimpleQueue[tuple[int, SendReceipt | BaseException]] = SimpleQueue()
        self._futures: dict[int, Future[Any]] = {}
        self._requests: dict[int, WriteRequest] = {}
        #: With order kept: requests that wait for the one of their queue that is in flight.
        self._waiting: dict[QueueId, deque[WriteRequest]] = {}
        self._waiting_count = 0
        self._next = 0

    def add(self, request: WriteRequest) -> None:
        """Send a request as soon as there is room.

        Raises:
            RocketMQError: This or another request failed for good; all others are cancelled.
        """
        while len(self._requests) + self._waiting_count >= self._options.in_flight:
            self._take_one()
        target = request.target
        if self._options.is_ordered:
            assert target is not None, "with order kept, every row has a queue"
            if target in self._waiting:
                self._waiting[target].append(request)
                self._waiting_count += 1
                return
            self._waiting[target] = deque()
        self._start(request)

    def finish(self) -> Totals:
        """Wait until everything is stored.

        Raises:
            RocketMQError: A request failed for good; all others are cancelled.
        """
        while self._requests:
            self._take_one()
        return self.totals

    def cancel_all(self) -> None:
        """Cancel all requests; those in flight may still be stored."""
        self._waiting.clear()
        self._waiting_count = 0
        self._requests.clear()
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()

    def _start(self, request: WriteRequest) -> None:
        key = self._next
        self._next += 1
        options = self._options
        deadline = self._producer.deadline(options.timeout)
        flow = send_until(
            self._producer,
            request.outgoing,
            self._round_robin,
            deadline,
            target=request.target,
            attempt_timeout=options.timeout / _ATTEMPT_SHARE,
        )
        self._requests[key] = request
        self._futures[key] = self._client.submit(
            self._report_end(key, self._producer.run_tracked(flow, deadline))
        )

    def _report_end(self, key: int, flow: Flow[SendReceipt]) -> Flow[None]:
        """Run a send, and put its outcome into the queue that the task reads."""
        try:
            receipt = yield from flow
        except GeneratorExit:  # cancelled by this window, or closed with the client
            self._done.put((key, ClientClosed("the client")))
            raise
        except Exception as error:
            self._done.put((key, error))
        else:
            self._done.put((key, receipt))

    def _take_one(self) -> None:
        """Wait for the end of any request, and start the next one of its queue."""
        try:
            key, outcome = self._done.get(timeout=self._options.timeout + _MARGIN)
        except Empty:
            waited = self._options.timeout + _MARGIN
            self.cancel_all()
            raise CallTimeout("the cluster", waited) from None
        request = self._requests.pop(key)
        del self._futures[key]
        if isinstance(outcome, BaseException):
            self.cancel_all()
            outcome.add_note(
                f"while writing {request.rows}; {self.totals.rows} rows of the task are stored"
            )
            raise outcome
        self.totals.stored(request, outcome)
        if self._options.is_ordered and request.target is not None:
            waiting = self._waiting[request.target]
            if waiting:
                self._waiting_count -= 1
                self._start(waiting.popleft())
            else:
                del self._waiting[request.target]
