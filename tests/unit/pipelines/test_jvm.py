"""Which lines of Java's standard error are forwarded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from downrange.pipelines.jvm import forward_errors, without_noise

if TYPE_CHECKING:
    import pytest

GONE = [
    "Traceback (most recent call last):\n",
    '  File "x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    "BrokenPipeError: [Errno 32] Broken pipe\n",
]
REAL = [
    "Traceback (most recent call last):\n",
    '  File "x/pyspark.zip/pyspark/daemon.py", line 1, in manager\n',
    "MemoryError\n",
]


def test_only_harmless_messages_are_dropped() -> None:
    lines = ["WARNING: Using incubator modules: x\n", "one\n", *GONE, "two\n", *REAL, "three\n"]
    assert "".join(without_noise(lines)) == "".join(["one\n", "two\n", *REAL, "three\n"])


def test_incomplete_traceback_is_forwarded() -> None:
    assert "".join(without_noise(REAL[:2])) == "".join(REAL[:2])


def test_lines_reach_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    forward_errors(io.BytesIO(b"spark: ERROR \xff\n"))
    assert capsys.readouterr().err == "spark: ERROR \ufffd\n"
