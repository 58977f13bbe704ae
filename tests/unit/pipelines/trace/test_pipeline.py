from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.pipelines import options, trace
from downrange.pipelines.options import RunOptions
from downrange.pipelines.trace.pipeline import TraceOptions


def make_options(more: dict[str, Any]) -> TraceOptions:
    values: dict[str, Any] = {"output": "out", **more}
    return TraceOptions(**values)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"from_time": "2026-01-02T00:00:00Z", "to_time": "2026-01-01T00:00:00Z"}, "not before"),
        ({"from_time": "yesterday"}, "not a time"),
        ({"stream": True, "to_time": "5"}, "to_time is for batches"),
        ({"run": RunOptions(every=5.0)}, "turn stream on"),
        ({"run": RunOptions(checkpoint="c")}, "turn stream on"),
        ({"topics": ("RMQ_SYS_TRACE_TOPIC",)}, "business topic"),
        ({"window": 0.5}, "window"),
        ({"late": 0.0}, "late"),
        ({"settle": -1.0}, "settle"),
        ({"batch_messages_max": 0}, "batch_messages_max"),
        ({"output": "hdfs://host/out"}, "report"),
    ],
)
def test_invalid_options_are_rejected(more: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make_options(more)


def test_the_time_range_becomes_options_of_the_source() -> None:
    options = TraceOptions(output="out", from_time="1000", to_time="2000", settle=3.0)
    source = options.source_options("a", "b")
    assert source["subscribe"] == "a,b"
    assert source["includeMetadata"] == "true"
    assert (source["startingTimestamp"], source["endingTimestamp"]) == ("1000", "5000")
    assert "startingOffsets" not in source
    everything = TraceOptions(output="out").source_options("a")
    assert everything["startingOffsets"] == "earliest"
    assert "endingTimestamp" not in everything


def test_the_report_is_in_the_output_by_default() -> None:
    assert TraceOptions(output="/out").page().as_posix() == "/out/report.html"
    elsewhere = TraceOptions(output="hdfs://host/out", report="/tmp/r.html")
    assert elsewhere.page().as_posix() == "/tmp/r.html"
    with pytest.raises(OptionError, match="not on this machine"):
        TraceOptions(output="/out", report="s3a://bucket/r.html").page()


def test_options_come_from_flags() -> None:
    made = options.make_options(
        TraceOptions, "trace", flags={"trace": {"output": "o", "topics": ("a",), "stream": True}}
    )
    assert made == TraceOptions(output="o", topics=("a",), stream=True)


def test_names_of_the_package_are_found_without_spark() -> None:
    code = (
        "import sys; import downrange.pipelines.trace as t; t.TraceOptions; "
        "print([m for m in sys.modules if m.startswith('pyspark')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
    assert all(getattr(trace, name) is not None for name in trace.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = trace.nonsense
