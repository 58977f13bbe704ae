"""Tables in pages, as 5.5 tools ask for them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from downrange.errors import WireError
from downrange.wire.bodies import DataVersion, decode_body

if TYPE_CHECKING:
    from collections.abc import Mapping

ValueT = TypeVar("ValueT")


def page(
    table: Mapping[str, ValueT],
    current: DataVersion,
    *,
    begin: int | None,
    count: int | None,
    version: str | None,
) -> dict[str, ValueT]:
    """Return a part of a table.

    Args:
        table: All of it.
        current: Its data version.
        begin: Where the page begins; None asks for everything.
        count: How long it may be; None for no limit.
        version: The data version of the page before, as JSON. If it is another one by now, the
            table changed meanwhile, and the pages begin anew.
    """
    if begin is None:
        return dict(table)
    if not _is_current(version, current):
        begin = 0
    begin = max(begin, 0)
    end = None if count is None else begin + max(count, 0)
    return dict(islice(table.items(), begin, end))


def _is_current(version: str | None, current: DataVersion) -> bool:
    if version is None:
        return False
    try:
        return decode_body(DataVersion, version.encode(errors="replace")) == current
    except WireError:
        return False
