"""The consumers of the shop, which write trace records as the consumers of the Java client do.

A pull consumer has no message handler and therefore writes no traces, so the demo writes the
records itself: one before it handles a message, one after. Some messages are left unread on
purpose, so that the report has something to show: no group reads gifts, coupons and readings, and
the group `analysts` stops early.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from downrange import Producer, PullConsumer
from downrange.client.flows.producing.trace_records import (
    SubAfterTrace,
    SubBeforeTrace,
    encode_contexts,
    index_keys,
)
from downrange.demo.workload import CLIENT
from downrange.errors import RocketMQError
from downrange.model import Message
from downrange.options import ProducerOptions
from downrange.wire.system_names import TRACE_TOPIC

if TYPE_CHECKING:
    import threading
    from concurrent.futures import Future

    from downrange.client.flows.producing.trace_records import TraceRecord
    from downrange.model import ReceivedMessage, SendReceipt

#: Results as the consumers of the Java client record them.
_SUCCESS, _FAILED = 0, 4
_TRACE_BATCH: Final = 20
_POLL: Final = 0.1
_REGION: Final = "MSG_REGION"
_TRACES_IN_FLIGHT_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """A consumer group with one member.

    Attributes:
        group: Name of the group.
        topic: Topic that it reads.
        tags: Tag filter.
        share: Share of the sending time during which it reads.
        slow_every: One message in this many is handled slowly.
    """

    group: str
    topic: str
    tags: str = "*"
    share: float = 1.0
    slow_every: int = 40


CONSUMERS: Final = (
    ConsumerPlan("packing", "orders", tags="standard || express", slow_every=20),
    ConsumerPlan("accounting", "payments"),
    ConsumerPlan("analysts", "clicks", share=0.75, slow_every=100),
    ConsumerPlan("purchasing", "stock", slow_every=100),
    ConsumerPlan("post-office", "reminders"),
)


@dataclass(slots=True)
class ConsumerProgress:
    """What one consumer group has done so far.

    Attributes:
        plan: The group.
        handled: Messages that were handled.
        tried_again: Handled messages whose first attempt failed.
        traces: Trace messages that were stored.
        traces_lost: Trace messages that were not stored.
        problem: The error that ended the consumer early.
    """

    plan: ConsumerPlan
    handled: int = 0
    tried_again: int = 0
    traces: int = 0
    traces_lost: int = 0
    problem: RocketMQError | None = None


class PostcodeMissing(Exception):
    """An order has no postcode, so it cannot be packed."""


def run_consumer(
    name_server: str, progress: ConsumerProgress, *, seconds: float, settled: threading.Event
) -> None:
    """Read and handle messages until the time of the plan is over, or everything was read.

    Args:
        name_server: Address of the name server.
        progress: Updated with each message.
        seconds: How long the services send.
        settled: Set when every acknowledged message can be read.
    """
    plan = progress.plan
    stop_at = time.monotonic() + seconds * plan.share if plan.share < 1 else None
    try:
        with (
            PullConsumer(name_server, group=plan.group, client_options=CLIENT) as consumer,
            TraceWriter(name_server, progress) as traces,
        ):
            consumer.assign(plan.topic, start="earliest", tags=plan.tags)
            while stop_at is None or time.monotonic() < stop_at:
                was_settled = settled.is_set()
                messages = _poll(consumer)
                for message in messages:
                    _handle(message, progress, traces)
                if messages:
                    _commit(consumer)
                elif was_settled and _has_read_all(consumer):
                    return
    except RocketMQError as error:
        progress.problem = error


def _poll(consumer: PullConsumer) -> list[ReceivedMessage]:
    try:
        return consumer.poll(_POLL)
    except RocketMQError as error:
        if not error.retryable:
            raise
        return []  # a broker is down; the consumer keeps fetching in the background


def _has_read_all(consumer: PullConsumer) -> bool:
    """Whether nothing is left to read, also on a broker that has just restarted."""
    try:
        return not any(consumer.lag().values())
    except RocketMQError:
        return False


def _commit(consumer: PullConsumer) -> None:
    # A broker that is down stores no offsets; the next commit covers this one.
    with contextlib.suppress(RocketMQError):
        consumer.commit()


# ---- handling ------------------------------------------------------------------------------------


def _handle(message: ReceivedMessage, progress: ConsumerProgress, traces: TraceWriter) -> None:
    """Handle a message; try a second time if it fails."""
    plan = progress.plan
    for attempt in (0, 1):
        request_id = uuid.uuid4().hex.upper()
        traces.add(_before(message, plan.group, request_id, attempt))
        started = time.perf_counter()
        try:
            process(message, is_second=attempt > 0, slow_every=plan.slow_every)
        except PostcodeMissing:
            is_done = False
        else:
            is_done = True
        cost_ms = round((time.perf_counter() - started) * 1000)
        traces.add(_after(message, plan.group, request_id, cost_ms, is_done))
        if is_done:
            progress.handled += 1
            progress.tried_again += attempt
            return


def process(message: ReceivedMessage, *, is_second: bool, slow_every: int) -> None:
    """Decode the body, as a stand-in for real work; some messages take a few milliseconds more.

    Raises:
        PostcodeMissing: The order has no postcode. The second attempt succeeds.
    """
    body: dict[str, Any] = json.loads(message.body)
    if message.offset % slow_every == slow_every - 1:
        time.sleep(0.004 + (message.offset % 7) * 0.003)
    if not is_second and body.get("postcode", "") is None:
        raise PostcodeMissing(str(body["id"]))


def _before(message: ReceivedMessage, group: str, request_id: str, attempt: int) -> SubBeforeTrace:
    return SubBeforeTrace(
        time_ms=round(time.time() * 1000),
        region=message.properties.get(_REGION),
        group=group,
        request_id=request_id,
        message_id=message.message_id,
        retry_count=attempt,
        keys=" ".join(message.keys) or None,
    )


def _after(
    message: ReceivedMessage, group: str, request_id: str, cost_ms: int, is_done: bool
) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=request_id,
        message_id=message.message_id,
        cost_ms=cost_ms,
        is_success=is_done,
        keys=" ".join(message.keys) or None,
        result=_SUCCESS if is_done else _FAILED,
        time_ms=round(time.time() * 1000),
        group=group,
    )


# ---- traces --------------------------------------------------------------------------------------


@dataclass(slots=True)
class TraceWriter:
    """Sends trace records, several in one message; a context manager.

    Attributes:
        name_server: Address of the name server.
        progress: Its trace counters are updated.
    """

    name_server: str
    progress: ConsumerProgress
    _waiting: list[TraceRecord] = field(default_factory=list[Any])
    _in_flight: deque[Future[SendReceipt]] = field(default_factory=deque[Any])
    _producer: Producer | None = None

    def __enter__(self) -> TraceWriter:
        """Start the producer."""
        self._producer = Producer(
            self.name_server,
            group=f"{self.progress.plan.group}-trace",
            options=ProducerOptions(fault_tolerance="5.x", timeout=5.0, attempt_timeout=1.5),
            client_options=CLIENT,
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send the records that wait, and close the producer."""
        assert self._producer is not None
        try:
            self._send()
            while self._in_flight:
                self._take_result()
        finally:
            self._producer.close()

    def add(self, record: TraceRecord) -> None:
        """Add a record; send a message when enough records wait."""
        self._waiting.append(record)
        if len(self._waiting) >= _TRACE_BATCH:
            self._send()

    def _send(self) -> None:
        assert self._producer is not None
        if not self._waiting:
            return
        keys = dict.fromkeys(key for record in self._waiting for key in index_keys(record))
        message = Message(TRACE_TOPIC, encode_contexts(self._waiting), keys=keys)
        self._waiting = []
        self._in_flight.append(self._producer.submit(message))
        while self._in_flight and (
            self._in_flight[0].done() or len(self._in_flight) > _TRACES_IN_FLIGHT_MAX
        ):
            self._take_result()

    def _take_result(self) -> None:
        try:
            self._in_flight.popleft().result()
        except RocketMQError:
            self.progress.traces_lost += 1
        else:
            self.progress.traces += 1
