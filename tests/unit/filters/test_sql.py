"""`Sql`: a checked value."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import downrange as mq
from downrange.errors import InvalidSql, OptionError


def test_an_expression_is_a_value() -> None:
    one, same, other = mq.Sql("a = 5"), mq.Sql("a = 5"), mq.Sql("a CONTAINS 'x'")
    assert (one == same, one == other, {one, same, other}) == (True, False, {one, other})
    assert (str(one), repr(one)) == ("a = 5", "Sql(expression='a = 5')")
    assert (one.has_search, other.has_search) == (False, True)
    assert pickle.loads(pickle.dumps(other)) == other
    with pytest.raises(AttributeError):
        one.expression = "b = 6"  # type: ignore[misc]


def test_a_wrong_expression_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidSql, match="write <> for not equal") as caught:
        mq.Sql("a != 5")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.expression, error.position) == ("a != 5", 2)
    assert (error.problem, error.remedy) == (
        "'!' is not a word of SQL92 filters",
        "write <> for not equal",
    )


@pytest.mark.parametrize("value", [None, 5, b"a = 5"])
def test_an_expression_is_a_text(value: Any) -> None:
    with pytest.raises(OptionError, match="expression must be a str"):
        mq.Sql(value)


def test_the_error_for_an_old_broker_shows_the_word_that_it_does_not_know() -> None:
    error = mq.Sql("a = 5 AND b CONTAINS 'x'").refused_by_old_broker("10.0.0.1:10911")
    assert "broker 10.0.0.1:10911 is older than 5.1.3" in str(error)
    assert str(error).endswith("\n  a = 5 AND b CONTAINS 'x'\n              ^")
