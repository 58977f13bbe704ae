"""Setup of every test run: the Apache fixtures, the hypothesis profiles and Spark's JVMs."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.jvm import SHORT_LIVED

pytest_plugins = ["tests.apache.fixtures"]
pytest.register_assert_rewrite("tests.conversations")

# The fast profile repeats the same examples in every run; `make fuzz` and `make campaign` search
# for new ones.
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=100, database=None)
settings.register_profile(
    "campaign",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("DOWNRANGE_HYPOTHESIS", "fast"))

os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_LIVED))
