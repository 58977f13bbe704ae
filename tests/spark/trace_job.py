"""The trace pipeline as a stream in its own process, to be killed by a test.

trace_job.py NAME_SERVER FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from downrange.pipelines.options import ClusterOptions, RunOptions
from downrange.pipelines.session import make_session
from downrange.pipelines.trace.pipeline import TraceOptions, run_trace

TRACE_TOPIC = "traces"


def stream_options(name_server: str, folder: Path) -> TraceOptions:
    """Return the options of the job; a test runs it again with the same ones."""
    return TraceOptions(
        output=str(folder),
        trace_topic=TRACE_TOPIC,
        cluster=ClusterOptions(name_server=name_server),
        stream=True,
        batch_messages_max=20,
        run=RunOptions(once=True),
    )


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
