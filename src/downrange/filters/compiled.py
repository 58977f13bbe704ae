"""Compiled SQL92 expressions, kept for the next pull that has the same one."""

from __future__ import annotations

from typing import Final

from downrange.errors import InvalidSql
from downrange.filters.match import Expression

#: Characters of all expressions together; a compiled one takes about thirty times their space.
_TEXT_MAX: Final = 512 * 1024
#: What an entry counts besides its characters.
_ENTRY: Final = 100


class CompiledExpressions:
    """A cache: the expressions that were used last, also those that were refused.

    Args:
        text_max: The limit of all expressions together, in characters.
    """

    def __init__(self, text_max: int = _TEXT_MAX) -> None:
        self._text_max = text_max
        self._text_size = 0
        self._known: dict[str, Expression | InvalidSql] = {}  # the last used one is the last

    def __len__(self) -> int:
        """Return the number of expressions that are kept."""
        return len(self._known)

    def get(self, text: str) -> Expression:
        """Return a compiled expression.

        Raises:
            InvalidSql: Apache refuses the expression, or it exceeds a limit.
        """
        found = self._known.pop(text, None)
        if found is None:
            found = _compile(text)
            self._text_size += len(text) + _ENTRY
        self._known[text] = found
        while self._text_size > self._text_max and len(self._known) > 1:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._text_size -= len(oldest) + _ENTRY
        if isinstance(found, InvalidSql):
            raise found
        return found


def _compile(text: str) -> Expression | InvalidSql:
    try:
        return Expression(text)
    except InvalidSql as error:
        return error.with_traceback(None)
