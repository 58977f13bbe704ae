"""Messages and dead letters: search, one message, its body, live tail, export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse

from downrange.console.cluster.limits import PAGE_ROWS_MAX, SEARCH_ROWS_MAX
from downrange.console.cluster.pages.messages import TailRequest
from downrange.console.events import event, stream
from downrange.console.failures import Forbidden
from downrange.console.routes.queries import list_request, time, whole
from downrange.errors import OptionError
from downrange.wire.system_names import DEAD_LETTER_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from downrange.console.visits import Visit

_FILTERS: Final = ("none", "tags", "sql", "text")
_STARTS: Final = ("latest", "earliest")
_FORMS: Final = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


async def search(visit: Visit) -> Response:
    """The search for messages, and the live tail; without a topic, the empty form."""
    topic = visit.query("topic")
    may_read = visit.known_visitor.may_read
    offered = [name for name in visit.console.view.offered_topics() if may_read(name)]
    if not topic:
        return visit.page("messages.html", None, topic="", text="", offered=offered)
    _check_topic(visit, topic)
    text = visit.query("text")
    rows = whole(visit, "rows", 50, SEARCH_ROWS_MAX)
    found = await visit.console.view.search(topic, text, rows=rows)
    return visit.page("messages.html", found, topic=topic, text=text, offered=offered)


async def message(visit: Visit) -> Response:
    """One message."""
    topic, message_id = _place(visit)
    return visit.page("message.html", await visit.console.view.message(topic, message_id))


async def body(visit: Visit) -> Response:
    """The whole body of a message as a file; never shown by the browser itself."""
    topic, message_id = _place(visit)
    content = await visit.console.view.body(topic, message_id)
    letters = "".join(letter for letter in message_id if letter.isascii() and letter.isalnum())
    return Response(content, headers=_download(f"{letters[:64] or 'body'}.bin"), media_type=_BYTES)


async def tail(visit: Visit) -> Response:
    """The live tail of a topic, as events."""
    topic = visit.query("topic")
    _check_topic(visit, topic)
    kind, start = visit.query("kind") or "none", visit.query("start") or "latest"
    if kind not in _FILTERS:
        raise OptionError(f"kind: {kind[:40]!r} is not one of {', '.join(_FILTERS)}")
    if start not in _STARTS:
        raise OptionError(f"start: {start[:40]!r} is not one of {', '.join(_STARTS)}")
    values: Any = {"filter_kind": kind, "start": start}
    request = TailRequest(topic=topic, filter=visit.query("filter"), **values)

    async def events() -> AsyncIterator[bytes]:
        async for batch in visit.console.view.tail(request):
            yield event("batch", batch)

    def check() -> None:
        visit.check_login()
        _check_topic(visit, topic)

    return stream(visit.console.streams, visit.address, events(), check)


async def dead_letter_groups(visit: Visit) -> Response:
    """The groups that have dead letters."""
    page = await visit.console.view.dead_letter_groups(list_request(visit))
    return visit.page("dead_letter_groups.html", page)


async def dead_letters(visit: Visit) -> Response:
    """The dead letters of one group."""
    group = visit.request.path_params["group"]
    _check_group(visit, group)
    page = await visit.console.view.dead_letters(
        group,
        begin=time(visit, "begin"),
        end=time(visit, "end"),
        next=visit.query("next") or None,
        size=whole(visit, "size", 50, PAGE_ROWS_MAX),
    )
    return visit.page("dead_letters.html", page)


async def export(visit: Visit) -> Response:
    """Dead letters of a group as a file: CSV or JSON lines."""
    group = visit.query("group")
    _check_group(visit, group)
    form = visit.query("form") or "csv"
    if form not in _FORMS:
        raise OptionError(f"form: {form[:40]!r} is not csv or jsonl")
    pieces = visit.console.view.export_dead_letters(
        group,
        "jsonl" if form == "jsonl" else "csv",
        ids=visit.request.query_params.getlist("id"),
        begin=time(visit, "begin"),
        end=time(visit, "end"),
    )
    # The first piece is read here, so that an error becomes an error page and not a torn file.
    first = await anext(pieces, b"")

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in group)
    headers = _download(f"dead-letters-{name[:80]}.{form}")
    return StreamingResponse(content(), headers=headers, media_type=_FORMS[form])


_BYTES: Final = "application/octet-stream"


def _download(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _place(visit: Visit) -> tuple[str, str]:
    topic, message_id = visit.query("topic"), visit.query("id")
    if not topic or not message_id:
        raise OptionError("give the topic and the id of a message")
    _check_topic(visit, topic)
    return topic, message_id


def _check_topic(visit: Visit, topic: str) -> None:
    if not topic:
        raise OptionError("topic: is missing")
    if not visit.known_visitor.may_read(topic):
        raise _has_no_sub(visit, "topic", topic)


def _check_group(visit: Visit, group: str) -> None:
    if not group:
        raise OptionError("group: is missing")
    may_read = visit.known_visitor.may_read_group(group)
    if not may_read or not visit.known_visitor.may_read(DEAD_LETTER_PREFIX + group):
        raise _has_no_sub(visit, "group", group)


def _has_no_sub(visit: Visit, kind: str, name: str) -> Forbidden:
    visitor = visit.known_visitor
    named = visitor.named(name)
    return Forbidden(f"account {visitor.name!r} has no SUB permission for {kind} {named!r}")
