"""Hints in errors about unknown names: the name that was probably meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def similar_names(
    word: str, known: Iterable[str], *, count: int = 1, likeness: float = 0.6
) -> list[str]:
    """Return the known names that a word resembles, the best match first. Case does not matter.

    Args:
        word: A name that is not known.
        known: The names that are.
        count: How many to return at most.
        likeness: From 0, any name matches, to 1, only equal ones do.
    """
    from difflib import get_close_matches  # only errors need it

    by_lower = {name.lower(): name for name in known}
    return [by_lower[name] for name in get_close_matches(word.lower(), by_lower, count, likeness)]


def hint(word: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: what was meant, or which names exist."""
    names = list(known)
    for likely in similar_names(word, names):
        return f"; did you mean {likely!r}?"
    return f"; known are {', '.join(names)}"
