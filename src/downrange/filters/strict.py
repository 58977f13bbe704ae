"""The check of an SQL92 filter before it is sent: stricter than Apache's parser.

A broker accepts many expressions that do something else than they say. It ignores what follows a
complete expression (`a = 5 LIKE 'x'` is `a = 5`, `s LIKE 'x'` is the name `s`, which never
matches), and some conditions can never be true. `check` refuses these. Its error shows the place
and says how to write the condition.

One rule: what `check` accepts, Apache's parser reads whole and means as written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import InvalidSql
from downrange.filters.grammar import (
    And,
    Constant,
    Equal,
    In,
    IsNull,
    Negative,
    Node,
    Not,
    Or,
    Order,
    Present,
    Property,
    Search,
    is_condition,
    parse,
)
from downrange.filters.tokens import DECIMAL, END, INTEGER, NAME, TEXT, Token, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What stands where a mistake was found -> how to write it.
_REMEDIES: Final = {
    "!=": "write <> for not equal",
    "==": "write = for equal",
    "&&": "write AND",
    "||": "write OR",
    "!": "write NOT before a condition in brackets, or <> for not equal",
    '"': "write texts in single quotes, such as 'red'",
    "`": "write names without quotes",
    "'": "close the text with ', and write '' for a quote inside of it",
    ";": "leave out the semicolon",
    "/": "a name has letters, digits, _ and $ only, and there is no arithmetic",
    ".": "a name has letters, digits, _ and $ only",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic, and no pattern: write CONTAINS, STARTSWITH or ENDSWITH",
}
#: How a problem that the grammar names begins -> how to write it.
_REMEDIES_OF_PROBLEMS: Final = {
    "IS must": "write name = TRUE for a truth value",
    "IN needs": "numbers stand in quotes there, too: ('5', '6')",
    "the order of values": "texts can be compared by =, <>, IN, CONTAINS, STARTSWITH and ENDSWITH",
    "a decimal number": "write 0 if the property has whole numbers, else a number such as 1e-300",
    "NOT behind": "write NOT before a condition in brackets: NOT (a = 5)",
    "the first value of BETWEEN": "exchange the two",
}
_PATTERN: Final = (
    "there is no LIKE: write name STARTSWITH 'a', name ENDSWITH 'a' or name CONTAINS 'a'"
)
_IGNORED: Final = "the broker ignores everything from here on"
_NEGATED: Final = "NOT belongs to the name alone here"


class Strict(NamedTuple):
    """An expression that was accepted.

    Attributes:
        search_at: Where the first CONTAINS, STARTSWITH or ENDSWITH stands; None without one.
            Brokers before 5.1.3 do not know these words.
    """

    search_at: int | None


def check(expression: str) -> Strict:
    """Check an expression.

    Raises:
        InvalidSql: It is not valid, or a broker would ignore a part of it.
    """
    if not expression.strip():
        raise InvalidSql(expression, 0, "the SQL expression is empty", "write a > 5, for example")
    try:
        parsed = parse(expression)
    except InvalidSql as error:
        raise _explained(error) from None
    if parsed.rest.kind != END:
        raise _ignored(expression, parsed.rest)
    _check_condition(expression, parsed.root)
    places = [node.at for node in _walk(parsed.root) if isinstance(node, Search)]
    return Strict(min(places, default=None))


# ---- what the grammar refuses ------------------------------------------------------------------


def _explained(error: InvalidSql) -> InvalidSql:
    """Return the error of the grammar, with the way to write it where that is known."""
    remedy = _remedy(error.expression, error.position, error.problem)
    return InvalidSql(error.expression, error.position, error.problem, remedy)


def _remedy(expression: str, at: int, problem: str) -> str | None:
    for begin, remedy in _REMEDIES_OF_PROBLEMS.items():
        if problem.startswith(begin):
            return remedy
    if problem.endswith("NULL"):
        return "write name IS NULL or name IS NOT NULL"
    if problem.startswith("a condition") and expression[at : at + 3].upper() == "NOT":
        return "write NOT before a comparison in brackets: NOT (a > 5)"
    # The refused character may be the second one of an operator.
    pieces = (expression[at : at + 2], expression[max(at - 1, 0) : at + 1], expression[at : at + 1])
    return next((_REMEDIES[piece] for piece in pieces if piece in _REMEDIES), None)


# ---- what Apache ignores -----------------------------------------------------------------------


def _ignored(expression: str, rest: Token) -> InvalidSql:
    """Return the error for words behind a complete expression."""
    last = _last_before(expression, rest.at)
    touches = last.at + len(last.image) == rest.at
    if rest.image.upper() in ("LIKE", "ESCAPE", "REGEXP", "RLIKE"):
        return InvalidSql(expression, rest.at, _IGNORED, _PATTERN)
    if rest.kind == ")":
        return InvalidSql(expression, rest.at, _IGNORED, "this bracket was not opened")
    if touches and rest.kind == "-" and last.kind == NAME:
        remedy = "a name has letters, digits, _ and $ only; a property with - cannot be used"
    elif expression.startswith("--", rest.at):
        remedy = "end the comment with a line break, or write /* … */"
    elif rest.kind in ("+", "-"):
        remedy = "there is no arithmetic"
    elif touches and last.kind == INTEGER and rest.kind in (INTEGER, DECIMAL):
        remedy = "write numbers without leading zeros, or as texts: '007'"
    elif touches and last.kind in (INTEGER, DECIMAL) and rest.kind == NAME:
        remedy = "a name begins with a letter, _ or $, and a text stands in quotes"
    elif rest.kind in (NAME, TEXT, INTEGER, DECIMAL, "(", "TRUE", "FALSE", "NULL"):
        remedy = "join conditions by AND or OR"
    else:
        remedy = "leave it out"
    return InvalidSql(expression, rest.at, _IGNORED, remedy)


def _last_before(expression: str, at: int) -> Token:
    """Return the last word before a position behind at least one."""
    tokens = Tokens(expression)
    token = tokens.take()
    while tokens.peek().at < at:
        token = tokens.take()
    return token


# ---- what Apache accepts, but what cannot be meant ----------------------------------------------


def _check_condition(expression: str, node: Node) -> None:
    for part in _walk(node):
        mistake = _mistake_in(part)
        if mistake is not None:
            raise InvalidSql(expression, *mistake)


def _mistake_in(node: Node) -> tuple[int, str, str] | None:
    """Return place, problem and remedy of a part that does not mean what it says."""
    if isinstance(node, Equal):
        return _mistake_in_equal(node)
    if isinstance(node, Present):
        name = node.operand.name
        return (
            node.at,
            "a name alone never matches",
            f"write {name} = TRUE for a truth value, or {name} IS NOT NULL",
        )
    if isinstance(node, Constant) and node.value is None:
        return node.at, "NULL alone never matches", "write name IS NULL"
    if isinstance(node, Negative) and not _is_signed_number(node):
        problem = "the sign works on numbers only, and the value of a property is a text"
        return node.at, problem, "change the sign and the order on the other side: a > -5"
    if isinstance(node, Search):
        return _mistake_in_search(node)
    negated = _negated_name(node.operand) if isinstance(node, IsNull) else None
    if negated is not None:
        return node.at, _NEGATED, f"write {negated} IS NOT NULL"
    return None


def _mistake_in_equal(node: Equal) -> tuple[int, str, str] | None:
    left, right = node.left, node.right
    name = _negated_name(left)
    if name is not None:
        return left.at, _NEGATED, f"write NOT ({name} = …), with brackets"
    if not isinstance(left, Constant) and is_condition(left):
        return left.at, "the result of a condition is compared", "write the condition alone"
    if not isinstance(right, Constant) and is_condition(right):
        return right.at, "the result of a condition is compared", "write the condition alone"
    if _is_constant(left) and not _is_constant(right):
        if _kind(left) == "boolean":
            problem = "the broker fails to compare TRUE and FALSE with what is on their right"
            return left.at, problem, "write the property on the left: name = TRUE"
        problem = "with the constant on the left, a missing property counts as different"
        return left.at, problem, "write the property on the left: name = 5"
    if _is_constant(left) and _kind(left) != _kind(right):
        return left.at, "two constants of different types are compared", "compare a property"
    return None


def _mistake_in_search(node: Search) -> tuple[int, str, str] | None:
    if not node.wanted:
        return node.at, f"{node.word} '' never matches, also with NOT", "write a text in the quotes"
    if isinstance(node.operand, Property):
        return None
    name = _negated_name(node.operand)
    if name is not None:
        return node.operand.at, _NEGATED, f"write {name} NOT {node.word} '{node.wanted}'"
    return node.operand.at, f"{node.word} looks into the value of a property", "write its name"


def _negated_name(node: Node) -> str | None:
    """Return the name in `NOT name`, which was meant to negate the whole comparison."""
    if isinstance(node, Not) and isinstance(node.operand, Present):
        return node.operand.operand.name
    return None


def _is_signed_number(node: Node) -> bool:
    while isinstance(node, Negative):
        node = node.operand
    return isinstance(node, Constant) and _kind(node) == "number"


def _is_constant(node: Node) -> bool:
    return isinstance(node, Constant) or _is_signed_number(node)


def _kind(node: Node) -> str:
    """Return the type of a constant."""
    if isinstance(node, Constant) and isinstance(node.value, bool | str):
        return "text" if isinstance(node.value, str) else "boolean"
    return "number"


def _walk(node: Node) -> Iterator[Node]:
    """Yield a part and all parts inside of it, from the outside to the inside."""
    open_parts = [node]
    while open_parts:
        part = open_parts.pop()
        yield part
        open_parts += reversed(_parts_of(part))


def _parts_of(node: Node) -> tuple[Node, ...]:
    if isinstance(node, And | Or):
        return node.parts
    if isinstance(node, Equal | Order):
        return node.left, node.right
    if isinstance(node, Not | IsNull | Negative | Present | Search | In):
        return (node.operand,)
    return ()
