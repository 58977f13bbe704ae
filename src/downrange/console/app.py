"""The console as an ASGI application: its parts, its addresses, its first and last code."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from downrange.console.accounts import Accounts
from downrange.console.audit import AuditLog
from downrange.console.events import LiveOverview, Streams
from downrange.console.failures import PageNotFound
from downrange.console.languages import load_languages
from downrange.console.refusals import RefusalLog
from downrange.console.rendering import shared_templates
from downrange.console.routes import actions, entry, messages, pages
from downrange.console.security import Guard, too_large
from downrange.console.sessions import LoginLimit, Sessions
from downrange.console.static_files import shared_files
from downrange.console.visits import handler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from downrange.console.cluster.view import ClusterView
    from downrange.console.settings import ConsoleOptions
    from downrange.console.visits import Visit


class Console:
    """The parts that requests share.

    Args:
        options: Who may use it, and for what.
        view: Asks the cluster.
        clock: A monotonic clock in seconds.

    Raises:
        OptionError: The access file or the audit file cannot be used.
    """

    def __init__(
        self,
        options: ConsoleOptions,
        view: ClusterView,
        *,
        accounts: Accounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.view = view
        self.accounts = accounts or Accounts(options)
        self.audit = AuditLog(options.audit_file)
        self.sessions = Sessions(clock)
        self.login_limit = LoginLimit(clock)
        self.refusals = RefusalLog(clock)
        self.languages = load_languages()
        self.static = shared_files()
        self.templates = shared_templates()
        self.streams = Streams()
        self.live = LiveOverview()


def create_app(console: Console) -> Guard:
    """Return the application; it starts and closes the view of the cluster."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        async with console.view:
            yield

    options = console.options
    app = Starlette(
        routes=_routes(console), exception_handlers={HTTPException: _not_found}, lifespan=lifespan
    )
    app.router.redirect_slashes = False  # an address has one form
    app.state.console = console
    # Outside of everything, so that the answer to an unexpected error has the headers, too.
    return Guard(
        app,
        hosts=(options.host, *options.allowed_hosts),
        is_https=options.https_certificate is not None,
    )


def _routes(console: Console) -> list[Route]:
    shown: dict[str, Any] = {
        "/": pages.overview,
        "/topics": pages.topics,
        "/topics/{topic:path}": pages.topic,
        "/messages": messages.search,
        "/message": messages.message,
        "/message/body": messages.body,
        "/groups": pages.groups,
        "/groups/{group:path}": pages.group,
        "/dead-letters": messages.dead_letter_groups,
        "/export/dead-letters": messages.export,
        "/dead-letters/{group:path}": messages.dead_letters,
        "/waiting": pages.waiting,
        "/clients": pages.clients,
        "/brokers": pages.brokers,
        "/brokers/{broker:path}": pages.broker,
        "/traces": pages.traces,
        "/audit": pages.audit,
        "/events": entry.events,
        "/events/tail": messages.tail,
    }
    return [
        *(Route(path, handler(function)) for path, function in shown.items()),
        Route("/actions/{name}", handler(actions.act), methods=["POST"]),
        Route("/login", handler(entry.login, is_open=True), methods=["GET", "POST"]),
        Route("/logout", handler(entry.logout), methods=["POST"]),
        Route("/session", handler(entry.session, is_open=True)),
        Route("/health", handler(entry.health, is_open=True)),
        Route("/static/{version}/{name:path}", console.static.serve),
    ]


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer requests that no route has."""
    assert isinstance(error, HTTPException)
    if error.status_code == 413:
        return too_large()

    async def answer(_visit: Visit) -> Response:
        if error.status_code == 405:
            raise PageNotFound(f"{request.url.path} does not take {request.method}")
        raise PageNotFound("there is no such page")

    return await handler(answer)(request)
