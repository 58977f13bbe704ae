"""Apache's grammar of SQL92 filters, as a tree.

The levels, from loose to tight (Java: SelectorParser):

    OR
    AND
    = <> IS [NOT] NULL
    > >= < <= [NOT] BETWEEN x AND y, [NOT] IN ('a', …), [NOT] CONTAINS | STARTSWITH | ENDSWITH 'a'
    + - NOT
    a number, 'text', TRUE, FALSE, NULL, a name, ( )

It accepts and refuses what Apache's parser does, with its quirks: what follows a complete
expression is ignored, so `a = 5 LIKE` is `a = 5`. `filters/strict.py` refuses such expressions.

One rule: a tree is bounded (`EXPRESSION_MAX`, `DEPTH_MAX`, `TERMS_MAX`), so that neither reading
nor evaluating it takes long or exhausts the stack. Apache has no such limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from downrange.errors import InvalidSql
from downrange.filters.java_values import Long, Value, order
from downrange.filters.tokens import DECIMAL, END, INTEGER, NAME, TEXT, Token, Tokens

#: Characters of an expression.
EXPRESSION_MAX: Final = 65_536
#: Conditions inside of conditions.
DEPTH_MAX: Final = 64
#: Comparisons of an expression.
TERMS_MAX: Final = 1_000

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_ORDERS: Final = frozenset((">", ">=", "<", "<="))
_SEARCHES: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    at: int
    value: Value
    height: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Property:
    """A name: the text of a property, or null."""

    at: int
    name: str
    height: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Negative:
    """`- x`: null unless x is a number."""

    at: int
    operand: Node
    height: int


@dataclass(frozen=True, slots=True)
class Present:
    """A name in the place of a condition: false if it has a value, else null. It is never true."""

    at: int
    operand: Property
    height: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT x`, and the negation in `<>` and `IS NOT NULL`."""

    at: int
    operand: Node
    height: int


@dataclass(frozen=True, slots=True)
class Equal:
    """`x = y`."""

    at: int
    left: Node
    right: Node
    height: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """`x IS NULL`."""

    at: int
    operand: Node
    height: int


@dataclass(frozen=True, slots=True)
class Order:
    """`x > y`, and the others of its kind."""

    at: int
    symbol: str
    left: Node
    right: Node
    height: int


@dataclass(frozen=True, slots=True)
class Search:
    """`x CONTAINS 'a'`, and the others of its kind."""

    at: int
    word: str
    operand: Node
    wanted: str
    is_negated: bool
    height: int


@dataclass(frozen=True, slots=True)
class In:
    """`x IN ('a', 'b')`."""

    at: int
    operand: Property
    values: frozenset[str]
    is_negated: bool
    height: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class And:
    """Conditions joined by AND."""

    at: int
    parts: tuple[Node, ...]
    height: int


@dataclass(frozen=True, slots=True)
class Or:
    """Conditions joined by OR."""

    at: int
    parts: tuple[Node, ...]
    height: int


Condition: TypeAlias = Present | Not | Equal | IsNull | Order | Search | In | And | Or
Node: TypeAlias = Constant | Property | Negative | Condition


def is_condition(node: Node) -> bool:
    """Whether a part has a truth value: a condition, TRUE, FALSE or NULL."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negative)


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression that was read.

    Attributes:
        root: The tree.
        terms: How many comparisons it has.
        rest: The first word that Apache ignores; of the kind END if there is none.
    """

    root: Node
    terms: int
    rest: Token


def parse(expression: str) -> Parsed:
    """Read an expression as Apache does.

    Raises:
        InvalidSql: Apache refuses it, or it exceeds a limit.
    """
    if len(expression) > EXPRESSION_MAX:
        problem = f"the expression has more than {EXPRESSION_MAX} characters"
        raise InvalidSql(expression, 0, problem)
    parser = _Parser(expression)
    root = parser.condition(parser.any_of())
    return Parsed(root, parser.terms, parser.tokens.peek())


class _Parser:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = Tokens(expression)
        self.terms = 0
        self._depth = 0  # of brackets and unary operators that are open

    # ---- the levels ----

    def any_of(self) -> Node:
        left = self._all_of()
        if self.tokens.peek().kind != "OR":
            return left
        parts = [self.condition(left)]
        while self.tokens.peek().kind == "OR":
            self.tokens.take()
            parts.append(self.condition(self._all_of()))
        return Or(left.at, tuple(parts), self._height(left.at, *parts))

    def _all_of(self) -> Node:
        left = self._equality()
        if self.tokens.peek().kind != "AND":
            return left
        parts = [self.condition(left)]
        while self.tokens.peek().kind == "AND":
            self.tokens.take()
            parts.append(self.condition(self._equality()))
        return And(left.at, tuple(parts), self._height(left.at, *parts))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            token = self.tokens.peek()
            if token.kind == "=":
                self.tokens.take()
                left = self._equal(token, left, self._comparison())
            elif token.kind == "<>":
                self.tokens.take()
                left = self._not(token.at, self._equal(token, left, self._comparison()))
            elif token.kind == "IS":
                left = self._is_null(left)
            else:
                return left

    def _is_null(self, left: Node) -> Node:
        at = self.tokens.take().at
        is_negated = self.tokens.peek().kind == "NOT"
        if is_negated:
            self.tokens.take()
        self._expect("NULL", "IS must be followed by NULL or NOT NULL")
        self._count(at)
        node = IsNull(at, left, self._height(at, left))
        return self._not(at, node) if is_negated else node

    def _comparison(self) -> Node:
        left = self._operand()
        while True:
            token = self.tokens.peek()
            is_negated = token.kind == "NOT"
            word = self.tokens.peek(1).kind if is_negated else token.kind
            if word in _ORDERS and not is_negated:
                self.tokens.take()
                left = self._order(token, token.kind, left, self._operand())
            elif word in _SEARCHES:
                left = self._search(left, is_negated=is_negated)
            elif word == "BETWEEN":
                left = self._between(left, is_negated=is_negated)
            elif word == "IN":
                left = self._in(left, is_negated=is_negated)
            elif is_negated:
                problem = "NOT behind a value must be followed by IN, BETWEEN, CONTAINS, STARTSWITH"
                raise self._invalid(token.at, f"{problem} or ENDSWITH")
            else:
                return left

    def _search(self, left: Node, *, is_negated: bool) -> Node:
        word = self._take_word(is_negated=is_negated)
        wanted = self._text(f"{word.kind} must be followed by a text, such as 'red'")
        self._count(word.at)
        height = self._height(word.at, left)
        return Search(word.at, word.kind, left, wanted, is_negated, height)

    def _between(self, left: Node, *, is_negated: bool) -> Node:
        word = self._take_word(is_negated=is_negated)
        low = self._operand()
        self._expect("AND", "BETWEEN needs two values, joined by AND")
        high = self._operand()
        if is_negated:
            parts = (self._order(word, "<", left, low), self._order(word, ">", left, high))
            return Or(left.at, parts, self._height(word.at, *parts))
        if isinstance(low, Constant) and isinstance(high, Constant):
            self._check_range(low, high)
        parts = (self._order(word, ">=", left, low), self._order(word, "<=", left, high))
        return And(left.at, parts, self._height(word.at, *parts))

    def _check_range(self, low: Constant, high: Constant) -> None:
        self._check_ordered(low)
        self._check_ordered(high)
        assert low.value is not None
        assert high.value is not None
        if order(high.value, low.value) < 0:
            raise self._invalid(low.at, "the first value of BETWEEN is larger than the second one")

    def _in(self, left: Node, *, is_negated: bool) -> Node:
        word = self._take_word(is_negated=is_negated)
        problem = "IN needs a list of texts in brackets, such as ('red', 'blue')"
        self._expect("(", problem)
        values = [self._text(problem)]
        while self.tokens.peek().kind == ",":
            self.tokens.take()
            values.append(self._text(problem))
        self._expect(")", problem)
        if not isinstance(left, Property):
            raise self._invalid(left.at, "IN compares the value of a property")
        self._count(word.at)
        return In(word.at, left, frozenset(values), is_negated)

    def _take_word(self, *, is_negated: bool) -> Token:
        if is_negated:
            self.tokens.take()
        return self.tokens.take()

    def _operand(self) -> Node:
        """Read a value with its unary operators, which stand before it in any number."""
        operators: list[Token] = []
        while self.tokens.peek().kind in ("+", "-", "NOT"):
            operators.append(self.tokens.take())
            self._enter(operators[-1].at)
        node = self._value()
        for token in reversed(operators):
            if token.kind == "-":
                node = Negative(token.at, node, self._height(token.at, node))
            elif token.kind == "NOT":
                node = self._not(token.at, self.condition(node))
        self._depth -= len(operators)
        return node

    def _value(self) -> Node:
        token = self.tokens.take()
        if token.kind == NAME:
            return Property(token.at, token.image)
        if token.kind == TEXT:
            return Constant(token.at, _text_of(token))
        if token.kind == INTEGER:
            return Constant(token.at, self._integer(token))
        if token.kind == DECIMAL:
            return Constant(token.at, self._decimal(token))
        if token.kind in _CONSTANTS:
            return Constant(token.at, _CONSTANTS[token.kind])
        if token.kind != "(":
            raise self._unexpected(token, "a property, a number, a 'text' or ( is missing here")
        self._enter(token.at)
        node = self.any_of()
        self._expect(")", "the bracket ( is not closed")
        self._depth -= 1
        return node

    # ---- what Apache checks while it reads ----

    def condition(self, node: Node) -> Node:
        """Return a part as a condition; a bare name becomes one."""
        if isinstance(node, Property):
            self._count(node.at)
            return Present(node.at, node)
        if not is_condition(node):
            raise self._invalid(node.at, "a value is not a condition: compare it with something")
        return node

    def _equal(self, token: Token, left: Node, right: Node) -> Node:
        for node in (left, right):
            if isinstance(node, Constant) and node.value is None:
                raise self._invalid(node.at, f"{token.image} does not compare with NULL")
        if _is_boolean(left) and isinstance(right, Constant) and not _is_boolean(right):
            raise self._invalid(token.at, "TRUE and FALSE are not compared with other values")
        self._count(token.at)
        return Equal(token.at, left, right, self._height(token.at, left, right))

    def _order(self, token: Token, symbol: str, left: Node, right: Node) -> Node:
        self._check_ordered(left)
        self._check_ordered(right)
        self._count(token.at)
        return Order(token.at, symbol, left, right, self._height(token.at, left, right))

    def _check_ordered(self, node: Node) -> None:
        if isinstance(node, Constant):
            if isinstance(node.value, bool) or not isinstance(node.value, int | float):
                raise self._invalid(node.at, "the order of values is that of numbers")
        elif is_condition(node):
            raise self._invalid(node.at, "a condition has no order")

    def _integer(self, token: Token) -> int:
        digits = token.image.rstrip("lL")
        value = int(digits) if len(digits) < 20 else _LONG_MAX + 1
        if value > _LONG_MAX:
            raise self._invalid(token.at, "the number does not fit into 64 bits")
        return Long(value) if value > _INT_MAX else value

    def _decimal(self, token: Token) -> float:
        value = float(token.image)
        if value == 0:
            raise self._invalid(token.at, "a decimal number must be above zero")
        if value == float("inf"):
            raise self._invalid(token.at, "the number is too large")
        return value

    # ---- words and limits ----

    def _text(self, problem: str) -> str:
        return _text_of(self._expect(TEXT, problem))

    def _expect(self, kind: str, problem: str) -> Token:
        token = self.tokens.take()
        if token.kind != kind:
            raise self._unexpected(token, problem)
        return token

    def _not(self, at: int, node: Node) -> Node:
        return Not(at, node, self._height(at, node))

    def _enter(self, at: int) -> None:
        """Count an open bracket or unary operator."""
        self._depth += 1
        self._check_depth(at, self._depth)

    def _height(self, at: int, *parts: Node) -> int:
        """Return the height of a part that consists of these."""
        height = 1 + max([part.height for part in parts])
        self._check_depth(at, height)
        return height

    def _check_depth(self, at: int, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._invalid(at, f"more than {DEPTH_MAX} conditions are inside of each other")

    def _count(self, at: int) -> None:
        self.terms += 1
        if self.terms > TERMS_MAX:
            raise self._invalid(at, f"there are more than {TERMS_MAX} comparisons")

    def _unexpected(self, token: Token, problem: str) -> InvalidSql:
        found = "the end" if token.kind == END else repr(token.image[:40])
        return self._invalid(token.at, f"{problem}; found {found}")

    def _invalid(self, at: int, problem: str) -> InvalidSql:
        return InvalidSql(self.expression, at, problem)


_CONSTANTS: Final[dict[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}


def _is_boolean(node: Node) -> bool:
    return isinstance(node, Constant) and isinstance(node.value, bool)


def _text_of(token: Token) -> str:
    return token.image[1:-1].replace("''", "'")
