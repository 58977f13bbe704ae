"""OpenTelemetry: one trace from a web request through a message to its handler.

python examples/opentelemetry_spans.py

Needs `pip install 'downrange[otel]' opentelemetry-sdk`.
"""

from __future__ import annotations

import threading

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import downrange as mq


def main() -> None:
    exporter = InMemorySpanExporter()  # a real program exports to a collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")
    handled = threading.Event()

    def bill(message: mq.ReceivedMessage) -> None:
        with tracer.start_as_current_span("write invoice"):  # below the process span
            print("handled", message.body.decode())
        handled.set()

    mq.instrument(tracer_provider=provider, continue_trace=True)
    with mq.Cluster() as cluster, mq.Producer(cluster.name_server, group="shop") as producer:
        with tracer.start_as_current_span("POST /orders"):
            producer.send(mq.Message("orders", "order 1"))
        options = mq.ConsumerOptions(start="earliest")
        with mq.PushConsumer(
            cluster.name_server, group="billing", subscribe="orders", handler=bill, options=options
        ):
            handled.wait(30)
    mq.uninstrument()

    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    for span in sorted(spans.values(), key=lambda each: each.start_time or 0):
        parent = spans.get(span.parent.span_id) if span.parent else None
        print(f"{span.name:16} below {parent.name if parent else 'nothing'}")


if __name__ == "__main__":
    main()
