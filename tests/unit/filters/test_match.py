"""The verdicts about expressions: Apache's, quirks included."""

from __future__ import annotations

import time

import pytest

from downrange.errors import InvalidSql
from downrange.filters.match import Expression
from tests.unit.filters.random_sql import Verdict, read_sample, verdict

#: The message of the tables; it has no properties `missing` and `other`.
MESSAGE = {
    "a": "5",
    "same": "5",
    "d": "5.5",
    "s": "hello",
    "t": "true",
    "big": "99999999999",
    "neg": "-3",
    "e": "",
    "nan": "NaN",
    "zero": "0.0",
    "minus": "-0.0",
}
MESSAGES, VERDICTS = read_sample()


def result(expression: str) -> str:
    found = verdict(expression, [MESSAGE])
    return found if isinstance(found, str) else found[0]


@pytest.mark.parametrize("expression", VERDICTS)
def test_a_verdict_is_that_of_the_real_parser(expression: str) -> None:
    assert verdict(expression, MESSAGES) == VERDICTS[expression]


def test_the_sample_has_verdicts_of_all_kinds() -> None:
    def kinds(found: Verdict) -> set[str]:
        return {found} if isinstance(found, str) else set(found)

    everything = set[str]().union(*map(kinds, VERDICTS.values()))
    assert everything == {"true", "false", "null", "error", "refused"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # The table of the real parser's surprises, line by line.
        ("a = 5", "true"),
        ("a = '5'", "true"),
        ("a = 5L", "true"),
        ("a = 5e0", "true"),
        ("missing = other", "true"),
        ("a = 5 anything more", "true"),
        ("missing <> 6", "null"),
        ("6 <> missing", "true"),
        ("s like 'h%'", "false"),
        ("missing is null", "true"),
        ("missing is not null", "false"),
        ("s", "false"),
        ("t", "false"),
        ("missing not in ('6')", "null"),
        ("t = true", "true"),
        ("t = 'true'", "true"),
        ("missing contains 'z'", "false"),
        ("missing not contains 'z'", "false"),
        ("TRUE = t", "error"),
        ("s endswith ''", "false"),
        ("s not endswith ''", "false"),
        ("NOT a = 5", "false"),
        ("NOT (a = 5)", "false"),
        ("NOT (a = 6)", "true"),
        ("a = 5 and missing = 1", "null"),
        ("d > 5", "error"),
        ("a = 5 or missing = 1", "true"),
        ("missing = 1 or a = 5", "true"),
        ("d > 5.0", "true"),
        ("d = 5.5", "true"),
        ("not (missing = 1)", "null"),
        ("big > 5", "error"),
        ("a > d", "false"),
        ("d > a", "true"),
        ("big > 99999999998", "true"),
        ("s > 5", "error"),
        ("s > '5'", "refused"),
        ("s between 'a' and 'z'", "refused"),
        ("a > 0.0", "refused"),
        ("a between 9 and 1", "refused"),
        ("a in (5, 6)", "refused"),
        ("neg < -2", "true"),
        ("-a < 0", "null"),
        ("a = null", "refused"),
        ("a != 5", "refused"),
        ("a == 5", "refused"),
        ("", "refused"),
        ("a + 1 = 6", "false"),
        ("b-c = 1", "null"),
        ("A = 5", "null"),
        ("a=007", "false"),
        ("1 = 1", "true"),
        ("true", "true"),
        ("e = ''", "true"),
        # More of the same kind.
        ("a not between 1 and 3", "true"),
        ("a between 1 and 5", "true"),
        ("a between -1 and - -5", "true"),
        ("a in ('4', '5')", "true"),
        ("a not in ('4', '5')", "false"),
        ("s startswith 'he' and s contains 'ell' and s endswith 'lo'", "true"),
        ("s not startswith 'he'", "false"),
        ("nan > 5.5", "true"),
        ("nan < 5.5", "false"),
        ("zero > minus", "true"),
        ("minus < zero", "true"),
        ("zero >= zero", "true"),
        ("nan > zero", "true"),
        ("zero < nan", "true"),
        ("nan >= nan", "true"),
        ("missing > a", "null"),
        ("a > missing", "null"),
        ("a = missing", "false"),
        ("missing = a", "null"),
        ("a = same", "true"),
        ("a = s", "false"),
        ("5 = a", "true"),
        ("5 < big", "error"),
        ("99999999998 < big", "true"),
        ("5.5 = d", "true"),
        ("5 = 5.0", "true"),
        ("99999999999 = 99999999999.0", "true"),
        ("6 > 5", "true"),
        ("-99999999999 < big", "true"),
        ("5 = true", "false"),
        ("true = 5", "refused"),
        ("true = false", "false"),
        ("true <> false", "true"),
        ("(a = 5) = true", "true"),
        ("(a = 5) = 5", "false"),
        ("(a = 5) contains 'x'", "false"),
        ("-(a = 5) is null", "true"),
        ("- - 5 = a", "true"),
        ("-'x' is null", "true"),
        ("t = false", "false"),
        ("NULL", "null"),
        ("NULL is null", "true"),
        ("NOT NULL", "null"),
        ("a = 5 or d > 5", "true"),
        ("d > 5 or a = 5", "error"),
        ("a = 6 and d > 5", "false"),
        ("a = 6 or missing = 1 or a = 7", "null"),
        ("a not 5", "refused"),
        ("a is 5", "refused"),
        ("(a = 5", "refused"),
        ("-a", "refused"),
        ("5", "refused"),
        ("(a = 5) > 3", "refused"),
        ("'a' in ('a')", "refused"),
        ("a = 9223372036854775808", "refused"),
        ("a = 99999999999999999999999", "refused"),
        ("a = 1e400", "refused"),
        ("a between 'x' and 5", "refused"),
        ("a contains 5", "refused"),
        ("a between 5", "refused"),
        ("a = 5 -- the rest", "true"),
        ("a = -- the five\n5", "true"),
        ("a /* one */ = /** two **/ 5", "true"),
        ("a = 5 /* open", "refused"),
        ("a = 5 'open", "refused"),
    ],
)
def test_a_verdict_is_known(expression: str, expected: str) -> None:
    assert result(expression) == expected


def test_a_message_is_delivered_only_if_the_expression_is_true() -> None:
    assert Expression("a = 5").matches(MESSAGE)
    assert not Expression("a = 6").matches(MESSAGE)
    assert not Expression("missing = 6").matches(MESSAGE)  # null
    assert not Expression("d > 5").matches(MESSAGE)  # an error


# ---- limits ----


def refusal_of(expression: str) -> str:
    with pytest.raises(InvalidSql) as caught:
        Expression(expression)
    return caught.value.problem


def test_an_expression_may_have_many_conditions_but_not_any_number() -> None:
    many = " OR ".join(["a = 1"] * 1_000)
    assert Expression(many).terms == 1_000
    assert not Expression(many).matches(MESSAGE)
    assert "more than 1000 comparisons" in refusal_of(f"{many} OR a = 5")
    assert "more than 1000 comparisons" in refusal_of(" AND ".join(["a"] * 1_001))


def test_an_expression_may_be_long_but_not_of_any_length() -> None:
    values = ", ".join([f"'{number:06}'" for number in range(6_500)])
    assert Expression(f"a IN ({values}, '5')").matches(MESSAGE)
    assert "more than 65536 characters" in refusal_of("a = 5 " + " " * 100_000)


def test_an_expression_with_many_minus_signs_takes_little_time() -> None:
    # A `--` begins a comment if its line has an end. The search for it took two seconds when each
    # one was searched for on its own.
    expression = "a=--1 OR " * 999 + "x" * 56_000
    begun = time.process_time()
    assert Expression(expression).terms == 1_000
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a = 5 -- one\r\n AND a --\n = 5", "true"),
        ("a = 5 -- one\n AND a = --5", "true"),
        ("a = -- one\n --5", "true"),
        ("a = --\r5", "true"),
    ],
)
def test_a_comment_ends_with_its_line(expression: str, expected: str) -> None:
    assert result(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 65 + "a = 5" + ")" * 65,
        "(" * 30_000,
        "NOT " * 65 + "a = 5",
        "a > " + "-" * 65 + "5",
        "a = " + "+" * 30_000 + "5",
        "a" + " = 1" * 65,
        "a" + " IS NULL" * 65,
        "a" + " CONTAINS 'x'" * 65,
        # Each bracket closes before the chain becomes long, so only the tree is deep.
        "(" * 10 + "a" + (" = 1" * 9 + ")") * 10 + " = 1",
    ],
)
def test_conditions_may_be_inside_of_each_other_but_not_at_any_depth(expression: str) -> None:
    assert "more than 64 conditions are inside of each other" in refusal_of(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 64 + "a = 5" + ")" * 64,
        "NOT " * 60 + "(a = 5)",
        "a = " + "-" * 60 + "5",
        "a" + " = 1" * 60,
    ],
)
def test_the_depth_below_the_limit_is_evaluated(expression: str) -> None:
    assert verdict(expression, [MESSAGE]) in (["true"], ["false"])
