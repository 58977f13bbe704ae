"""Traces: a record of each send in the trace topic."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.producing.trace_records import PubTrace, decode_trace
from downrange.embedded import Interception, drop, refuse
from downrange.errors import SendFailed
from downrange.model import Message
from downrange.options import ClientOptions, ProducerOptions, Trace
from downrange.wire.codes import RequestCode
from downrange.wire.headers import SendRequestV2
from tests.contract.servers import stats_of
from tests.support.waiting import WAIT_TIMEOUT, wait_until

if TYPE_CHECKING:
    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import UniqueName
    from tests.contract.conftest import Embedded, Kind, MakeProducer
    from tests.contract.servers import Server

SEND = RequestCode.SEND_MESSAGE_V2


def traces_of(server: Server, topic: str, count: int) -> list[PubTrace]:
    """Return the records in a trace topic, after waiting for `count` of them."""
    found: list[PubTrace] = []

    def is_complete() -> bool:
        found[:] = [
            record
            for message in server.read_all(topic, 0)
            for record in decode_trace(message.body)
            if isinstance(record, PubTrace)
        ]
        return len(found) >= count

    wait_until(is_complete)
    return found


def test_a_send_is_recorded_in_the_trace_topic(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic, traces = server.topic(), server.topic(queues=1, name=unique_name("trace"))
    sender = producer(server, options=ProducerOptions(trace=Trace(topic=traces)))
    began = time.time() * 1000
    receipt = sender.send(Message(topic, b"12345", tags="new", keys=["k-1", "k-2"]))
    sender.close()
    (trace,) = traces_of(server, traces, 1)
    assert (trace.group, trace.topic, trace.tags, trace.keys) == (
        sender.group,
        topic,
        "new",
        "k-1 k-2",
    )
    assert (trace.message_id, trace.offset_id) == (receipt.message_id, receipt.offset_id)
    assert (trace.address, trace.body_bytes) == (server.brokers[0], 5)
    assert (trace.is_success, trace.message_type) == (True, 0)
    assert trace.region == receipt.region
    assert -1 <= trace.time_ms - began < 60_000
    assert 0 <= trace.cost_ms < 60_000
    (message,) = server.read_all(traces, 1)
    assert sorted(message.keys) == sorted([receipt.message_id, "k-1", "k-2"])


def test_a_receipt_says_whether_the_send_is_traced(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    """Issue 14: `is_traced` was true without a trace."""
    topic, traces = server.topic(), server.topic(queues=1, name=unique_name("trace"))
    assert not producer(server).send(Message(topic, b"1")).is_traced
    tracing = producer(server, options=ProducerOptions(trace=Trace(topic=traces)))
    assert tracing.send(Message(topic, b"2")).is_traced


def test_traces_are_sent_together_and_the_rest_on_close(
    server: Server, producer: MakeProducer, unique_name: UniqueName
) -> None:
    topic, traces = server.topic(), server.topic(queues=1, name=unique_name("trace"))
    options = Trace(topic=traces, batch_count=5, flush_interval=60.0)
    sender = producer(server, options=ProducerOptions(trace=options))
    ids = [sender.send(Message(topic, b"1")).message_id for _ in range(12)]
    traces_of(server, traces, 8)  # records that come late go with others, so up to four may wait
    sender.close()
    found = traces_of(server, traces, 12)
    assert sorted(trace.message_id or "" for trace in found) == sorted(ids)
    counts = [len(decode_trace(message.body)) for message in server.read_all(traces, 3)]
    assert sum(counts) == 12
    assert max(counts) == 5


def test_a_trace_is_sent_after_the_flush_interval(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    traces = embedded.topic(queues=1, name=unique_name("trace"))
    options = Trace(topic=traces, flush_interval=0.1)
    sender = producer(embedded, options=ProducerOptions(trace=options))
    sender.send(Message(embedded.topic(), b"1"))
    assert len(traces_of(embedded, traces, 1)) == 1


def test_the_system_topic_is_the_default(embedded: Embedded, producer: MakeProducer) -> None:
    before = len(traces_of(embedded, "RMQ_SYS_TRACE_TOPIC", 0))
    sender = producer(embedded, options=ProducerOptions(trace=True))
    receipt = sender.send(Message(embedded.topic(), b"1"))
    sender.close()
    found = traces_of(embedded, "RMQ_SYS_TRACE_TOPIC", before + 1)
    assert receipt.message_id in [trace.message_id for trace in found]


def test_a_batch_is_one_trace(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    traces = embedded.topic(queues=1, name=unique_name("trace"))
    sender = producer(embedded, options=ProducerOptions(trace=Trace(topic=traces)))
    topic = embedded.topic()
    receipt = sender.send_batch([Message(topic, b"1"), Message(topic, b"2")])
    sender.close()
    (trace,) = traces_of(embedded, traces, 1)
    assert (trace.message_id or "").split(",") == receipt.message_ids


def test_a_send_that_a_broker_refused_is_not_traced(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    traces = embedded.topic(queues=1, name=unique_name("trace"))
    sender = producer(embedded, options=ProducerOptions(trace=Trace(topic=traces)))
    topic = embedded.topic()
    embedded.cluster.intercept(SEND, refuse(13, "no"))
    with pytest.raises(SendFailed):
        sender.send(Message(topic, b"1"))
    embedded.cluster.intercept(SEND, None)
    receipt = sender.send(Message(topic, b"2"))
    sender.close()
    assert [trace.message_id for trace in traces_of(embedded, traces, 1)] == [receipt.message_id]


def test_traces_that_cannot_be_sent_neither_fail_nor_slow_a_send(
    embedded: Embedded, producer: MakeProducer, unique_name: UniqueName
) -> None:
    traces = embedded.topic(queues=1, name=unique_name("trace"))
    options = Trace(topic=traces, batch_count=1, queue_max=5)
    sender = producer(embedded, options=ProducerOptions(trace=options))
    topic = embedded.topic()

    def lost(request: Command, peer: Peer) -> Interception | None:
        is_trace = SendRequestV2.from_fields(request.fields).topic == traces
        return drop() if is_trace else None

    embedded.cluster.intercept(SEND, lost)
    started = time.monotonic()
    for _ in range(200):
        sender.send(Message(topic, b"1"))
    assert time.monotonic() - started < WAIT_TIMEOUT  # 5 s for each trace would be far more
    stats = stats_of(sender)
    assert (stats.sent, stats.failed) == (200, 0)
    assert stats.traces_dropped > 0
    assert stats.traces_waiting <= 5
    started = time.monotonic()
    sender.close(timeout=0.5)
    assert time.monotonic() - started < 8  # without a timeout: 5 s for each of two rounds


def test_traces_for_a_cloud_are_sent_to_the_topic_of_the_region(
    server: Server, producer: MakeProducer
) -> None:
    sender = producer(
        server,
        options=ProducerOptions(trace=True),
        client_options=ClientOptions(access_channel="cloud"),
    )
    receipt = sender.send(Message(server.topic(), b"1"))
    sender.close()
    topic = f"rmq_sys_TRACE_DATA_{receipt.region}"
    wait_until(
        lambda: receipt.message_id in [each.message_id for each in traces_of(server, topic, 1)]
    )


class Dispatcher:
    """Keeps what it is given; with asyncio its methods are coroutine functions."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def append(self, record: PubTrace) -> None:
        self.calls.append((record.topic, record.message_id, record.is_success))

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


class CoroutineDispatcher(Dispatcher):
    """The same with coroutine functions."""

    async def append(self, record: PubTrace) -> None:  # type: ignore[override]
        super().append(record)

    async def flush(self) -> None:  # type: ignore[override]
        super().flush()

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def test_a_dispatcher_of_the_user_gets_the_traces(
    server: Server, producer: MakeProducer, kind: Kind
) -> None:
    dispatcher = Dispatcher() if kind == "sync" else CoroutineDispatcher()
    options = Trace(dispatcher=dispatcher, flush_interval=0.05)
    sender = producer(server, options=ProducerOptions(trace=options))
    topic = server.topic()
    receipt = sender.send(Message(topic, b"1"))
    wait_until(lambda: dispatcher.calls == [(topic, receipt.message_id, True), "flush"])
    last = sender.send(Message(topic, b"2"))
    sender.close()
    assert [call for call in dispatcher.calls if call != "flush"] == [
        (topic, receipt.message_id, True),
        (topic, last.message_id, True),
        "close",
    ]
    assert dispatcher.calls[-2:] == ["flush", "close"]


class BlockingDispatcher(Dispatcher):
    """A dispatcher whose `flush` blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def flush(self) -> None:
        self.released.wait(WAIT_TIMEOUT)


class EndlessDispatcher(CoroutineDispatcher):
    """A dispatcher whose `flush` does not end."""

    async def flush(self) -> None:  # type: ignore[override]
        await asyncio.sleep(WAIT_TIMEOUT)


def test_closing_does_not_wait_for_a_dispatcher_beyond_its_timeout(
    embedded: Embedded, producer: MakeProducer, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = BlockingDispatcher() if kind == "sync" else EndlessDispatcher()
    options = Trace(dispatcher=dispatcher, flush_interval=WAIT_TIMEOUT)
    sender = producer(embedded, options=ProducerOptions(trace=options))
    sender.send(Message(embedded.topic(), b"1"))
    begin = time.monotonic()
    sender.close(timeout=0.1)
    assert time.monotonic() - begin < WAIT_TIMEOUT / 2
    assert "() of the trace dispatcher failed" in caplog.text
    assert "close" not in dispatcher.calls
    if isinstance(dispatcher, BlockingDispatcher):
        dispatcher.released.set()


def test_an_error_of_a_dispatcher_fails_no_send(
    embedded: Embedded, producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Dispatcher):
        def append(self, record: PubTrace) -> None:
            raise ValueError("full")

    sender = producer(embedded, options=ProducerOptions(trace=Trace(dispatcher=Broken())))
    sender.send(Message(embedded.topic(), b"1"))
    sender.close()
    assert "append() of the trace dispatcher failed" in caplog.text
