"""The words of an SQL92 filter expression.

The same words as in Apache's parser: key words and names are ASCII and key words ignore case; the
longest match wins; blanks and comments are skipped. A comment from `--` on needs the end of its
line: without it, the first `-` is a word of its own.

One rule: words are read when the parser needs them. Apache ignores everything after the end of an
expression, so a mistake there must not be found here.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from downrange.errors import InvalidSql

#: Key words, by which `Token.kind` names them.
KEY_WORDS: Final = frozenset(
    (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
)
NAME: Final = "name"
TEXT: Final = "text"
INTEGER: Final = "integer"
DECIMAL: Final = "decimal"
END: Final = "end"

_SYMBOL: Final = "symbol"
_BLANKS: Final = r"[ \t\n\r\f]+"
_COMMENT: Final = r"/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/"
_SKIPPED: Final = re.compile(rf"(?:{_BLANKS}|--[^\n\r]*(?:\r\n|\n|\r)|{_COMMENT})+")
#: In the last line, where no comment from `--` on can end.
_SKIPPED_LAST: Final = re.compile(rf"(?:{_BLANKS}|{_COMMENT})+")
_WORD: Final = re.compile(
    r"(?P<decimal>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<text>'[^']*(?:''[^']*)*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<symbol><>|<=|>=|[<>=(),+-])"
)


class Token(NamedTuple):
    """One word.

    Attributes:
        kind: A key word or symbol itself; NAME, TEXT, INTEGER, DECIMAL or END for the others.
        image: As it is written.
        at: Its position in the expression.
    """

    kind: str
    image: str
    at: int


class Tokens:
    """The words of an expression, read one by one.

    Args:
        expression: The expression.
    """

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0
        #: Where the last line begins. A `--` there is not looked at further: to search for the end
        #: of the line again for each one would take time by the square of the length.
        self._last_line_at = 1 + max(expression.rfind("\n"), expression.rfind("\r"))
        self._ahead: list[Token] = []

    def peek(self, distance: int = 0) -> Token:
        """Return a word that is still ahead, the next one by default.

        Raises:
            InvalidSql: A character belongs to no word.
        """
        while len(self._ahead) <= distance:
            self._ahead.append(self._scan())
        return self._ahead[distance]

    def take(self) -> Token:
        """Return the next word and pass it.

        Raises:
            InvalidSql: A character belongs to no word.
        """
        token = self.peek()
        del self._ahead[0]
        return token

    def _scan(self) -> Token:
        pattern = _SKIPPED if self._at < self._last_line_at else _SKIPPED_LAST
        skipped = pattern.match(self._expression, self._at)
        if skipped is not None:
            self._at = skipped.end()
        at = self._at
        if at == len(self._expression):
            return Token(END, "", at)
        found = _WORD.match(self._expression, at)
        if found is None:
            character = self._expression[at]
            raise InvalidSql(self._expression, at, f"{character!r} is not a word of SQL92 filters")
        self._at = found.end()
        image, kind = found[0], found.lastgroup
        if kind == NAME and image.upper() in KEY_WORDS:
            return Token(image.upper(), image, at)
        if kind is None or kind == _SYMBOL:
            return Token(image, image, at)
        return Token(kind, image, at)
