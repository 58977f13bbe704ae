"""Templates: HTML in which every value is escaped, and how numbers and times are written."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from downrange.console.languages import NAMES
from downrange.console.static_files import shared_files
from downrange.console.visits import THEME_COOKIE, TOKEN_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.console.audit import AuditRecord
    from downrange.console.cluster.pages.common import Note, Paging
    from downrange.console.static_files import StaticFiles
    from downrange.console.visits import Visit

_FOLDER: Final = Path(__file__).parent / "templates"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Path -> key of the text; the order of the navigation.
PAGES: Final = (
    ("/", "overview"),
    ("/topics", "topics"),
    ("/messages", "messages"),
    ("/groups", "groups"),
    ("/dead-letters", "dead_letters"),
    ("/waiting", "waiting"),
    ("/clients", "clients"),
    ("/brokers", "brokers"),
    ("/traces", "traces"),
    ("/audit", "audit"),
)
UNKNOWN: Final = "\N{EN DASH}"


@cache
def shared_templates() -> Templates:
    """Return the templates of this process; they are compiled once."""
    return Templates(shared_files())


class Templates:
    """All templates.

    Args:
        static: For the addresses of static files.
    """

    def __init__(self, static: StaticFiles) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            {
                "number": number,
                "rate": rate,
                "bytes": size,
                "about": about,
                "percent": percent,
                "time": time,
                "duration": duration,
                "or_unknown": or_unknown,
                "path": path_of,
            }
        )
        shared: dict[str, Any] = self._environment.globals
        shared.update(
            {
                "asset": static.address,
                "pages": PAGES,
                "language_names": NAMES,
                "token_field": TOKEN_FIELD,
                "topic_address": topic_address,
                "group_address": group_address,
                "message_address": message_address,
                "broker_address": broker_address,
                "dead_letters_address": dead_letters_address,
                "list_query": list_query,
            }
        )

    def compile_all(self) -> None:
        """Compile all templates, so that no visitor waits for it."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def render(self, name: str, visit: Visit, **values: object) -> str:
        """Return a page as HTML."""
        template = self._environment.get_template(name)
        theme = visit.request.cookies.get(THEME_COOKIE)
        return template.render(
            t=visit.language.text,
            word=visit.language.word,
            note=_note_writer(visit),
            visit=visit,
            language=visit.language,
            visitor=visit.visitor,
            theme=theme if theme in ("dark", "light") else None,
            here=visit.request.url.path,
            state=visit.console.view.state,
            record=_record(visit),
            now=datetime.now(UTC),
            **{"error": None, **values},
        )


def _record(visit: Visit) -> AuditRecord | None:
    """Return the action that the visitor has just taken, if the address names one."""
    done = visit.query("done")
    if not done or visit.visitor is None:
        return None
    record = visit.console.audit.find(done)
    return record if record is not None and visit.visitor.may_see(record) else None


def _note_writer(visit: Visit) -> Callable[[Note], str]:
    return lambda note: visit.language.note(note.code, note.text, note.values)


# ---- addresses -----------------------------------------------------------------------------------


def topic_address(topic: str) -> str:
    """Return the address of a topic's page."""
    return f"/topics/{path_of(topic)}"


def group_address(group: str) -> str:
    """Return the address of a group's page."""
    return f"/groups/{path_of(group)}"


def broker_address(broker: str) -> str:
    """Return the address of a broker's page."""
    return f"/brokers/{path_of(broker)}"


def dead_letters_address(group: str) -> str:
    """Return the address of a group's dead letters."""
    return f"/dead-letters/{path_of(group)}"


def message_address(topic: str, message_id: str) -> str:
    """Return the address of a message."""
    return f"/message?{urlencode({'topic': topic, 'id': message_id})}"


def path_of(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def list_query(paging: Paging, **changes: Any) -> str:
    """Return the query of another page or order of the same list."""
    request = paging.request
    values: dict[str, Any] = {
        "search": request.search,
        "sort": request.sort,
        "order": "down" if request.is_descending else "up",
        "system": "yes" if request.with_system else "",
        "size": request.size,
        "page": 1,
        **changes,
    }
    return "?" + urlencode({name: value for name, value in values.items() if value != ""})


# ---- numbers and times ---------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a count with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate with one decimal, or none when it is large."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Return a number of bytes with its unit."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError


def about(value: float | None) -> str:
    """Return an estimated number of bytes with its unit."""
    return size(value) if not value else f"≈ {size(value)}"


def percent(value: float | None) -> str:
    """Return a part of 1 as percent."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def time(value: datetime | None) -> str:
    """Return a time in UTC."""
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def duration(value: float | None) -> str:
    """Return seconds in the two largest units."""
    if value is None:
        return UNKNOWN
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    if value < 10:
        return f"{value:.1f} s"
    seconds = round(value)
    days, seconds = divmod(seconds, 86400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def or_unknown(value: object) -> object:
    """Return a value, or a dash for None and an empty text."""
    return UNKNOWN if value is None or value == "" else value
