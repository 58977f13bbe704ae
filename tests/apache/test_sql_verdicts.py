"""Our SQL92 filters, compared with the parser of the real brokers.

    python -m tests.apache.test_sql_verdicts

writes a sample of the verdicts of 5.5.0 to `tests/unit/filters/verdicts.jsonl`, which unit tests
read without Java.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.apache.java_client import JavaClient
from tests.unit.filters.random_sql import (
    SAMPLE,
    Verdict,
    expression,
    mistaken,
    properties,
    read_sample,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apache.fixtures import ApacheVersions

#: Words that brokers know from 5.1.3 on; for older ones they are names.
NEWER_WORDS = re.compile("contains|startswith|endswith", re.IGNORECASE)
_EXPRESSIONS = 500
_MESSAGES = 8


def a_round(seed: int) -> tuple[list[str], list[dict[str, str]]]:
    source = Random(seed)
    messages = [properties(source) for _ in range(_MESSAGES)]
    makers = (expression, expression, mistaken)
    return [source.choice(makers)(source) for _ in range(_EXPRESSIONS)], messages


def ask(
    java: JavaClient, texts: Sequence[str], messages: Sequence[dict[str, str]]
) -> list[Verdict]:
    verdicts: list[Verdict] = java.call("sql.evaluate", expressions=texts, properties=messages)
    assert len(verdicts) == len(texts)
    return verdicts


@pytest.mark.parametrize("seed", range(20))
def test_each_expression_has_the_verdict_of_the_real_parser(
    apache_versions: ApacheVersions, seed: int
) -> None:
    texts, messages = a_round(seed)
    theirs = ask(apache_versions.java_client("5.5.0"), texts, messages)
    ours = [verdict(text, messages) for text in texts]
    differences = [pair for pair in zip(texts, ours, theirs, strict=True) if pair[1] != pair[2]]
    assert differences == []
    results = {result for each in theirs if each != "refused" for result in each}
    assert results == {"true", "false", "null", "error"}  # else the round compares too little


@pytest.mark.parametrize("seed", range(100, 105))
def test_old_brokers_have_the_same_verdicts_about_expressions_without_newer_words(
    apache_versions: ApacheVersions, seed: int
) -> None:
    texts, messages = a_round(seed)
    texts = [text for text in texts if NEWER_WORDS.search(text) is None]
    theirs = ask(apache_versions.java_client("4.9.4"), texts, messages)
    assert [verdict(text, messages) for text in texts] == theirs


def test_old_brokers_ignore_newer_words(apache_versions: ApacheVersions) -> None:
    """So our client refuses them there: see `Sql.refused_by_old_broker`."""
    java = apache_versions.java_client("4.9.4")
    assert ask(java, ["s CONTAINS 'x'", "s = 'axe' AND s NOT CONTAINS 'y'"], [{"s": "axe"}]) == [
        ["false"],  # the bare name
        "refused",
    ]


def test_the_sample_for_the_unit_tests_is_up_to_date(apache_versions: ApacheVersions) -> None:
    messages, verdicts = read_sample()
    java = apache_versions.java_client("5.5.0")
    assert list(verdicts.values()) == ask(java, list(verdicts), messages)


def main() -> None:
    """Write the sample: verdicts of every kind."""
    texts, messages = a_round(4711)
    with JavaClient("5.5.0") as java:
        verdicts = ask(java, texts, messages)
    origin = "rocketmq-filter 5.5.0, by python -m tests.apache.test_sql_verdicts"
    lines = [{"origin": origin, "messages": messages}, *zip(texts, verdicts, strict=True)]
    SAMPLE.write_text("".join([json.dumps(line) + "\n" for line in lines]))
    print(f"{SAMPLE}: {len(texts)} expressions")


if __name__ == "__main__":
    main()
