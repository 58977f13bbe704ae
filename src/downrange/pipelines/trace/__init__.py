"""The trace topic as tables, measures and a report that opens without a network.

    from downrange.pipelines.trace import build_report, trace_tables, write_tables

    tables = write_tables(trace_tables(traces), "traces")
    build_report(tables, "traces/report.html")

The import itself does not need Spark; the use of any name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from downrange.pipelines.trace.measures import TraceMeasures, trace_measures
    from downrange.pipelines.trace.pipeline import TraceOptions, run_trace
    from downrange.pipelines.trace.report import build_report
    from downrange.pipelines.trace.table_files import read_tables, write_measures, write_tables
    from downrange.pipelines.trace.tables import TraceTables, trace_tables
    from downrange.pipelines.trace.trace_stream import stream_tables

__all__ = [
    "TraceMeasures",
    "TraceOptions",
    "TraceTables",
    "build_report",
    "read_tables",
    "run_trace",
    "stream_tables",
    "trace_measures",
    "trace_tables",
    "write_measures",
    "write_tables",
]

_MODULES: Final = {
    "TraceMeasures": "measures",
    "TraceOptions": "pipeline",
    "TraceTables": "tables",
    "build_report": "report",
    "read_tables": "table_files",
    "run_trace": "pipeline",
    "stream_tables": "trace_stream",
    "trace_measures": "measures",
    "trace_tables": "tables",
    "write_measures": "table_files",
    "write_tables": "table_files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
