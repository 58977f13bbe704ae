"""All parts of the instrumentation, installed together and removed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.otel.calls import Replacements
from downrange.otel.client_metrics import ClientMetrics
from downrange.otel.handlers import ProcessSpans
from downrange.otel.receives import ReceiveSpans
from downrange.otel.sends import SendSpans
from downrange.otel.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class Instrumentation:
    """Replaces methods of the public classes until it is removed.

    Args:
        tracer_provider: Makes the spans; the global one if None.
        meter_provider: Makes the metrics; the global one if None.
        continue_trace: Whether the span of one handled message belongs to the message's trace.

    Attributes:
        telemetry: Makes spans and measurements.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        continue_trace: bool,
    ) -> None:
        self.telemetry = Telemetry(tracer_provider, meter_provider, continue_trace)
        self._methods = Replacements()
        for part in (SendSpans, ReceiveSpans, ProcessSpans, ClientMetrics):
            part(self.telemetry).install(self._methods)

    def remove(self) -> None:
        """Put the original methods back."""
        self._methods.restore()
