"""Login, logout, the session for programs, health, and the live overview."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from downrange.console.events import stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from downrange.console.visits import Visit

_log: Final = logging.getLogger("downrange.console")


async def login(visit: Visit) -> Response:
    """Show the login form, or log in."""
    target = safe_target(visit.query("next"))
    if visit.request.method != "POST":
        if visit.visitor is not None:
            return RedirectResponse(target, 303)
        return _form(visit, target, 200)
    form = await visit.form()
    target = safe_target(form.raw("next"))
    limit = visit.console.login_limit
    wait = limit.wait(visit.address)
    if wait > 0:
        response = _form(visit, target, 429, wait=math.ceil(wait))
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    name = form.raw("name").strip()
    visitor = visit.console.accounts.log_in(name, form.raw("secret"))
    if visitor is None:
        limit.add_failure(visit.address)
        _log.warning("a login from %s failed", visit.address)
        return _form(visit, target, 403, is_wrong=True)
    limit.clear(visit.address)
    visit.console.sessions.end(visit.session_id)
    visit.session_id = visit.console.sessions.begin(visitor)
    if visit.wants_json:
        visit.visitor = visitor
        return await session(visit)
    return RedirectResponse(target, 303)


async def logout(visit: Visit) -> Response:
    """Log out."""
    await visit.form()
    visit.console.sessions.end(visit.session_id)
    return RedirectResponse("/login" if visit.console.options.needs_login else "/", 303)


async def session(visit: Visit) -> Response:
    """What a program needs to send forms: the token, and what this visitor may do."""
    visitor = visit.visitor
    return visit.json(
        {
            "visitor": None if visitor is None else visitor.name,
            "needs_login": visitor is None,
            "may_act": visitor is not None and visitor.may_act,
            "may_administer": visitor is not None and visitor.may_administer,
            "token": visit.token,
        }
    )


async def events(visit: Visit) -> Response:
    """The live overview: an event now and after each poll of the cluster."""
    console = visit.console

    async def overviews() -> AsyncIterator[bytes]:
        async for overview in console.view.overviews():
            yield console.live.event(overview)

    return stream(console.streams, visit.address, overviews(), visit.check_login)


async def health(visit: Visit) -> Response:
    """Whether the console serves, and whether the cluster answers it."""
    return visit.json({"status": "ok", "is_cluster_up": visit.console.view.state.is_up})


def safe_target(target: str) -> str:
    """Return a page of this console to go to after a login; never one of another site.

    Browsers take two slashes, of either kind, for the address of another site, and drop tabs and
    line ends.
    """
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\"))
    is_plain = all(" " < letter < "\x7f" and letter != "\\" for letter in target)
    return target if is_ours and is_plain else "/"


def _form(visit: Visit, target: str, status: int, **more: object) -> Response:
    if visit.wants_json:
        text = "too many failed logins" if "wait" in more else "name or secret is wrong"
        return visit.json({"error": {"kind": "LoginFailed", "text": text, **more}}, status)
    values = {"wait": None, "is_wrong": False, **more}
    has_names = visit.console.accounts.has_names
    return visit.html("login.html", status, target=target, has_names=has_names, **values)
