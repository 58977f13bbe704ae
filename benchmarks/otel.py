"""The cost of OpenTelemetry: CPU time of one send with spans, less that without.

Three ways to send: the call alone (`send` returns a receipt at once), threads (one message after
the other, to a server in a child process), and asyncio (100 messages at a time, to the same
server). Only the CPU time of this process counts, that of the SDK's thread included. The SDK has a
batch processor whose exporter drops the spans, and a meter whose reader is never asked.

One producer sends in all states, in short turns of some 25 ms, so that the states differ in nothing
else. Each round has one turn of each state, and begins with another state than the round before:

    off                     without `instrument()`: the method is that of the client itself
    the SDK's span          the program makes a span around each send, with as many attributes
    spans                   `instrument()`, without metrics
    the SDK's span, metrics the program also records the two metrics of a send
    spans, metrics          `instrument()`, with metrics
    without an SDK          `instrument()`, where no span is made

A cost is the median, over all rounds, of the difference to another state of the same round. The
range in parentheses has the middle half of the rounds. What the SDK's span costs is not ours; our
part is the difference between "spans" and that. The target for it is at most 15 µs per send.

    python -m benchmarks.otel [--rounds 100] [--calls-only]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind

import downrange as mq
from benchmarks import server_pair
from downrange.client.flows.routing.routes import MASTER, route_of
from downrange.otel import names
from downrange.wire.bodies import BrokerReplicas, RouteBody

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

TOPIC: Final = "otel_cost"
#: Sends of a turn.
TURN: Final = 200
RECEIPT: Final = mq.SendReceipt(
    message_id="7F00000100010000000000000000000A",
    queue=mq.QueueId(TOPIC, "broker-a", 1),
    offset=7,  # type: ignore[arg-type]
    offset_id="7F00000100002A9F0000000000000007",
)
BROKER: Final = BrokerReplicas(
    cluster="c", broker_name="broker-a", broker_addrs={MASTER: "127.0.0.1:10911"}
)
ROUTE: Final = RouteBody(broker_datas=[BROKER])
OFF: Final = "off"
SDK: Final = "the SDK's span"
SPANS: Final = "spans"
SDK_METRICS: Final = "the SDK's span, metrics"
SPANS_METRICS: Final = "spans, metrics"
NO_SDK: Final = "without an SDK"
STATES: Final = (OFF, SDK, SPANS, SDK_METRICS, SPANS_METRICS, NO_SDK)

MEASURED: Final[dict[str, str]] = {
    names.SYSTEM: names.SYSTEM_NAME,
    names.OPERATION_NAME: "send",
    names.OPERATION_TYPE: "send",
    names.DESTINATION: TOPIC,
}
BEFORE: Final[dict[str, str]] = {
    **MEASURED,
    names.CLIENT_ID: "127.0.0.1@4711",
    names.MESSAGE_TYPE: "normal",
}
AFTER: Final[dict[str, str | int]] = {
    names.MESSAGE_ID: RECEIPT.message_id,
    names.PARTITION: "1",
    names.SERVER_ADDRESS: "127.0.0.1",
    names.SERVER_PORT: 10911,
}


class Dropped(SpanExporter):
    """Exports nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop the spans."""
        return SpanExportResult.SUCCESS


class OwnSpans:
    """What a program does that makes the span of each send itself, with nothing else around it."""

    def __init__(self, provider: TracerProvider, meters: MeterProvider | None) -> None:
        self._tracer = provider.get_tracer("program")
        self._has_metrics = meters is not None
        if meters is not None:
            meter = meters.get_meter("program")
            self._duration = meter.create_histogram(
                names.OPERATION_DURATION,
                "s",
                explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
            )
            self._sent = meter.create_counter(names.SENT_MESSAGES)

    def start(self) -> Span:
        """Start a span."""
        return self._tracer.start_span("send orders", kind=SpanKind.PRODUCER, attributes=BEFORE)

    def end(self, span: Span) -> None:
        """End it, with the attributes of a receipt."""
        span.set_attributes(AFTER)
        span.end()
        if self._has_metrics:
            self._duration.record(0.001, MEASURED)
            self._sent.add(1, MEASURED)


class State:
    """How the program sends: with spans of its own, with ours, or without.

    Args:
        name: One of `STATES`.

    Attributes:
        own: Makes the program's own spans.
        send, send_async: The methods of producers.
    """

    def __init__(self, name: str) -> None:
        self.own: OwnSpans | None = None
        self._provider: TracerProvider | None = None
        if name == NO_SDK:
            mq.instrument()
        elif name != OFF:
            self._provider = provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(Dropped(), max_queue_size=100_000))
            has_metrics = name in (SDK_METRICS, SPANS_METRICS)
            meters = MeterProvider([InMemoryMetricReader()]) if has_metrics else None
            if name in (SDK, SDK_METRICS):
                self.own = OwnSpans(provider, meters)
            else:
                mq.instrument(tracer_provider=provider, meter_provider=meters)
        self.send: Any = mq.Producer.send
        self.send_async: Any = mq.AsyncProducer.send
        mq.uninstrument()

    def flush(self) -> None:
        """Export what has not been exported yet."""
        if self._provider is not None:
            self._provider.force_flush()

    def end(self) -> None:
        """End the SDK's thread."""
        if self._provider is not None:
            self._provider.shutdown()


@contextmanager
def all_states() -> Generator[dict[str, State]]:
    """Make all states."""
    states = {name: State(name) for name in STATES}
    try:
        yield states
    finally:
        for state in states.values():
            state.end()


def send_several(producer: mq.Producer, state: State) -> None:
    """Send the messages of a turn, one after the other."""
    send, own = state.send, state.own
    if own is None:
        for _ in range(TURN):
            send(producer, mq.Message(TOPIC, b"x" * 1024))
    else:
        for _ in range(TURN):
            span = own.start()
            send(producer, mq.Message(TOPIC, b"x" * 1024))
            own.end(span)


async def send_several_async(producer: mq.AsyncProducer, state: State) -> None:
    """Send the messages of a turn, 100 at a time."""
    send, own = state.send_async, state.own

    async def send_own() -> None:
        assert own is not None
        span = own.start()
        await send(producer, mq.Message(TOPIC, b"x" * 1024))
        own.end(span)

    for _ in range(TURN // 100):
        if own is None:
            sends = [send(producer, mq.Message(TOPIC, b"x" * 1024)) for _ in range(100)]
        else:
            sends = [send_own() for _ in range(100)]
        await asyncio.gather(*sends)


def turns(rounds: int) -> Iterator[str]:
    """Yield the states in the order of their turns; the first round is not measured."""
    for number in range(rounds + 1):
        first = number % len(STATES)
        yield from STATES[first:] + STATES[:first]


class Costs:
    """The CPU time of a send in each turn, in microseconds."""

    def __init__(self) -> None:
        self._figures: dict[str, list[float]] = {name: [] for name in STATES}

    @contextmanager
    def turn(self, name: str, state: State) -> Generator[None]:
        """Measure a turn."""
        began = time.process_time()
        yield
        state.flush()
        self._figures[name].append(1e6 * (time.process_time() - began) / TURN)

    def show(self, way: str) -> None:
        """Print the medians of all rounds but the first, in which caches fill."""

        def line(what: str, name: str, less: str | None) -> None:
            figures = self._figures[name][1:]
            if less is not None:
                figures = [a - b for a, b in zip(figures, self._figures[less][1:], strict=True)]
            low, middle, high = statistics.quantiles(figures, n=4)
            print(f"{way:15} {what:27} {middle:6.1f} µs per send ({low:.1f} to {high:.1f})")

        line("a send without spans", OFF, None)
        for name in STATES[1:]:
            line(f"+ {name}", name, OFF)
        line("our part of spans", SPANS, SDK)
        line("our part of spans, metrics", SPANS_METRICS, SDK_METRICS)


def measure_calls(rounds: int) -> Costs:
    """Measure sends that do nothing."""
    options = mq.ClientOptions(connect_on_start=False)
    costs = Costs()
    with (
        _sends_that_return_at_once(),
        mq.Producer("127.0.0.1:9", group="cost", client_options=options) as producer,
        all_states() as states,
    ):
        inner: Any = producer  # spans have the address of the broker, from the topic's route
        inner._core.client.routes.replace(route_of(TOPIC, ROUTE))
        for name in turns(rounds):
            with costs.turn(name, states[name]):
                send_several(producer, states[name])
    return costs


@contextmanager
def _sends_that_return_at_once() -> Generator[None]:
    def send(
        producer: mq.Producer, message: mq.Message, *, queue: Any = None, timeout: Any = None
    ) -> mq.SendReceipt:
        return RECEIPT

    original = mq.Producer.send
    mq.Producer.send = send  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        mq.Producer.send = original  # type: ignore[method-assign]


def measure_threads(address: str, rounds: int) -> Costs:
    """Measure sends of a thread."""
    costs = Costs()
    with mq.Producer(address, group="cost") as producer, all_states() as states:
        for name in turns(rounds):
            with costs.turn(name, states[name]):
                send_several(producer, states[name])
    return costs


async def measure_asyncio(address: str, rounds: int) -> Costs:
    """Measure sends on an event loop."""
    costs = Costs()
    async with mq.AsyncProducer(address, group="cost") as producer:
        with all_states() as states:
            for name in turns(rounds):
                with costs.turn(name, states[name]):
                    await send_several_async(producer, states[name])
    return costs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls-only", action="store_true")
    options = parser.parse_args()
    measure_calls(options.rounds).show("the call alone")
    if options.calls_only:
        return
    with server_pair.start("downrange") as server:
        server.make_topic(TOPIC)
        measure_threads(server.name_server, options.rounds).show("threads")
        asyncio.run(measure_asyncio(server.name_server, options.rounds)).show("asyncio")


if __name__ == "__main__":
    main()
