"""SQL92 filters as functions: an expression is read once, then applied to many messages.

Each part of the tree becomes a closure that takes the properties of a message and returns its
value. A condition is True, False or None (Java's null). A `ValueError` means that it has no result:
Apache's broker logs such an error and does not deliver the message.

One rule: the closures return what Apache's parser returns, in its order of evaluation, because an
error counts only if its part is reached. The common forms, a property compared with a literal, have
closures of their own; `java_values.order` defines all others.
"""

from __future__ import annotations

from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Final, TypeAlias

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
    parse,
)
from downrange.filters.java_values import (
    Long,
    Value,
    order,
    order_doubles,
    to_boolean,
    to_double,
    to_integer,
    to_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Properties: TypeAlias = Mapping[str, str]
    Evaluate: TypeAlias = Callable[[Properties], Value]

_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": gt,
    ">=": ge,
    "<": lt,
    "<=": le,
}
#: The same comparison with its sides exchanged.
_EXCHANGED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


class Expression:
    """A compiled SQL92 filter.

    Args:
        text: The expression.

    Attributes:
        text: See above.
        terms: How many comparisons it has; the time of a match is proportional to it.
        evaluate: Takes the properties of a message and returns True, False or None, or raises
            `ValueError` where Apache's evaluation fails.

    Raises:
        InvalidSql: Apache refuses the expression, or it exceeds a limit.
    """

    __slots__ = ("evaluate", "terms", "text")

    def __init__(self, text: str) -> None:
        parsed = parse(text)
        self.text = text
        self.terms = parsed.terms
        self.evaluate = _compile(parsed.root)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is delivered."""
        try:
            return self.evaluate(properties) is True
        except ValueError:
            return False


def _compile(node: Node) -> Evaluate:
    if isinstance(node, And):
        return _all_of([_compile(part) for part in node.parts])
    if isinstance(node, Or):
        return _any_of([_compile(part) for part in node.parts])
    if isinstance(node, Equal):
        return _equal(node.left, node.right)
    if isinstance(node, Order):
        return _ordered(node.symbol, node.left, node.right)
    if isinstance(node, Not):
        return _not(_compile(node.operand))
    if isinstance(node, IsNull):
        return _is_null(_compile(node.operand))
    if isinstance(node, In):
        return _in(node.operand.name, node.values, is_negated=node.is_negated)
    if isinstance(node, Search):
        return _search(node)
    if isinstance(node, Present):
        return _present(node.operand.name)
    return _value(node)


# ---- values ------------------------------------------------------------------------------------


def _value(node: Constant | Property | Negative) -> Evaluate:
    constant = _number_of(node)
    if constant is not None:
        return lambda properties: constant
    if isinstance(node, Constant):
        value = node.value
        return lambda properties: value
    if isinstance(node, Property):
        name = node.name
        return lambda properties: properties.get(name)
    operand = _compile(node.operand)

    def negative(properties: Properties) -> Value:
        value = operand(properties)
        return _negated(value) if _is_number(value) else None

    return negative


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _negated(value: Value) -> int | float:
    assert isinstance(value, int | float)
    return Long(-value) if isinstance(value, Long) else -value


def _number_of(node: Node) -> int | float | None:
    """Return the number of a literal with its signs, or None for other parts."""
    if isinstance(node, Negative):
        number = _number_of(node.operand)
        return None if number is None else _negated(number)
    if isinstance(node, Constant) and _is_number(node.value):
        assert isinstance(node.value, int | float)
        return node.value
    return None


def _reader_of(number: int | float) -> Callable[[str], int | float]:
    """Return the function that reads a property which is compared with a number."""
    if isinstance(number, float):
        return to_double
    return to_long if isinstance(number, Long) else to_integer


# ---- comparisons -------------------------------------------------------------------------------


def _equal(left: Node, right: Node) -> Evaluate:
    if isinstance(left, Property):
        name = left.name
        number = _number_of(right)
        if number is not None:
            return _equal_number(name, number)
        if isinstance(right, Constant) and isinstance(right.value, str):
            return _equal_text(name, right.value)
        if isinstance(right, Constant) and isinstance(right.value, bool):
            return _equal_boolean(name, is_wanted=right.value)
    return _equal_values(_compile(left), _compile(right))


def _equal_number(name: str, number: int | float) -> Evaluate:
    read = _reader_of(number)

    def equal(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else read(text) == number

    return equal


def _equal_text(name: str, wanted: str) -> Evaluate:
    def equal(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == wanted

    return equal


def _equal_boolean(name: str, *, is_wanted: bool) -> Evaluate:
    def equal(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else to_boolean(text) is is_wanted

    return equal


def _equal_values(left: Evaluate, right: Evaluate) -> Evaluate:
    def equal(properties: Properties) -> bool | None:
        first, second = left(properties), right(properties)
        if first is None:
            return True if second is None else None
        return False if second is None else order(first, second) == 0

    return equal


def _ordered(symbol: str, left: Node, right: Node) -> Evaluate:
    first, second = _number_of(left), _number_of(right)
    if isinstance(left, Property) and second is not None:
        return _ordered_number(symbol, left.name, second)
    if first is not None and isinstance(right, Property):
        return _ordered_number(_EXCHANGED[symbol], right.name, first)
    return _ordered_values(symbol, _compile(left), _compile(right))


def _ordered_number(symbol: str, name: str, number: int | float) -> Evaluate:
    read, is_ordered = _reader_of(number), _ORDERS[symbol]
    is_above = symbol in (">", ">=")

    def ordered(properties: Properties) -> bool | None:
        text = properties.get(name)
        if text is None:
            return None
        value = read(text)
        return is_ordered(value, number) if value == value else is_above  # NaN is above all numbers

    return ordered


def _ordered_values(symbol: str, left: Evaluate, right: Evaluate) -> Evaluate:
    is_ordered = _ORDERS[symbol]

    def ordered(properties: Properties) -> bool | None:
        first = left(properties)
        if first is None:
            return None
        second = right(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return is_ordered(order_doubles(to_double(first), to_double(second)), 0)
        return is_ordered(order(first, second), 0)

    return ordered


def _is_null(operand: Evaluate) -> Evaluate:
    return lambda properties: operand(properties) is None


def _in(name: str, values: frozenset[str], *, is_negated: bool) -> Evaluate:
    def found(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in values) is not is_negated

    return found


def _search(node: Search) -> Evaluate:
    operand, wanted, is_negated = _compile(node.operand), node.wanted, node.is_negated
    if not wanted:
        return lambda properties: False
    has: Callable[[str, str], bool] = _SEARCHES[node.word]

    def found(properties: Properties) -> bool:
        text = operand(properties)
        return isinstance(text, str) and has(text, wanted) is not is_negated

    return found


_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _present(name: str) -> Evaluate:
    return lambda properties: None if properties.get(name) is None else False


# ---- logic -------------------------------------------------------------------------------------


def _not(operand: Evaluate) -> Evaluate:
    def negation(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return negation


def _all_of(parts: list[Evaluate]) -> Evaluate:
    def conjunction(properties: Properties) -> bool | None:
        result: bool | None = True
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return conjunction


def _any_of(parts: list[Evaluate]) -> Evaluate:
    def disjunction(properties: Properties) -> bool | None:
        result: bool | None = False
        for part in parts:
            value = part(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return disjunction
