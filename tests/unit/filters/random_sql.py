"""Random SQL92 expressions and properties: valid ones, and ones with mistakes.

The words are chosen so that the rules of Java's parser matter: numbers near the limits of its
types, texts that are nearly numbers, key words in wrong places, comments, characters that belong to
no word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from downrange.errors import InvalidSql
from downrange.filters.match import Expression

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

#: Verdicts of the real parser; the first line says how it was written.
SAMPLE = Path(__file__).parent / "verdicts.jsonl"
#: "refused", or a result for each message: "true", "false", "null" or "error".
Verdict: TypeAlias = "str | list[str]"

_NAMES = ["a", "b", "d", "s", "t", "neg", "big", "e", "missing", "A", "$x", "_y", "TAGS"]
_TEXTS = ["5", "6", "hello", "he", "lo", "", "true", "o''k", "5.5", "é", "漢", "a b", "TRUE", "-3"]
_NUMBERS = [
    *("5", "0", "1", "6", "5L", "007", "3", "10l", "0l", "2147483647", "2147483648"),
    *("99999999998", "99999999999", "9223372036854775807", "9223372036854775808"),
    *("12345678901234567890", "5.5", "5.0", ".5", "5.", "0.0", "1e400", "1e-400", "5e0", "5.5E1"),
    *("0.1e1", "1e"),
]
#: Values of properties.
VALUES = [
    *("5", "6", "-3", "+5", "5.5", "5.0", "hello", "true", "TRUE", "false", "", "0", "-0", "0.0"),
    *("99999999999", "2147483648", "-2147483648", "2147483647", "-0.0", "NaN", "Infinity"),
    *("-Infinity", " 5", "5 ", "5d", "5f", "0x1p3", "0x1.8P1", "0xp1", "1e400", "1e-400", "00005"),
    *("\u0665", "5_0", "1e", "é", "inf", "nan", ".5", "5.", "+.5e1", "9223372036854775807"),
    *("9223372036854775808", "- 5", "5L", "\uff10", "\U0001d7d3", "0x.8p1f", "1e+2", "e", "ok"),
    *("o'k", "-0x1p9999", "0x1p99999", "\t5\x00", "\u30005", "000000000000000000000005"),
]
_NOISE = [
    *("!", "==", "!=", "/", "/* c */", "/* c", "-- c\n", "-- c", "like 'x'", "+ 1", "%", '"x"'),
    *("'", "(", ")", ",", "..", ".", "5a", "anything", "not", "is", "§", "\n", "\t", "NULL", "in"),
    *("between 1", "||", "&&", "- -", "#", "é", "/***/", "--", "\x00"),
]


def properties(source: Random) -> dict[str, str]:
    """Return the properties of a message."""
    return {
        name: source.choice(VALUES)
        for name in _NAMES
        if name != "missing" and source.random() < 0.75
    }


def expression(source: Random, depth: int = 3) -> str:
    """Return an expression that is often valid."""
    text = _term(source, depth)
    for _ in range(source.choice([0, 0, 0, 1, 1, 2])):
        text += source.choice([" and ", " or ", " AND ", " OR "]) + _term(source, depth)
    return text


def mistaken(source: Random) -> str:
    """Return an expression with one or two mistakes."""
    text = expression(source, 2)
    for _ in range(source.choice([1, 1, 2])):
        at, kind = source.randint(0, len(text)), source.random()
        if kind < 0.5:
            noise = source.choice(["", " "]) + source.choice(_NOISE) + source.choice(["", " "])
            text = text[:at] + noise + text[at:]
        elif kind < 0.75:
            text = text[:at] + text[at + source.randint(1, 4) :]
        else:
            words = text.split(" ")
            del words[source.randrange(len(words))]
            text = " ".join(words)
    return text


def _text(source: Random) -> str:
    return f"'{source.choice(_TEXTS)}'"


def _operand(source: Random, depth: int) -> str:
    kind = source.random()
    if kind < 0.55:
        return source.choice(_NAMES)
    if kind < 0.75:
        return source.choice(_NUMBERS)
    if kind < 0.82:
        return _text(source)
    if kind < 0.87:
        return source.choice(["TRUE", "false", "NULL", "true"])
    if kind < 0.93:
        return source.choice(["-", "+", "- ", "NOT "]) + _operand(source, depth)
    return f"({expression(source, depth - 1)})" if depth > 0 else source.choice(_NAMES)


def _term(source: Random, depth: int) -> str:
    left, kind = _operand(source, depth), source.random()
    if kind < 0.25:
        return left + source.choice([" = ", "=", " <> ", "<>"]) + _operand(source, depth)
    if kind < 0.5:
        return left + source.choice([" > ", " >= ", " < ", "<=", ">"]) + _operand(source, depth)
    if kind < 0.58:
        return left + source.choice([" is null", " IS NOT NULL"])
    negation = source.choice([" ", " NOT "])
    if kind < 0.66:
        low, high = _operand(source, depth), _operand(source, depth)
        return f"{left}{negation}between {low} and {high}"
    if kind < 0.74:
        values = ", ".join([_text(source) for _ in range(source.randint(1, 7))])
        return f"{left}{negation}in ({values})"
    if kind < 0.84:
        word = source.choice(["contains", "STARTSWITH", "EndsWith"])
        return f"{left}{negation}{word} {_text(source)}"
    if kind < 0.88 or depth <= 0:
        return left
    return f"NOT {_term(source, depth)}" if kind < 0.94 else f"({expression(source, depth - 1)})"


def verdict(text: str, messages: Sequence[dict[str, str]]) -> Verdict:
    """Return our verdict about an expression."""
    try:
        compiled = Expression(text)
    except InvalidSql:
        return "refused"
    return [_result(compiled, message) for message in messages]


def _result(compiled: Expression, message: dict[str, str]) -> str:
    names: dict[Any, str] = {True: "true", False: "false", None: "null"}
    try:
        return names[compiled.evaluate(message)]
    except ValueError:
        return "error"


def read_sample() -> tuple[list[dict[str, str]], dict[str, Verdict]]:
    """Return messages, and the verdicts of the real parser about expressions for them."""
    first, *lines = map(json.loads, SAMPLE.read_text().splitlines())
    return first["messages"], dict(lines)
