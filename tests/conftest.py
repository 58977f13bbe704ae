"""What every test run shares: the Apache fixtures and hypothesis profiles."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.apache.fixtures"]
pytest.register_assert_rewrite("tests.conversations")

# The fast tier is the same story every time; `make fuzz` and `make campaign` look for new ones.
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=100, database=None)
settings.register_profile(
    "campaign",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("DOWNRANGE_HYPOTHESIS", "fast"))
