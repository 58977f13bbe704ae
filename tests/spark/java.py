"""Checks for Java, which Spark needs, and makes Spark's Python processes start fast."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from downrange.pipelines.session import find_java, java_hint

#: What Spark's Python processes import before they connect to Java.
_IMPORTS = (
    "pyspark.daemon, pyspark.worker, pyspark.cloudpickle, downrange.spark.source, "
    "pyspark.sql.streaming.python_streaming_source_runner, pyspark.sql.worker.create_data_source, "
    "pyspark.sql.worker.lookup_data_sources, pyspark.sql.worker.plan_data_source_read, "
    "pyspark.sql.worker.python_streaming_sink_runner, pyspark.sql.worker.write_into_data_source, "
    "pyspark.sql.worker.commit_data_source_write"
)


def skip_without_java() -> None:
    """Skip a test if Spark cannot run, or fail with DOWNRANGE_REQUIRE_APACHE=1."""
    if find_java() is None:
        reason = f"Spark cannot run here: {java_hint()}"
        if os.environ.get("DOWNRANGE_REQUIRE_APACHE") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    _compile()


@cache
def _compile() -> None:
    """Have the bytecode of these modules written, which makes a start twice as fast.

    Java waits for a Python process for ten seconds, which cannot be changed. An installation has
    no bytecode, and with PYTHONDONTWRITEBYTECODE each process would compile all modules again.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, "-c", f"import {_IMPORTS}"]
    subprocess.run(command, env=environment, check=True, timeout=300)
