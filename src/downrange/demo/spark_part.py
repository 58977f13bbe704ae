"""What Spark makes of the shop's day: Parquet files of all topics, and a report of the traces."""

from __future__ import annotations

from importlib.util import find_spec

from downrange.errors import MissingExtra
from downrange.pipelines.session import find_java, java_hint


def why_not() -> str | None:
    """Return why Spark cannot run here, and what to do about it; None when it can."""
    if any(find_spec(package) is None for package in ("pyspark", "pyarrow", "numpy")):
        return str(MissingExtra("the part with Spark", "spark"))
    return None if find_java() is not None else java_hint()
