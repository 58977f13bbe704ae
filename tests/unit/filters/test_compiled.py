"""The cache of compiled expressions."""

from __future__ import annotations

import pytest

from downrange.errors import InvalidSql
from downrange.filters.compiled import CompiledExpressions


def test_an_expression_is_compiled_once() -> None:
    expressions = CompiledExpressions()
    assert expressions.get("a = 5") is expressions.get("a = 5")
    assert len(expressions) == 1


def test_a_refusal_is_kept_too() -> None:
    expressions = CompiledExpressions()
    with pytest.raises(InvalidSql) as first:
        expressions.get("a =")
    with pytest.raises(InvalidSql) as second:
        expressions.get("a =")
    assert first.value is second.value


def test_those_that_were_not_used_for_longest_are_dropped() -> None:
    expressions = CompiledExpressions(text_max=320)
    first, second = expressions.get("a = 1"), expressions.get("a = 2")
    expressions.get("a = 3")
    assert expressions.get("a = 1") is first
    expressions.get("a = 4")  # drops the second one
    assert len(expressions) == 3
    assert expressions.get("a = 1") is first
    assert expressions.get("a = 2") is not second


def test_one_expression_is_kept_however_long_it_is() -> None:
    expressions = CompiledExpressions(text_max=10)
    assert expressions.get("a = 1") is expressions.get("a = 1")
