"""The console on a fake view, with Starlette's test client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.testclient import TestClient

from downrange.console.app import Console, create_app
from downrange.console.settings import ConsoleOptions
from tests.support.clock import FakeClock
from tests.unit.console.fake_view import FakeView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from httpx2 import Response

    from downrange.console.cluster.view import ClusterView


@dataclass
class Visitor:
    """A browser with cookies, and the console that it visits.

    Attributes:
        http: The browser.
        view: The fake cluster.
        console: The console.
        clock: Its clock.
    """

    http: TestClient
    view: FakeView
    console: Console
    clock: FakeClock

    def get(self, address: str, **options: Any) -> Response:
        return self.http.get(address, follow_redirects=False, **options)

    def token(self) -> str:
        """Return the token that forms carry."""
        token: str = self.http.get("/session").json()["token"]
        return token

    def post(self, address: str, fields: dict[str, Any] | None = None, **options: Any) -> Response:
        """Send a form with its token."""
        form = {"token": self.token(), **(fields or {})}
        return self.http.post(address, data=form, follow_redirects=False, **options)

    def text(self, address: str) -> str:
        """Return a page that must exist."""
        response = self.get(address)
        assert response.status_code == 200, response.text
        return re.sub(r"\s+", " ", response.text)


@pytest.fixture
def make_visitor(tmp_path: Path) -> Iterator[Callable[..., Visitor]]:
    clients: list[TestClient] = []

    def make(**options: Any) -> Visitor:
        view, clock = FakeView(), FakeClock()
        options.setdefault("audit_file", tmp_path / "audit.jsonl")
        settings = ConsoleOptions(**options)
        console = Console(settings, cast("ClusterView", view), clock=clock)
        http = TestClient(create_app(console), base_url="http://127.0.0.1:9877")
        http.__enter__()
        clients.append(http)
        return Visitor(http, view, console, clock)

    yield make
    for http in clients:
        http.__exit__()


@pytest.fixture
def visitor(make_visitor: Callable[..., Visitor]) -> Visitor:
    return make_visitor()
