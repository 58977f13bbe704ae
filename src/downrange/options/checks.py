"""Checks that settings have in common; each names the option and its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_at_least(smallest: int, name: str, value: float) -> None:
    """Refuse a number below the smallest that makes sense."""
    if not value >= smallest:  # not a number compares as false
        raise OptionError(f"{name}={value} is less than {smallest}")


def check_positive(name: str, seconds: float) -> None:
    """Refuse what is no time span."""
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{name}={seconds} is no time span in seconds above 0")


def check_one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a word that is none of those known."""
    choices = list(allowed)
    if value not in choices:
        raise OptionError(f"{name}={value!r} is none of {', '.join(map(str, choices))}")
