"""Ready-made Spark pipelines: topics to files and back, topic to topic, traces to a report.

    from downrange.pipelines import LakeOptions, RunOptions, run_lake

    summary = run_lake(
        LakeOptions(topics=("orders",), output="lake", run=RunOptions(once=True))
    )
    print(summary.rows)

The import itself does not need Spark; the use of any name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from downrange.pipelines.compact import CompactOptions, run_compact
    from downrange.pipelines.lake import LakeOptions, run_lake
    from downrange.pipelines.load import LoadOptions, run_load
    from downrange.pipelines.manifest import lake_files
    from downrange.pipelines.mirror import MirrorOptions, run_mirror
    from downrange.pipelines.options import ClusterOptions, RunOptions, SparkOptions
    from downrange.pipelines.replay import ReplayOptions, run_replay
    from downrange.pipelines.session import JavaMissing, make_session
    from downrange.pipelines.stream_run import PipelineFailed, StopRequest
    from downrange.pipelines.summary import Moment, Progress, Summary
    from downrange.pipelines.topic_copy import TargetOptions
    from downrange.pipelines.trace.pipeline import TraceOptions, run_trace

__all__ = [
    "ClusterOptions",
    "CompactOptions",
    "JavaMissing",
    "LakeOptions",
    "LoadOptions",
    "MirrorOptions",
    "Moment",
    "PipelineFailed",
    "Progress",
    "ReplayOptions",
    "RunOptions",
    "SparkOptions",
    "StopRequest",
    "Summary",
    "TargetOptions",
    "TraceOptions",
    "lake_files",
    "make_session",
    "run_compact",
    "run_lake",
    "run_load",
    "run_mirror",
    "run_replay",
    "run_trace",
]

#: Module -> the names that it exports here.
_MODULES: Final = {
    "compact": ("CompactOptions", "run_compact"),
    "topic_copy": ("TargetOptions",),
    "lake": ("LakeOptions", "run_lake"),
    "load": ("LoadOptions", "run_load"),
    "manifest": ("lake_files",),
    "mirror": ("MirrorOptions", "run_mirror"),
    "replay": ("ReplayOptions", "run_replay"),
    "stream_run": ("PipelineFailed", "StopRequest"),
    "session": ("JavaMissing", "make_session"),
    "options": ("ClusterOptions", "RunOptions", "SparkOptions"),
    "summary": ("Moment", "Progress", "Summary"),
    "trace.pipeline": ("TraceOptions", "run_trace"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
