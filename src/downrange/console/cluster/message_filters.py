"""Filters of the live tail: by tags, by SQL92, or by a text. Evaluated here, not by brokers.

So they work with every release, and say how many messages were read for what they show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange import Sql
from downrange.console.cluster.bodies import listed_body
from downrange.console.cluster.listing import check_text
from downrange.errors import OptionError
from downrange.filters.match import Expression

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange import ReceivedMessage
    from downrange.console.cluster.pages.messages import TailRequest


def filter_of(request: TailRequest) -> Callable[[ReceivedMessage], bool]:
    """Return the function that says whether a message is wanted.

    Raises:
        InvalidSql: The expression is wrong; shows the place.
        OptionError: The filter is empty, too long, or of an unknown kind.
    """
    check_text("filter", request.filter)
    text = request.filter.strip()
    if request.filter_kind == "none" or (request.filter_kind == "tags" and text in ("", "*")):
        return lambda message: True
    if not text:
        raise OptionError(f"filter of kind {request.filter_kind!r} is empty; use the kind 'none'")
    if request.filter_kind == "tags":
        tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
        if not tags:
            raise OptionError(f"tags={text!r} contains no tag; write tags as 'new || paid'")
        return lambda message: message.tags in tags
    if request.filter_kind == "sql":
        Sql(text)  # refuses what a broker would ignore
        expression = Expression(text)
        return lambda message: expression.matches(message.properties)
    if request.filter_kind == "text":
        return _contains(text)
    raise OptionError(f"filter_kind={request.filter_kind!r} is not one of none, tags, sql, text")


def _contains(text: str) -> Callable[[ReceivedMessage], bool]:
    """Return whether the body, or a property such as a key, contains a text in any case."""
    word = text.lower()
    encoded = word.encode()

    def contains(message: ReceivedMessage) -> bool:
        body, _ = listed_body(message)
        # lower() of bytes changes ASCII only; other letters need the decoded text.
        if encoded in body.lower():
            return True
        if not word.isascii() and word in body.decode(errors="replace").lower():
            return True
        return any(word in value.lower() for value in message.properties.values())

    return contains
