"""Who reads what the services sent, and leaves traces of it as Java's consumers do.

A pull consumer knows nothing of handling, so the reader writes the records itself: one before it
handles a message, one after. Not everything is read, on purpose: gifts are packed by hand, nobody
has asked for coupons and readings yet, and the analysts go home early.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from downrange.client.consumer import PullConsumer
from downrange.client.flows.producing.trace_records import (
    SubAfterTrace,
    SubBeforeTrace,
    encode_contexts,
    index_keys,
)
from downrange.client.producer import Producer
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

#: Results as Java's consumers note them.
_SUCCESS, _FAILED = 0, 4
_TRACES_TOGETHER: Final = 20
_POLL: Final = 0.1
_REGION: Final = "MSG_REGION"
_TRACES_UNDER_WAY_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Reader:
    """A group of consumers, here of one.

    Attributes:
        group: Its name.
        topic: What it reads.
        tags: Which messages of it.
        share: How much of the time it works.
        slow_every: One message in so many takes a trip to the back office.
    """

    group: str
    topic: str
    tags: str = "*"
    share: float = 1.0
    slow_every: int = 40


READERS: Final = (
    Reader("packing", "orders", tags="standard || express", slow_every=20),
    Reader("accounting", "payments"),
    Reader("analysts", "clicks", share=0.75, slow_every=100),
    Reader("purchasing", "stock", slow_every=100),
    Reader("post-office", "reminders"),
)


@dataclass(slots=True)
class Reading:
    """How far a reader has come.

    Attributes:
        reader: Who.
        handled: Messages that are done with.
        tried_again: Those of them that failed at first.
        traces: Trace messages that were stored.
        traces_lost: Trace messages that were not.
        problem: What ended it early.
    """

    reader: Reader
    handled: int = 0
    tried_again: int = 0
    traces: int = 0
    traces_lost: int = 0
    problem: RocketMQError | None = None


class PostcodeMissing(Exception):
    """A parcel cannot go out like this."""


def read(name_server: str, reading: Reading, *, seconds: float, settled: threading.Event) -> None:
    """Read and handle messages until the reader goes home, or everything was seen.

    Args:
        name_server: Where to connect.
        reading: Told how far it has come.
        seconds: How long the services send.
        settled: Set when everything that was acknowledged can be read.
    """
    reader = reading.reader
    home_at = time.monotonic() + seconds * reader.share if reader.share < 1 else None
    try:
        with (
            PullConsumer(name_server, group=reader.group, client_options=CLIENT) as consumer,
            TraceWriter(name_server, reading) as traces,
        ):
            consumer.assign(reader.topic, start="earliest", tags=reader.tags)
            while home_at is None or time.monotonic() < home_at:
                was_settled = settled.is_set()
                messages = _poll(consumer)
                for message in messages:
                    _handle(message, reading, traces)
                if messages:
                    _commit(consumer)
                elif was_settled and _has_everything(consumer):
                    return
    except RocketMQError as error:
        reading.problem = error


def _poll(consumer: PullConsumer) -> list[ReceivedMessage]:
    try:
        return consumer.poll(_POLL)
    except RocketMQError as error:
        if not error.retryable:
            raise
        return []  # the brokers are away; fetching goes on in the background


def _has_everything(consumer: PullConsumer) -> bool:
    """Whether nothing is left; a broker that is just back may not have been asked again yet."""
    try:
        return not any(consumer.lag().values())
    except RocketMQError:
        return False


def _commit(consumer: PullConsumer) -> None:
    # A broker that is away cannot take it down; the next commit covers this one.
    with contextlib.suppress(RocketMQError):
        consumer.commit()


# ---- handling ------------------------------------------------------------------------------------


def _handle(message: ReceivedMessage, reading: Reading, traces: TraceWriter) -> None:
    """Handle a message, and once more if it fails."""
    for attempt in (0, 1):
        request_id = uuid.uuid4().hex.upper()
        traces.add(_before(message, reading.reader.group, request_id, attempt))
        began = time.perf_counter()
        try:
            work(message, is_second=attempt > 0, slow_every=reading.reader.slow_every)
        except PostcodeMissing:
            is_done = False
        else:
            is_done = True
        cost_ms = round((time.perf_counter() - began) * 1000)
        traces.add(_after(message, reading.reader.group, request_id, cost_ms, is_done))
        if is_done:
            reading.handled += 1
            reading.tried_again += attempt
            return


def work(message: ReceivedMessage, *, is_second: bool, slow_every: int) -> None:
    """Do what the message asks for; a stand-in that reads it, and sometimes takes its time.

    Raises:
        PostcodeMissing: An order has none; the second time it was looked up.
    """
    said: dict[str, Any] = json.loads(message.body)
    if message.offset % slow_every == slow_every - 1:
        time.sleep(0.004 + (message.offset % 7) * 0.003)
    if not is_second and said.get("postcode", "") is None:
        raise PostcodeMissing(str(said["id"]))


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
    """Sends trace records, some together; a context manager.

    Attributes:
        name_server: Where to connect.
        reading: Told how many were stored, and how many not.
    """

    name_server: str
    reading: Reading
    _waiting: list[TraceRecord] = field(default_factory=list[Any])
    _under_way: deque[Future[SendReceipt]] = field(default_factory=deque[Any])
    _producer: Producer | None = None

    def __enter__(self) -> TraceWriter:
        """Start."""
        self._producer = Producer(
            self.name_server,
            group=f"{self.reading.reader.group}-trace",
            options=ProducerOptions(fault_tolerance="5.x", timeout=5.0, attempt_timeout=1.5),
            client_options=CLIENT,
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what waits, and close."""
        assert self._producer is not None
        try:
            self._send()
            while self._under_way:
                self._settle()
        finally:
            self._producer.close()

    def add(self, record: TraceRecord) -> None:
        """Take a record."""
        self._waiting.append(record)
        if len(self._waiting) >= _TRACES_TOGETHER:
            self._send()

    def _send(self) -> None:
        assert self._producer is not None
        if not self._waiting:
            return
        keys = dict.fromkeys(key for record in self._waiting for key in index_keys(record))
        message = Message(TRACE_TOPIC, encode_contexts(self._waiting), keys=keys)
        self._waiting = []
        self._under_way.append(self._producer.submit(message))
        while self._under_way and (
            self._under_way[0].done() or len(self._under_way) > _TRACES_UNDER_WAY_MAX
        ):
            self._settle()

    def _settle(self) -> None:
        try:
            self._under_way.popleft().result()
        except RocketMQError:
            self.reading.traces_lost += 1
        else:
            self.reading.traces += 1
