"""Transactions are tested twice: with halves as single requests, and as runs."""

from __future__ import annotations

import pytest

from tests.unit.server.broker.transaction_stage import TransactionStage


@pytest.fixture(params=["requests", "runs"], autouse=True)
def takes_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let all brokers of a test take one of the two paths; return whether it is that of runs."""
    is_run: bool = request.param == "runs"
    monkeypatch.setattr(TransactionStage, "takes_runs", is_run)
    return is_run
