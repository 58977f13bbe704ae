"""The text of the search box: what is it, an id, a key, a time, or a place in a queue? Pure.

Forms overlap: 32 hexadecimal digits may be an id or a key, and 15m an age or a key. A prefix such
as `key=` decides. Without one, the likelier form is taken, and an id that does not exist is looked
for as a key. A time without a zone is in UTC, as all times of the pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError
from downrange.options.times import parse_time

if TYPE_CHECKING:
    from datetime import datetime

    from downrange.console.cluster.pages.messages import SearchKind

#: An id of a message has the bytes of an IPv4 or an IPv6 address.
_ID: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
#: [broker:]queue:offset, or as `downrange tail` prints it: [broker/]queue@offset.
_PLACE: Final = re.compile(r"(?:(.+)[:/])?(\d{1,9})[:@](\d{1,18})", re.ASCII)
_AGE: Final = re.compile(r"\d+(?:\.\d+)?[smhd]", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?", re.ASCII)
_PREFIXES: Final = ("id", "key", "time", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched for.

    Attributes:
        kind: What the text was taken for.
        word: The id or the key.
        at: The time.
        broker: The broker of a place; None for each that has such a queue.
        queue: The number of the queue.
        offset: The offset.
        is_certain: Whether a prefix said what it is.
    """

    kind: SearchKind
    word: str = ""
    at: datetime | None = None
    broker: str | None = None
    queue: int = 0
    offset: int = 0
    is_certain: bool = False


def read_search(text: str, now: datetime) -> Search:
    """Return what a text means.

    Args:
        text: The text of the search box.
        now: The time, for ages such as 15m.

    Raises:
        OptionError: A prefix says what it is, and it is not.
    """
    word = text.strip()
    prefix, mark, rest = word.partition("=")
    if mark and prefix in _PREFIXES:
        return _certain(prefix, rest.strip(), now)
    if not word:
        return Search(kind="newest")
    if _ID.fullmatch(word):
        return Search(kind="id", word=word)
    if (place := _PLACE.fullmatch(word)) is not None:
        return _place(place)
    if _AGE.fullmatch(word.lower()) or _DATE.fullmatch(word):
        return Search(kind="time", at=parse_time("search", word, now, zone=UTC))
    return Search(kind="key", word=word)


def _certain(prefix: str, word: str, now: datetime) -> Search:
    if not word:
        raise OptionError(f"search {prefix + '='!r} has nothing behind it")
    if prefix == "time":
        at = parse_time("time=", word, now, zone=UTC)
        return Search(kind="time", at=at, is_certain=True)
    if prefix == "offset":
        place = _PLACE.fullmatch(word)
        if place is None:
            raise OptionError(
                f"offset={word!r} is neither queue:offset such as 3:1200 nor broker:queue:offset"
            )
        return _place(place, is_certain=True)
    return Search(kind="id" if prefix == "id" else "key", word=word, is_certain=True)


def _place(found: re.Match[str], *, is_certain: bool = False) -> Search:
    broker, queue, offset = found.groups()
    return Search(
        kind="offset", broker=broker, queue=int(queue), offset=int(offset), is_certain=is_certain
    )
