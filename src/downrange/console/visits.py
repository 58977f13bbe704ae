"""A visit: one request with who made it, in which language, and how the answer is wanted.

`handler` turns a function of a visit into an endpoint: it finds the visitor, asks for a login,
turns errors into pages, logs refused forms, and sets the cookies.

The cookies are SameSite=lax: a browser sends them when the visitor follows a link of another site,
and not with what a page of another site posts or loads. With `strict`, such a link came without the
session, so that the answer asked for a login and replaced the cookie. Lax is enough because no GET
changes anything, and because each POST needs a token that no other site can read, and an Origin and
a Sec-Fetch-Site of this site.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from starlette.responses import RedirectResponse, Response

from downrange.console import sessions
from downrange.console.failures import ForgedRequest, LoginNeeded, UnreadableForm, status_of
from downrange.console.forms import read_form
from downrange.console.languages import choose
from downrange.errors import RocketMQError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from downrange.console.accounts import Visitor
    from downrange.console.app import Console
    from downrange.console.forms import Form
    from downrange.console.languages import Language

_log: Final = logging.getLogger("downrange.console")

LANGUAGE_COOKIE: Final = "downrange_language"
THEME_COOKIE: Final = "downrange_theme"
TOKEN_FIELD: Final = "token"
TOKEN_HEADER: Final = "x-downrange-token"
#: On what a script of a page asks for by itself. Such a request does not keep a session alive; nor
#: does the stream of the overview, which every visible page opens.
REFRESH_HEADER: Final = "x-downrange-refresh"
_OVERVIEW_STREAM: Final = "/events"
_LANGUAGE_SECONDS: Final = 365 * 86400


@dataclass(slots=True)
class Visit:
    """One request.

    Attributes:
        request: The request.
        console: What serves it.
        session_id: From the cookie, or new.
        visitor: Who it is; None before a login.
        language: The language of the answer.
    """

    request: Request
    console: Console
    session_id: str
    visitor: Visitor | None
    language: Language

    @property
    def known_visitor(self) -> Visitor:
        """Who it is, behind a login."""
        assert self.visitor is not None
        return self.visitor

    @property
    def wants_json(self) -> bool:
        """Whether the answer is for a program."""
        form = self.request.query_params.get("format")
        if form is not None:
            return form == "json"
        accepted = self.request.headers.get("accept", "")
        return "application/json" in accepted and "text/html" not in accepted

    @property
    def cookie(self) -> str:
        """The name of the cookie that has the session."""
        return _cookie_of(self.request)

    @property
    def token(self) -> str:
        """The token of this session's forms."""
        return self.console.sessions.token(self.session_id)

    @property
    def address(self) -> str:
        """The address of the visitor."""
        return self.request.client.host if self.request.client else "unknown"

    def query(self, name: str) -> str:
        """Return a text of the query, or ""."""
        return self.request.query_params.get(name, "")

    def page(self, template: str, page: object, **more: object) -> Response:
        """Answer with a page: as HTML by a template, or as JSON."""
        if self.wants_json:
            return self.json(page)
        return self.html(template, 200, page=page, **more)

    def html(self, template: str, code: int = 200, **values: object) -> Response:
        """Answer with HTML, by a template and its values; `code` is the HTTP status."""
        text = self.console.templates.render(template, self, **values)
        return Response(text, code, media_type="text/html")

    def json(self, value: object, status: int = 200) -> Response:
        """Answer with JSON."""
        return Response(msgspec.json.encode(value), status, media_type="application/json")

    def problem(self, error: RocketMQError, **more: Any) -> Response:
        """Answer with an error."""
        status = status_of(error)
        if self.wants_json:
            kind = type(error).__name__
            return self.json({"error": {"kind": kind, "text": str(error), **more}}, status)
        return self.html("problem.html", status, error=error, status=status, **more)

    def check_login(self) -> None:
        """Look up the visitor once more, for a request that takes long. It counts as no use.

        Raises:
            LoginNeeded: The session has ended, or the account is gone.
        """
        self.visitor = _find_visitor(self.console, self.session_id, is_use=False)
        if self.visitor is None:
            raise LoginNeeded("the session has ended: log in again")

    async def form(self) -> Form:
        """Read the form of a POST and check its token.

        Raises:
            ForgedRequest: The token is missing or wrong, or another site made the request.
            UnreadableForm: The form cannot be read.
        """
        headers = self.request.headers
        self._check_origin()
        form = await read_form(self.request)
        token = headers.get(TOKEN_HEADER) or form.optional(TOKEN_FIELD) or ""
        if self.cookie not in self.request.cookies or not self.console.sessions.is_token(
            self.session_id, token
        ):
            raise ForgedRequest(
                "the form has no valid token: load the page again, then send it once more"
            )
        return form

    def _check_origin(self) -> None:
        headers = self.request.headers
        origin = headers.get("origin")
        is_other = origin is not None and _host_of(origin) != headers.get("host")
        if is_other or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ForgedRequest("the request was made by a page of another site")


def _host_of(origin: str) -> str | None:
    """Return host and port of an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def handler(
    function: Callable[[Visit], Awaitable[Response]], *, is_open: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """Make a function of a visit an endpoint.

    Args:
        function: Answers a visit.
        is_open: Whether it works without a login.
    """

    @functools.wraps(function)
    async def endpoint(request: Request) -> Response:
        visit = _visit(request)
        if visit.visitor is None and not is_open:
            if request.method == "POST":
                _log_refusal(visit, LoginNeeded("it needs a login"))
            response = _ask_for_login(visit)
        else:
            try:
                response = await function(visit)
            except RocketMQError as error:
                if isinstance(error, ForgedRequest | UnreadableForm):
                    _log_refusal(visit, error)
                response = visit.problem(error)
        _set_cookies(visit, response)
        return response

    return endpoint


def _visit(request: Request) -> Visit:
    console: Console = request.app.state.console
    given = request.cookies.get(_cookie_of(request))
    session_id = given if given is not None and sessions.is_id(given) else sessions.new_id()
    is_use = request.url.path != _OVERVIEW_STREAM and REFRESH_HEADER not in request.headers
    visitor = _find_visitor(console, session_id, is_use=is_use)
    chosen = request.query_params.get("lang") or request.cookies.get(LANGUAGE_COOKIE)
    accepted = request.headers.get("accept-language", "")
    return Visit(request, console, session_id, visitor, choose(chosen, accepted, console.languages))


def _cookie_of(request: Request) -> str:
    """Return the name of the session's cookie, by the port on which this console listens."""
    _, port = request.scope["server"]  # of the socket; a Host header may name a proxy's port
    return sessions.cookie_name(port)


def _find_visitor(console: Console, session_id: str, *, is_use: bool) -> Visitor | None:
    """Return who has a session, with the rights of this moment; None if a login is needed."""
    visitor = console.accounts.anonymous()
    if visitor is not None:
        return visitor
    found = console.sessions.find(session_id, is_use=is_use)
    visitor = None if found is None else console.accounts.current(found)
    if found is not None and visitor is None:
        console.sessions.end(session_id)
    return visitor


def _log_refusal(visit: Visit, error: RocketMQError) -> None:
    request = visit.request
    origin = request.headers.get("origin")
    visit.console.refusals.add(visit.address, request.url.path, origin, str(error))


def _ask_for_login(visit: Visit) -> Response:
    if visit.wants_json or visit.request.url.path.startswith("/events"):
        problem = {"kind": "LoginNeeded", "text": "log in at /login first"}
        return visit.json({"error": problem}, 401)
    url = visit.request.url
    target = url.path + (f"?{url.query}" if url.query else "")
    is_page = visit.request.method == "GET" and target != "/"
    return RedirectResponse(f"/login?next={quote(target, safe='')}" if is_page else "/login", 303)


def _set_cookies(visit: Visit, response: Response) -> None:
    is_https = visit.request.url.scheme == "https"
    given = visit.request.cookies.get(visit.cookie)
    # A form that another site posts comes without the cookie. A new one would log the visitor out.
    is_post_without = given is None and visit.request.method == "POST"
    if given != visit.session_id and not is_post_without:
        response.set_cookie(
            visit.cookie,
            visit.session_id,
            httponly=True,
            samesite="lax",
            secure=is_https,
        )
    if visit.query("lang") == visit.language.code:
        response.set_cookie(
            LANGUAGE_COOKIE,
            visit.language.code,
            max_age=_LANGUAGE_SECONDS,
            httponly=True,
            samesite="lax",
            secure=is_https,
        )
