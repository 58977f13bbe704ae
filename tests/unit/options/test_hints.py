from __future__ import annotations

from downrange.options.hints import hint, similar_names

KNOWN = ["subscribe", "subscribePattern", "startingOffsets", "tags"]


def test_the_best_match_comes_first() -> None:
    assert similar_names("subscribePatern", KNOWN) == ["subscribePattern"]
    assert similar_names("subscrib", KNOWN, count=2) == ["subscribe", "subscribePattern"]


def test_case_does_not_matter() -> None:
    assert similar_names("STARTINGOFFSETS", KNOWN) == ["startingOffsets"]


def test_likeness_says_how_close_a_match_must_be() -> None:
    assert similar_names("tagger", KNOWN, likeness=0.75) == []
    assert similar_names("tagger", KNOWN, likeness=0.6) == ["tags"]


def test_a_hint_names_what_was_meant_or_what_exists() -> None:
    assert hint("tag", KNOWN) == "; did you mean 'tags'?"
    assert hint("zzz", iter(KNOWN)) == (
        "; known are subscribe, subscribePattern, startingOffsets, tags"
    )
