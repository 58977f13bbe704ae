"""Pages of tables, as 5.5 tools request them."""

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
        table: The whole table.
        current: Its data version.
        begin: Index of the page's first entry; None for the whole table.
        count: The maximum number of entries; None for no limit.
        version: The data version of the previous page, as JSON. If it is not the current one, the
            table has changed, and the first page is returned.
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
