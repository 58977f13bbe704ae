"""Options of Spark: typed, each taken once, and a typo is always an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.errors import OptionError
from downrange.spark.option_reader import OptionReader

if TYPE_CHECKING:
    from collections.abc import Callable


def test_names_are_case_insensitive() -> None:
    reader = OptionReader({"SubScribe": "orders", "FAILONDATALOSS": "No"})
    assert reader.has("subscribe")
    assert reader.text("subscribe") == "orders"
    assert reader.boolean("failOnDataLoss", True) is False
    reader.reject_unknown()


def test_what_is_not_given_has_its_default() -> None:
    reader = OptionReader({})
    assert reader.text("a") is None
    assert reader.text("a", "b") == "b"
    assert reader.boolean("c", True) is True
    assert reader.number("d", 7) == 7
    assert reader.number_or_none("e") is None
    assert reader.milliseconds("f", 200) == 0.2
    assert reader.duration("g", 900.0) == 900.0
    assert reader.words("h") == ()
    assert reader.json("i") is None
    assert reader.choice("j", "none", ("none", "queue")) == "none"


def test_the_environment_counts_if_no_option_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "from-outside")
    assert OptionReader({}).text("place", env="PLACE") == "from-outside"
    assert OptionReader({"place": "given"}).text("place", env="PLACE") == "given"
    monkeypatch.setenv("PLACE", "")
    assert OptionReader({}).text("place", "default", env="PLACE") == "default"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900.0), ("200 ms", 0.2), ("30", 30.0), ("1.5h", 5400.0), ("2 SECONDS", 2.0)],
)
def test_a_duration_names_its_unit(text: str, seconds: float) -> None:
    assert OptionReader({"d": text}).duration("d", 0.0) == pytest.approx(seconds)


def test_words_are_separated_by_commas_and_counted_once() -> None:
    assert OptionReader({"w": " a, b,,a "}).words("w") == ("a", "b")


@pytest.mark.parametrize(
    ("given", "take", "problem"),
    [
        ("", "text", "is empty; leave it out"),
        (" ", "text", "is empty; leave it out"),
        ("maybe", "truth", "neither true nor false"),
        ("ten", "number", "not a whole number"),
        ("0", "number", "less than 1"),
        ("15 parsecs", "duration", "not a duration; write 500ms, 30s or 15m"),
        ("soon", "duration", "not a duration"),
        (",", "words", "holds no name"),
        ("[1]", "json", "not a JSON object"),
        ("{", "json", "not JSON"),
        ("both", "choice", "not one of none, queue"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(given: str, take: str, problem: str) -> None:
    reader = OptionReader({"Option": given})
    takes: dict[str, Callable[[], object]] = {
        "text": lambda: reader.text("option"),
        "truth": lambda: reader.boolean("option", True),
        "number": lambda: reader.number("option", 1),
        "duration": lambda: reader.duration("option", 1.0),
        "words": lambda: reader.words("option"),
        "json": lambda: reader.json("option"),
        "choice": lambda: reader.choice("option", "none", ("none", "queue")),
    }
    with pytest.raises(OptionError, match="option") as caught:
        takes[take]()
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("maxOfsetsPerTrigger", "did you mean maxOffsetsPerTrigger?"),
        ("kafka.bootstrap.servers", "nameServer"),
        ("pushdown", "queueIds, brokers, tags"),
        ("entirelyElse", "known are maxOffsetsPerTrigger"),
    ],
)
def test_an_unknown_option_is_rejected_with_a_hint(name: str, hint: str) -> None:
    reader = OptionReader({name: "1"})
    reader.number_or_none("maxOffsetsPerTrigger")
    with pytest.raises(OptionError, match=f"unknown option '{name}'") as caught:
        reader.reject_unknown()
    assert hint in str(caught.value)


def test_an_option_that_looks_like_another_is_named() -> None:
    assert (
        OptionReader({"subscibe": "t"}).similar(("subscribe",))
        == "'subscibe'; did you mean subscribe?"
    )
    assert OptionReader({"nothing": "t"}).similar(("subscribe",)) is None
