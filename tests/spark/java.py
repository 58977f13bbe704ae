"""Checks for Java, which Spark needs."""

from __future__ import annotations

import os

import pytest

from downrange.pipelines.session import find_java, java_hint


def skip_without_java() -> None:
    """Skip a test if Spark cannot run, or fail with DOWNRANGE_REQUIRE_APACHE=1."""
    if find_java() is None:
        reason = f"Spark cannot run here: {java_hint()}"
        if os.environ.get("DOWNRANGE_REQUIRE_APACHE") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
