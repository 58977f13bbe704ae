"""The trace pipeline as a stream in a process of its own, to be killed: NAME_SERVER FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from downrange.pipelines.session import make_session
from downrange.pipelines.trace.pipeline import run_trace
from tests.spark.test_trace_stream import stream_options

if __name__ == "__main__":
    session = make_session(
        "trace-job",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    run_trace(stream_options(sys.argv[1], Path(sys.argv[2])), session)
