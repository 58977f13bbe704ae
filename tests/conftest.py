"""What every test run shares: the Apache fixtures, hypothesis profiles, the table of skips."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

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

_SKIP_REPORT = Path("build/skipped.txt")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Leave a table of what was skipped and why for the end of `make test`."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        # A skip's long form is (file, line, "Skipped: reason").
        reasons[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
    lines = [f"{count:>6}  {reason}" for reason, count in reasons.most_common()]
    table = "\n".join(["", "Skipped tests", "  tests  why", *lines, ""])
    if not lines:
        table = "\nSkipped tests: none\n"
    _SKIP_REPORT.parent.mkdir(exist_ok=True)
    _SKIP_REPORT.write_text(table)
