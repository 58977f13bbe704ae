"""Wraps all handlers with the check of their declared outputs."""

from __future__ import annotations

import pytest

from downrange.server.broker import broker
from tests.unit.server.broker.declared_outputs import checked


@pytest.fixture(autouse=True)
def _checked_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, handler in broker.HANDLERS.items():
        monkeypatch.setitem(broker.HANDLERS, code, checked(handler))
