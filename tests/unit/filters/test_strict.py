"""The check of expressions in the client: what Apache ignores is refused, with the way out."""

from __future__ import annotations

from random import Random

import pytest

from downrange.errors import InvalidSql
from downrange.filters.grammar import parse
from downrange.filters.strict import check
from downrange.filters.tokens import END
from tests.unit.filters.random_sql import expression as random_expression
from tests.unit.filters.random_sql import mistaken, properties, verdict


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a <> 5",
        "a = -5",
        "a > 5 AND b <= 6.5 OR c BETWEEN -1 AND 1",
        "NOT (a = 5)",
        "NOT (a = 5 AND b = 6)",
        "(a = 5)",
        "a = TRUE AND b = FALSE",
        "a = 'it''s'",
        "a IN ('x', 'y') AND b NOT IN ('z')",
        "a CONTAINS 'x' OR b NOT STARTSWITH 'y' OR c ENDSWITH 'z'",
        "a IS NULL OR b IS NOT NULL",
        "(a = 5) IS NULL",
        "a NOT BETWEEN 1 AND 5",
        "5 > a",
        "a = b",
        "a > b",
        "+5 < a",
        "TRUE",
        "1 = 1",
        "'x' <> 'y'",
        "-1 <> 1",
        "a = 5 -- with a line break\n",
        "/* first */ a = 5 /* last */",
        "TAGS = 'new'",
    ],
)
def test_what_means_what_it_says_is_accepted(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    ("expression", "mark", "words"),
    [
        # Apache reads only the part before the mark.
        ("s LIKE 'h%'", "LIKE", "there is no LIKE: write name STARTSWITH 'a'"),
        ("a = 5 like 'h%'", "like", "STARTSWITH"),
        ("a = 5 anything", "anything", "ignores everything from here on: join conditions by AND"),
        ("a = 5 b = 6", "b", "join conditions"),
        ("a = 5 'x'", "'x'", "join conditions"),
        ("a = 5)", ")", "this bracket was not opened"),
        ("a = 5, 6", ",", "leave it out"),
        ("order-id = 1", "-id", "a property with - cannot be used"),
        ("a - 1 = 6", "- 1", "there is no arithmetic"),
        ("a + 1 = 6", "+ 1", "there is no arithmetic"),
        ("a = 007", "07", "without leading zeros"),
        ("a = 00.5 0.5", "0.5", "join conditions"),
        ("a = 5x", "x", "a text stands in quotes"),
        ("a = 5 -- no line break", "--", "end the comment with a line break"),
        # Apache refuses these, too.
        ("a != 5", "!=", "write <> for not equal"),
        ("a == 5", "= 5", "write = for equal"),
        ("a = 5 && b = 6", "&&", "write AND"),
        ("a = 5 || b = 6", "||", "write OR"),
        ("!a", "!a", "write NOT"),
        ("order.id = 1", ".id", "a name has letters"),
        ("a/b = 1", "/b", "a name has letters"),
        ("a * 2 = 6", "*", "no arithmetic"),
        ("a % 2 = 0", "%", "no arithmetic"),
        ('a = "x"', '"x"', "single quotes"),
        ("`a` = 5", "`a`", "without quotes"),
        ("a = 'x", "'x", "close the text"),
        ("a = 5;", ";", "leave out the semicolon"),
        ("a = #", "#", "'#' is not a word"),
        ("s > 'x'", "'x'", "the order of values is that of numbers: texts can be compared by ="),
        ("s BETWEEN 'a' AND 'z'", "'a'", "texts can be compared by ="),
        ("a > 0.0", "0.0", "write 0 if the property has whole numbers"),
        ("a BETWEEN 9 AND 1", "9", "exchange the two"),
        ("a IN (5, 6)", "5", "numbers stand in quotes there, too"),
        ("a = NULL", "NULL", "write name IS NULL"),
        ("a IS TRUE", "TRUE", "write name = TRUE"),
        ("a NOT 5", "NOT", "NOT (a = 5)"),
        ("NOT a > 5", "NOT", "write NOT before a comparison in brackets: NOT (a > 5)"),
        ("(a = 1) > 5", "= 1", "a condition has no order"),
        ("5 = TRUE AND TRUE = 5", "= 5", "not compared with other values"),
        ("a >", "", "is missing here; found the end"),
        ("(a = 5", "", "the bracket ( is not closed"),
        ("  ", "  ", "the SQL expression is empty"),
        # Apache accepts these, but they cannot be meant.
        ("NOT a = 5", "NOT", "NOT belongs to the name alone here: write NOT (a = …)"),
        ("NOT a <> 5", "NOT", "write NOT (a = …)"),
        ("NOT a CONTAINS 'x'", "NOT", "write a NOT CONTAINS 'x'"),
        ("NOT a IS NULL", "IS", "write a IS NOT NULL"),
        ("paid", "paid", "a name alone never matches: write paid = TRUE"),
        ("paid AND a = 5", "paid", "a name alone never matches"),
        ("NOT paid", "paid", "a name alone never matches"),
        ("TRUE = paid", "TRUE", "write the property on the left: name = TRUE"),
        ("5 <> a", "5", "a missing property counts as different"),
        ("-5 = a", "-5", "write the property on the left"),
        ("5 = TRUE", "5", "two constants of different types"),
        ("5 = '5'", "5", "two constants of different types"),
        ("a = 5 = TRUE", "= 5", "write the condition alone"),
        ("a = (b = 5)", "= 5)", "write the condition alone"),
        ("a = 1 OR -a < 0", "-a", "the sign works on numbers only"),
        ("-'x' = a", "-'x'", "the sign works on numbers only"),
        ("a CONTAINS ''", "CONTAINS", "CONTAINS '' never matches, also with NOT"),
        ("5 CONTAINS 'x'", "5", "CONTAINS looks into the value of a property"),
        ("NULL", "NULL", "NULL alone never matches"),
        ("a = 5 OR NULL", "NULL", "NULL alone never matches"),
    ],
)
def test_what_apache_ignores_is_refused_with_the_place_and_the_way_out(
    expression: str, mark: str, words: str
) -> None:
    with pytest.raises(InvalidSql) as caught:
        check(expression)
    text, line, caret = str(caught.value).split("\n")
    assert words in text
    assert expression[caught.value.position :].startswith(mark)
    assert (line, caret) == (f"  {expression}", f"  {' ' * caught.value.position}^")


def test_only_the_line_of_a_mistake_is_shown_and_a_part_of_a_long_one() -> None:
    with pytest.raises(InvalidSql) as caught:
        check("a = 5 AND\n\tb != 6 AND\nc = 7")
    assert str(caught.value).split("\n")[1:] == ["   b != 6 AND", "     ^"]
    with pytest.raises(InvalidSql) as caught:
        check(" OR ".join(["a = 5"] * 100) + " ! " + " " * 100)
    _, line, caret = str(caught.value).split("\n")
    assert len(line) <= 78
    assert line[caret.index("^")] == "!"


def test_the_first_search_is_found() -> None:
    assert check("a = 5").search_at is None
    assert check("a = 5 AND (b CONTAINS 'x' OR c ENDSWITH 'y')").search_at == 13


@pytest.mark.parametrize("seed", range(10))
def test_what_is_accepted_is_read_whole_by_apaches_grammar_and_gives_no_surprise(seed: int) -> None:
    source = Random(seed)
    accepted = 0
    for _ in range(300):
        text = source.choice([random_expression, mistaken])(source)
        try:
            check(text)
        except InvalidSql:
            continue
        accepted += 1
        assert parse(text).rest.kind == END
        assert verdict(text, [properties(source)]) != "refused"
    assert accepted > 10
