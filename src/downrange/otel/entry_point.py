"""What the command `opentelemetry-instrument` finds: an instrumentor that calls `instrument`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from downrange.otel import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Collection


class DownrangeInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments all clients of the process.

    `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=downrange` switches it off.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: it is a part of what it instruments."""
        return ()

    def _instrument(self, **settings: Any) -> None:
        instrument(
            tracer_provider=settings.get("tracer_provider"),
            meter_provider=settings.get("meter_provider"),
            continue_trace=settings.get("continue_trace", False),
        )

    def _uninstrument(self, **_: Any) -> None:
        uninstrument()
