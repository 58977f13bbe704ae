"""OpenTelemetry: the spans and metrics of every kind of call, and the context in messages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.propagators.b3 import B3SingleFormat
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from downrange import (
    ConsumerOptions,
    DeadLetter,
    Outcome,
    PullConsumer,
    PullOptions,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    instrument,
    uninstrument,
)
from downrange.embedded import refuse
from downrange.errors import OptionError, RequestTimedOut, Retry, SendFailed
from downrange.model import Message
from downrange.otel import process_span
from downrange.wire.codes import RequestCode, ResponseCode
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_sync
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from downrange.model import ReceivedMessage
    from tests.contract.conftest import Embedded, Kind, Make, MakeProducer
    from tests.contract.servers import Server

RMQ = "messaging.rocketmq.message"


class Telemetry:
    """What was exported, and a tracer for the program's own spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.provider.get_tracer("program")

    def spans(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Return the spans of this name, as soon as there are so many."""

        def found() -> list[ReadableSpan]:
            return [span for span in self._exporter.get_finished_spans() if span.name == name]

        wait_until(lambda: len(found()) >= count)
        assert len(found()) == count
        return found()

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        return self.spans(name)[0]

    def names(self) -> list[str]:
        """Return the names of all spans."""
        return [span.name for span in self._exporter.get_finished_spans()]

    def points(self, name: str) -> list[Any]:
        """Return the points of a metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@contextlib.contextmanager
def instrumented(**settings: Any) -> Generator[Telemetry]:
    """Instrument all clients in a block."""
    telemetry = Telemetry()
    instrument(tracer_provider=telemetry.provider, meter_provider=telemetry.meters, **settings)
    try:
        yield telemetry
    finally:
        uninstrument()
        telemetry.provider.shutdown()
        telemetry.meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Instrument all clients of a test."""
    with instrumented() as made:
        yield made


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context_of(message: ReceivedMessage) -> tuple[str, str]:
    """Return the trace and span that a message names."""
    _, trace_id, span_id, _ = message.properties["traceparent"].split("-")
    return trace_id, span_id


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    """Return the trace and span of a span, as a message names them."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def linked_by(span: ReadableSpan) -> list[tuple[str, str]]:
    """Return the traces and spans that a span has links to."""
    return [
        (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links
    ]


def handler_for(kind: Kind, handle: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a handler of the front end."""
    if kind == "sync":
        return handle

    async def handle_async(argument: Any) -> object:
        return handle(argument)

    return handle_async


# ---- sending -------------------------------------------------------------------------------------


def test_send_has_a_span_whose_context_is_in_the_message(
    server: Server, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = server.topic()
    message = Message(topic, b"1", tags="new", keys=["k1", "k2"], properties={"mine": "1"})
    with telemetry.tracer.start_as_current_span("checkout") as outer:
        receipt = producer(server).send(message)
    assert message.properties == {"mine": "1"}
    span = telemetry.span(f"send {topic}")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == outer.get_span_context().span_id
    host, _, port = server.brokers[0].rpartition(":")
    attributes = attributes_of(span)
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(receipt.queue.number),
        "messaging.message.id": receipt.message_id,
        f"{RMQ}.tag": "new",
        f"{RMQ}.keys": ("k1", "k2"),
        f"{RMQ}.type": "normal",
        "server.address": host,
        "server.port": int(port),
    }
    [stored] = server.read_all(topic, 1)
    assert context_of(stored) == ids_of(span)
    assert stored.properties["mine"] == "1"


def test_message_with_a_context_keeps_it_and_the_span_has_a_link(
    server: Server, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = server.topic()
    made = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    properties = {"traceparent": f"00-{made[0]}-{made[1]}-01"}
    producer(server).send(Message(topic, b"1", properties=properties))
    span = telemetry.span(f"send {topic}")
    assert span.kind is SpanKind.CLIENT
    assert linked_by(span) == [made]
    [stored] = server.read_all(topic, 1)
    assert context_of(stored) == made


def test_messages_of_a_batch_have_the_context_of_its_span(
    server: Server, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, stream = server.topic(), server.topic()
    own = producer(server)
    own.send_batch([Message(topic, b"1"), Message(topic, b"2")])
    own.send_batch(Message(stream, f"{number}") for number in range(3))
    for name, count in ((topic, 2), (stream, 3)):
        span = telemetry.span(f"send {name}")
        assert attributes_of(span)["messaging.batch.message_count"] == count
        stored = server.read_all(name, count)
        assert [context_of(message) for message in stored] == [ids_of(span)] * count


def test_oneway_and_submitted_messages_have_spans(
    server: Server, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, other = server.topic(), server.topic()
    own = producer(server)
    own.send_oneway(Message(topic, b"1"))
    own.submit(Message(other, b"1", sharding_key="s")).result(LONG_TIMEOUT)
    [stored] = server.read_all(topic, 1)
    assert context_of(stored) == ids_of(telemetry.span(f"send {topic}"))
    span = telemetry.span(f"send {other}")
    assert attributes_of(span)[f"{RMQ}.group"] == "s"
    assert attributes_of(span)[f"{RMQ}.type"] == "fifo"
    [stored] = server.read_all(other, 1)
    assert context_of(stored) == ids_of(span)


@only_sync
def test_submitted_batch_and_request_have_spans(
    embedded: Embedded, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = embedded.topic()
    own = producer(embedded)
    own.submit_batch([Message(topic, b"1")] * 2).result(LONG_TIMEOUT)
    assert attributes_of(telemetry.span(f"send {topic}"))["messaging.batch.message_count"] == 2
    error: BaseException | None = None
    # A busy machine may need a short time for the send alone.
    for number, timeout in enumerate((0.5, 3.0, 10.0), 1):
        waiting = own.submit_request(Message(topic, b"?"), timeout=timeout)
        error = waiting.exception(LONG_TIMEOUT)
        span = telemetry.spans(f"request {topic}", number)[-1]
        assert attributes_of(span)["error.type"] == type(error).__name__
        if isinstance(error, RequestTimedOut):
            break
    assert isinstance(error, RequestTimedOut)


def test_failed_send_has_an_error_in_its_span_and_metrics(
    embedded: Embedded, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = embedded.topic()
    own = producer(embedded)
    refusal = refuse(ResponseCode.NO_PERMISSION, "not here")
    embedded.cluster.intercept(RequestCode.SEND_MESSAGE_V2, refusal)
    with pytest.raises(SendFailed) as failed:
        own.send(Message(topic, b"1"))
    span = telemetry.span(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes_of(span)["error.type"] == "NO_PERMISSION", failed.value
    assert [event.name for event in span.events] == ["exception"]
    [point] = telemetry.points("messaging.client.sent.messages")
    assert (point.value, point.attributes["error.type"]) == (1, "NO_PERMISSION")


def test_call_that_is_refused_at_once_raises_the_same_error(
    embedded: Embedded, producer: MakeProducer, telemetry: Telemetry
) -> None:
    own: Any = producer(embedded)
    with pytest.raises(OptionError):
        own.send("no message")
    with pytest.raises(OptionError):
        own.send_batch(7)
    with pytest.raises(OptionError):
        own.send_batch(iter(["no message"]))
    with pytest.raises(TypeError):
        own.send()
    own.send(message=Message(embedded.topic(), b"by name"))
    assert len([name for name in telemetry.names() if name.startswith("send ")]) == 2


def test_iterable_without_a_first_message_is_refused_whole(
    embedded: Embedded, producer: MakeProducer, telemetry: Telemetry
) -> None:
    own: Any = producer(embedded)
    topic = embedded.topic()
    with pytest.raises(OptionError, match="message 0 must be a Message, not None"):
        own.send_batch(iter([None, Message(topic, b"second")]))
    own.send_batch(iter([]))
    assert telemetry.names() == ["send "]


def test_metrics_count_sends_and_durations(
    embedded: Embedded, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = embedded.topic()
    own = producer(embedded, group="metered")
    for _ in range(3):
        own.send(Message(topic, b"1"))
    [sent] = telemetry.points("messaging.client.sent.messages")
    assert sent.value == 3
    assert sent.attributes["messaging.destination.name"] == topic
    [duration] = telemetry.points("messaging.client.operation.duration")
    assert duration.count == 3
    assert duration.explicit_bounds[0] == 0.005
    [counted] = telemetry.points("downrange.producer.sent")
    assert (counted.value, counted.attributes["downrange.group"]) == (3, "metered")
    assert [point.value for point in telemetry.points("downrange.client.connections")] != []
    assert [point.value for point in telemetry.points("downrange.client.late_replies")] == [0]


def test_links_and_parents_come_from_the_propagator_that_is_set(
    embedded: Embedded, make: Make, kind: Kind, producer: MakeProducer
) -> None:
    topic, before = embedded.topic(), propagate.get_global_textmap()
    propagate.set_global_textmap(B3SingleFormat())
    try:
        with instrumented(continue_trace=True) as telemetry:
            own = producer(embedded)
            own.send(Message(topic, b"1", properties={"mine": "1"}))
            sent = ids_of(telemetry.span(f"send {topic}"))
            [stored] = embedded.read_all(topic, 1)
            assert stored.properties["b3"] == f"{sent[0]}-{sent[1]}-1"
            assert "traceparent" not in stored.properties
            reader = make(PullConsumer, embedded.name_server, group=embedded.topic()).start()
            reader.assign(topic, start="earliest")
            reader.poll(timeout=LONG_TIMEOUT)
            assert linked_by(telemetry.span(f"receive {topic}")) == [sent]
            make(
                PushConsumer,
                embedded.name_server,
                group=embedded.topic(),
                subscribe=topic,
                handler=handler_for(kind, lambda _: None),
                options=ConsumerOptions(start="earliest"),
            ).start()
            parent = telemetry.span(f"process {topic}").parent
            assert parent is not None
            assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == sent
            # Sent again, the message keeps its context.
            other = embedded.topic()
            own.send(Message(other, b"2", properties={"b3": stored.properties["b3"]}))
            assert linked_by(telemetry.span(f"send {other}")) == [sent]
            [again] = embedded.read_all(other, 1)
            assert again.properties["b3"] == stored.properties["b3"]
    finally:
        propagate.set_global_textmap(before)


# ---- transactions, requests ----------------------------------------------------------------------


def test_transactions_have_spans_of_the_message_and_of_the_outcome(
    server: Server, make: Make, kind: Kind, telemetry: Telemetry
) -> None:
    topic = server.topic()

    def check(_: ReceivedMessage) -> Outcome:
        return Outcome.UNKNOWN

    producer = make(TransactionProducer, server.name_server, group=server.topic(), check=check)
    producer.start()

    def execute(*_: object) -> Outcome:
        return Outcome.COMMIT

    producer.send_in_transaction(Message(topic, b"1"), execute)
    with producer.transaction(Message(topic, b"2")) as transaction:
        assert transaction.message_id
    with contextlib.suppress(KeyError), producer.transaction(Message(topic, b"3")):
        raise KeyError
    sends = telemetry.spans(f"send {topic}", 3)
    assert {attributes_of(span)[f"{RMQ}.type"] for span in sends} == {"transaction"}
    commit = telemetry.span(f"commit {topic}")
    assert attributes_of(commit)["messaging.operation.type"] == "settle"
    assert (
        attributes_of(commit)["messaging.message.id"]
        == (attributes_of(sends[1])["messaging.message.id"])
    )
    telemetry.span(f"rollback {topic}")
    stored = server.read_all(topic, 2)
    assert {context_of(message) for message in stored} == set(map(ids_of, sends[:2]))


def test_request_and_reply_are_joined(
    server: Server, make: Make, kind: Kind, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = server.topic()

    def answer(message: Any) -> object:
        return message.reply(b"42", timeout=LONG_TIMEOUT)

    async def answer_async(message: Any) -> None:
        await message.reply(b"42", timeout=LONG_TIMEOUT)

    handler = answer if kind == "sync" else answer_async
    options = ConsumerOptions(start="earliest")
    consumer = make(
        PushConsumer,
        server.name_server,
        group=server.topic(),
        subscribe=topic,
        handler=handler,
        options=options,
    )
    consumer.start()
    reply = producer(server).request(Message(topic, b"?"), timeout=LONG_TIMEOUT)
    assert reply.body == b"42"
    request, processed = telemetry.span(f"request {topic}"), telemetry.span(f"process {topic}")
    [replied] = [span for span in telemetry._exporter.get_finished_spans() if "reply" in span.name]
    assert linked_by(processed) == [ids_of(request)]
    assert replied.parent is not None
    assert replied.parent.span_id == processed.get_span_context().span_id  # type: ignore[union-attr]
    assert linked_by(request) == [ids_of(replied)]
    conversation = attributes_of(request)["messaging.message.conversation_id"]
    assert conversation == attributes_of(replied)["messaging.message.conversation_id"] != ""


# ---- consuming -----------------------------------------------------------------------------------


def test_handler_runs_in_a_process_span_linked_to_the_message(
    server: Server, make: Make, kind: Kind, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, group = server.topic(), server.topic()
    producer(server).send(Message(topic, b"1", tags="new"))
    current: list[int] = []

    def handle(_: object) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    consumer = make(
        PushConsumer,
        server.name_server,
        group=group,
        subscribe=topic,
        handler=handler_for(kind, handle),
        options=ConsumerOptions(start="earliest"),
    )
    consumer.start()
    span = telemetry.span(f"process {topic}")
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is None
    assert linked_by(span) == [ids_of(telemetry.span(f"send {topic}"))]
    context = span.get_span_context()
    assert context is not None
    assert current == [context.span_id]
    attributes = attributes_of(span)
    assert attributes["messaging.consumer.group.name"] == group
    assert attributes["messaging.rocketmq.consumption_model"] == "clustering"
    assert attributes[f"{RMQ}.tag"] == "new"
    # It is measured after the span has ended.
    [process] = wait_until(lambda: telemetry.points("messaging.process.duration"))
    assert process.count == 1
    wait_until(lambda: consumer.stats().handled == 1)
    [handled] = telemetry.points("downrange.consumer.handled")
    assert (handled.value, handled.attributes["downrange.group"]) == (1, group)


def test_handler_in_a_thread_of_an_event_loop_has_the_current_span(
    embedded: Embedded, make: Make, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = embedded.topic()
    producer(embedded).send(Message(topic, b"1"))
    inner: list[int] = []

    def handle(_: object) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)

    make(
        PushConsumer,
        embedded.name_server,
        group=embedded.topic(),
        subscribe=topic,
        handler=handle,
        options=ConsumerOptions(start="earliest"),
    ).start()
    context = telemetry.span(f"process {topic}").get_span_context()
    assert context is not None
    assert inner == [context.span_id]


def test_handler_continues_the_trace_of_the_message_when_asked_to(
    embedded: Embedded, make: Make, kind: Kind, producer: MakeProducer
) -> None:
    topic = embedded.topic()
    with instrumented(continue_trace=True) as telemetry:
        producer(embedded).send(Message(topic, b"1"))
        make(
            PushConsumer,
            embedded.name_server,
            group=embedded.topic(),
            subscribe=topic,
            handler=handler_for(kind, lambda _: None),
            options=ConsumerOptions(start="earliest"),
        ).start()
        span = telemetry.span(f"process {topic}")
        sent = telemetry.span(f"send {topic}").get_span_context()
        assert sent is not None
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (sent.trace_id, sent.span_id)
        assert not span.links


@pytest.mark.parametrize(
    ("error", "status", "event"),
    [
        (ValueError("bad"), StatusCode.ERROR, "exception"),
        (Retry(after=60), StatusCode.UNSET, "Retry"),
        (DeadLetter("no use"), StatusCode.UNSET, "DeadLetter"),
    ],
)
def test_handler_that_raises_marks_its_span(
    embedded: Embedded,
    make: Make,
    kind: Kind,
    producer: MakeProducer,
    telemetry: Telemetry,
    error: Exception,
    status: StatusCode,
    event: str,
) -> None:
    topic = embedded.topic()
    producer(embedded).send(Message(topic, b"1"))

    def handle(_: object) -> None:
        raise error

    make(
        PushConsumer,
        embedded.name_server,
        group=embedded.topic(),
        subscribe=topic,
        handler=handler_for(kind, handle),
        options=ConsumerOptions(start="earliest", retries=0),  # a retry would have a span, too
    ).start()
    span = telemetry.span(f"process {topic}")
    assert span.status.status_code is status
    assert [each.name for each in span.events] == [event]


def test_batch_handler_has_one_span_with_a_link_to_each_message(
    embedded: Embedded, make: Make, kind: Kind, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic = embedded.topic(1)
    own = producer(embedded)
    for number in range(3):
        own.send(Message(topic, f"{number}"))
    embedded.read_all(topic, 3)  # so that the first pull finds all of them
    make(
        PushConsumer,
        embedded.name_server,
        group=embedded.topic(),
        subscribe=topic,
        handler=handler_for(kind, lambda _: None),
        options=ConsumerOptions(start="earliest", batch=3),
    ).start()
    span = telemetry.span(f"process {topic}")
    assert attributes_of(span)["messaging.batch.message_count"] == 3
    assert sorted(linked_by(span)) == sorted(map(ids_of, telemetry.spans(f"send {topic}", 3)))


def test_poll_and_commit_have_spans(
    server: Server, make: Make, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, group = server.topic(1), server.topic()
    own = producer(server)
    own.send(Message(topic, b"1"))
    consumer = make(PullConsumer, server.name_server, group=group)
    consumer.start()
    consumer.assign(topic, start="earliest")
    [message] = consumer.poll(LONG_TIMEOUT / 2)
    with process_span(message, group=group):
        pass
    consumer.commit()
    assert consumer.poll(0.0) == []
    received = telemetry.span(f"receive {topic}")
    assert received.kind is SpanKind.CLIENT
    sent = ids_of(telemetry.span(f"send {topic}"))
    assert linked_by(received) == [sent]
    assert linked_by(telemetry.span(f"process {topic}")) == [sent]
    assert attributes_of(telemetry.span("commit"))["messaging.consumer.group.name"] == group


def test_counters_of_pull_consumers_are_metrics_while_they_are_members_of_a_group(
    server: Server, make: Make, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, group = server.topic(1), server.topic()
    producer(server).send(Message(topic, b"1"))
    options = PullOptions(start="earliest")
    member = make(PullConsumer, server.name_server, group=group, options=options)
    member.start()
    member.subscribe(topic)
    alone = make(PullConsumer, server.name_server, group=server.topic())
    alone.start()
    alone.assign(topic, start="earliest")
    wait_until(lambda: member.poll(0.1))
    [fetched] = telemetry.points("downrange.consumer.fetched")
    assert fetched.value == member.stats().fetched == 1
    assert fetched.attributes["downrange.group"] == group
    assert fetched.attributes["messaging.client.id"] == member.client.core.client_id
    member.close()
    assert telemetry.points("downrange.consumer.fetched") == []


def test_popped_messages_have_spans_until_they_are_settled(
    embedded: Embedded, make: Make, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, group = embedded.topic(1), embedded.topic()
    own = producer(embedded)
    for number in range(4):
        own.send(Message(topic, f"{number}"))
    consumer = make(SimpleConsumer, embedded.name_server, group=group, subscribe=topic)
    consumer.start()
    messages: list[Any] = []
    while len(messages) < 4:
        messages += consumer.receive(4, timeout=5.0)
    run = getattr(consumer, "_loop", None)

    def settle(work: Any) -> None:
        if run is not None:
            run.run(work)

    settle(messages[0].ack())
    settle(messages[1].retry(30))
    settle(messages[2].dead_letter("bad"))
    consumer.ack(messages[3:])
    for name in ("retry", "dead_letter"):
        assert linked_by(telemetry.span(f"{name} {topic}"))
    acks = telemetry.spans(f"ack {topic}", 2)
    assert {attributes_of(span)["messaging.operation.type"] for span in acks} == {"settle"}


def test_blocks_of_iteration_are_process_spans(
    embedded: Embedded, make: Make, kind: Kind, producer: MakeProducer, telemetry: Telemetry
) -> None:
    topic, group = embedded.topic(), embedded.topic()
    producer(embedded).send(Message(topic, b"1"))
    consumer = make(
        PushConsumer,
        embedded.name_server,
        group=group,
        subscribe=topic,
        options=ConsumerOptions(start="earliest"),
    )
    consumer.start()
    inside: list[int] = []

    def note() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    if kind == "sync":
        with next(iter(consumer)).processing():
            note()
    else:
        bare: Any = consumer

        async def one() -> None:
            async with (await anext(aiter(bare.inner))).processing():
                note()

        bare._loop.run(one())
    telemetry.span(f"receive {topic}")
    context = telemetry.span(f"process {topic}").get_span_context()
    assert context is not None
    assert inside == [context.span_id]


# ---- switching -----------------------------------------------------------------------------------


def test_suppressed_context_and_uninstrument_make_no_spans(
    embedded: Embedded, producer: MakeProducer
) -> None:
    from opentelemetry.context import attach, detach, set_value

    topic = embedded.topic()
    own = producer(embedded)
    with instrumented() as telemetry:
        token = attach(set_value("suppress_instrumentation", True))
        own.send(Message(topic, b"1"))
        detach(token)
    own.send(Message(topic, b"2"))
    assert telemetry.names() == []
    assert all("traceparent" not in each.properties for each in embedded.read_all(topic, 2))
